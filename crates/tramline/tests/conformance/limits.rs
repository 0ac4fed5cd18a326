//! Limits over all workers: how many events are under way.

use crate::bed::*;
use std::time::Duration;

conformance![
    no_more_is_under_way_than_the_limit_says,
    a_settled_event_frees_its_slot,
    a_failure_and_a_release_free_their_slots,
    a_partly_settled_lease_frees_as_many_slots,
    slots_of_a_dead_worker_come_back_exactly_when_its_lease_ends,
    many_ended_leases_are_all_looked_after,
    an_extended_lease_keeps_its_slot,
    a_worker_that_is_buried_frees_its_slots,
    a_slice_is_split_so_that_nothing_is_hoarded,
    a_claim_that_meets_the_limit_says_when_to_look_again,
    settling_wakes_those_who_wait_for_a_slot,
    a_limit_may_be_raised_lowered_and_taken_away,
    eight_that_claim_at_once_never_have_more_than_the_limit,
    a_consumed_event_has_a_slot_until_it_is_settled,
    limits_survive_random_histories,
    impossible_limits_are_refused,
];

async fn no_more_is_under_way_than_the_limit_says(bed: Bed) {
    for (name, policy) in both(at_most(5)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let first = queue.claim_by(ANNA, 3).await;
        assert_eq!((ids(&first).len(), first.limited), (3, false), "{name}");
        let second = queue.claim_by(BERT, 100).await;
        assert_eq!((ids(&second).len(), second.limited), (2, true), "{name}");
        let third = queue.claim_by(ANNA, 100).await;
        assert_eq!((ids(&third).len(), third.limited), (0, true), "{name}");
        assert_eq!(queue.counts().await.leased, 5, "{name}");
    }
}

async fn a_settled_event_frees_its_slot(bed: Bed) {
    for (name, policy) in both(at_most(2)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let first = queue.claim(100).await;
        assert!(queue.done(&first).await, "{name}");
        assert_eq!(ids(&queue.claim(100).await).len(), 2, "{name}");
    }
}

async fn a_failure_and_a_release_free_their_slots(bed: Bed) {
    for (name, policy) in both(at_most(2)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let failed = queue.claim(100).await;
        assert!(queue.settle(&failed, Outcome::retry("no")).await, "{name}");
        let given_back = queue.claim(100).await;
        assert_eq!(ids(&given_back).len(), 2, "{name}");
        queue.release(&given_back).await;
        assert_eq!(ids(&queue.claim(100).await).len(), 2, "{name}");
    }
}

async fn a_partly_settled_lease_frees_as_many_slots(bed: Bed) {
    let queue = bed.queue(limited(at_most(4))).await;
    bed.emit_plain(10).await;
    let claimed = queue.claim(100).await;
    queue.settle_each(&claimed, &[(ids(&claimed)[0], Outcome::Done)]).await;
    assert_eq!(ids(&queue.claim(100).await).len(), 1);
}

async fn slots_of_a_dead_worker_come_back_exactly_when_its_lease_ends(bed: Bed) {
    for (name, policy) in both(at_most(3)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let lost = queue.claim_by(ANNA, 100).await;
        let lease = lost.slices[0].until.since(bed.time());
        bed.pass(lease - Duration::from_millis(1));
        assert!(ids(&queue.claim_by(BERT, 100).await).is_empty(), "{name}: not before");
        bed.pass(Duration::from_millis(1));
        let mut under_way = 0;
        for _ in 0..10 {
            under_way += ids(&queue.claim_by(BERT, 100).await).len();
        }
        assert_eq!(under_way, 3, "{name}: all of them, and no more");
        assert!(!queue.done(&lost).await, "{name}");
    }
}

async fn many_ended_leases_are_all_looked_after(bed: Bed) {
    let queue = bed.queue(limited(at_most(200))).await;
    for _ in 0..200 {
        bed.emit(plain_event()).await;
    }
    assert_eq!(ids(&queue.claim_by(ANNA, 1000).await).len(), 200);
    bed.pass(LEASE);
    bed.emit_plain(200).await;
    let leave = Claim { suspects: Suspects::Leave, owner: BERT, ..queue.wish(1000) };
    assert_eq!(ids(&queue.take(leave).await).len(), 200, "no slot is still taken by the dead");
}

async fn an_extended_lease_keeps_its_slot(bed: Bed) {
    for (name, policy) in both(at_most(1)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let claimed = queue.claim_by(ANNA, 1).await;
        bed.pass(seconds(9));
        queue.extend(&claimed).await;
        bed.pass(seconds(9));
        assert!(ids(&queue.claim_by(BERT, 1).await).is_empty(), "{name}");
        assert!(queue.done(&claimed).await, "{name}");
    }
}

async fn a_worker_that_is_buried_frees_its_slots(bed: Bed) {
    for (name, policy) in both(at_most(2)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        bed.beat(ANNA, "anna").await;
        queue.claim_by(ANNA, 100).await;
        bed.pass(seconds(7));
        assert!(ids(&queue.claim_by(BERT, 100).await).is_empty(), "{name}");
        let swept = bed.sweep(Some(seconds(6))).await;
        assert!(swept.wake.contains(&queue.id), "{name}");
        assert!(!ids(&queue.claim_by(BERT, 100).await).is_empty(), "{name}");
    }
}

async fn a_slice_is_split_so_that_nothing_is_hoarded(bed: Bed) {
    let queue = bed.queue(limited(at_most(3))).await;
    let emitted = bed.emit_plain(10).await;
    let claimed = queue.claim_by(ANNA, 64).await;
    assert_eq!(sorted_ids(&claimed), emitted[..3]);
    assert_eq!(queue.counts().await, Counts { ready: 7, leased: 3, ..Counts::default() });
    assert!(queue.done(&claimed).await);
    assert_eq!(sorted_ids(&queue.claim_by(BERT, 64).await), emitted[3..6]);
}

async fn a_claim_that_meets_the_limit_says_when_to_look_again(bed: Bed) {
    for (name, policy) in both(at_most(1)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        emit_twenty(&bed).await;
        let until = queue.claim_by(ANNA, 1).await.slices[0].until;
        let refused = queue.claim_by(BERT, 1).await;
        assert_eq!((refused.limited, refused.next_due), (true, Some(until)), "{name}");
    }
}

async fn settling_wakes_those_who_wait_for_a_slot(bed: Bed) {
    let free = bed.queue_named("free", &[TOPIC], unordered()).await;
    bed.emit_plain(1).await;
    let claimed = free.claim(1).await;
    let done = |claimed: &Claimed| vec![(ids(claimed)[0], Outcome::Done)];
    assert!(!free.try_settle(&claimed, &done(&claimed)).await.unwrap().wake, "nobody waits without a limit");
    for (name, policy) in both(at_most(1)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let claimed = queue.claim(1).await;
        assert!(queue.try_settle(&claimed, &done(&claimed)).await.unwrap().wake, "{name}");
        assert!(
            !queue.try_settle(&claimed, &done(&claimed)).await.unwrap().wake,
            "{name}: a lost lease frees nothing"
        );
    }
}

async fn a_limit_may_be_raised_lowered_and_taken_away(bed: Bed) {
    for (name, policy) in both(at_most(2)) {
        let queue = bed.queue_named(name, &[TOPIC], policy.clone()).await;
        emit_twenty(&bed).await;
        let policy = |limits| Policy { limits, ..policy.clone() };
        assert_eq!(ids(&queue.claim_by(ANNA, 100).await).len(), 2, "{name}");
        bed.queue_named(name, &[TOPIC], policy(at_most(5))).await;
        assert_eq!(ids(&queue.claim_by(ANNA, 100).await).len(), 3, "{name}");
        bed.queue_named(name, &[TOPIC], policy(at_most(1))).await;
        assert!(ids(&queue.claim_by(ANNA, 100).await).is_empty(), "{name}");
        bed.queue_named(name, &[TOPIC], policy(Limits::default())).await;
        let rest = queue.claim_by(ANNA, 100).await;
        assert_eq!((ids(&rest).len(), rest.limited), (15, false), "{name}");
    }
}

async fn eight_that_claim_at_once_never_have_more_than_the_limit(bed: Bed) {
    for (name, policy) in both(at_most(7)) {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        for chunk in 0..8 {
            let keys = (0..25).map(|key| keyed(&format!("{chunk} {key}")));
            bed.emit_together(keys.collect()).await;
        }
        let twin = bed.twin().await;
        let done = in_parallel(8, |number| {
            let queue = queue.through(if number % 2 == 0 { twin.clone() } else { bed.clone() });
            async move {
                let mut done = 0;
                while done < 200 {
                    let claim =
                        Claim { suspects: Suspects::Leave, owner: Incarnation(number), ..queue.wish(3) };
                    let claimed = queue.take(claim).await;
                    let leased = queue.counts().await.leased;
                    assert!(leased <= 7, "{leased} are under way");
                    if claimed.slices.is_empty() && queue.counts().await == Counts::default() {
                        return done;
                    }
                    done += ids(&claimed).len();
                    assert!(queue.done(&claimed).await);
                }
                done
            }
        });
        assert_eq!(done.await.into_iter().sum::<usize>(), 200, "{name}");
    }
}

async fn a_consumed_event_has_a_slot_until_it_is_settled(bed: Bed) {
    let queue = bed.queue(Policy { limits: at_most(2), ..at_most_once() }).await;
    bed.emit_plain(10).await;
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed).len(), 2);
    assert!(ids(&queue.claim(10).await).is_empty());
    queue.done(&claimed).await;
    let lost = queue.claim(10).await;
    assert_eq!(ids(&lost).len(), 2);
    bed.pass(LEASE);
    assert_eq!(ids(&queue.claim(10).await).len(), 2, "what was interrupted has no slot");
    assert_eq!(queue.dead_ids().await, sorted_ids(&lost));
}

/// Claims, settlements, deaths and passing time in a random order, against a model that only counts.
async fn limits_survive_random_histories(bed: Bed) {
    let most = 4;
    let rate = Rate::new(9, seconds(20));
    let limits = Limits { concurrency: Some(most), per_key_concurrency: Some(2), rate: Some(rate) };
    let queue = bed.queue(limited(limits)).await;
    let mut random = Random(0x5eed);
    let mut held: Vec<(Claimed, Time)> = Vec::new();
    let mut starts: Vec<(Time, usize)> = Vec::new();
    for _ in 0..150 {
        match random.below(6) {
            0 => {
                let keys = (0..1 + random.below(6)).map(|_| keyed(["a", "b", "c"][random.below(3)]));
                bed.emit_together(keys.collect()).await;
            }
            1 => bed.pass(Duration::from_millis(random.below(9_000) as u64)),
            2 if !held.is_empty() => {
                let (claimed, until) = held.swap_remove(random.below(held.len()));
                let taken = queue.settle(&claimed, Outcome::Done).await;
                assert!(taken || until <= bed.time(), "a lease that holds is accepted");
            }
            _ => {
                let claimed =
                    queue.claim_by(Incarnation(1 + random.below(3) as i64), 1 + random.below(5) as u32).await;
                starts.push((bed.time(), ids(&claimed).len()));
                if let Some(slice) = claimed.slices.first() {
                    held.push((claimed.clone(), slice.until));
                }
            }
        }
        held.retain(|(_, until)| *until > bed.time());
        let live = || held.iter().flat_map(|(claimed, _)| &claimed.slices).flat_map(|slice| &slice.events);
        assert!(live().count() <= most as usize);
        for key in ["a", "b", "c"] {
            assert!(live().filter(|event| event.event.key.as_deref() == Some(key)).count() <= 2);
        }
        let since = starts.iter().filter(|(at, _)| at.after(rate.per) > bed.time());
        assert!(since.map(|(_, events)| events).sum::<usize>() <= rate.events as usize);
    }
    // Whatever happened, everything that is left is done in the end.
    for _ in 0..1_000 {
        if queue.counts().await == Counts::default() {
            return;
        }
        let claimed = queue.claim(100).await;
        queue.done(&claimed).await;
        bed.pass(seconds(10));
    }
    panic!("left: {:?}", queue.counts().await);
}

/// Small and repeatable.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

async fn impossible_limits_are_refused(bed: Bed) {
    let wrong = [
        limited(at_most(0)),
        limited(at_most(10_001)),
        limited(per_key(0)),
        Policy { limits: per_key(1), ..ordered() },
        limited(rate(0, seconds(1))),
        limited(rate(1_000_001, seconds(1))),
        limited(rate(1, Duration::ZERO)),
        limited(rate(1, seconds(32 * 24 * 3600))),
        Policy { limits: at_most(1), ..pushed() },
    ];
    for policy in wrong {
        let refused = bed.subscribe("queue", &[TOPIC], policy, Start::Now).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid);
    }
}

//! Leases: how long a claim holds, how it is renewed, given back and lost.

use crate::bed::*;

conformance![
    a_lease_keeps_others_away_until_it_ends,
    an_expired_lease_is_due_again,
    an_extended_lease_lasts_longer,
    an_extension_may_be_of_another_length,
    extending_one_lease_of_a_lane_extends_the_lane,
    a_lost_lease_cannot_be_extended,
    a_lost_lease_settles_nothing,
    the_next_lease_of_the_same_worker_is_another_one,
    a_released_event_can_be_claimed_at_once,
    a_release_is_not_counted,
    a_release_tells_how_many_leases_it_gave_back,
    releasing_a_lost_lease_changes_nothing,
    a_released_lease_settles_nothing,
    a_released_lease_settles_nothing_even_if_its_lane_stays_and_the_event_is_claimed_again,
    what_was_settled_before_a_release_stays_settled,
    a_released_lane_is_free,
    giving_back_an_event_takes_back_the_later_ones_of_its_key,
    giving_back_an_event_takes_nothing_of_a_lease_but_its_key,
    giving_back_a_replayed_event_leaves_its_key_alone,
    a_lease_survives_being_written_down,
    a_lane_of_which_its_owner_knows_nothing_is_taken_over_at_once,
    a_lane_of_which_its_owner_knows_goes_on_under_the_same_lease,
    a_closed_lane_gives_nothing_more_until_its_owner_is_done_with_it,
    what_an_owner_knows_says_nothing_about_the_lanes_of_others,
];

async fn a_lease_keeps_others_away_until_it_ends(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let until = queue.claim_by(ANNA, 1).await.slices[0].until;
        bed.pass(until.since(bed.time()) - std::time::Duration::from_millis(1));
        assert!(ids(&queue.claim_by(BERT, 1).await).is_empty(), "{name}");
        assert_eq!(queue.counts().await.leased, 1, "{name}");
        bed.pass(std::time::Duration::from_millis(1));
        assert_eq!(queue.counts().await.ready, 1, "{name}");
        assert_eq!(ids(&queue.claim_by(BERT, 1).await).len(), 1, "{name}");
    }
}

async fn an_expired_lease_is_due_again(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(3).await;
    queue.claim_by(ANNA, 3).await;
    bed.pass(LEASE);
    assert_eq!(queue.counts().await, Counts { ready: 3, ..Counts::default() });
    assert_eq!(queue.drain().await, emitted);
}

async fn an_extended_lease_lasts_longer(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], Policy { lease: Some(seconds(10)), ..policy }).await;
        bed.emit(keyed("a")).await;
        let claimed = queue.claim_by(ANNA, 1).await;
        bed.pass(seconds(9));
        assert_eq!(queue.extend(&claimed).await, [Extended::Until(bed.time().after(seconds(10)))], "{name}");
        bed.pass(seconds(9));
        assert!(ids(&queue.claim_by(BERT, 1).await).is_empty(), "{name}");
        assert!(queue.done(&claimed).await, "{name}");
    }
}

async fn an_extension_may_be_of_another_length(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    let claimed = queue.claim(1).await;
    let lease = Some(seconds(500));
    let extend = Extend { subscription: queue.id, leases: leases(&claimed), lease, now: bed.now() };
    let until = bed.time().after(seconds(500));
    assert_eq!(bed.store.extend(extend).await.unwrap(), [Extended::Until(until)]);
}

async fn extending_one_lease_of_a_lane_extends_the_lane(bed: Bed) {
    let queue = bed.lane(Policy { lease: Some(seconds(10)), ..ordered() }).await;
    bed.emit_keys(&["a", "b"]).await;
    let first = queue.claim_by(ANNA, 1).await;
    let second = queue.claim_by(ANNA, 1).await;
    bed.pass(seconds(9));
    queue.extend(&first).await;
    bed.pass(seconds(9));
    assert!(ids(&queue.claim_by(BERT, 1).await).is_empty());
    assert!(queue.done(&second).await);
}

async fn a_lost_lease_cannot_be_extended(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let lost = queue.claim_by(ANNA, 1).await;
        bed.pass(LEASE);
        let taken = queue.claim_by(BERT, 1).await;
        assert_eq!(queue.extend(&lost).await, [Extended::Lost], "{name}");
        assert!(queue.done(&taken).await, "{name}");
        assert_eq!(
            queue.extend(&taken).await,
            [Extended::Lost],
            "{name}: nothing is left of a settled lease"
        );
    }
}

async fn a_lost_lease_settles_nothing(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let lost = queue.claim_by(ANNA, 1).await;
        bed.pass(LEASE);
        let taken = queue.claim_by(BERT, 1).await;
        for outcome in [Outcome::Done, Outcome::retry("no"), Outcome::dead("no")] {
            assert!(!queue.settle(&lost, outcome).await, "{name}");
        }
        assert_eq!(queue.counts().await, Counts { leased: 1, ..Counts::default() }, "{name}");
        assert!(queue.done(&taken).await, "{name}");
    }
}

async fn the_next_lease_of_the_same_worker_is_another_one(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let old = queue.claim(1).await;
        bed.pass(LEASE);
        let new = queue.claim(1).await;
        assert!(!queue.done(&old).await, "{name}");
        assert!(queue.done(&new).await, "{name}");
    }
}

async fn a_released_event_can_be_claimed_at_once(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let id = bed.emit(keyed("a")).await;
        queue.release(&queue.claim_by(ANNA, 1).await).await;
        assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() }, "{name}");
        let claimed = queue.claim_by(BERT, 1).await;
        assert_eq!(ids(&claimed), [id], "{name}");
        assert!(queue.done(&claimed).await, "{name}");
    }
}

async fn a_release_tells_how_many_leases_it_gave_back(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        bed.emit(keyed("b")).await;
        let claimed = queue.claim(10).await;
        let (first, all) = (&claimed.slices[0], leases(&claimed));
        assert!(all.len() > 1, "{name}");
        let done = Claimed { slices: vec![first.clone()], ..claimed.clone() };
        assert!(queue.done(&done).await, "{name}");
        assert_eq!(queue.release(&claimed).await, all.len() as u64 - 1, "{name}: one was settled");
        assert_eq!(queue.release(&claimed).await, 0, "{name}: all are lost");
    }
}

async fn a_release_is_not_counted(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        queue.release(&queue.claim(1).await).await;
        let slice = queue.claim(1).await.slices.remove(0);
        assert_eq!((slice.attempts, slice.crashes, slice.replayed), (0, 0, false), "{name}");
    }
}

async fn releasing_a_lost_lease_changes_nothing(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let lost = queue.claim_by(ANNA, 1).await;
        bed.pass(LEASE);
        let taken = queue.claim_by(BERT, 1).await;
        queue.release(&lost).await;
        assert_eq!(queue.counts().await, Counts { leased: 1, ..Counts::default() }, "{name}");
        assert!(queue.done(&taken).await, "{name}");
        queue.release(&taken).await;
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
    }
}

async fn a_released_lease_settles_nothing(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let released = queue.claim(1).await;
        queue.release(&released).await;
        assert!(!queue.done(&released).await, "{name}");
        assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() }, "{name}");
    }
}

async fn a_released_lease_settles_nothing_even_if_its_lane_stays_and_the_event_is_claimed_again(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    bed.emit_keys(&["a", "b"]).await;
    let (first, second) = (queue.claim(1).await, queue.claim(1).await);
    queue.release(&second).await;
    let again = queue.claim(1).await;
    assert_eq!(ids(&again), ids(&second));
    assert!(!queue.done(&second).await);
    assert!(queue.done(&again).await && queue.done(&first).await);
}

async fn what_was_settled_before_a_release_stays_settled(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_plain(4).await;
        let claimed = queue.claim(4).await;
        queue.settle_each(&claimed, &[(emitted[0], Outcome::Done)]).await;
        queue.release(&claimed).await;
        assert_eq!(queue.drain().await, emitted[1..], "{name}");
    }
}

async fn a_released_lane_is_free(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a", "b"]).await;
    queue.release(&queue.claim_by(ANNA, 2).await).await;
    assert_eq!(ids(&queue.claim_by(BERT, 10).await), emitted);
}

/// Whoever kept the later event could settle it, and the earlier one would run after it.
async fn giving_back_an_event_takes_back_the_later_ones_of_its_key(bed: Bed) {
    for (name, policy) in [("least", ordered()), ("once", ordered_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_keys(&["a", "a", "a"]).await;
        let first = queue.claim(1).await;
        let (second, third) = (queue.claim(1).await, queue.claim(1).await);
        queue.release(&second).await;
        assert!(!queue.done(&third).await, "{name}");
        let again = queue.claim(10).await;
        assert_eq!(sorted_ids(&again), emitted[1..], "{name}");
        assert!(!queue.done(&third).await, "{name}: claimed again, but under another lease");
        assert!(queue.done(&first).await && queue.done(&again).await, "{name}");
    }
}

async fn giving_back_an_event_takes_nothing_of_a_lease_but_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let first = bed.emit(keyed("a")).await;
    let together: Vec<EventId> =
        bed.emit_together(vec![keyed("b"), keyed("a")]).await.iter().map(|event| event.id).collect();
    let (given, kept) = (queue.claim(1).await, queue.claim(2).await);
    queue.release(&given).await;
    let outcomes = [(together[0], Outcome::Done), (together[1], Outcome::Done)];
    assert_eq!(queue.settle_each(&kept, &outcomes).await, [true, false]);
    assert_eq!(sorted_ids(&queue.claim_by(BERT, 10).await), [first, together[1]]);
}

async fn giving_back_a_replayed_event_leaves_its_key_alone(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let done = bed.emit_keys(&["a"]).await;
    queue.drain().await;
    bed.emit_keys(&["a"]).await;
    let kept = queue.claim(1).await;
    queue.resend(&done).await;
    let replayed = queue.claim(1).await;
    assert_eq!(ids(&replayed), done);
    queue.release(&replayed).await;
    assert!(queue.done(&kept).await);
}

async fn a_lease_survives_being_written_down(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let mut claimed = queue.claim(1).await;
        claimed.slices[0].lease = claimed.slices[0].lease.to_string().parse().unwrap();
        assert!(queue.done(&claimed).await, "{name}");
    }
}

/// The answer of the first claim was lost: without this the worker would hold the lane as long as it takes from it.
async fn a_lane_of_which_its_owner_knows_nothing_is_taken_over_at_once(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let lost = queue.claim(1).await;
    let knows_nothing = Claim { known: Known::Only(Vec::new()), ..queue.wish(10) };
    let busy = queue.take(Claim { suspects: Suspects::Leave, ..knows_nothing.clone() }).await;
    assert!(ids(&busy).is_empty() && busy.suspects_wait);
    let again = queue.take(knows_nothing).await;
    assert_eq!((ids(&again), again.slices[0].crashes), (vec![emitted[0]], 1));
    assert!(!queue.done(&lost).await);
    assert!(queue.done(&again).await);
    assert_eq!(queue.drain().await, emitted[1..]);
}

async fn a_lane_of_which_its_owner_knows_goes_on_under_the_same_lease(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let first = queue.claim(1).await;
    let known = Known::Only(first.slices.iter().filter_map(|slice| slice.lease.held()).collect());
    let second = queue.take(Claim { known, ..queue.wish(10) }).await;
    assert_eq!(ids(&second), emitted[1..]);
    assert!(queue.done(&first).await && queue.done(&second).await);
}

async fn a_closed_lane_gives_nothing_more_until_its_owner_is_done_with_it(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "c"]).await;
    let first = queue.claim(1).await;
    let lost = queue.claim(1).await;
    let closed = |slice: &ClaimedSlice| slice.lease.held().map(|held| Held { closed: true, ..held });
    let known = Known::Only(first.slices.iter().filter_map(closed).collect());
    assert!(ids(&queue.take(Claim { known, ..queue.wish(10) }).await).is_empty());
    assert!(queue.done(&first).await);
    let again = queue.take(Claim { known: Known::Only(Vec::new()), ..queue.wish(10) }).await;
    assert_eq!(ids(&again), emitted[1..2]);
    assert!(!queue.done(&lost).await && queue.done(&again).await);
    assert_eq!(queue.drain().await, emitted[2..]);
}

async fn what_an_owner_knows_says_nothing_about_the_lanes_of_others(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    bed.emit_keys(&["a", "b"]).await;
    let annas = queue.claim(1).await;
    let berts = queue.take(Claim { owner: BERT, known: Known::Only(Vec::new()), ..queue.wish(10) }).await;
    assert!(ids(&berts).is_empty());
    assert!(queue.done(&annas).await);
}

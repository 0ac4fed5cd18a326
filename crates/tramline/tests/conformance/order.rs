//! Order: chains of keys, lanes and who holds them.

use crate::bed::*;
use std::collections::BTreeMap;

conformance![
    an_event_names_the_preceding_event_of_its_key,
    keys_of_different_topics_are_different_objects,
    the_head_of_a_key_is_its_last_event,
    keys_are_compared_byte_by_byte,
    parallel_emitters_make_one_gapless_chain_per_key,
    the_events_of_a_key_come_in_order,
    a_small_claim_takes_the_earlier_events_of_a_chunk,
    a_lane_in_use_gives_nothing_to_another_worker,
    the_holder_of_a_lane_may_claim_more_of_it,
    a_lane_is_free_once_all_that_was_taken_is_settled,
    different_lanes_go_to_different_workers,
    priorities_mean_nothing_where_order_matters,
    keyless_events_wait_for_nobody,
    a_delayed_event_holds_back_only_its_key,
    a_delay_inside_one_emit_holds_back_its_key,
    a_delayed_event_waits_for_one_under_way_that_comes_back,
    single_claims_of_a_lane_overtake_nothing,
    a_later_event_never_overtakes_a_retrying_one,
    a_failure_takes_back_the_later_events_of_the_key,
    other_keys_of_the_lane_go_on_while_one_is_stuck,
    a_halting_subscription_stops_the_whole_lane,
    a_halted_lane_leaves_other_lanes_alone,
    a_lane_that_is_taken_over_repeats_its_events_unchanged,
    after_a_take_over_the_old_holder_is_refused,
    a_share_is_only_a_preference_for_lanes,
    a_worker_that_does_not_help_keeps_to_its_lanes,
    parallel_workers_keep_the_order_of_every_key,
    what_comes_back_runs_however_far_its_lane_has_got,
];

async fn an_event_names_the_preceding_event_of_its_key(bed: Bed) {
    let first = bed.emit_together(vec![keyed("a"), keyed("b"), keyed("a")]).await;
    let second = bed.emit_together(vec![keyed("b"), keyed("a")]).await;
    assert_eq!((first[0].prev, first[1].prev), (None, None));
    assert_eq!(first[2].prev, Some(first[0].id));
    assert_eq!(second[0].prev, Some(first[1].id));
    assert_eq!(second[1].prev, Some(first[2].id));
    assert_eq!(bed.find(second[1].id).await.unwrap().event.prev, Some(first[2].id));
}

async fn keys_of_different_topics_are_different_objects(bed: Bed) {
    bed.emit(keyed("a")).await;
    let other = bed.emit_together(vec![Event::new("refunds", "x").key("a")]).await;
    assert_eq!(other[0].prev, None);
}

async fn the_head_of_a_key_is_its_last_event(bed: Bed) {
    let ids = bed.emit_keys(&["a", "b", "a"]).await;
    let head =
        |key: &'static str| async { bed.store.head(TOPIC, key).await.unwrap().map(|head| head.last_id) };
    assert_eq!((head("a").await, head("b").await, head("c").await), (Some(ids[2]), Some(ids[1]), None));
}

async fn keys_are_compared_byte_by_byte(bed: Bed) {
    let keys = ["a", "A", "á", "a ", " a", "a\u{301}"];
    let events = keys.iter().map(|key| keyed(key)).collect();
    assert!(bed.emit_together(events).await.iter().all(|event| event.prev.is_none()));
    let long = "k".repeat(512);
    let first = bed.emit(keyed(&long)).await;
    assert_eq!(bed.emit_together(vec![keyed(&long)]).await[0].prev, Some(first));
}

async fn parallel_emitters_make_one_gapless_chain_per_key(bed: Bed) {
    bed.queue(ordered()).await;
    let keys = ["a", "b", "c"];
    let emitted = in_parallel(8, |number| {
        let bed = bed.clone();
        async move {
            let mut mine = Vec::new();
            for round in 0..20 {
                // Different tasks name the keys in different order: nobody may wait for ever.
                let unit: Vec<&str> = (0..3).map(|at| keys[(at + round + number as usize) % 3]).collect();
                let emitted = bed.emit_together(unit.iter().map(|key| keyed(key)).collect()).await;
                mine.extend(unit.into_iter().zip(emitted));
            }
            mine
        }
    });
    let mut chains: BTreeMap<&str, BTreeMap<EventId, Option<EventId>>> = BTreeMap::new();
    for (key, event) in emitted.await.concat() {
        assert!(chains.entry(key).or_default().insert(event.id, event.prev).is_none());
    }
    for (key, chain) in chains {
        let ids: Vec<Option<EventId>> = chain.keys().copied().map(Some).collect();
        let prevs: Vec<Option<EventId>> = chain.into_values().collect();
        assert_eq!(ids.len(), 160);
        assert_eq!((prevs[0], &prevs[1..]), (None, &ids[..159]), "the chain of {key}");
    }
}

async fn the_events_of_a_key_come_in_order(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let ids_of_a = bed.emit_keys(&["a", "a", "a"]).await;
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed), ids_of_a);
    let prevs: Vec<_> =
        claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.prev).collect();
    assert_eq!(prevs, [None, Some(ids_of_a[0]), Some(ids_of_a[1])]);
}

async fn a_small_claim_takes_the_earlier_events_of_a_chunk(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_together(["a", "b", "a", "b", "a"].map(keyed).to_vec()).await;
    let mut order = Vec::new();
    for _ in 0..3 {
        let claimed = queue.claim(2).await;
        order.extend(ids(&claimed));
        queue.done(&claimed).await;
    }
    assert_eq!(order, emitted.iter().map(|event| event.id).collect::<Vec<_>>());
}

async fn a_lane_in_use_gives_nothing_to_another_worker(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    bed.emit_keys(&["a", "a"]).await;
    assert_eq!(ids(&queue.claim_by(ANNA, 1).await).len(), 1);
    assert!(ids(&queue.claim_by(BERT, 10).await).is_empty());
}

async fn the_holder_of_a_lane_may_claim_more_of_it(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let first = queue.claim(1).await;
    let second = queue.claim(1).await;
    assert_eq!((ids(&first), ids(&second)), (vec![emitted[0]], vec![emitted[1]]));
    assert!(queue.done(&first).await && queue.done(&second).await);
}

async fn a_lane_is_free_once_all_that_was_taken_is_settled(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "a"]).await;
    let taken = queue.claim_by(ANNA, 2).await;
    queue.settle_each(&taken, &[(emitted[0], Outcome::Done)]).await;
    assert!(ids(&queue.claim_by(BERT, 1).await).is_empty());
    queue.settle_each(&taken, &[(emitted[1], Outcome::Done)]).await;
    assert_eq!(ids(&queue.claim_by(BERT, 1).await), [emitted[2]]);
}

async fn different_lanes_go_to_different_workers(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b"]).await; // their lanes differ
    let anna = queue.claim_by(ANNA, 1).await;
    let bert = queue.claim_by(BERT, 1).await;
    assert_eq!(sorted([ids(&anna), ids(&bert)].concat()), emitted);
}

async fn priorities_mean_nothing_where_order_matters(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let late = bed.emit(keyed("a").priority(9)).await;
    let urgent = bed.emit(keyed("b").priority(0)).await;
    assert_eq!(ids(&queue.claim(10).await), [late, urgent]);
}

async fn keyless_events_wait_for_nobody(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let first = bed.emit(plain_event()).await;
    let second = bed.emit(plain_event()).await;
    let claimed = queue.claim(1).await;
    queue.settle(&claimed, Outcome::retry("no")).await;
    assert_eq!(queue.drain().await, [second]);
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [first]);
}

async fn a_delayed_event_holds_back_only_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let delayed = bed.emit(keyed("a").delay(seconds(10))).await;
    let behind = bed.emit(keyed("a")).await;
    let other = bed.emit(keyed("b")).await;
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed), [other]);
    queue.done(&claimed).await;
    bed.pass(seconds(10));
    assert_eq!(queue.drain().await, [delayed, behind]);
}

async fn a_delay_inside_one_emit_holds_back_its_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let events = vec![keyed("a"), keyed("a").delay(seconds(10)), keyed("a"), keyed("b")];
    let emitted: Vec<EventId> = bed.emit_together(events).await.iter().map(|event| event.id).collect();
    assert_eq!(queue.drain().await, [emitted[0], emitted[3]]);
    bed.pass(seconds(10));
    assert_eq!(queue.drain().await, [emitted[1], emitted[2]]);
}

/// The delayed event was met while its predecessor was under way. It must not count as the first of its key.
async fn a_delayed_event_waits_for_one_under_way_that_comes_back(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    for comes_back in ["by retry", "by release", "by crash"] {
        for in_one_claim in [true, false] {
            let first = bed.emit(keyed("a")).await;
            let mut claimed = if in_one_claim { Claimed::default() } else { queue.claim(10).await };
            let delayed = bed.emit(keyed("a").delay(seconds(20))).await;
            let other = queue.claim(10).await;
            claimed.slices.extend(other.slices);
            assert_eq!(ids(&claimed), [first]);
            match comes_back {
                "by retry" => assert!(queue.settle(&claimed, Outcome::retry("no")).await),
                "by release" => assert_ne!(queue.release(&claimed).await, 0),
                _ => {}
            }
            bed.pass(seconds(30));
            assert!(!ids(&queue.claim_by(BERT, 10).await).contains(&delayed), "{comes_back}, {in_one_claim}");
            bed.pass(seconds(60));
            assert_eq!(queue.drain().await, [first, delayed], "{comes_back}, {in_one_claim}");
        }
    }
}

/// The rest of a chunk stays behind; nothing of a later chunk may come before it.
async fn single_claims_of_a_lane_overtake_nothing(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let first = bed.emit_together(vec![keyed("a"), keyed("b")]).await;
    let later = bed.emit(keyed("b")).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let claimed = queue.take(Claim { single: true, ..queue.wish(10) }).await;
        seen.extend(ids(&claimed));
        assert!(queue.done(&claimed).await);
    }
    assert_eq!(seen, [first[0].id, first[1].id, later]);
}

async fn a_later_event_never_overtakes_a_retrying_one(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let claimed = queue.claim(1).await;
    queue.settle(&claimed, Outcome::retry("no")).await;
    let later = bed.emit(keyed("a")).await;
    assert!(ids(&queue.claim(10).await).is_empty());
    assert!(ids(&queue.claim_by(BERT, 10).await).is_empty());
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [emitted[0], emitted[1], later]);
}

async fn a_failure_takes_back_the_later_events_of_the_key(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "a"]).await;
    let claimed = queue.claim(10).await;
    assert_eq!(queue.settle_each(&claimed, &[(emitted[0], Outcome::retry("no"))]).await, [true]);
    let rest = [(emitted[1], Outcome::Done), (emitted[2], Outcome::Done)];
    assert_eq!(queue.settle_each(&claimed, &rest).await, [true, false]);
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, [emitted[0], emitted[2]]);
}

async fn other_keys_of_the_lane_go_on_while_one_is_stuck(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "a", "b"]).await;
    let claimed = queue.claim(1).await;
    queue.settle(&claimed, Outcome::retry("no")).await;
    assert_eq!(queue.drain().await, [emitted[1], emitted[3]]);
    assert_eq!(queue.counts().await, Counts { delayed: 1, parked: 1, ..Counts::default() });
}

async fn a_halting_subscription_stops_the_whole_lane(bed: Bed) {
    let queue = bed.lane(Policy { while_retrying: WhileRetrying::Halt, ..ordered() }).await;
    let emitted = bed.emit_keys(&["a", "b"]).await;
    let claimed = queue.claim(1).await;
    queue.settle(&claimed, Outcome::retry("no")).await;
    let halted = queue.claim(10).await;
    assert!(ids(&halted).is_empty());
    assert_eq!(halted.next_due, Some(bed.time().after(seconds(60))));
    bed.pass(seconds(60));
    assert_eq!(queue.drain().await, emitted);
}

async fn a_halted_lane_leaves_other_lanes_alone(bed: Bed) {
    let queue = bed.queue(Policy { while_retrying: WhileRetrying::Halt, ..ordered() }).await;
    let emitted = bed.emit_keys(&["a", "b"]).await; // their lanes differ
    let claimed = queue.claim(10).await;
    queue.settle_each(&claimed, &[(emitted[0], Outcome::retry("no")), (emitted[1], Outcome::Done)]).await;
    let next = bed.emit(keyed("b")).await;
    assert_eq!(ids(&queue.claim(10).await), [next]);
}

async fn a_lane_that_is_taken_over_repeats_its_events_unchanged(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    bed.emit_keys(&["a", "a", "a"]).await;
    let before = queue.claim_by(ANNA, 2).await;
    bed.pass(LEASE);
    let mut again = Vec::new();
    for _ in 0..2 {
        let part = queue.claim_by(BERT, 1).await;
        again.extend(part.slices[0].events.clone());
        assert!(queue.done(&part).await);
    }
    let before: Vec<_> = before.slices.into_iter().flat_map(|slice| slice.events).collect();
    assert_eq!(again, before);
}

async fn after_a_take_over_the_old_holder_is_refused(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b"]).await;
    let old = queue.claim_by(ANNA, 2).await;
    bed.pass(LEASE);
    let new = queue.claim_by(BERT, 1).await;
    assert!(!queue.done(&old).await);
    assert!(queue.extend(&old).await.iter().all(|extended| *extended == Extended::Lost));
    queue.release(&old).await;
    assert_eq!(queue.counts().await, Counts { ready: 1, leased: 1, ..Counts::default() });
    assert_eq!(ids(&new), emitted[..1]);
    assert!(queue.done(&new).await);
}

async fn a_share_is_only_a_preference_for_lanes(bed: Bed) {
    bed.topic(TOPIC, 2).await;
    let queue = bed.queue(ordered()).await;
    bed.emit_keys(&["a", "b", "c", "d", "e", "f"]).await;
    let share = Share { index: 0, of: 2, help: true };
    let mut own_first = Vec::new();
    for _ in 0..6 {
        let claimed = queue.take(Claim { share, ..queue.wish(1) }).await;
        own_first.extend(claimed.slices.iter().flat_map(|slice| &slice.events).map(lane_of_two));
        queue.done(&claimed).await;
    }
    assert_eq!(own_first.len(), 6);
    assert!(own_first.is_sorted(), "the worker's own lane comes first: {own_first:?}");
}

async fn a_worker_that_does_not_help_keeps_to_its_lanes(bed: Bed) {
    bed.topic(TOPIC, 2).await;
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_keys(&["a", "b", "c", "d", "e", "f"]).await;
    let mut all = Vec::new();
    for index in 0..2 {
        let share = Share { index, of: 2, help: false };
        let claimed =
            queue.take(Claim { share, owner: Incarnation(1 + i64::from(index)), ..queue.wish(10) }).await;
        let events = claimed.slices.iter().flat_map(|slice| &slice.events);
        assert!(events.clone().all(|event| lane_of_two(event) == index));
        all.extend(ids(&claimed));
    }
    assert_eq!(sorted(all), emitted);
}

fn lane_of_two(event: &ClaimedEvent) -> u32 {
    tramline::model::lane::hash(event.event.key.as_deref().unwrap()) % 2
}

/// Trap: skipping locked slices inside a lane reorders it.
async fn parallel_workers_keep_the_order_of_every_key(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let queue = bed.queue(ordered()).await;
    let keys: Vec<String> = (0..12).map(|key| format!("key{key}")).collect();
    for round in 0..10 {
        let unit = keys.iter().map(|key| keyed(key).header("round", round.to_string())).collect();
        bed.emit_together(unit).await;
    }
    let seen = std::sync::Arc::new(std::sync::Mutex::new(BTreeMap::<String, Vec<EventId>>::new()));
    in_parallel(6, |number| {
        let (queue, seen) = (queue.clone(), seen.clone());
        async move {
            while queue.counts().await.pending() > 0 {
                let claimed = queue.claim_by(Incarnation(number), 5).await;
                for event in claimed.slices.iter().flat_map(|slice| &slice.events) {
                    let key = event.event.key.as_deref().unwrap().to_owned();
                    seen.lock().unwrap().entry(key).or_default().push(event.event.id);
                }
                assert!(queue.done(&claimed).await);
            }
        }
    })
    .await;
    for (key, ids) in seen.lock().unwrap().iter() {
        assert_eq!(ids.len(), 10, "{key}");
        assert!(ids.is_sorted(), "{key}: {ids:?}");
    }
}

/// The story: so that claims need not pass over all that was done, PostgreSQL notes where the ready events of a lane begin. What comes back from
/// before that has to be found, and in its place.
async fn what_comes_back_runs_however_far_its_lane_has_got(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let ids = bed.emit_keys(&["a", "a", "a"]).await;
    assert!(queue.settle(&queue.claim(1).await, Outcome::retry("no")).await);
    go_on(&bed, &queue).await;
    assert_eq!(queue.release_parked(&["a"]).await, 1);
    let later = bed.emit(keyed("a")).await;
    assert_eq!(queue.drain().await, [ids.clone(), vec![later]].concat());
    go_on(&bed, &queue).await;
    assert_eq!(queue.resend(&ids[1..2]).await, 1);
    assert_eq!(queue.drain().await, ids[1..2]);
    let buried = bed.emit(keyed("b")).await;
    assert!(queue.settle(&queue.claim(1).await, Outcome::dead("no")).await);
    go_on(&bed, &queue).await;
    assert_eq!(queue.replay(Which::Ids(vec![buried])).await, 1);
    assert_eq!(queue.drain().await, [buried]);
    let kept = bed.emit(keyed("c")).await;
    let taken = queue.claim(1).await;
    go_on(&bed, &queue).await;
    assert_eq!(queue.release(&taken).await, 1);
    assert_eq!(queue.drain().await, [kept]);
}

/// Other events of the lane come and go, for some seconds.
async fn go_on(bed: &Bed, queue: &Queue) {
    for _ in 0..3 {
        bed.pass(seconds(1));
        let other = bed.emit(keyed("other")).await;
        assert_eq!(queue.drain().await, [other]);
    }
}

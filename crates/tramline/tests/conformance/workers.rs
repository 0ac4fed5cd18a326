//! Workers: heartbeats, birth order, and what a death does.

use crate::bed::*;

conformance![
    workers_are_known_in_birth_order,
    workers_born_together_are_ordered_all_the_same,
    a_worker_keeps_its_place_while_it_lives,
    a_worker_that_leaves_is_gone,
    a_worker_tells_what_it_works_on,
    a_silent_worker_is_found_dead,
    nobody_is_judged_unless_asked,
    the_events_of_a_dead_worker_are_due_at_once,
    the_lanes_of_a_dead_worker_are_free_at_once,
    what_a_dead_worker_consumed_is_interrupted_at_once,
    a_dead_worker_leaves_the_living_alone,
    a_sweep_names_the_subscriptions_of_the_dead,
    the_dead_are_buried_some_at_a_time_and_the_living_not_at_all,
    a_worker_restarted_under_its_name_goes_on_at_once,
    a_worker_restarted_under_its_name_gets_its_lanes_at_once,
    the_former_life_of_a_worker_is_refused,
    a_worker_found_dead_may_come_back,
    the_shares_of_all_workers_cover_all_lanes,
    remote_workers_are_known_by_name_and_subscription,
    a_remote_worker_is_forgotten_when_it_is_not_seen_for_long,
    a_remote_worker_has_no_heartbeat_and_no_share,
    remote_workers_go_with_their_subscription,
];

async fn names(workers: &[Worker]) -> Vec<&str> {
    workers.iter().map(|worker| &*worker.name).collect()
}

async fn workers_are_known_in_birth_order(bed: Bed) {
    for (number, name) in [(3, "c"), (1, "a"), (2, "b")] {
        bed.beat(Incarnation(number), name).await;
        bed.pass(seconds(1));
    }
    let workers = bed.beat(Incarnation(3), "c").await;
    assert_eq!(names(&workers).await, ["c", "a", "b"]);
    assert_eq!(bed.store.workers().await.unwrap(), workers);
}

async fn workers_born_together_are_ordered_all_the_same(bed: Bed) {
    for number in [5, 2, 9] {
        bed.beat(Incarnation(number), &format!("w{number}")).await;
    }
    let workers = bed.store.workers().await.unwrap();
    assert_eq!(names(&workers).await, ["w2", "w5", "w9"]);
}

async fn a_worker_keeps_its_place_while_it_lives(bed: Bed) {
    let born_at = bed.time();
    bed.beat(ANNA, "anna").await;
    bed.pass(seconds(2));
    bed.beat(BERT, "bert").await;
    bed.pass(seconds(2));
    let workers = bed.beat(ANNA, "anna").await;
    assert_eq!((workers[0].incarnation, workers[0].born_at, workers[0].beat_at), (ANNA, born_at, bed.time()));
}

async fn a_worker_that_leaves_is_gone(bed: Bed) {
    bed.beat(ANNA, "anna").await;
    bed.beat(BERT, "bert").await;
    let last =
        Beat { incarnation: ANNA, name: "anna".into(), subscriptions: vec![], leaving: true, now: bed.now() };
    assert_eq!(names(&bed.store.beat(last).await.unwrap()).await, ["bert"]);
    assert_eq!(names(&bed.store.workers().await.unwrap()).await, ["bert"]);
}

async fn a_worker_tells_what_it_works_on(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let subscriptions = vec![queue.id];
    let beat = Beat { incarnation: ANNA, name: "anna".into(), subscriptions, leaving: false, now: bed.now() };
    assert_eq!(bed.store.beat(beat).await.unwrap()[0].subscriptions, [queue.id]);
}

async fn a_silent_worker_is_found_dead(bed: Bed) {
    bed.beat(ANNA, "anna").await;
    bed.pass(seconds(5));
    assert_eq!(bed.sweep(Some(seconds(6))).await.workers, 0);
    bed.beat(BERT, "bert").await;
    bed.pass(seconds(2));
    assert_eq!(bed.sweep(Some(seconds(6))).await.workers, 1);
    assert_eq!(names(&bed.store.workers().await.unwrap()).await, ["bert"]);
}

async fn nobody_is_judged_unless_asked(bed: Bed) {
    bed.beat(ANNA, "anna").await;
    bed.pass(seconds(1000));
    assert_eq!(bed.sweep(None).await.workers, 0);
    assert_eq!(bed.store.workers().await.unwrap().len(), 1);
}

/// Anna claims one event of each queue, falls silent and is found dead; her leases had long to run.
async fn let_anna_die(bed: &Bed, queue: &Queue) -> Claimed {
    bed.beat(ANNA, "anna").await;
    let claimed = queue.take(Claim { lease: Some(seconds(1000)), ..queue.wish(1) }).await;
    bed.pass(seconds(7));
    bed.beat(BERT, "bert").await;
    assert_eq!(bed.sweep(Some(seconds(6))).await.workers, 1);
    claimed
}

async fn the_events_of_a_dead_worker_are_due_at_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    let lost = let_anna_die(&bed, &queue).await;
    assert_eq!(ids(&queue.claim_by(BERT, 1).await), [id]);
    assert!(!queue.done(&lost).await);
}

async fn the_lanes_of_a_dead_worker_are_free_at_once(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    let lost = let_anna_die(&bed, &queue).await;
    let taken = queue.claim_by(BERT, 1).await;
    assert_eq!(ids(&taken), emitted[..1]);
    assert!(!queue.done(&lost).await);
    assert!(queue.done(&taken).await);
}

async fn what_a_dead_worker_consumed_is_interrupted_at_once(bed: Bed) {
    let queue = bed.queue(at_most_once()).await;
    let id = bed.emit(plain_event()).await;
    let_anna_die(&bed, &queue).await;
    assert!(ids(&queue.claim_by(BERT, 1).await).is_empty());
    assert_eq!(queue.dead_ids().await, [id]);
}

async fn a_dead_worker_leaves_the_living_alone(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit_plain(2).await;
    let berts = queue.take(Claim { owner: BERT, lease: Some(seconds(1000)), ..queue.wish(1) }).await;
    let_anna_die(&bed, &queue).await;
    assert!(queue.done(&berts).await);
}

async fn a_sweep_names_the_subscriptions_of_the_dead(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let lanes = bed.queue_named("lanes", &[TOPIC], ordered()).await;
    bed.queue_named("idle", &[TOPIC], unordered()).await;
    bed.emit(keyed("a")).await;
    bed.beat(ANNA, "anna").await;
    queue.claim(1).await;
    lanes.claim(1).await;
    bed.pass(seconds(7));
    let mut wake = bed.sweep(Some(seconds(6))).await.wake;
    wake.sort_unstable();
    assert_eq!(wake, [queue.id, lanes.id]);
}

async fn the_dead_are_buried_some_at_a_time_and_the_living_not_at_all(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(6).await;
    for number in 1..=5 {
        bed.beat(Incarnation(number), &format!("w{number}")).await;
        queue.claim_by(Incarnation(number), 1).await;
    }
    bed.pass(seconds(7));
    bed.beat(BERT, "bert").await;
    let berts = queue.claim_by(BERT, 1).await;
    let bury = || Bury { dead_after: seconds(6), limit: 3, now: bed.now() };
    let first = bed.store.bury(bury()).await.unwrap();
    assert_eq!(first, Buried { workers: 3, wake: vec![queue.id], more: true });
    let second = bed.store.bury(bury()).await.unwrap();
    assert_eq!(second, Buried { workers: 2, wake: vec![queue.id], more: false });
    assert_eq!(bed.store.bury(bury()).await.unwrap(), Buried::default());
    assert_eq!(names(&bed.store.workers().await.unwrap()).await, ["bert"]);
    assert!(queue.done(&berts).await);
    assert_eq!(sorted(queue.drain().await), emitted[..5]);
}

async fn a_worker_restarted_under_its_name_goes_on_at_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(3).await;
    bed.beat(ANNA, "anna").await;
    queue.claim_by(ANNA, 3).await;
    let workers = bed.beat(BERT, "anna").await;
    assert_eq!(workers.iter().map(|worker| worker.incarnation).collect::<Vec<_>>(), [BERT]);
    // In halves: one of them may have ended the former self.
    assert_eq!(queue.drain().await, emitted);
}

async fn a_worker_restarted_under_its_name_gets_its_lanes_at_once(bed: Bed) {
    let queue = bed.lane(ordered()).await;
    let emitted = bed.emit_keys(&["a", "a"]).await;
    bed.beat(ANNA, "anna").await;
    queue.claim_by(ANNA, 1).await;
    bed.beat(BERT, "anna").await;
    assert_eq!(ids(&queue.claim_by(BERT, 1).await), emitted[..1]);
}

async fn the_former_life_of_a_worker_is_refused(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let (old, new) = (Incarnation::random(), Incarnation::random());
        bed.beat(old, name).await;
        let zombie = queue.claim_by(old, 1).await;
        bed.beat(new, name).await;
        let taken = queue.claim_by(new, 1).await;
        assert!(!queue.done(&zombie).await, "{name}");
        assert!(queue.done(&taken).await, "{name}");
    }
}

async fn a_worker_found_dead_may_come_back(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let id = bed.emit(plain_event()).await;
    let_anna_die(&bed, &queue).await;
    bed.pass(seconds(1));
    let workers = bed.beat(ANNA, "anna").await;
    assert_eq!(names(&workers).await, ["bert", "anna"]);
    assert_eq!(ids(&queue.claim_by(ANNA, 1).await), [id]);
}

async fn see(bed: &Bed, name: &str, subscription: SubscriptionId, claims: u64) {
    let workers = vec![Seen { name: name.into(), subscription, claims }];
    bed.store.see_remote(SeeRemote { workers, now: bed.now() }).await.unwrap();
}

/// Name, subscription, claims.
async fn remote(bed: &Bed) -> Vec<(String, SubscriptionId, u64)> {
    let workers = bed.store.remote_workers(bed.now()).await.unwrap();
    workers.into_iter().map(|worker| (worker.name, worker.subscription, worker.claims)).collect()
}

async fn remote_workers_are_known_by_name_and_subscription(bed: Bed) {
    let (one, two) = (bed.queue(unordered()).await.id, bed.queue_named("two", &[TOPIC], ordered()).await.id);
    let born_at = bed.time();
    see(&bed, "zoe", one, 1).await;
    see(&bed, "ada", two, 2).await;
    bed.pass(seconds(200));
    see(&bed, "zoe", one, 3).await;
    see(&bed, "zoe", two, 1).await;
    let known = [("ada", two, 2), ("zoe", one, 4), ("zoe", two, 1)];
    assert_eq!(remote(&bed).await, known.map(|(name, id, claims)| (name.to_owned(), id, claims)));
    let zoe = &bed.store.remote_workers(bed.now()).await.unwrap()[1];
    assert_eq!((zoe.born_at, zoe.seen_at), (born_at, bed.time()));
}

async fn a_remote_worker_is_forgotten_when_it_is_not_seen_for_long(bed: Bed) {
    let queue = bed.queue(unordered()).await.id;
    see(&bed, "ada", queue, 7).await;
    bed.pass(seconds(301));
    assert_eq!(remote(&bed).await, []);
    see(&bed, "ada", queue, 1).await;
    assert_eq!(remote(&bed).await, [("ada".to_owned(), queue, 1)], "it begins anew");
    assert_eq!(bed.store.remote_workers(bed.now()).await.unwrap()[0].born_at, bed.time());
    bed.pass(seconds(301));
    bed.sweep(None).await;
    let long_ago = Some(bed.time().before(seconds(301)));
    assert_eq!(bed.store.remote_workers(long_ago).await.unwrap(), [], "the sweep removed it");
}

async fn a_remote_worker_has_no_heartbeat_and_no_share(bed: Bed) {
    let queue = bed.queue(ordered()).await.id;
    bed.beat(ANNA, "anna").await;
    see(&bed, "ada", queue, 1).await;
    assert_eq!(names(&bed.beat(ANNA, "anna").await).await, ["anna"]);
    assert_eq!(names(&bed.store.workers().await.unwrap()).await, ["anna"]);
    bed.pass(seconds(7));
    assert_eq!(bed.sweep(Some(seconds(6))).await.workers, 1, "only anna can be found dead");
    assert_eq!(remote(&bed).await.len(), 1);
}

async fn remote_workers_go_with_their_subscription(bed: Bed) {
    let queue = bed.queue(unordered()).await.id;
    see(&bed, "ada", queue, 1).await;
    bed.store.delete_subscription("queue").await.unwrap();
    assert_eq!(remote(&bed).await, []);
    see(&bed, "ada", queue, 1).await;
    assert_eq!(remote(&bed).await, [], "what is gone is passed over");
}

async fn the_shares_of_all_workers_cover_all_lanes(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_together((0..64).map(|n| keyed(&format!("key{n}"))).collect()).await;
    let mut seen = Vec::new();
    for number in 0..3 {
        bed.beat(Incarnation(10 + number), &format!("w{number}")).await;
    }
    for (index, worker) in bed.store.workers().await.unwrap().into_iter().enumerate() {
        let share = Share { index: index as u32, of: 3, help: false };
        let claimed = queue.take(Claim { owner: worker.incarnation, share, ..queue.wish(100) }).await;
        assert!(!claimed.slices.is_empty());
        seen.extend(ids(&claimed));
    }
    assert_eq!(sorted(seen), emitted.iter().map(|event| event.id).collect::<Vec<_>>());
}

//! Rules: pause and block.

use crate::bed::*;
use RuleKind::{Block, Pause};

conformance![
    a_paused_subscription_runs_nothing,
    a_blocked_subscription_runs_nothing,
    pause_and_block_must_both_be_gone,
    everything_that_waited_runs_after_a_pause,
    events_emitted_during_a_pause_are_kept,
    what_is_under_way_can_be_settled_during_a_pause,
    a_lease_can_be_extended_during_a_pause,
    a_rule_can_end_by_itself,
    a_rule_stops_only_its_subscription,
    setting_a_rule_again_changes_its_end,
    a_rule_that_is_set_again_after_its_end_begins_anew,
    removing_a_rule_that_is_not_set_is_harmless,
    the_rules_in_force_are_shown,
    rules_are_audited,
    the_audit_is_newest_first_and_limited,
    a_storm_of_pauses_runs_every_event_once,
    a_storm_of_rules_from_several_sides_runs_every_event_once,
];

async fn a_paused_subscription_runs_nothing(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered()), ("once", at_most_once())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        queue.set(Pause).await;
        let claimed = queue.claim(10).await;
        assert!(ids(&claimed).is_empty(), "{name}");
        assert_eq!(claimed.stopped_by, Some(Pause), "{name}");
    }
}

async fn a_blocked_subscription_runs_nothing(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    queue.set(Block).await;
    let claimed = queue.claim(10).await;
    assert_eq!((ids(&claimed), claimed.stopped_by), (vec![], Some(Block)));
}

async fn pause_and_block_must_both_be_gone(bed: Bed) {
    for (name, first, last) in [("a", Pause, Block), ("b", Block, Pause)] {
        let queue = bed.queue_named(name, &[TOPIC], unordered()).await;
        let id = bed.emit(plain_event()).await;
        queue.set(Pause).await;
        queue.set(Block).await;
        queue.unset(first).await;
        assert_eq!(queue.claim(1).await.stopped_by, Some(last));
        queue.unset(last).await;
        assert_eq!(ids(&queue.claim(1).await), [id]);
    }
}

async fn everything_that_waited_runs_after_a_pause(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.set(Pause).await;
    let emitted = bed.emit_plain(1500).await;
    queue.unset(Pause).await;
    assert_eq!(sorted(queue.drain().await), emitted);
}

async fn events_emitted_during_a_pause_are_kept(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    queue.set(Pause).await;
    let id = bed.emit(keyed("a")).await;
    assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() });
    queue.unset(Pause).await;
    assert_eq!(queue.drain().await, [id]);
}

async fn what_is_under_way_can_be_settled_during_a_pause(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        bed.emit(keyed("a")).await;
        let claimed = queue.claim(1).await;
        queue.set(Pause).await;
        assert!(queue.done(&claimed).await, "{name}");
    }
}

async fn a_lease_can_be_extended_during_a_pause(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    let claimed = queue.claim(1).await;
    queue.set(Block).await;
    assert_eq!(queue.extend(&claimed).await, [Extended::Until(bed.time().after(seconds(30)))]);
}

async fn a_rule_can_end_by_itself(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    queue.rule(Pause, Some(RuleEnd::At(bed.time().after(seconds(10))))).await;
    bed.pass(seconds(9));
    assert_eq!(queue.claim(1).await.stopped_by, Some(Pause));
    bed.pass(seconds(1));
    assert_eq!(queue.stats().await.rules, []);
    assert_eq!(ids(&queue.claim(1).await).len(), 1);
}

async fn a_rule_stops_only_its_subscription(bed: Bed) {
    let paused = bed.queue_named("paused", &[TOPIC], unordered()).await;
    let running = bed.queue_named("running", &[TOPIC], unordered()).await;
    paused.set(Pause).await;
    bed.emit(plain_event()).await;
    assert_eq!((paused.drain().await.len(), running.drain().await.len()), (0, 1));
}

async fn setting_a_rule_again_changes_its_end(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.set(Pause).await;
    queue.rule(Pause, Some(RuleEnd::At(bed.time().after(seconds(10))))).await;
    let rules = queue.stats().await.rules;
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].until, Some(bed.time().after(seconds(10))));
}

/// No sweep has removed the old one yet.
async fn a_rule_that_is_set_again_after_its_end_begins_anew(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.rule(Pause, Some(RuleEnd::At(bed.time().after(seconds(10))))).await;
    let begun = bed.time();
    bed.pass(seconds(5));
    queue.rule(Pause, Some(RuleEnd::At(bed.time().after(seconds(10))))).await;
    assert_eq!(queue.stats().await.rules[0].since, begun, "it is still the same");
    bed.pass(seconds(10));
    queue.set(Pause).await;
    let rule = queue.stats().await.rules.remove(0);
    assert_eq!((rule.since, rule.until), (bed.time(), None));
}

async fn removing_a_rule_that_is_not_set_is_harmless(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.set(Block).await;
    queue.unset(Pause).await;
    assert_eq!(queue.claim(1).await.stopped_by, Some(Block));
}

async fn the_rules_in_force_are_shown(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.set(Pause).await;
    bed.pass(seconds(5));
    queue.set(Block).await;
    let mut rules = queue.stats().await.rules;
    rules.sort_by_key(|rule| rule.kind);
    assert_eq!(rules.iter().map(|rule| rule.kind).collect::<Vec<_>>(), [Pause, Block]);
    assert_eq!((&*rules[1].by, &*rules[1].reason), ("olga", "because"));
    assert_eq!((rules[1].since, rules[1].until), (bed.time(), None));
}

async fn rules_are_audited(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    queue.set(Pause).await;
    queue.set(Block).await;
    queue.unset(Pause).await;
    queue.unset(Block).await;
    let audit = bed.store.audit(queue.id, 10).await.unwrap();
    let actions: Vec<&str> = audit.iter().rev().map(|entry| &*entry.action).collect();
    assert_eq!(actions, ["pause", "block", "resume", "unblock"]);
    assert!(
        audit.iter().all(|entry| entry.by == "olga" && entry.reason == "because" && entry.at == bed.time())
    );
}

async fn the_audit_is_newest_first_and_limited(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let other = bed.queue_named("other", &[TOPIC], unordered()).await;
    for _ in 0..3 {
        queue.set(Pause).await;
        bed.pass(seconds(1));
        queue.unset(Pause).await;
    }
    other.set(Pause).await;
    let audit = bed.store.audit(queue.id, 2).await.unwrap();
    assert_eq!(audit.iter().map(|entry| &*entry.action).collect::<Vec<_>>(), ["resume", "pause"]);
}

async fn a_storm_of_pauses_runs_every_event_once(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    let emitted = bed.emit_plain(100).await;
    let mut run = Vec::new();
    while run.len() < emitted.len() {
        queue.set(Pause).await;
        assert!(ids(&queue.claim(7).await).is_empty());
        queue.unset(Pause).await;
        let claimed = queue.claim(7).await;
        queue.set(Pause).await;
        run.extend(ids(&claimed));
        assert!(queue.done(&claimed).await);
        queue.unset(Pause).await;
    }
    assert_eq!(sorted(run), emitted);
}

async fn a_storm_of_rules_from_several_sides_runs_every_event_once(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let emitted = bed.emit_together((0..60).map(|n| keyed(&format!("key{}", n % 7))).collect()).await;
    let run = in_parallel(4, |number| {
        let queue = queue.clone();
        async move {
            let mut mine = Vec::new();
            while queue.counts().await.pending() > 0 {
                queue.set(if number % 2 == 0 { Pause } else { Block }).await;
                queue.unset(Pause).await;
                queue.unset(Block).await;
                let claimed = queue.claim_by(Incarnation(number), 5).await;
                mine.extend(ids(&claimed));
                assert!(queue.done(&claimed).await);
            }
            mine
        }
    });
    let emitted: Vec<EventId> = emitted.iter().map(|event| event.id).collect();
    assert_eq!(sorted(run.await.concat()), emitted);
}

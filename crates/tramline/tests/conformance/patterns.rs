//! Rules for all subscriptions whose names match.

use crate::bed::*;
use RuleKind::{Block, Pause};

conformance![
    a_rule_by_pattern_stops_all_that_match_and_nothing_else,
    a_rule_by_pattern_stops_subscriptions_that_come_later,
    all_rules_that_apply_must_be_gone,
    removing_a_rule_by_pattern_gives_all_that_it_stopped,
    a_rule_by_pattern_ends_by_itself_and_says_when,
    the_last_of_several_ends_is_told,
    setting_the_same_pattern_again_changes_the_rule,
    a_rule_may_be_limited_to_topics,
    other_topics_change_what_a_rule_means,
    rules_by_pattern_are_shown_with_the_others,
    rules_by_pattern_are_audited,
    a_rule_that_is_gone_cannot_be_removed,
    rules_by_pattern_that_have_ended_are_forgotten,
    there_are_only_so_many_rules_by_pattern,
    a_deleted_subscription_leaves_no_rule_behind,
    push_subscriptions_obey_rules_by_pattern,
    subscriptions_and_rules_that_come_at_once_meet,
    a_storm_of_rules_of_all_kinds_runs_every_event_once,
];

fn pause(pattern: &str) -> SetPatternRule {
    SetPatternRule {
        pattern: pattern.parse().unwrap(),
        topics: None,
        kind: Pause,
        until: RuleEnd::Open,
        by: "olga".into(),
        reason: "because".into(),
        now: None,
    }
}

impl Bed {
    async fn stop(&self, set: SetPatternRule) -> i64 {
        self.store.set_pattern_rule(SetPatternRule { now: self.now(), ..set }).await.unwrap().id
    }

    async fn lift(&self, id: i64) -> Vec<SubscriptionId> {
        let (by, reason) = ("olga".into(), "over".into());
        let remove = RemovePatternRule { id, by, reason, now: self.now() };
        let mut stopped = self.store.remove_pattern_rule(remove).await.unwrap();
        stopped.sort_unstable();
        stopped
    }

    async fn rules(&self) -> Vec<tramline::PatternRule> {
        self.store.pattern_rules(self.now()).await.unwrap()
    }
}

async fn stopped_by(queue: &Queue) -> Option<RuleKind> {
    queue.claim(1).await.stopped_by
}

async fn a_rule_by_pattern_stops_all_that_match_and_nothing_else(bed: Bed) {
    let mail = bed.queue_named("acme/mail", &[TOPIC], unordered()).await;
    let sms = bed.queue_named("acme/sms", &[TOPIC], ordered()).await;
    let deep = bed.queue_named("acme/mail/eu", &[TOPIC], unordered()).await;
    let other = bed.queue_named("rival/mail", &[TOPIC], unordered()).await;
    bed.emit(keyed("a")).await;
    let id = bed.stop(pause("acme/*")).await;
    assert_eq!(bed.rules().await[0].subscriptions, 2);
    assert_eq!((stopped_by(&mail).await, stopped_by(&sms).await), (Some(Pause), Some(Pause)));
    assert_eq!(ids(&deep.claim(1).await).len() + ids(&other.claim(1).await).len(), 2);
    bed.lift(id).await;
    assert_eq!(ids(&mail.claim(1).await).len() + ids(&sms.claim(1).await).len(), 2);
}

async fn a_rule_by_pattern_stops_subscriptions_that_come_later(bed: Bed) {
    bed.stop(SetPatternRule { kind: Block, ..pause("acme/**") }).await;
    let queue = bed.queue_named("acme/new", &[TOPIC], unordered()).await;
    let other = bed.queue_named("acmes", &[TOPIC], unordered()).await;
    assert_eq!((stopped_by(&queue).await, stopped_by(&other).await), (Some(Block), None));
    assert_eq!(bed.rules().await[0].subscriptions, 1);
}

async fn all_rules_that_apply_must_be_gone(bed: Bed) {
    let queue = bed.queue_named("acme/mail", &[TOPIC], unordered()).await;
    let wide = bed.stop(pause("**")).await;
    let narrow = bed.stop(pause("acme/*")).await;
    let block = bed.stop(SetPatternRule { kind: Block, ..pause("acme/*") }).await;
    queue.set(Pause).await;
    assert_eq!(stopped_by(&queue).await, Some(Block));
    bed.lift(block).await;
    bed.lift(wide).await;
    queue.unset(Pause).await;
    assert_eq!(stopped_by(&queue).await, Some(Pause));
    bed.lift(narrow).await;
    assert_eq!(stopped_by(&queue).await, None);
}

/// However many they are: whoever removes a rule has to wake them all.
async fn removing_a_rule_by_pattern_gives_all_that_it_stopped(bed: Bed) {
    let mut all = Vec::new();
    for n in 0..60 {
        all.push(bed.queue_named(&format!("acme/q{n}"), &[TOPIC], unordered()).await.id);
    }
    bed.queue_named("rival/q", &[TOPIC], unordered()).await;
    all.sort_unstable();
    let id = bed.stop(pause("acme/*")).await;
    assert_eq!(bed.lift(id).await, all);
}

async fn a_rule_by_pattern_ends_by_itself_and_says_when(bed: Bed) {
    for (name, policy) in [("acme/a", unordered()), ("acme/b", ordered()), ("acme/c", pushed())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let end = bed.time().after(seconds(60));
        bed.emit(keyed("a")).await;
        bed.stop(SetPatternRule { until: RuleEnd::At(end), ..pause("acme/*") }).await;
        let claimed = queue.claim(1).await;
        assert_eq!((claimed.stopped_by, claimed.next_due), (Some(Pause), Some(end)), "{name}");
        bed.pass(seconds(60));
        assert_eq!(ids(&queue.claim(1).await).len(), 1, "{name}");
        assert!(bed.rules().await.is_empty() && queue.stats().await.rules.is_empty(), "{name}");
    }
}

async fn the_last_of_several_ends_is_told(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let at = |after| RuleEnd::At(bed.time().after(seconds(after)));
    bed.stop(SetPatternRule { until: at(60), ..pause("acme/*") }).await;
    bed.stop(SetPatternRule { until: at(90), ..pause("**") }).await;
    queue.rule(Block, Some(at(30))).await;
    assert_eq!(queue.claim(1).await.next_due, Some(bed.time().after(seconds(90))));
    queue.set(Block).await;
    assert_eq!(queue.claim(1).await.next_due, None, "one has no end");
}

async fn setting_the_same_pattern_again_changes_the_rule(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let first = bed.stop(pause("acme/*")).await;
    let since = bed.time();
    bed.pass(seconds(5));
    let end = bed.time().after(seconds(10));
    let again = SetPatternRule { until: RuleEnd::At(end), reason: "soon".into(), ..pause("acme/*") };
    assert_eq!(bed.stop(again).await, first);
    let rules = queue.stats().await.rules;
    assert_eq!(
        (rules.len(), &*rules[0].reason, rules[0].since, rules[0].until),
        (1, "soon", since, Some(end))
    );
    bed.pass(seconds(10));
    assert_eq!(stopped_by(&queue).await, None);
}

async fn a_rule_may_be_limited_to_topics(bed: Bed) {
    let own = bed.queue_named("acme/own", &["acme/t"], unordered()).await;
    let mixed = bed.queue_named("acme/mixed", &["acme/t", "rival/t"], unordered()).await;
    let topics = Some(vec!["acme/**".parse().unwrap()]);
    let limited = bed.stop(SetPatternRule { topics, ..pause("acme/*") }).await;
    assert_eq!((stopped_by(&own).await, stopped_by(&mixed).await), (Some(Pause), None));
    let wide = bed.stop(pause("acme/*")).await;
    assert_ne!(limited, wide, "they are two rules");
    assert_eq!(stopped_by(&mixed).await, Some(Pause));
    bed.lift(limited).await;
    assert_eq!(stopped_by(&own).await, Some(Pause));
    assert_eq!(bed.rules().await.iter().map(|rule| rule.id).collect::<Vec<_>>(), [wide]);
}

async fn other_topics_change_what_a_rule_means(bed: Bed) {
    let topics = Some(vec!["acme/**".parse().unwrap()]);
    bed.stop(SetPatternRule { topics, ..pause("acme/*") }).await;
    let queue = bed.queue_named("acme/q", &["acme/t"], unordered()).await;
    assert_eq!(stopped_by(&queue).await, Some(Pause));
    bed.queue_named("acme/q", &["acme/t", "rival/t"], unordered()).await;
    assert_eq!(stopped_by(&queue).await, None);
    bed.queue_named("acme/q", &["acme/t"], unordered()).await;
    assert_eq!(stopped_by(&queue).await, Some(Pause));
}

async fn rules_by_pattern_are_shown_with_the_others(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let id = bed.stop(SetPatternRule { kind: Block, ..pause("acme/*") }).await;
    queue.set(Pause).await;
    let rules = queue.stats().await.rules;
    assert_eq!(rules.iter().map(|rule| rule.kind).collect::<Vec<_>>(), [Block, Pause]);
    assert_eq!(rules[0].source, Some((id, "acme/*".parse().unwrap())));
    assert_eq!((&*rules[0].by, &*rules[0].reason, rules[0].since), ("olga", "because", bed.time()));
    assert_eq!(rules[1].source, None);
}

async fn rules_by_pattern_are_audited(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let other = bed.queue_named("rival", &[TOPIC], unordered()).await;
    let id = bed.stop(pause("acme/*")).await;
    queue.set(Block).await;
    bed.lift(id).await;
    let audit = bed.store.audit(queue.id, 10).await.unwrap();
    let acts: Vec<(&str, bool)> = audit.iter().map(|act| (&*act.action, act.pattern.is_some())).collect();
    assert_eq!(acts, [("resume", true), ("block", false), ("pause", true)]);
    assert_eq!((&*audit[0].by, &*audit[0].reason, audit[0].at), ("olga", "over", bed.time()));
    assert!(bed.store.audit(other.id, 10).await.unwrap().is_empty());
    assert_eq!(bed.store.audit(queue.id, 1).await.unwrap().len(), 1);
}

async fn a_rule_that_is_gone_cannot_be_removed(bed: Bed) {
    let id = bed.stop(pause("acme/*")).await;
    bed.lift(id).await;
    for id in [id, 0, -1, i64::MAX] {
        let remove = RemovePatternRule { id, by: String::new(), reason: String::new(), now: bed.now() };
        assert_eq!(bed.store.remove_pattern_rule(remove).await.unwrap_err().kind(), Kind::NotFound);
    }
}

async fn rules_by_pattern_that_have_ended_are_forgotten(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let end = RuleEnd::At(bed.time().after(seconds(1)));
    let first = bed.stop(SetPatternRule { until: end, ..pause("acme/*") }).await;
    bed.pass(seconds(1));
    bed.sweep(None).await;
    let second = bed.stop(pause("acme/*")).await;
    assert_ne!(first, second);
    assert_eq!(queue.stats().await.rules.len(), 1);
}

async fn there_are_only_so_many_rules_by_pattern(bed: Bed) {
    let mut last = 0;
    for n in 0..MAX_PATTERN_RULES {
        last = bed.stop(pause(&format!("acme/q{n}"))).await;
    }
    let one_more = SetPatternRule { now: bed.now(), ..pause("rival/*") };
    assert_eq!(bed.store.set_pattern_rule(one_more.clone()).await.unwrap_err().kind(), Kind::Conflict);
    bed.lift(last).await;
    bed.store.set_pattern_rule(one_more).await.unwrap();
}

async fn a_deleted_subscription_leaves_no_rule_behind(bed: Bed) {
    bed.queue_named("acme/a", &[TOPIC], unordered()).await;
    let id = bed.stop(pause("acme/*")).await;
    bed.store.delete_subscription("acme/a").await.unwrap();
    assert_eq!(bed.rules().await[0].subscriptions, 0);
    assert_eq!(bed.lift(id).await, []);
}

async fn push_subscriptions_obey_rules_by_pattern(bed: Bed) {
    let queue = bed.queue_named("acme/a", &[TOPIC], pushed()).await;
    let line = bed.queue_named("acme/b", &[TOPIC], arrival()).await;
    bed.emit(keyed("a")).await;
    let id = bed.stop(pause("acme/*")).await;
    assert_eq!((stopped_by(&queue).await, stopped_by(&line).await), (Some(Pause), Some(Pause)));
    bed.lift(id).await;
    assert_eq!(ids(&queue.claim(1).await).len() + ids(&line.claim(1).await).len(), 2);
}

/// Neither misses the other, whoever is first.
async fn subscriptions_and_rules_that_come_at_once_meet(bed: Bed) {
    bed.topic(TOPIC, 1).await;
    in_parallel(8, |number| {
        let bed = bed.clone();
        async move {
            match number % 2 {
                0 => drop(bed.queue_named(&format!("acme/q{number}"), &[TOPIC], unordered()).await),
                _ => drop(bed.stop(pause(&format!("acme/{}", ["*", "**"][number as usize / 2 % 2]))).await),
            }
        }
    })
    .await;
    for subscription in bed.store.subscriptions().await.unwrap() {
        let stats = bed.store.stats(subscription.id, bed.now()).await.unwrap();
        assert_eq!(stats.rules.len(), 2, "{}", subscription.name);
    }
}

async fn a_storm_of_rules_of_all_kinds_runs_every_event_once(bed: Bed) {
    for (name, policy) in [("acme/unordered", unordered()), ("acme/ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_together((0..80).map(|n| keyed(&format!("key{}", n % 9))).collect()).await;
        let run = in_parallel(8, |number| {
            let (bed, queue) = (bed.clone(), queue.clone());
            async move { weather(&bed, &queue, number).await }
        });
        let emitted: Vec<EventId> = emitted.iter().map(|event| event.id).collect();
        assert_eq!(sorted(run.await.concat()), emitted, "{name}");
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
        assert!(queue.stats().await.rules.is_empty(), "{name}");
    }
}

/// One of many who set and remove rules, by name or by pattern, and work in between.
async fn weather(bed: &Bed, queue: &Queue, number: i64) -> Vec<EventId> {
    let mut mine = Vec::new();
    let mut calm = number % 2 == 0;
    while queue.counts().await.pending() > 0 {
        // If all set rules all the time, there would hardly ever be none.
        calm = !calm;
        match number % 4 {
            _ if calm => {}
            0 => {
                queue.set(Pause).await;
                queue.unset(Pause).await;
            }
            1 => {
                queue.set(Block).await;
                queue.unset(Block).await;
            }
            _ => {
                let kind = if number % 4 == 2 { Pause } else { Block };
                let pattern = ["acme/*", "**", "acme/**", "*/*"][number as usize / 2];
                let id = bed.stop(SetPatternRule { kind, ..pause(pattern) }).await;
                bed.lift(id).await;
            }
        }
        let claimed = queue.claim_by(Incarnation(number + 1), 5).await;
        mine.extend(ids(&claimed));
        assert!(queue.done(&claimed).await);
    }
    mine
}

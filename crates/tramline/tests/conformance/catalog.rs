//! Topics and subscriptions.

use crate::bed::*;

conformance![
    a_topic_has_32_lanes_and_keeps_events_for_a_day_unless_it_says_otherwise,
    the_lanes_of_a_topic_never_change,
    the_retention_of_a_topic_can_change,
    a_topic_has_an_owner_who_can_change_and_leave,
    a_topic_is_claimed_once,
    of_many_who_claim_a_topic_one_gets_it,
    topics_are_listed_by_name,
    a_topic_cannot_be_deleted_while_it_is_consumed,
    a_deleted_topic_is_gone_with_its_events,
    the_number_of_a_deleted_topic_never_comes_back,
    an_impossible_topic_is_refused,
    a_subscription_creates_its_topics,
    putting_the_same_subscription_again_changes_nothing,
    subscriptions_are_listed_by_name,
    the_policy_of_a_subscription_can_change,
    a_changed_policy_is_that_of_every_node_at_once,
    a_change_of_what_somebody_else_has_changed_is_refused,
    of_many_who_read_and_then_write_one_at_a_time_is_accepted,
    ordering_and_guarantee_never_change,
    an_impossible_subscription_is_refused,
    a_deleted_subscription_is_gone_with_its_work,
    a_recreated_subscription_is_another_one,
    a_lease_of_before_is_worth_nothing_in_a_recreated_subscription,
    a_topic_that_is_no_longer_consumed_takes_its_work_along,
    a_topic_can_be_added_to_a_subscription,
    a_topic_that_is_draining_gives_nothing_new_and_keeps_what_there_is,
    no_emit_misses_a_subscription_that_was_just_created,
    what_does_not_exist_cannot_be_deleted,
];

fn topic(name: &str, lanes: Option<u32>, retention: Option<u64>) -> PutTopic {
    PutTopic {
        name: name.into(),
        settings: TopicSettings { lanes, retention: retention.map(seconds), ..TopicSettings::default() },
        now: Some(Time(1_800_000_000_000)),
    }
}

async fn a_topic_has_32_lanes_and_keeps_events_for_a_day_unless_it_says_otherwise(bed: Bed) {
    let plain = bed.store.put_topic(topic("plain", None, None)).await.unwrap();
    assert_eq!((plain.lanes, plain.retention, plain.created_at), (32, seconds(86_400), bed.time()));
    let own = bed.store.put_topic(topic("own", Some(7), Some(60))).await.unwrap();
    assert_eq!((own.lanes, own.retention), (7, seconds(60)));
}

async fn the_lanes_of_a_topic_never_change(bed: Bed) {
    bed.store.put_topic(topic("a", Some(7), None)).await.unwrap();
    let error = bed.store.put_topic(topic("a", Some(8), None)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    assert_eq!(bed.store.put_topic(topic("a", Some(7), None)).await.unwrap().lanes, 7);
    assert_eq!(bed.store.put_topic(topic("a", None, None)).await.unwrap().lanes, 7);
}

async fn the_retention_of_a_topic_can_change(bed: Bed) {
    let first = bed.store.put_topic(topic("a", None, Some(60))).await.unwrap();
    let second = bed.store.put_topic(topic("a", None, Some(90))).await.unwrap();
    assert_eq!((second.id, second.retention), (first.id, seconds(90)));
    let third = bed.store.put_topic(topic("a", None, None)).await.unwrap();
    assert_eq!(third, second);
}

fn owned(owner: Option<&str>) -> PutTopic {
    let owner = Some(owner.map(str::to_owned));
    let settings = TopicSettings { owner, ..TopicSettings::default() };
    PutTopic { settings, ..topic("a", None, None) }
}

async fn a_topic_has_an_owner_who_can_change_and_leave(bed: Bed) {
    let owner = |topic: Topic| topic.owner.as_deref().map(str::to_owned);
    let listed = async || owner(bed.store.topics().await.unwrap().remove(0));
    assert_eq!(
        owner(bed.store.put_topic(owned(Some("team-shop"))).await.unwrap()).as_deref(),
        Some("team-shop")
    );
    assert_eq!(listed().await.as_deref(), Some("team-shop"));
    let longer = bed.store.put_topic(topic("a", None, Some(90))).await.unwrap();
    assert_eq!(owner(longer).as_deref(), Some("team-shop"), "what is left out stays");
    bed.store.put_topic(owned(Some("Zoë"))).await.unwrap();
    assert_eq!(listed().await.as_deref(), Some("Zoë"));
    assert_eq!(owner(bed.store.put_topic(owned(None)).await.unwrap()), None);
    assert_eq!(listed().await, None);
}

fn claimed(topic: &str, by: &str) -> PutTopic {
    PutTopic { name: topic.into(), settings: TopicSettings::claim(by), now: None }
}

async fn a_topic_is_claimed_once(bed: Bed) {
    let claim = |by: &'static str| bed.store.put_topic(claimed("a", by));
    assert_eq!(claim("ann").await.unwrap().owner.as_deref(), Some("ann"), "it is created too");
    assert_eq!(claim("bob").await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(claim("ann").await.unwrap().owner.as_deref(), Some("ann"), "again is harmless");
    bed.store.put_topic(owned(None)).await.unwrap();
    assert_eq!(claim("bob").await.unwrap().owner.as_deref(), Some("bob"));
    assert_eq!(claim("").await.unwrap_err().kind(), Kind::Invalid);
}

async fn of_many_who_claim_a_topic_one_gets_it(bed: Bed) {
    let twin = bed.twin().await;
    for topic in ["new", "there"] {
        if topic == "there" {
            bed.store.put_topic(PutTopic { name: topic.into(), ..owned(None) }).await.unwrap();
        }
        let names: Vec<String> = (0..8).map(|number| format!("client-{number}")).collect();
        let claims = names.iter().enumerate().map(|(at, name)| {
            let store = if at % 2 == 0 { &bed.store } else { &twin.store };
            store.put_topic(claimed(topic, name))
        });
        let answers = futures_util::future::join_all(claims).await;
        let got: Vec<&String> =
            names.iter().zip(&answers).filter(|(_, it)| it.is_ok()).map(|(name, _)| name).collect();
        assert_eq!(got.len(), 1, "{answers:?}");
        assert!(answers.iter().flat_map(|it| it.as_ref().err()).all(|error| error.kind() == Kind::Conflict));
        let owner =
            bed.store.topics().await.unwrap().into_iter().find(|it| *it.name == *topic).unwrap().owner;
        assert_eq!(owner.as_deref(), Some(got[0].as_str()));
    }
}

async fn topics_are_listed_by_name(bed: Bed) {
    for name in ["b", "a/2", "c", "a/1"] {
        bed.topic(name, 4).await;
    }
    let topics = bed.store.topics().await.unwrap();
    assert_eq!(topics.iter().map(|topic| &*topic.name).collect::<Vec<_>>(), ["a/1", "a/2", "b", "c"]);
}

async fn a_topic_cannot_be_deleted_while_it_is_consumed(bed: Bed) {
    bed.queue(unordered()).await;
    assert_eq!(bed.store.delete_topic(TOPIC).await.unwrap_err().kind(), Kind::Conflict);
    bed.store.delete_subscription("queue").await.unwrap();
    bed.store.delete_topic(TOPIC).await.unwrap();
    assert!(bed.store.topics().await.unwrap().is_empty());
}

async fn a_deleted_topic_is_gone_with_its_events(bed: Bed) {
    let id = bed.emit(keyed("a").state("open")).await;
    bed.store.delete_topic(TOPIC).await.unwrap();
    assert!(bed.find(id).await.is_none());
    let next = bed.emit_together(vec![keyed("a")]).await;
    assert_eq!(next[0].prev, None, "the chains of the old topic are gone");
    let head = bed.store.head(TOPIC, "a").await.unwrap();
    assert_eq!(head, Some(Head { last_id: next[0].id, state: None }));
}

async fn the_number_of_a_deleted_topic_never_comes_back(bed: Bed) {
    let old = bed.store.put_topic(topic("a", None, None)).await.unwrap();
    let old_event = bed.emit(Event::new("a", "x")).await;
    bed.store.delete_topic("a").await.unwrap();
    let new = bed.store.put_topic(topic("a", None, None)).await.unwrap();
    assert!(new.id > old.id);
    assert!(bed.emit(Event::new("a", "x")).await.chunk() > old_event.chunk());
}

async fn an_impossible_topic_is_refused(bed: Bed) {
    for put in [
        topic("two words", None, None),
        topic("", None, None),
        topic("a", Some(0), None),
        topic("a", Some(4097), None),
        owned(Some("")),
        owned(Some("two\nlines")),
        owned(Some(&"x".repeat(201))),
    ] {
        let error = bed.store.put_topic(put).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    assert!(bed.store.topics().await.unwrap().is_empty());
}

async fn a_subscription_creates_its_topics(bed: Bed) {
    let subscription = bed.subscribe("s", &["b", "a"], unordered(), Start::Now).await.unwrap();
    assert_eq!(subscription.topics.iter().map(|topic| &**topic).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(bed.store.topics().await.unwrap().len(), 2);
}

async fn putting_the_same_subscription_again_changes_nothing(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let id = bed.emit(keyed("a")).await;
    let before = bed.store.subscriptions().await.unwrap();
    bed.pass(seconds(5));
    let again = bed.subscribe("queue", &[TOPIC], ordered(), Start::Beginning).await.unwrap();
    assert_eq!(before, [again]);
    queue.backfill().await;
    assert_eq!(queue.drain().await, [id]);
}

async fn subscriptions_are_listed_by_name(bed: Bed) {
    for name in ["c", "a", "b"] {
        bed.queue_named(name, &[TOPIC], unordered()).await;
    }
    let subscriptions = bed.store.subscriptions().await.unwrap();
    assert_eq!(subscriptions.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["a", "b", "c"]);
}

async fn the_policy_of_a_subscription_can_change(bed: Bed) {
    let queue = bed.queue(unordered()).await;
    bed.emit(plain_event()).await;
    let policy = Policy { retry: Retry::never(), lease: Some(seconds(99)), ..unordered() };
    let changed = bed.queue(policy.clone()).await;
    assert_eq!(changed.id, queue.id);
    assert_eq!(bed.store.subscriptions().await.unwrap()[0].policy, policy);
    let claimed = queue.claim(1).await;
    assert_eq!(claimed.slices[0].until, bed.time().after(seconds(99)));
    queue.settle(&claimed, Outcome::retry("no")).await;
    assert_eq!(queue.counts().await.dead, 1);
}

/// What was claimed under the old policy is judged by the new one.
async fn a_changed_policy_is_that_of_every_node_at_once(bed: Bed) {
    let other = bed.twin().await;
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy.clone()).await;
        let id = bed.emit(keyed("a")).await;
        let claimed = queue.claim(1).await;
        let stricter = Policy { retry: Retry::never(), ..policy };
        other.subscribe(name, &[TOPIC], stricter, Start::Now).await.unwrap();
        assert!(queue.settle(&claimed, Outcome::retry("no")).await, "{name}");
        assert_eq!(queue.dead_ids().await, [id], "{name}");
    }
}

fn change(old: &Subscription, topics: &[&str], expected: Expected) -> PutSubscription {
    PutSubscription {
        name: old.name.to_string(),
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        policy: old.policy.clone(),
        start: Start::Now,
        expected,
        now: Some(Time(1_800_000_000_000)),
    }
}

fn this(old: &Subscription) -> Expected {
    Expected::This(Box::new(old.clone()))
}

/// What one node had read, another one has changed before it wrote: the first change was undone, and nobody was told.
async fn a_change_of_what_somebody_else_has_changed_is_refused(bed: Bed) {
    let twin = bed.twin().await;
    let old = bed.subscribe("queue", &["a"], unordered(), Start::Now).await.unwrap();
    let new = twin.store.put_subscription(change(&old, &["a", "b"], this(&old))).await.unwrap();
    for stale in [this(&old), Expected::Nothing] {
        let error = bed.store.put_subscription(change(&old, &["a", "c"], stale)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Changed);
    }
    assert_eq!(bed.store.subscriptions().await.unwrap(), std::slice::from_ref(&new));
    let again = bed.store.put_subscription(change(&old, &["a", "b"], this(&old))).await.unwrap();
    assert_eq!(again, new, "what is already as it shall be need not change");
    bed.store.delete_subscription("queue").await.unwrap();
    let error = twin.store.put_subscription(change(&new, &["a"], this(&new))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Changed, "a deleted one does not come back");
    twin.store.put_subscription(change(&new, &["a"], Expected::Nothing)).await.unwrap();
}

async fn of_many_who_read_and_then_write_one_at_a_time_is_accepted(bed: Bed) {
    let twin = bed.twin().await;
    bed.subscribe("queue", &["t"], unordered(), Start::Now).await.unwrap();
    let (one, other) = (bed.store.clone(), twin.store.clone());
    in_parallel(4, |number| {
        let store = if number % 2 == 0 { one.clone() } else { other.clone() };
        async move {
            loop {
                let old = store.subscriptions().await.unwrap().remove(0);
                let own = format!("t{number}");
                let topics: Vec<&str> = old.topics.iter().map(|topic| &**topic).chain([&*own]).collect();
                match store.put_subscription(change(&old, &topics, this(&old))).await {
                    Ok(_) => return,
                    Err(error) => assert_eq!(error.kind(), Kind::Changed, "{error}"),
                }
            }
        }
    })
    .await;
    let topics = bed.store.subscriptions().await.unwrap().remove(0).topics;
    assert_eq!(topics.iter().map(|topic| &**topic).collect::<Vec<_>>(), ["t", "t1", "t2", "t3", "t4"]);
}

async fn ordering_and_guarantee_never_change(bed: Bed) {
    bed.queue(unordered()).await;
    for policy in [ordered(), at_most_once()] {
        let error = bed.subscribe("queue", &[TOPIC], policy, Start::Now).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict);
    }
}

async fn an_impossible_subscription_is_refused(bed: Bed) {
    let bad = Policy { lease: Some(seconds(1_000_000)), ..unordered() };
    for (name, topics, policy) in [
        ("two words", &["a"][..], unordered()),
        ("s", &["two words"], unordered()),
        ("s", &["a"], bad),
        ("s", &[], unordered()),
    ] {
        let error = bed.subscribe(name, topics, policy, Start::Now).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    assert!(bed.store.subscriptions().await.unwrap().is_empty());
}

async fn a_deleted_subscription_is_gone_with_its_work(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &[TOPIC], policy).await;
        let emitted = bed.emit_keys(&["a", "a", "b", "c"]).await;
        queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
        queue.claim(1).await;
        bed.store.delete_subscription(name).await.unwrap();
        assert!(bed.store.subscriptions().await.unwrap().is_empty(), "{name}");
        for id in emitted {
            assert!(bed.find(id).await.unwrap().deliveries.is_empty(), "{name}");
        }
    }
}

async fn a_recreated_subscription_is_another_one(bed: Bed) {
    let old = bed.queue(ordered()).await;
    bed.emit_keys(&["a", "a"]).await;
    old.settle(&old.claim(1).await, Outcome::dead("no")).await;
    old.set(RuleKind::Pause).await;
    bed.store.delete_subscription("queue").await.unwrap();
    let new = bed.queue(ordered()).await;
    assert!(new.id > old.id);
    assert_eq!(
        new.stats().await,
        Stats { counts: Counts::default(), oldest_ready_at: None, oldest_dead_at: None, rules: vec![] }
    );
    let id = bed.emit(keyed("a")).await;
    let claimed = new.claim(10).await;
    assert_eq!((ids(&claimed), skipped(&claimed, id)), (vec![id], vec![]));
}

async fn a_lease_of_before_is_worth_nothing_in_a_recreated_subscription(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let old = bed.queue_named(name, &[TOPIC], policy.clone()).await;
        bed.emit(keyed("a")).await;
        let stale = old.claim(1).await;
        bed.store.delete_subscription(name).await.unwrap();
        let new = bed.subscribe(name, &[TOPIC], policy, Start::Beginning).await.unwrap();
        let new = Queue { id: new.id, ..old };
        new.backfill().await;
        let claimed = new.claim(10).await;
        assert!(!new.done(&stale).await, "{name}");
        assert!(new.done(&claimed).await, "{name}");
    }
}

async fn a_topic_that_is_no_longer_consumed_takes_its_work_along(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &["a", "b"], policy.clone()).await;
        bed.emit(Event::new("a", "x").key("k")).await;
        let kept = bed.emit(Event::new("b", "x").key("k")).await;
        bed.queue_named(name, &["b"], policy).await;
        bed.emit(Event::new("a", "x").key("k")).await;
        assert_eq!(queue.counts().await, Counts { ready: 1, ..Counts::default() }, "{name}");
        assert_eq!(queue.drain().await, [kept], "{name}");
    }
}

async fn a_topic_can_be_added_to_a_subscription(bed: Bed) {
    let queue = bed.queue_named("queue", &["a"], ordered()).await;
    let before = bed.emit(Event::new("b", "x")).await;
    bed.subscribe("queue", &["a", "b"], ordered(), Start::Beginning).await.unwrap();
    let after = bed.emit(Event::new("b", "x")).await;
    queue.backfill().await;
    assert_eq!(sorted(queue.drain().await), [before, after]);
}

async fn a_topic_that_is_draining_gives_nothing_new_and_keeps_what_there_is(bed: Bed) {
    for (name, policy) in [("unordered", unordered()), ("ordered", ordered())] {
        let queue = bed.queue_named(name, &["a", "b"], policy.clone()).await;
        let kept = bed.emit(Event::new("a", "x").key("k")).await;
        let draining = Policy { draining: vec!["a".into()], ..policy.clone() };
        bed.queue_named(name, &["a", "b"], draining).await;
        bed.twin().await.emit(Event::new("a", "x").key("k")).await;
        let other = bed.emit(Event::new("b", "x").key("k")).await;
        assert_eq!(sorted(queue.drain().await), [kept, other], "{name}");
        bed.queue_named(name, &["a", "b"], policy).await;
        let back = bed.emit(Event::new("a", "x").key("k")).await;
        assert_eq!(queue.drain().await, [back], "{name}");
    }
}

/// Trap: an emit that read the old list of subscriptions.
async fn no_emit_misses_a_subscription_that_was_just_created(bed: Bed) {
    bed.topic(TOPIC, 4).await;
    let created = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let emitted = in_parallel(5, |number| {
        let (bed, created) = (bed.clone(), created.clone());
        async move {
            let mut after = Vec::new();
            for round in 0..30 {
                if number == 1 && round == 10 {
                    bed.queue(ordered()).await;
                    created.store(true, std::sync::atomic::Ordering::SeqCst);
                }
                let is_after = created.load(std::sync::atomic::Ordering::SeqCst);
                let id = bed.emit(keyed(&format!("key{round}"))).await;
                after.extend(is_after.then_some(id));
            }
            after
        }
    });
    let after = emitted.await.concat();
    let seen = bed.queue(ordered()).await.drain().await;
    assert!(after.len() >= 20 && after.iter().all(|id| seen.contains(id)));
}

async fn what_does_not_exist_cannot_be_deleted(bed: Bed) {
    assert_eq!(bed.store.delete_topic("none").await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(bed.store.delete_subscription("none").await.unwrap_err().kind(), Kind::NotFound);
}

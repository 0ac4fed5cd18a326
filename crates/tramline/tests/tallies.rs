//! Tallies through the handle: group commit of acks, lost answers, delivery, waiting, and growing from handlers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::future::pending;
use std::time::Duration;
use support::{Bench, start, until};
use tramline::model::tally::group::expand;
use tramline::store::verbs::{Settle, SettleSlice};
use tramline::{Context, Event, ItemStatus, Kind, NewTally, Outcome, Parent, TallyId, TallyState, Tramline};

const TOLD: &str = "told";

fn told() -> NewTally {
    NewTally::new().on_complete(Event::new(TOLD, "x").kind("complete"))
}

async fn open(tram: &Tramline, items: u64) -> TallyId {
    let tally = tram.tallies().open(told()).await.unwrap().id;
    tram.tallies().add(tally, items).await.unwrap();
    tram.tallies().seal(tally, Some(items)).await.unwrap();
    tally
}

async fn told_events(tram: &Tramline) -> usize {
    match tram.read_log(TOLD, tramline::EventId(0), 100).await {
        Ok(page) => page.events.len(),
        Err(_) => 0,
    }
}

#[tokio::test]
async fn acks_gather_while_one_is_under_way_and_one_caller_is_told() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = open(&tram, 51).await;
    let mut held = bench.store.hold("ack_items");
    let ack = |item: u64| {
        let tram = tram.clone();
        tokio::spawn(async move { tram.tallies().done(tally, [item]).await.unwrap() })
    };
    let first = ack(0);
    held.begun().await;
    let others: Vec<_> = (1..51).map(ack).collect();
    tokio::task::yield_now().await;
    held.release();
    let mut completed = first.await.unwrap().completed.len();
    for other in others {
        let acked = other.await.unwrap();
        assert_eq!(acked.results[0][0].acked, 1);
        completed += acked.completed.len();
    }
    assert_eq!((bench.store.calls("ack_items"), completed), (2, 1));
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_changes_nothing() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tallies = tram.tallies();
    let tally = tallies.open(told()).await.unwrap().id;
    bench.store.lose_answer("add_items");
    let mut adding = tokio::spawn({
        let tram = tram.clone();
        async move { tram.tallies().add(tally, 5).await.unwrap() }
    });
    let added = patiently(&bench, &mut adding).await;
    assert_eq!((added.first, tallies.get(tally).await.unwrap().total), (0, 5));
    tallies.seal(tally, None).await.unwrap();
    bench.store.lose_answer("ack_items");
    let mut acking = tokio::spawn({
        let tram = tram.clone();
        async move { tram.tallies().done(tally, [0..=4]).await.unwrap() }
    });
    let acked = patiently(&bench, &mut acking).await;
    assert_eq!(acked.completed.len(), 1, "the caller completed it and is told so");
    assert_eq!(tallies.get(tally).await.unwrap().done, 5);
    let empty = tallies.open(NewTally::new()).await.unwrap().id;
    bench.store.lose_answer("seal_tally");
    let mut sealing = tokio::spawn({
        let tram = tram.clone();
        async move { tram.tallies().seal(empty, None).await.unwrap() }
    });
    assert!(patiently(&bench, &mut sealing).await.completed_now);
}

/// Turns the clock until a task is done.
async fn patiently<T>(bench: &Bench, task: &mut tokio::task::JoinHandle<T>) -> T {
    until("the task is done", || async {
        bench.clock.advance(Duration::from_millis(100));
        task.is_finished()
    })
    .await;
    task.await.unwrap()
}

#[tokio::test]
async fn what_would_be_counted_twice_is_not_repeated() {
    let bench = Bench::new().await;
    let tram = bench.process();
    bench.store.fail("open_tally", Kind::Unavailable);
    assert_eq!(tram.tallies().open(NewTally::new()).await.unwrap_err().kind(), Kind::Unavailable);
    let tally = tram.tallies().open(NewTally::new().estimated()).await.unwrap().id;
    bench.store.lose_answer("count_tallies");
    assert_eq!(tram.tallies().count(vec![(tally, 1)]).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(tram.tallies().get(tally).await.unwrap().total, 1);
}

#[tokio::test]
async fn an_addition_under_a_key_is_made_once() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = tram.tallies().open(NewTally::new()).await.unwrap().id;
    let added = tram.tallies().add_once(tally, 7, "batch 1").await.unwrap();
    assert_eq!(tram.tallies().add_once(tally, 7, "batch 1").await.unwrap(), added);
    assert_ne!(tram.tallies().add_once(tally, 7, "batch 2").await.unwrap(), added);
    assert_eq!(tram.tallies().add_once(tally, 8, "batch 1").await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(tram.tallies().add(tally, 0).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn the_completion_event_follows_at_once() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = open(&tram, 2).await;
    tram.tallies().fail(tally, [0, 1]).await.unwrap();
    until("the event is there", || async { told_events(&tram).await == 1 }).await;
    let empty = tram.tallies().open(told()).await.unwrap().id;
    tram.tallies().seal(empty, None).await.unwrap();
    until("the event is there", || async { told_events(&tram).await == 2 }).await;
}

#[tokio::test]
async fn what_a_process_could_not_deliver_the_sweep_of_another_delivers() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = open(&tram, 1).await;
    bench.store.fail_always("deliver", Some(Kind::Unavailable));
    tram.tallies().done(tally, [0]).await.unwrap();
    until("it was tried", || async { bench.store.calls("deliver") > 0 }).await;
    drop(tram);
    bench.store.fail_always("deliver", None);
    let other = bench.process();
    other.sweep().await.unwrap();
    assert_eq!(told_events(&other).await, 1);
    other.sweep().await.unwrap();
    assert_eq!(told_events(&other).await, 1);
}

#[tokio::test]
async fn who_waits_is_woken_by_the_end_and_not_by_the_clock() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let wait = |tally| {
        let tram = tram.clone();
        tokio::spawn(async move { tram.tallies().wait(tally, pending()).await.unwrap().state })
    };
    let (complete, cancelled) = (open(&tram, 1).await, open(&tram, 1).await);
    let waiting = [wait(complete), wait(cancelled)];
    until("both have looked", || async { bench.store.calls("tally") >= 2 }).await;
    tram.tallies().done(complete, [0]).await.unwrap();
    tram.tallies().cancel(cancelled).await.unwrap();
    let [complete, cancelled] = waiting;
    assert_eq!(complete.await.unwrap(), TallyState::Complete);
    assert_eq!(cancelled.await.unwrap(), TallyState::Cancelled);
    let nobody = tram.tallies().wait(TallyId(99), pending()).await;
    assert_eq!(nobody.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn who_gives_up_waiting_is_told_how_it_is() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = open(&tram, 2).await;
    let found = tram.tallies().wait(tally, async {}).await.unwrap();
    assert_eq!((found.state, found.pending()), (TallyState::Sealed, 2));
}

#[tokio::test]
async fn a_lost_hint_is_repaired_by_a_slow_look() {
    let bench = Bench::new().await;
    let (tram, other) = (bench.process(), bench.process());
    let tally = open(&tram, 1).await;
    let mut waiting = tokio::spawn({
        let tram = tram.clone();
        async move { tram.tallies().wait(tally, pending()).await.unwrap().is_complete() }
    });
    until("it has looked", || async { bench.store.calls("tally") > 0 }).await;
    other.tallies().done(tally, [0]).await.unwrap();
    assert!(patiently(&bench, &mut waiting).await);
}

#[tokio::test]
async fn events_that_workers_settle_complete_their_tally() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let worker = tram.worker("w").topics(["t"]).on_any(|cx: Context| async move {
        assert!(cx.item().is_some());
        if cx.event().payload.starts_with(b"bad") { Outcome::dead("no") } else { Outcome::Done }
    });
    worker.subscribe().await.unwrap();
    let tally = tram.tallies().open(told()).await.unwrap().id;
    let events: Vec<Event> =
        (0..100).map(|n| Event::new("t", if n % 10 == 0 { "bad" } else { "good" }).tally(tally)).collect();
    tram.emit(events).await.unwrap();
    tram.tallies().seal(tally, Some(100)).await.unwrap();
    let (shutdown, running) = start(worker);
    let found = tram.tallies().wait(tally, pending()).await.unwrap();
    assert_eq!((found.done, found.failed, found.progress()), (90, 10, 1.0));
    until("the event is there", || async { told_events(&tram).await == 1 }).await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// A crawl: every page emits the pages it links to, into a tally that was sealed with the first one.
#[tokio::test]
async fn handlers_grow_a_tally_from_inside_its_items() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let worker = tram.worker("crawl").topics(["pages"]).on_any(|cx: Context| async move {
        let depth: u32 = std::str::from_utf8(&cx.event().payload).unwrap().parse().unwrap();
        for _ in 0..depth {
            let page = cx.grow(Event::new("pages", (depth - 1).to_string()));
            cx.tramline().emit(page).await?;
        }
        Ok::<_, tramline::Error>(())
    });
    worker.subscribe().await.unwrap();
    let tally = tram.tallies().open(told().growing()).await.unwrap().id;
    tram.emit(Event::new("pages", "4").tally(tally)).await.unwrap();
    tram.tallies().seal(tally, None).await.unwrap();
    let (shutdown, running) = start(worker);
    let found = tram.tallies().wait(tally, pending()).await.unwrap();
    assert_eq!((found.state, found.total, found.done), (TallyState::Complete, 65, 65));
    shutdown.start();
    running.await.unwrap().unwrap();
    assert!(told_events(&tram).await <= 1);
}

#[tokio::test]
async fn a_tree_of_tallies_completes_by_itself() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tallies = tram.tallies();
    let root = tallies.open(told()).await.unwrap().id;
    let mut leaves = Vec::new();
    for _ in 0..3 {
        let branch = tallies.open(NewTally::new().parent(Parent::New(root))).await.unwrap();
        assert_eq!(branch.parent.unwrap().tally, root);
        leaves.push(tallies.open(NewTally::new().parent(Parent::New(branch.id))).await.unwrap().id);
        tallies.seal(branch.id, None).await.unwrap();
    }
    tallies.seal(root, Some(3)).await.unwrap();
    for leaf in leaves {
        tallies.seal(leaf, None).await.unwrap();
    }
    assert!(tallies.wait(root, pending()).await.unwrap().is_complete());
}

#[tokio::test]
async fn items_are_added_and_acked_under_their_carlyle_names() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tallies = tram.tallies();
    let tally = tallies.open(NewTally::new().user_key("import")).await.unwrap().id;
    let groups = tallies.add_groups(tally, 25_000).await.unwrap();
    assert!(groups.iter().all(|group| (1..=64).contains(&group.upto)));
    tallies.seal(tally, Some(25_000)).await.unwrap();
    let names = expand(groups);
    assert_eq!(names.len(), 25_000);
    let mut some: Vec<String> = names[..3].to_vec();
    some.insert(1, "no name".into());
    some.insert(2, names[0].clone());
    some.push(names[24_999].rsplit_once(':').unwrap().0.to_owned() + ":63");
    let acks = tallies.ack_names(&some).await.unwrap();
    let status: Vec<Option<ItemStatus>> =
        acks.results.iter().map(|result| result.as_ref().ok().copied()).collect();
    use ItemStatus::{Acked, Already, Unknown};
    assert_eq!(status, [Some(Acked), None, Some(Already), Some(Acked), Some(Acked), Some(Unknown)]);
    assert_eq!(acks.results[1].as_ref().unwrap_err().kind(), Kind::Invalid);
    let rest = tallies.ack_names(&names).await.unwrap();
    assert_eq!(rest.completed[0].user_key.as_deref(), Some("import"));
}

#[tokio::test]
async fn a_range_of_many_millions_is_acked_in_one_call() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = open(&tram, 30_000_000).await;
    let acked = tram.tallies().done(tally, [5..=29_999_999, 0..=10]).await.unwrap();
    let counts = &acked.results[0];
    assert_eq!((counts[0].acked, counts[1].acked, counts[1].already), (29_999_995, 5, 6));
    assert_eq!(acked.completed.len(), 1);
    assert!(bench.store.calls("ack_items") > 4, "in bounded steps");
}

#[tokio::test]
async fn sweeps_expire_and_remove_tallies_by_the_settings_of_the_process() {
    let bench = Bench::new().await;
    let hour = Duration::from_secs(3600);
    let tram = bench.process_with(|options| options.keep_tallies(hour, 3 * hour));
    let tallies = tram.tallies();
    let expiring = tallies.open(NewTally::new().expires_in(hour / 2)).await.unwrap().id;
    let open = tallies.open(NewTally::new()).await.unwrap().id;
    let sealed = tallies.open(NewTally::new()).await.unwrap().id;
    tallies.seal(sealed, None).await.unwrap();
    bench.clock.advance(hour + Duration::from_secs(1));
    tram.sweep().await.unwrap();
    assert_eq!(tallies.get(expiring).await.unwrap().state, TallyState::Expired);
    assert_eq!(tallies.get(open).await.unwrap_err().kind(), Kind::NotFound);
    assert!(tallies.get(sealed).await.unwrap().is_complete());
    bench.clock.advance(2 * hour);
    tram.sweep().await.unwrap();
    assert_eq!(tallies.get(sealed).await.unwrap_err().kind(), Kind::NotFound);
    let now = bench.clock.now();
    let old = tallies.open(NewTally::new()).await.unwrap().id;
    tallies.add(old, 9).await.unwrap();
    bench.clock.advance(hour);
    let reaped = tallies.reap(true, now.after(Duration::from_secs(1)), None).await.unwrap();
    assert_eq!((reaped.tallies, reaped.items), (1, 9));
}

#[tokio::test]
async fn impossible_tallies_are_refused_with_a_remedy() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let impossible = [
        NewTally::new().idempotency_key(""),
        NewTally::new().user_key("x".repeat(256)),
        NewTally::new().user_key("nul\0"),
        NewTally::new().metadata(serde_json::json!("x".repeat(17 << 10))),
        NewTally::new().estimated().growing(),
        NewTally::new().on_complete(Event::new("two words", "")),
        NewTally::new().on_complete(Event::new("t", "").idempotency_key("mine")),
        NewTally::new().on_expiry(Event::new("t", "").tally(TallyId(1))),
        NewTally::new().on_failure(Event::new("t", vec![b'x'; 65 << 10])),
    ];
    for new in impossible {
        let error = tram.tallies().open(new.clone()).await.unwrap_err();
        assert!(matches!(error.kind(), Kind::Invalid | Kind::TooLarge), "{new:?}: {error}");
        assert!(!error.remedy().is_empty());
    }
}

#[tokio::test]
async fn a_closed_tramline_takes_no_acks() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let tally = open(&tram, 1).await;
    tram.close().await;
    assert_eq!(tram.tallies().done(tally, [0]).await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn items_share_the_fate_of_the_callers_transaction() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("test.db");
    let tram = Tramline::open(&format!("sqlite://{}", path.display())).await.unwrap();
    let store = tram.sqlite().unwrap();
    tram.worker("w").topics(["t"]).subscribe().await.unwrap();
    let tally = tram.tallies().open(told()).await.unwrap().id;
    let mut connection = rusqlite::Connection::open(&path).unwrap();
    for commit in [false, true] {
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        store.emit_in(&tx, [Event::new("t", "x").tally(tally)]).unwrap();
        if commit { tx.commit() } else { tx.rollback() }.unwrap();
    }
    tram.tallies().seal(tally, Some(1)).await.unwrap();
    let subscription = tram.subscription("w").await.unwrap().id;
    let take = tramline::Take {
        subscription,
        owner: tramline::Incarnation::random(),
        max_events: 1,
        max_bytes: 1 << 20,
        lease: None,
    };
    let slice = tram.take(&take, pending()).await.unwrap().slices.remove(0);
    for commit in [false, true] {
        let outcomes = vec![(slice.events[0].event.id.index(), Outcome::Done)];
        let results = vec![SettleSlice { lease: slice.lease, outcomes }];
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        let settled =
            store.settle_in(&tx, &Settle { subscription, results, worker: None, now: None }).unwrap();
        if commit { tx.commit() } else { tx.rollback() }.unwrap();
        assert_eq!(tram.tallies().get(tally).await.unwrap().done, u64::from(commit));
        assert_eq!(settled.news, [tally]);
        if commit {
            tram.tallies().tell(&settled.news);
        }
    }
    until("the event is there", || async { told_events(&tram).await == 1 }).await;
}

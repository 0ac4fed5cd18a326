//! Leases in a running worker: kept while handlers run, lost when they cannot be kept, and never held by mistake.

use crate::bed::{LONG, SECOND, counts, event, waiting};
use crate::support::{Bench, all_wait, start, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tramline::{Context, Counts, Kind, Policy, Retry, Start, TopicSettings, Tramline};

const TICK: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_lost_lease_cancels_the_handler_and_its_outcome_does_not_count() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).lease(10 * SECOND).on_any(move |cx: Context| {
        let tell = tell.clone();
        async move {
            tell.send("begun").unwrap();
            if cx.crashes() == 0 {
                cx.cancelled().await;
                assert!(cx.is_cancelled());
            }
            tell.send("ended").unwrap();
        }
    });
    tram.emit(event("x")).await.unwrap();
    let (shutdown, running) = start(worker);
    assert_eq!(told.recv().await, Some("begun"));
    bench.store.fail_always("extend", Some(Kind::Unavailable));
    until("the handler is told", || async {
        bench.clock.advance(Duration::from_millis(500));
        !told.is_empty()
    })
    .await;
    assert_eq!(told.recv().await, Some("ended"));
    bench.store.fail_always("extend", None);
    // The lease ends in the store too, where it lasted a little longer.
    bench.clock.advance(10 * SECOND);
    until("it runs again", || async { told.len() == 2 }).await;
    until("it is settled", || async { counts(&tram).await.pending() == 0 }).await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn leases_are_extended_while_a_handler_runs() {
    for ordered in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (worker, mut begun, go_on) = waiting(&tram, ordered);
        let worker = worker.lease(10 * SECOND);
        worker.subscribe().await.unwrap();
        tram.emit(event("x").key("k")).await.unwrap();
        let (shutdown, running) = start(worker);
        begun.recv().await;
        let before = bench.store.calls("extend");
        for n in 1..=5 {
            bench.clock.advance(4 * SECOND);
            until("an extension", || async { bench.store.calls("extend") == before + n }).await;
        }
        go_on.notify_one();
        shutdown.start();
        running.await.unwrap().unwrap();
        assert_eq!(counts(&tram).await, Counts::default());
    }
}

/// Somebody shortens the leases of the subscription. A worker that went by the old length would not notice when they end.
#[tokio::test]
async fn leases_are_kept_when_the_policy_shortens_them_meanwhile() {
    for ordered in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (worker, mut begun, go_on) = waiting(&tram, ordered);
        let worker = worker.lease(30 * SECOND);
        let (shutdown, running) = start(worker);
        until("it looks", || async { bench.store.calls("claim") > 0 }).await;
        let policy = Policy { lease: Some(2 * SECOND), ..tram.subscription("w").await.unwrap().policy };
        tram.put_subscription("w", &["t"], policy, Start::Now).await.unwrap();
        tram.emit(event("x").key("k")).await.unwrap();
        begun.recv().await;
        for _ in 0..5 {
            let before = bench.store.calls("extend");
            bench.clock.advance(11 * SECOND);
            until("an extension", || async { bench.store.calls("extend") > before }).await;
            let other = bench.process();
            assert_eq!(other.worker("w").on_any(|| async {}).drain().await.unwrap(), 0, "ordered: {ordered}");
        }
        go_on.notify_one();
        shutdown.start();
        running.await.unwrap().unwrap();
        assert_eq!(counts(&tram).await, Counts::default());
    }
}

/// A claim prolongs the lease of its lane, and with it that of everything in hand of the lane.
#[tokio::test]
async fn a_claim_keeps_what_is_in_hand_of_its_lane() {
    let bench = Bench::new().await;
    let tram = bench.process();
    tram.put_topic("t", TopicSettings::lanes(1)).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let may_end = go_on.clone();
    let worker = tram.worker("w").topics(["t"]).ordered_by_key().lease(10 * SECOND);
    let worker = worker.concurrency(2).on_any(move |cx: Context| {
        let (tell, go_on) = (tell.clone(), may_end.clone());
        async move {
            tell.send(cx.crashes()).unwrap();
            tokio::select! {
                () = go_on.notified() => {}
                () = cx.cancelled() => tell.send(99).unwrap(),
            }
        }
    });
    worker.subscribe().await.unwrap();
    tram.emit(event("1").key("a")).await.unwrap();
    let (shutdown, running) = start(worker);
    assert_eq!(told.recv().await, Some(0));
    bench.store.fail_always("extend", Some(Kind::Unavailable));
    bench.clock.advance(6 * SECOND);
    tram.emit(event("2").key("b")).await.unwrap();
    assert_eq!(told.recv().await, Some(0));
    let before = bench.store.calls("extend");
    bench.clock.advance(5 * SECOND);
    until("the keeper tries", || async { bench.store.calls("extend") > before }).await;
    bench.clock.advance(SECOND);
    until("and has seen what is left", || async { bench.store.calls("extend") > before + 1 }).await;
    go_on.notify_waiters();
    until("both are done", || async { counts(&tram).await == Counts::default() }).await;
    assert!(told.try_recv().is_err());
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// The store has given the lane, and nobody here knows. A worker that asked again would hold it for ever.
#[tokio::test]
async fn events_whose_claim_was_not_answered_run_before_their_lease_ends() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).ordered_by_key().lease(LONG).on_any(move |cx: Context| {
        tell.send((cx.event().payload.to_vec(), cx.crashes())).unwrap();
        async {}
    });
    worker.subscribe().await.unwrap();
    tram.emit([event("1").key("a"), event("2").key("a")]).await.unwrap();
    bench.store.lose_answer("claim");
    let (shutdown, running) = start(worker);
    until("both are done", || async {
        bench.tick_until(LONG / 2);
        counts(&tram).await == Counts::default()
    })
    .await;
    assert_eq!(told.recv().await, Some((b"1".to_vec(), 1)));
    assert_eq!(told.recv().await, Some((b"2".to_vec(), 1)));
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// The lane is held with one event in hand while the answer with the others is lost: nothing more is taken from it until that
/// one is settled, and then the others run.
#[tokio::test]
async fn an_answer_that_was_lost_while_something_else_of_the_lane_runs_is_made_up_for() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut told) = mpsc::unbounded_channel();
    let go_on = Arc::new(Notify::new());
    let may_end = go_on.clone();
    let worker = tram.worker("w").topics(["t"]).ordered_by_key().lease(LONG).on_any(move |cx: Context| {
        let (tell, go_on) = (tell.clone(), may_end.clone());
        async move {
            tell.send(cx.event().payload.to_vec()).unwrap();
            if *cx.event().payload == *b"1" {
                go_on.notified().await;
            }
        }
    });
    worker.subscribe().await.unwrap();
    tram.emit(event("1").key("a")).await.unwrap();
    let (shutdown, running) = start(worker);
    assert_eq!(told.recv().await, Some(b"1".to_vec()));
    bench.store.lose_answer("claim");
    let claims = bench.store.calls("claim");
    tram.emit([event("2").key("a"), event("3").key("a")]).await.unwrap();
    until("the lost claim and another one", || async {
        bench.tick_until(LONG / 2);
        bench.store.calls("claim") > claims + 1
    })
    .await;
    assert!(told.try_recv().is_err(), "an event overtook the one that runs");
    go_on.notify_one();
    until("all are done", || async {
        bench.tick_until(LONG / 2);
        counts(&tram).await == Counts::default()
    })
    .await;
    assert_eq!([told.recv().await, told.recv().await], [Some(b"2".to_vec()), Some(b"3".to_vec())]);
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// The story: a store was so slow that claims took longer than their leases. Nothing was started under them, and yet each counted as a
/// crash, until there were dead events that never ran.
#[tokio::test]
async fn what_a_claim_brings_after_the_end_of_its_lease_is_no_crash() {
    for ordered in [false, true] {
        let bench = Bench::new().await;
        let tram = bench.process();
        let (tell, mut told) = mpsc::unbounded_channel();
        let worker = tram.worker("w").topics(["t"]).lease(10 * SECOND).on_any(move |cx: Context| {
            tell.send(cx.crashes()).unwrap();
            async {}
        });
        let worker = if ordered { worker.ordered_by_key() } else { worker };
        worker.subscribe().await.unwrap();
        tram.emit(event("1").key("a")).await.unwrap();
        let mut claiming = bench.store.hold_answer("claim");
        let (shutdown, running) = start(worker);
        claiming.begun().await;
        bench.clock.advance(10 * SECOND);
        claiming.release();
        assert_eq!(told.recv().await, Some(0), "ordered: {ordered}");
        shutdown.start();
        running.await.unwrap().unwrap();
        assert_eq!(counts(&tram).await, Counts::default(), "ordered: {ordered}");
    }
}

/// The story: the answer to a claim was late, and the lane was given up meanwhile, because its lease could not be extended. What the claim
/// brought was under the same lease, and ran before the event of its key that was given up.
#[tokio::test]
async fn a_claim_that_comes_back_after_its_lane_was_given_up_starts_nothing() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).ordered_by_key().concurrency(2).lease(10 * SECOND).on_any(
        move |cx: Context| {
            let tell = tell.clone();
            async move {
                let payload = String::from_utf8(cx.event().payload.to_vec()).unwrap();
                tell.send(payload.clone()).unwrap();
                if payload == "1" && cx.crashes() == 0 {
                    cx.cancelled().await;
                    tell.send("given up".to_owned()).unwrap();
                }
            }
        },
    );
    worker.subscribe().await.unwrap();
    tram.emit(event("1").key("a")).await.unwrap();
    let (shutdown, running) = start(worker);
    assert_eq!(told.recv().await.unwrap(), "1");
    bench.store.fail_always("extend", Some(Kind::Unavailable));
    let polls = bench.store.answers("claim");
    bench.clock.advance(4 * SECOND);
    until("the extension failed", || async { bench.store.answers("extend") > 0 }).await;
    until("the worker has looked in vain", || async { bench.store.answers("claim") > polls }).await;
    let mut claiming = bench.store.hold_answer("claim");
    tram.emit(event("2").key("a")).await.unwrap();
    until("it is claimed", || async { counts(&tram).await.leased == 2 }).await;
    claiming.begun().await;
    bench.clock.advance(6 * SECOND + TICK);
    assert_eq!(told.recv().await.unwrap(), "given up");
    claiming.release();
    // What it brought starts now, if it starts: time must not end its lease before.
    let answered = bench.store.answers("claim");
    until("the next claim is answered", || async { bench.store.answers("claim") > answered + 1 }).await;
    all_wait().await;
    bench.store.fail_always("extend", None);
    until("both are done", || async {
        bench.tick_until(60 * SECOND);
        counts(&tram).await == Counts::default()
    })
    .await;
    assert_eq!([told.recv().await.unwrap(), told.recv().await.unwrap()], ["1", "2"]);
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// A failure stops its key until the store knows of it. When the lease is lost before that, it stops nothing any more.
#[tokio::test]
async fn a_failure_that_was_never_settled_does_not_stop_its_key() {
    let bench = Bench::new().await;
    let tram = bench.process();
    tram.put_topic("t", TopicSettings::lanes(1)).await.unwrap(); // one lane, so one lease for all
    let failures = Arc::new(AtomicU32::new(0));
    let (count, go_on) = (failures.clone(), Arc::new(Notify::new()));
    let may_fail = go_on.clone();
    let worker = tram
        .worker("w")
        .topics(["t"])
        .ordered_by_key()
        .concurrency(4)
        .lease(10 * SECOND)
        .retry(Retry::constant(5, SECOND))
        .on_any(move |cx: Context| {
            let (count, go_on) = (count.clone(), may_fail.clone());
            async move {
                match &*cx.event().payload {
                    b"fails" if count.load(Ordering::SeqCst) == 0 => {
                        go_on.notified().await;
                        count.fetch_add(1, Ordering::SeqCst);
                        return Err("once");
                    }
                    b"long" if cx.crashes() == 0 => cx.cancelled().await,
                    _ => {}
                }
                Ok(())
            }
        });
    worker.subscribe().await.unwrap();
    let mut settling = bench.store.hold("settle");
    let events = [("good", "a"), ("fails", "b"), ("behind", "b"), ("long", "c")];
    tram.emit(events.map(|(payload, key)| event(payload).key(key))).await.unwrap();
    let (shutdown, running) = start(worker);
    // The settler is busy with the first event when the second one fails, so nobody tells the store of that.
    bench.clock.advance(TICK);
    settling.begun().await;
    go_on.notify_one();
    until("it has failed", || async { failures.load(Ordering::SeqCst) == 1 }).await;
    bench.store.fail_always("extend", Some(Kind::Unavailable));
    bench.clock.advance(11 * SECOND);
    until("the lease is given up", || async { bench.store.calls("extend") > 0 }).await;
    bench.store.fail_always("extend", None);
    settling.release();
    until("everything is done", || async {
        bench.tick_until(60 * SECOND);
        counts(&tram).await == Counts::default()
    })
    .await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// What a dropped run had in hand is nobody's: the next run of the process must not mistake the lane for its own.
#[tokio::test]
async fn the_next_run_of_a_process_goes_on_where_a_dropped_one_was() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = || {
        let tell = tell.clone();
        tram.worker("w").topics(["t"]).ordered_by_key().lease(LONG).on_any(move |cx: Context| {
            tell.send(cx.crashes()).unwrap();
            async move {
                if cx.crashes() == 0 {
                    cx.cancelled().await;
                }
            }
        })
    };
    worker().subscribe().await.unwrap();
    tram.emit(event("1").key("a")).await.unwrap();
    let (_, running) = start(worker());
    assert_eq!(told.recv().await, Some(0));
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    tram.emit(event("2").key("a")).await.unwrap();
    let (shutdown, running) = start(worker());
    assert_eq!(told.recv().await, Some(1));
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// A failure is on its way to the store when its lane has long gone on elsewhere. It stops nothing that comes after.
#[tokio::test]
async fn a_failure_under_a_lost_lease_does_not_stop_what_comes_under_the_next_one() {
    let bench = Bench::new().await;
    let tram = bench.process();
    tram.put_topic("t", TopicSettings::lanes(1)).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let (fail, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let worker = |tram: &Tramline| {
        let (tell, fail, end) = (tell.clone(), fail.clone(), end.clone());
        tram.worker("w").topics(["t"]).ordered_by_key().concurrency(4).lease(10 * SECOND).on_any(
            move |cx: Context| {
                let (tell, fail, end) = (tell.clone(), fail.clone(), end.clone());
                async move {
                    tell.send(String::from_utf8(cx.event().payload.to_vec()).unwrap()).unwrap();
                    match &*cx.event().payload {
                        b"fails" if cx.crashes() == 0 => {
                            fail.notified().await;
                            return Err("too late");
                        }
                        b"long" => end.notified().await,
                        _ => {}
                    }
                    Ok(())
                }
            },
        )
    };
    worker(&tram).subscribe().await.unwrap();
    tram.emit([event("fails").key("b"), event("behind").key("b")]).await.unwrap();
    let (shutdown, running) = start(worker(&tram));
    assert_eq!(told.recv().await.unwrap(), "fails");
    // The keeper is stuck, so nobody here notices that the lease ends.
    let mut extending = bench.store.hold("extend");
    bench.clock.advance(4 * SECOND);
    extending.begun().await;
    let mut claiming = bench.store.hold("claim");
    bench.clock.advance(11 * SECOND);
    claiming.begun().await;
    // The settler has the failure, and waits for the claim.
    fail.notify_one();
    all_wait().await;
    let other = bench.process();
    let (other_shutdown, other_running) = start(worker(&other));
    assert_eq!(told.recv().await.unwrap(), "fails");
    assert_eq!(told.recv().await.unwrap(), "behind");
    until("both are done elsewhere", || async { counts(&tram).await == Counts::default() }).await;
    other_shutdown.start();
    other_running.await.unwrap().unwrap();
    tram.emit([event("third").key("b"), event("long").key("c")]).await.unwrap();
    claiming.release();
    extending.release();
    let mut both = [told.recv().await.unwrap(), String::new()];
    tram.emit(event("fourth").key("b")).await.unwrap();
    both[1] = tokio::time::timeout(5 * SECOND, told.recv()).await.unwrap().unwrap();
    both.sort();
    assert_eq!(both, ["long", "third"]);
    end.notify_one();
    until("all are done", || async {
        bench.tick_until(600 * SECOND);
        counts(&tram).await == Counts::default()
    })
    .await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

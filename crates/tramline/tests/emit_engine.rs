//! Emitting: group commit, its failures, and the buffer.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use futures_util::FutureExt;
use futures_util::future::join_all;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Bench, until};
use tramline::{Error, Event, Hooks, Kind, TallyId, Tramline};

fn event(name: &str) -> Event {
    Event::new("t", name.to_owned())
}

async fn payloads(tram: &Tramline) -> Vec<String> {
    let page = tram.read_log("t", tramline::EventId(0), 10_000).await.unwrap();
    page.events.iter().map(|event| String::from_utf8(event.payload.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn emits_gather_while_one_is_under_way() {
    let bench = Bench::new().await;
    let tram = bench.process_with(|options| options.flushers_at_most(1));
    let mut held = bench.store.hold("emit");
    let first = tokio::spawn({
        let tram = tram.clone();
        async move { tram.emit(event("first")).await }
    });
    held.begun().await;
    let others: Vec<_> = (0..50)
        .map(|n| {
            let tram = tram.clone();
            tokio::spawn(async move { tram.emit(event(&n.to_string())).await })
        })
        .collect();
    tokio::task::yield_now().await;
    held.release();
    first.await.unwrap().unwrap();
    for other in others {
        other.await.unwrap().unwrap();
    }
    assert_eq!(payloads(&tram).await.len(), 51);
    assert_eq!(bench.store.calls("emit"), 2, "all that gathered go together");
}

#[test]
fn a_runtime_that_ends_while_emits_wait_does_not_hang_and_the_next_one_goes_on() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ending = runtime();
    let bench = ending.block_on(Bench::new());
    let tram = bench.process_with(|options| options.flushers_at_most(1));
    let mut held = bench.store.hold("emit");
    let first = tram.clone();
    ending.spawn(async move { first.emit(event("first")).await });
    ending.block_on(held.begun());
    // Its caller goes away, but it has joined the line.
    let second = ending.block_on(async { std::pin::pin!(tram.emit(event("second"))).now_or_never() });
    assert!(second.is_none());
    drop(ending);
    runtime().block_on(async {
        tram.emit(event("third")).await.unwrap();
        assert_eq!(payloads(&tram).await, ["second", "third"]);
    });
}

#[tokio::test]
async fn several_events_are_stored_in_order_with_one_receipt() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let receipt = tram.emit(vec![event("a").key("k"), event("b").key("k"), event("c")]).await.unwrap();
    assert_eq!(receipt.events.len(), 3);
    assert_eq!(receipt.id(), receipt.ids()[0]);
    assert_eq!(receipt.events[1].prev, Some(receipt.id()));
    assert_eq!(payloads(&tram).await, ["a", "b", "c"]);
    assert_eq!(tram.emit(Vec::new()).await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn an_impossible_event_is_refused_before_it_joins_a_group() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let bad = tram.emit(event("x").priority(10)).await.unwrap_err();
    assert_eq!(bad.kind(), Kind::Invalid);
    assert_eq!(bench.store.calls("emit"), 0);
}

/// Trap 5: one emit must not fail the group that it happens to share.
#[tokio::test]
async fn a_group_that_fails_as_a_whole_is_retried_one_by_one() {
    let bench = Bench::new().await;
    let tram = bench.process_with(|options| options.flushers_at_most(1));
    let mut held = bench.store.hold("emit");
    let first = tokio::spawn({
        let tram = tram.clone();
        async move { tram.emit(event("first")).await }
    });
    held.begun().await;
    bench.store.fail("emit", Kind::Conflict); // the group
    bench.store.fail("emit", Kind::Conflict); // its first unit, which is the one at fault
    let names = ["bad", "b", "c"];
    let group = join_all(names.map(|name| tram.emit(event(name))));
    let (results, ()) = tokio::join!(group, async { held.release() });
    first.await.unwrap().unwrap();
    let ok: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [false, true, true]);
    assert_eq!(payloads(&tram).await, ["first", "b", "c"]);
}

#[tokio::test]
async fn an_emit_of_unknown_fate_is_repeated_only_with_an_idempotency_key() {
    let bench = Bench::new().await;
    let tram = bench.process();
    bench.store.lose_answer("emit");
    let error = tram.emit(event("no key")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    bench.store.lose_answer("emit");
    let repeated = tokio::spawn({
        let tram = tram.clone();
        async move { tram.emit(event("key").idempotency_key("once")).await }
    });
    until("the second try", || async {
        bench.clock.advance(Duration::from_secs(1));
        bench.store.calls("emit") == 3
    })
    .await;
    assert!(repeated.await.unwrap().unwrap().repeated);
    assert_eq!(payloads(&tram).await, ["no key", "key"]);
}

#[tokio::test]
async fn a_store_that_stays_away_ends_in_unavailable() {
    let bench = Bench::new().await;
    let tram = bench.process();
    bench.store.fail_always("emit", Some(Kind::Unavailable));
    let emit = tokio::spawn(async move { tram.emit(event("key").idempotency_key("once")).await });
    until("giving up", || async {
        bench.clock.advance(Duration::from_secs(5));
        emit.is_finished()
    })
    .await;
    assert_eq!(emit.await.unwrap().unwrap_err().kind(), Kind::Unavailable);
}

/// Trap 14: the same idempotency key twice in what would be one group.
#[tokio::test]
async fn the_same_idempotency_key_in_concurrent_emits_gives_one_event_and_one_receipt() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let emits = join_all((0..20).map(|_| tram.emit(event("x").idempotency_key("once")))).await;
    let receipts: Vec<_> = emits.into_iter().map(Result::unwrap).collect();
    assert!(receipts.iter().all(|receipt| receipt.id() == receipts[0].id()));
    assert_eq!(receipts.iter().filter(|receipt| !receipt.repeated).count(), 1);
    assert_eq!(payloads(&tram).await, ["x"]);
    let other_body = tram.emit(event("y").idempotency_key("once")).await.unwrap_err();
    assert_eq!(other_body.kind(), Kind::Conflict);
}

#[tokio::test]
async fn large_emits_are_stored_whole() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let events: Vec<Event> = (0..9_000).map(|n| event(&n.to_string())).collect();
    let receipt = tram.emit(events).await.unwrap();
    assert_eq!(receipt.ids().len(), 9_000);
    assert!(receipt.ids().is_sorted());
}

#[tokio::test]
async fn buffered_events_are_stored_in_order_by_a_flush() {
    let bench = Bench::new().await;
    let tram = bench.process();
    for n in 0..2_500 {
        tram.emit_later(event(&n.to_string()).key("k")).unwrap();
    }
    tram.flush().await;
    let expected: Vec<String> = (0..2_500).map(|n| n.to_string()).collect();
    assert_eq!(payloads(&tram).await, expected);
    tram.flush().await; // nothing to do
}

#[tokio::test]
async fn buffered_events_are_stored_after_fifty_milliseconds() {
    let bench = Bench::new().await;
    let tram = bench.process();
    tram.emit_later(event("x")).unwrap();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.store.calls("emit"), 0, "it waits for company");
    bench.clock.advance(Duration::from_millis(50));
    until("the flush", || async { bench.store.calls("emit") == 1 }).await;
}

#[tokio::test]
async fn a_full_buffer_gives_the_event_back() {
    let bench = Bench::new().await;
    let tram = bench.process_with(|options| options.buffer(2));
    tram.emit_later(event("a")).unwrap();
    tram.emit_later(event("b")).unwrap();
    let rejected = tram.emit_later(event("c")).unwrap_err();
    assert_eq!((rejected.error.kind(), rejected.event), (Kind::Unavailable, event("c")));
    let impossible = tram.emit_later(event("d").priority(10)).unwrap_err();
    assert_eq!(impossible.error.kind(), Kind::Invalid);
    tram.flush().await;
    tram.emit_later(event("e")).unwrap();
    tram.close().await;
    assert!(tram.emit_later(event("f")).is_err());
}

#[tokio::test]
async fn a_buffer_that_holds_enough_bytes_gives_the_event_back() {
    let bench = Bench::new().await;
    let tram = bench.process_with(|options| options.buffer_bytes(3_000));
    let large = || Event::new("t", vec![b'x'; 2_000]);
    tram.emit_later(large()).unwrap();
    assert_eq!(tram.emit_later(large()).unwrap_err().error.kind(), Kind::Unavailable);
    tram.flush().await;
    tram.emit_later(Event::new("t", vec![b'x'; 4_000])).unwrap(); // it would never find more room
    tram.flush().await;
    assert_eq!(payloads(&tram).await.iter().map(String::len).collect::<Vec<_>>(), [2_000, 4_000]);
}

#[tokio::test]
async fn large_buffered_events_do_not_wait_for_company() {
    let bench = Bench::new().await;
    let tram = bench.process();
    for _ in 0..4 {
        tram.emit_later(Event::new("t", vec![0; 1 << 20])).unwrap();
    }
    until("the flush, without any time passing", || async { bench.store.calls("emit") > 0 }).await;
    tram.flush().await;
    assert_eq!(bench.store.calls("emit"), 2, "no unit is larger than four megabytes");
}

#[tokio::test]
async fn closing_stores_what_is_in_the_buffer() {
    let bench = Bench::new().await;
    let tram = bench.process();
    tram.emit_later(event("last words")).unwrap();
    let other = bench.process();
    tram.close().await;
    assert_eq!(bench.store.calls("emit"), 1);
    drop(other);
}

/// A hook that remembers what was dropped.
#[derive(Debug, Default)]
struct Drops(Mutex<Vec<String>>, Mutex<String>);

impl Hooks for Drops {
    fn dropped(&self, events: &[Event], error: &Error) {
        let dropped = events.iter().map(|event| String::from_utf8(event.parts().payload.to_vec()).unwrap());
        self.0.lock().unwrap().extend(dropped);
        *self.1.lock().unwrap() = error.to_string();
    }
}

#[tokio::test]
async fn buffered_events_survive_an_outage_in_order_and_are_never_stored_twice() {
    let bench = Bench::new().await;
    let tram = bench.process();
    bench.store.lose_answer("emit");
    bench.store.fail("emit", Kind::Unavailable);
    tram.emit_later(event("a")).unwrap();
    tram.emit_later(event("b")).unwrap();
    let flush = tokio::spawn({
        let tram = tram.clone();
        async move { tram.flush().await }
    });
    until("the flush", || async {
        bench.clock.advance(Duration::from_secs(1));
        flush.is_finished()
    })
    .await;
    assert_eq!(payloads(&tram).await, ["a", "b"]);
    assert_eq!(tram.dropped(), 0);
}

#[tokio::test]
async fn buffered_events_that_cannot_be_stored_are_counted_and_told() {
    let bench = Bench::new().await;
    let drops = Arc::new(Drops::default());
    let hooks = drops.clone();
    let tram = bench.process_with(|options| options.hooks(hooks));
    bench.store.fail_always("emit", Some(Kind::Unavailable));
    tram.emit_later(event("a")).unwrap();
    tram.emit_later(event("b")).unwrap();
    until("giving up", || async {
        bench.clock.advance(Duration::from_secs(5));
        tram.dropped() == 2
    })
    .await;
    until("the hook", || async { *drops.0.lock().unwrap() == ["a", "b"] }).await;
    assert!(drops.1.lock().unwrap().contains("disturbed"));
}

/// Tries were counted, and each of them was several: a store that answered late was tried for minutes.
#[tokio::test]
async fn buffered_events_are_tried_for_half_a_minute_however_long_a_try_takes() {
    let bench = Bench::new().await;
    let tram = bench.process();
    bench.store.fail_always("emit", Some(Kind::Unavailable));
    tram.emit_later(event("a")).unwrap();
    until("giving up", || async {
        bench.clock.advance(Duration::from_secs(40));
        tram.dropped() == 1
    })
    .await;
    assert_eq!(bench.store.calls("emit"), 6, "one emit, which repeats itself a few times");
}

/// Up to a thousand events share a unit, and all of them were dropped when the store refused one.
#[tokio::test]
async fn a_buffered_event_that_is_refused_does_not_take_its_neighbours_along() {
    let bench = Bench::new().await;
    let drops = Arc::new(Drops::default());
    let hooks = drops.clone();
    let tram = bench.process_with(|options| options.hooks(hooks));
    for name in ["a", "bad", "c"] {
        let event = event(name);
        // No such tally: only the store can know.
        tram.emit_later(if name == "bad" { event.tally(TallyId(77)) } else { event }).unwrap();
    }
    tram.flush().await;
    assert_eq!(payloads(&tram).await, ["a", "c"]);
    assert_eq!(tram.dropped(), 1);
    assert_eq!(*drops.0.lock().unwrap(), ["bad"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_misses_nothing_and_sees_the_order_of_the_log() {
    let bench = Bench::new().await;
    let tram = bench.process();
    tram.emit(event("before")).await.unwrap();
    let mut follow = tram.follow("t", tramline::EventId(0));
    let follower = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 801 {
            seen.push(follow.next().await.unwrap().id);
        }
        seen
    });
    let emitters = (0..8).map(|n| {
        let tram = tram.clone();
        tokio::spawn(async move {
            for m in 0..100 {
                tram.emit(event(&format!("{n}-{m}"))).await.unwrap();
            }
        })
    });
    for emitter in join_all(emitters).await {
        emitter.unwrap();
    }
    let seen = follower.await.unwrap();
    let log = tram.read_log("t", tramline::EventId(0), 10_000).await.unwrap();
    let ids: Vec<_> = log.events.iter().map(|event| event.id).collect();
    assert_eq!(seen, ids);
}

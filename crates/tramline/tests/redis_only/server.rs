//! What happens to the server: scripts that it forgets, an end and a new start, no room.

use crate::bed::{Server, claim, done, emit, events, subscribe};
use tramline::error::Kind;
use tramline::model::id::Incarnation;
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Beat, ClaimedSlice, Extend, Extended, Settle, SettleSlice};

#[tokio::test]
async fn scripts_that_the_server_has_forgotten_are_sent_again() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    server.command(&["SCRIPT", "FLUSH"]).await;
    emit(&store, events(3)).await.unwrap();
    server.command(&["SCRIPT", "FLUSH"]).await;
    let claimed = claim(&store, id, 10).await.unwrap();
    assert_eq!(claimed.slices.iter().map(|slice| slice.events.len()).sum::<usize>(), 3);
}

#[tokio::test]
async fn a_server_that_was_killed_comes_back_with_all_that_was_acknowledged() {
    let mut server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    emit(&store, events(200)).await.unwrap();
    let claimed = claim(&store, id, 50).await.unwrap();
    server.restart();
    // The connection was lost, so one call may fail; then it is a new one.
    store.now().await.ok();
    let settled = done(&store, id, &claimed).await.unwrap();
    assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    let taken: usize = claimed.slices.iter().map(|slice| slice.events.len()).sum();
    let counts = store.stats(id, None).await.unwrap().counts;
    assert_eq!(counts.pending() as usize, 200 - taken);
}

/// What is full takes nothing more, loses nothing, and can be worked off.
#[tokio::test]
async fn a_full_server_refuses_emits_and_goes_on_with_its_work() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit(&store, events(640)).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let error = emit(&store, events(64)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.message().contains("Redis is full"), "{}", error.message());
    assert!(error.remedy().contains("maxmemory"), "{}", error.remedy());
    let claimed = claim(&store, id, 640).await.unwrap();
    assert_eq!(claimed.slices.iter().map(|slice| slice.events.len()).sum::<usize>(), 640);
    done(&store, id, &claimed).await.unwrap();
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 0);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    emit(&store, events(64)).await.unwrap();
}

/// What only adds was refused there, too: a longer lease, a retry, a sign of life. So workers lost what they had in hand.
#[tokio::test]
async fn work_in_order_goes_on_on_a_full_server() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    emit(&store, events(640)).await.unwrap();
    // Another process, which has not drawn any numbers yet.
    let store = server.open().await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let beat = Beat {
        incarnation: Incarnation::random(),
        name: "w".into(),
        subscriptions: vec![id],
        leaving: false,
        now: None,
    };
    store.beat(beat).await.unwrap();
    let claimed = claim(&store, id, 100).await.unwrap();
    let leases: Vec<Lease> = claimed.slices.iter().map(|slice| slice.lease).collect();
    let extend = Extend { subscription: id, leases, lease: None, now: None };
    let extended = store.extend(extend).await.unwrap();
    assert!(extended.iter().all(|extended| matches!(extended, Extended::Until(_))));
    let later = || Outcome::retry("not yet");
    let result = |slice: &ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().take(1).map(|event| (event.event.id.index(), later())).collect(),
    };
    let results = claimed.slices.iter().take(1).map(result).collect();
    let settled = store.settle(Settle { subscription: id, results, worker: None, now: None }).await.unwrap();
    assert_eq!(settled.accepted, [[true]]);
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 640);
}

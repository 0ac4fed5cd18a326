//! What happens to the server: scripts that it forgets, an end and a new start, no room.

use crate::bed::{Server, claim, done, emit, events, subscribe};
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;

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
    assert!(error.remedy().contains("full"), "{}", error.remedy());
    let claimed = claim(&store, id, 640).await.unwrap();
    assert_eq!(claimed.slices.iter().map(|slice| slice.events.len()).sum::<usize>(), 640);
    done(&store, id, &claimed).await.unwrap();
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 0);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    emit(&store, events(64)).await.unwrap();
}

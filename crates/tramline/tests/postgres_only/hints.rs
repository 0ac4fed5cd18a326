//! Hints that the server gives by itself when it has stored an emit.

use crate::bed::{Private, event, ids, server};
use futures_util::FutureExt;
use sqlx::postgres::PgListener;
use tramline::Tramline;
use tramline::engine::remote::Take;
use tramline::model::id::Incarnation;
use tramline::model::subscription::Ordering;
use tramline::store::verbs::Emit;

/// The store is asked, and not the engine, which would send hints of its own.
#[tokio::test]
async fn whoever_waits_is_told_of_a_lone_emit_by_the_server_that_stored_it() {
    let store = Private::open().await;
    let id = store.subscribe("queue", Ordering::None).await.id;
    let tram = Tramline::open(&store.url).await.unwrap();
    let mut listener = PgListener::connect(&server()).await.unwrap();
    listener.listen(&store.wake_channel()).await.unwrap();
    let emit = Emit { units: vec![vec![event("k")]], now: None };
    let emission = tram.store().emit(emit).await.unwrap().remove(0).unwrap();
    assert!(emission.hinted);
    let hint = listener.recv().await.unwrap();
    assert!(hint.payload().ends_with(&format!(" {id}")), "{}", hint.payload());
    assert_eq!(ids(&store.claim(id, 10).await), [emission.events[0].id]);
    tram.close().await;
    store.close().await;
}

#[tokio::test]
async fn what_several_emit_at_once_is_left_to_the_engine() {
    let store = Private::open().await;
    store.subscribe("queue", Ordering::None).await;
    let tram = Tramline::open(&store.url).await.unwrap();
    let emit = Emit { units: vec![vec![event("k")], vec![event("l")]], now: None };
    let emissions = tram.store().emit(emit).await.unwrap();
    assert!(emissions.iter().flatten().all(|emission| !emission.hinted));
    tram.close().await;
    store.close().await;
}

/// It would have the hint later: after the answer of an emit that takes longer.
#[tokio::test]
async fn who_listens_in_the_process_of_the_emitter_is_told_by_the_engine() {
    let store = Private::open().await;
    let id = store.subscribe("queue", Ordering::None).await.id;
    let tram = Tramline::open(&store.url).await.unwrap();
    let wish =
        Take { subscription: id, owner: Incarnation(7), max_events: 1, max_bytes: 1 << 20, lease: None };
    let mut listens = Box::pin(tram.take(&wish, std::future::pending()));
    assert!(listens.as_mut().now_or_never().is_none());
    let emit = Emit { units: vec![vec![event("k")]], now: None };
    assert!(!tram.store().emit(emit).await.unwrap().remove(0).unwrap().hinted);
    drop(listens);
    tram.close().await;
    store.close().await;
}

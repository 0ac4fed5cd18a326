//! Hints that the server gives by itself when it has stored an emit.

use crate::bed::{Private, event, ids, server};
use futures_util::FutureExt;
use sqlx::Row;
use sqlx::postgres::PgListener;
use tramline::Tramline;
use tramline::engine::remote::Take;
use tramline::model::id::Incarnation;
use tramline::model::subscription::Ordering;
use tramline::store::verbs::{Emission, Emit};

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

/// The story: an emit commits and then tells in the same call. A cancel that came during the commit, as by a `statement_timeout`, ended
/// the telling, and the emitter was told of an error although its event was stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_that_is_cancelled_after_its_commit_is_stored_and_says_so() {
    let store = Private::open().await;
    let id = store.subscribe("queue", Ordering::None).await.id;
    let tram = Tramline::open(&store.url).await.unwrap();
    let first = emit_lone(&tram, "k").await.unwrap();
    store.rows(&slow_after(&store, "COMMIT;").await).await;
    let (emission, ()) = tokio::join!(emit_lone(&tram, "k"), cancel_sleeper(&store));
    let emission = emission.unwrap();
    assert!(!emission.hinted, "the engine has to tell");
    assert_eq!(emission.events[0].prev, Some(first.events[0].id));
    assert_eq!(ids(&store.claim(id, 10).await), [first.events[0].id, emission.events[0].id]);
    tram.close().await;
    store.close().await;
}

/// The number that the connection drew last is that of the emit before, which is stored: that must not pass for this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_that_is_cancelled_before_its_commit_is_an_error_and_not_stored() {
    for before in
        ["BEGIN", "chunk_body, after_ms, due, slice_subscriptions, slice_lanes, slice_ranks, slice_masks) e;"]
    {
        let store = Private::open().await;
        let id = store.subscribe("queue", Ordering::None).await.id;
        let tram = Tramline::open(&store.url).await.unwrap();
        let first = emit_lone(&tram, "k").await.unwrap();
        store.rows(&slow_after(&store, before).await).await;
        let (emission, ()) = tokio::join!(emit_lone(&tram, "k"), cancel_sleeper(&store));
        assert!(emission.is_err());
        assert_eq!(ids(&store.claim(id, 10).await), [first.events[0].id]);
        tram.close().await;
        store.close().await;
    }
}

async fn emit_lone(tram: &Tramline, key: &str) -> tramline::Result<Emission> {
    let emit = Emit { units: vec![vec![event(key)]], now: None };
    tram.store().emit(emit).await.unwrap().remove(0)
}

/// The definition of the procedure that emits and tells, with a rest after a part of it.
async fn slow_after(store: &Private, part: &str) -> String {
    let sql = "SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.proname = 'tramline_emit_and_tell' \
               AND p.pronamespace = '$s'::regnamespace";
    let text: String = store.rows(sql).await[0].get(0);
    assert!(text.contains(part));
    text.replacen(part, &format!("{part} PERFORM pg_sleep(60);"), 1)
}

/// Ends the statement of whoever rests there.
async fn cancel_sleeper(store: &Private) {
    let sql = "SELECT pg_cancel_backend(a.pid) FROM pg_stat_activity a WHERE a.wait_event = 'PgSleep' \
               AND a.query LIKE '%$s%' AND a.pid <> pg_backend_pid()";
    while store.rows(sql).await.is_empty() {
        tokio::task::yield_now().await;
    }
}

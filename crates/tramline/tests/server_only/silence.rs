//! A server that vanishes without a word: nothing is answered any more, and nothing is closed.

use crate::bed::{Private, event, open, server};
use crate::way::{Way, is_ping};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::mpsc;
use tramline::error::Kind;
use tramline::store::Store;
use tramline::store::verbs::Emit;
use tramline::{Context, Result, Shutdown, Tramline};
use url::Url;

/// As long as a machine that is busy may need.
const SOON: Duration = Duration::from_secs(30);
/// How many connections a store has.
const CONNECTIONS: usize = 2;

/// A way to the server, and the URL of a store by it that waits for an answer for a second.
pub(crate) async fn on_its_way(store: &Private) -> (Way, String) {
    let at = Url::parse(&server()).unwrap();
    let way = Way::to(format!("{}:{}", at.host_str().unwrap(), at.port().unwrap())).await;
    let mut url = Url::parse(&store.url).unwrap();
    url.set_port(Some(way.port)).unwrap();
    let connections = CONNECTIONS.to_string();
    url.query_pairs_mut().append_pair("answer_timeout", "1").append_pair("max_connections", &connections);
    (way, url.into())
}

async fn soon<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, answer).await.expect("an answer")
}

async fn emit(store: &dyn Store) -> Result<()> {
    let answers = store.emit(Emit { units: vec![vec![event("k")]], now: None }).await;
    answers.and_then(|mut answers| answers.remove(0)).map(|_| ())
}

async fn call_in_vain(store: Arc<impl Store>, enough: Arc<AtomicBool>) {
    while !enough.load(SeqCst) {
        let error = soon(emit(&*store)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_not_answered_end_and_leave_their_connections_to_others() {
    let store = Private::open().await;
    let (way, url) = on_its_way(&store).await;
    let cut_off = Arc::new(open(&url).await.unwrap());
    emit(&*cut_off).await.unwrap();
    for _ in 0..2 * CONNECTIONS {
        way.shut();
        let enough = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..2 * CONNECTIONS)
            .map(|_| tokio::spawn(call_in_vain(cut_off.clone(), enough.clone())))
            .collect();
        // All of them are in use at once: none was lost in an earlier round.
        soon(way.holds(CONNECTIONS)).await;
        enough.store(true, SeqCst);
        for caller in callers {
            caller.await.unwrap();
        }
        way.open().await;
        soon(emit_at_last(cut_off.clone())).await;
    }
    cut_off.close().await;
    store.close().await;
}

/// A second may be too short for a machine that is busy.
async fn emit_at_last(store: Arc<impl Store>) {
    while emit(&*store).await.is_err() {}
}

/// The story: the server vanished while a connection was on its way back to the pool, which tries it out before it counts as free, and
/// waited for that without end. So one place after the other was lost, and at last nobody got a connection, long after the server was back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_on_its_way_back_to_the_pool_is_not_waited_for_without_end() {
    let store = Private::open().await;
    let (way, url) = on_its_way(&store).await;
    let cut_off = Arc::new(open(&url).await.unwrap());
    emit(&*cut_off).await.unwrap();
    way.swallow(is_ping);
    for _ in 0..=CONNECTIONS {
        // More than are kept at hand, so that some are given back.
        let calls: Vec<_> =
            (0..2 * CONNECTIONS).map(|_| tokio::spawn(emit_at_last(cut_off.clone()))).collect();
        for call in calls {
            soon(call).await.unwrap();
        }
    }
    soon(cut_off.close()).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_can_be_closed_when_its_server_has_vanished() {
    let store = Private::open().await;
    let (way, url) = on_its_way(&store).await;
    let cut_off = open(&url).await.unwrap();
    emit(&cut_off).await.unwrap();
    way.shut();
    soon(cut_off.close()).await;
    store.close().await;
}

/// What a caller has of the store's connections is given back by the caller, whatever state it is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_callers_that_are_not_answered_come_back() {
    let store = Private::open().await;
    let (way, url) = on_its_way(&store).await;
    let cut_off = open(&url).await.unwrap();
    cut_off.emit_in(&mut cut_off.pool().begin().await.unwrap(), [event("k")]).await.unwrap();
    for _ in 0..2 * CONNECTIONS {
        // A machine that is busy may need more than the second that there is.
        let begun = async {
            loop {
                if let Ok(tx) = cut_off.pool().begin().await {
                    return tx;
                }
            }
        };
        let mut tx = soon(begun).await;
        way.lose();
        let answer = soon(cut_off.emit_in(&mut tx, [event("k")])).await;
        assert_eq!(answer.unwrap_err().kind(), Kind::Unavailable);
    }
    soon(cut_off.close()).await;
    store.close().await;
}

/// The story: the host of a database was cut off from the network. Nothing was reset, so workers waited for answers on connections that
/// nobody had at the other end any more, for a quarter of an hour, while the database was long back elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_goes_on_by_new_connections() {
    let store = Private::open().await;
    let (way, url) = on_its_way(&store).await;
    let tram = Tramline::open(&url).await.unwrap();
    let (ran, mut runs) = mpsc::unbounded_channel();
    let worker = tram.worker("w").topics(["t"]).on_any(move |cx: Context| {
        ran.send(cx.event().id).unwrap();
        std::future::ready(Ok::<(), String>(()))
    });
    worker.subscribe().await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { worker.run(shutdown).await }
    });
    let mut next = async || soon(runs.recv()).await.unwrap();
    let first = store.emit(event("a")).await.unwrap().events[0].id;
    assert_eq!(next().await, first);
    way.lose();
    let second = store.emit(event("b")).await.unwrap().events[0].id;
    // What ran before may run again: nobody knows whether its end was heard.
    while next().await != second {}
    shutdown.start();
    soon(running).await.unwrap().unwrap();
    soon(tram.close()).await;
    store.close().await;
}

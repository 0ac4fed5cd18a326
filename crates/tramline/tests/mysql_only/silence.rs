//! A server that vanishes without a word: nothing is answered any more, and nothing is closed.

use crate::bed::{Private, event, ids, open, server};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::Emit;
use tramline::{Context, Shutdown, Tramline};
use url::Url;

/// As long as a machine that is busy may need.
const SOON: Duration = Duration::from_secs(30);

/// A way to the server on which connections can fall silent: they pass nothing more on, and are not closed either.
struct Way {
    port: u16,
    silenced: watch::Sender<()>,
}

impl Way {
    async fn to(server: String) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Way { port: listener.local_addr().unwrap().port(), silenced: watch::Sender::new(()) };
        let silenced = way.silenced.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (mut silence, server) = (silenced.subscribe(), server.clone());
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = silence.changed() => std::future::pending().await,
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    }
                });
            }
        });
        way
    }

    /// Those that there are. Others may be made.
    fn silence(&self) {
        self.silenced.send_replace(());
    }
}

/// A way to the server, and the URL of a store by it that waits for an answer for a second.
async fn on_its_way(store: &Private) -> (Way, String) {
    let at = Url::parse(&server()).unwrap();
    let way = Way::to(format!("{}:{}", at.host_str().unwrap(), at.port().unwrap())).await;
    let mut url = Url::parse(&store.url).unwrap();
    url.set_port(Some(way.port)).unwrap();
    url.query_pairs_mut().append_pair("answer_timeout", "1").append_pair("max_connections", "2");
    (way, url.into())
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
    let mut next = async || tokio::time::timeout(SOON, runs.recv()).await.expect("it runs").unwrap();
    let first = store.emit(event("a")).await.unwrap().events[0].id;
    assert_eq!(next().await, first);
    way.silence();
    let second = store.emit(event("b")).await.unwrap().events[0].id;
    // What ran before may run again: nobody knows whether its end was heard.
    while next().await != second {}
    shutdown.start();
    running.await.unwrap().unwrap();
    tram.close().await;
    store.close().await;
}

/// Whether it was stored is not known, like after a connection that was cut; but that is said, and the next one is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emit_is_not_waited_for_without_end() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let (way, url) = on_its_way(&store).await;
    let cut_off = open(&url).await.unwrap();
    let emit = || cut_off.emit(Emit { units: vec![vec![event("k")]], now: None });
    let start = Instant::now();
    emit().await.unwrap()[0].as_ref().unwrap();
    way.silence();
    let mut stored = 1;
    loop {
        let answer = tokio::time::timeout(SOON, emit()).await.expect("an answer");
        match answer.and_then(|mut answers| answers.remove(0)) {
            Ok(_) => {
                stored += 1;
                break;
            }
            Err(error) => assert_eq!(error.kind(), Kind::Unavailable),
        }
        assert!(start.elapsed() < SOON, "it never comes back");
    }
    let found = ids(&store.claim(queue.id, 99).await).len();
    assert!(found >= stored, "{found} of {stored}");
    cut_off.close().await;
    store.close().await;
}

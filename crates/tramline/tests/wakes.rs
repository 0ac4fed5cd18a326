//! Hints that are lost, repeated, reordered and late change when work starts, and nothing else.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
#[path = "redis_only/warned.rs"]
mod warned;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use redis::AsyncCommands;
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use support::stores::{Fresh, Place};
use tokio::sync::{Semaphore, mpsc};
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::wake::address::open;
use tramline::wake::in_process::InProcess;
use tramline::wake::{Listener, Wake};
use tramline::{Event, EventId, Options, Shutdown, StoredEvent, Tramline};
use warned::Warned;

/// How often whoever waits looks by himself.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// What a busy machine may take for the rest.
const SLACK: Duration = Duration::from_secs(2);

/// What becomes of hints on their way.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Each arrives, once.
    Nothing,
    /// None arrives.
    Lost,
    /// Every other one arrives.
    HalfLost,
    /// Each arrives ten times.
    Repeated,
    /// They arrive in groups, the last one first, and the last group never.
    Reordered,
    /// Each arrives when the third one after it is sent; some never.
    Late,
}

/// Disturbs hints between those who give them and those who hear them.
#[derive(Debug)]
struct Disturbed {
    hints: Arc<dyn Wake>,
    trouble: Trouble,
    held: Mutex<Vec<Vec<SubscriptionId>>>,
}

impl Disturbed {
    fn new(trouble: Trouble) -> Arc<Disturbed> {
        Disturbed::over(Arc::new(InProcess::new()), trouble)
    }

    fn over(hints: Arc<dyn Wake>, trouble: Trouble) -> Arc<Disturbed> {
        Arc::new(Disturbed { hints, trouble, held: Mutex::default() })
    }
}

impl Trouble {
    /// What arrives when a hint is given. `held` is what is still on its way.
    fn pass<T: Clone>(self, held: &mut Vec<T>, hint: T) -> Vec<T> {
        held.push(hint);
        match self {
            Trouble::Nothing => std::mem::take(held),
            Trouble::Lost => held.drain(..).take(0).collect(),
            Trouble::HalfLost if held.len() < 2 => Vec::new(),
            Trouble::HalfLost => held.drain(..).take(1).collect(),
            Trouble::Repeated => held.drain(..).flat_map(|hint| vec![hint; 10]).collect(),
            Trouble::Reordered if held.len() < 4 => Vec::new(),
            Trouble::Reordered => held.drain(..).rev().collect(),
            Trouble::Late if held.len() <= 3 => Vec::new(),
            Trouble::Late => held.drain(..1).collect(),
        }
    }
}

impl Wake for Disturbed {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        let due = self.trouble.pass(&mut self.held.lock().unwrap(), subscriptions.to_vec());
        due.iter().for_each(|hint| self.hints.notify(hint));
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.hints.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.hints.listen_to_all()
    }
}

async fn disturbed(trouble: Trouble) -> Tramline {
    Tramline::with(Options::new("sqlite::memory:").wake(Disturbed::new(trouble))).await.unwrap()
}

/// What a worker starts to handle, and when.
type Started = (EventId, Instant);

/// The topics of the events. Each has a worker of its own, so that a hint for one of them is none for another.
const TOPICS: [&str; 2] = ["t", "u"];

/// Workers that run, and what they handle.
async fn working(tram: &Tramline, ordered: bool) -> (mpsc::UnboundedReceiver<Started>, impl AsyncFnOnce()) {
    let (tell, told) = mpsc::unbounded_channel();
    let (shutdown, mut running) = (Shutdown::new(), Vec::new());
    for topic in TOPICS {
        let tell = tell.clone();
        let worker = tram.worker(topic).topics([topic]).on_any(move |event: StoredEvent| {
            let _ = tell.send((event.id, Instant::now()));
            async {}
        });
        let worker = if ordered { worker.ordered_by_key() } else { worker };
        worker.subscribe().await.unwrap();
        let stop = shutdown.clone();
        running.push(tokio::spawn(async move { worker.run(stop).await }));
    }
    let end = async move || {
        shutdown.start();
        for one in running {
            one.await.unwrap().unwrap();
        }
    };
    (told, end)
}

#[tokio::test]
async fn without_any_hint_work_starts_with_the_next_slow_poll() {
    let tram = disturbed(Trouble::Lost).await;
    let (mut told, end) = working(&tram, false).await;
    for _ in 0..3 {
        let start = Instant::now();
        let id = tram.emit(Event::new("t", "x")).await.unwrap().id();
        assert_eq!(told.recv().await.unwrap().0, id);
        assert!(start.elapsed() < SLOW_POLL + SLACK, "{:?}", start.elapsed());
    }
    end().await;
}

const TROUBLES: [Trouble; 5] =
    [Trouble::Lost, Trouble::HalfLost, Trouble::Repeated, Trouble::Reordered, Trouble::Late];

#[tokio::test]
async fn whatever_happens_to_hints_everything_runs_as_often_as_without_and_with_the_next_slow_poll_at_worst()
{
    for trouble in TROUBLES {
        for ordered in [false, true] {
            let tram = disturbed(trouble).await;
            runs_as_without(&tram, &tram, ordered, 200, trouble).await;
        }
    }
}

/// One process emits and another one works: every event runs once, and starts when whoever waits looks by himself at the latest.
async fn runs_as_without(emitter: &Tramline, worker: &Tramline, ordered: bool, count: u32, trouble: Trouble) {
    let (mut told, end) = working(worker, ordered).await;
    let (mut emitted, mut started) = (HashMap::new(), HashMap::new());
    for n in 0..count {
        let event = Event::new(TOPICS[n as usize % TOPICS.len()], "x").key((n % 7).to_string());
        let id = emitter.emit(event).await.unwrap().id();
        emitted.insert(id, Instant::now());
    }
    let mut note = |(id, at): Started| {
        assert_eq!(started.insert(id, at), None, "{trouble:?}, ordered {ordered}: {id} ran twice");
        let took = at.saturating_duration_since(emitted[&id]);
        assert!(took < SLOW_POLL + SLACK, "{trouble:?}, ordered {ordered}: {id} started after {took:?}");
    };
    for _ in 0..count {
        note(told.recv().await.unwrap());
    }
    end().await;
    while let Ok(again) = told.try_recv() {
        note(again);
    }
}

fn server(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run ./test"))
}

/// Two processes on one store, and what carries their hints.
async fn whatever_happens_between(place: Place, ends: impl AsyncFn(Trouble) -> [Arc<dyn Wake>; 2]) {
    for trouble in TROUBLES {
        let fresh = Fresh::open(place).await;
        let (here, there) = (Options::new(&fresh.url), Options::new(&fresh.url));
        let [from, to] = ends(trouble).await;
        let emitter = Tramline::with(here.wake(from)).await.unwrap();
        let worker = Tramline::with(there.wake(to)).await.unwrap();
        runs_as_without(&emitter, &worker, true, 50, trouble).await;
        emitter.close().await;
        worker.close().await;
        fresh.close().await;
    }
}

/// What one process says on the first channel of a server arrives on the second one, where the other process hears it, as the trouble
/// will have it. `hears` and `says` are somebody between the two.
fn wire(
    server: &str,
    trouble: Trouble,
    [from, to]: [String; 2],
    mut hears: impl Stream<Item = String> + Unpin + Send + 'static,
    says: impl Fn(String, String) -> BoxFuture<'static, ()> + Send + 'static,
) -> [Arc<dyn Wake>; 2] {
    let ends = [&from, &to].map(|channel| open(&format!("{server}?channel={channel}"), None).unwrap());
    // It ends with the runtime of the test.
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(hint) = hears.next().await {
            for hint in trouble.pass(&mut held, hint) {
                says(to.clone(), hint).await;
            }
        }
    });
    ends
}

fn channels() -> [String; 2] {
    let name = Incarnation::random().0;
    ["from", "to"].map(|end| format!("wakes_{name:x}_{end}"))
}

#[tokio::test]
async fn whatever_happens_to_hints_over_redis_changes_only_when_work_starts() {
    let redis = server("TRAMLINE_TEST_REDIS");
    whatever_happens_between(Place::Redis, async |trouble: Trouble| {
        let (client, channels) = (redis::Client::open(&*redis).unwrap(), channels());
        let mut pubsub = client.get_async_pubsub().await.unwrap();
        pubsub.subscribe(&channels[0]).await.unwrap();
        let hears = pubsub.into_on_message().map(|said| said.get_payload::<String>().unwrap());
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let says = move |channel: String, hint: String| {
            let mut connection = connection.clone();
            async move { connection.publish::<_, _, ()>(channel, hint).await.unwrap() }.boxed()
        };
        wire(&redis, trouble, channels, hears, says)
    })
    .await;
}

/// How many events are emitted, and how many more claims there may be for them if each hint comes ten times.
const EVENTS: u32 = 100;
/// A subscription that is only there to be heard of.
const NOBODY: SubscriptionId = SubscriptionId(i64::MAX);
const MORE: f64 = 1.2;

/// How often the store is asked for events that are emitted somewhere else, each when the one before it has run.
async fn claims_for(trouble: Trouble) -> u64 {
    let (nats, fresh) = (server("TRAMLINE_TEST_NATS"), Fresh::open(Place::Redis).await);
    let (client, channels) = (async_nats::connect(&nats).await.unwrap(), channels());
    let hears = client.subscribe(channels[0].clone()).await.unwrap();
    client.flush().await.unwrap();
    let hears = hears.map(|said| String::from_utf8(said.payload.to_vec()).unwrap());
    let (marks, sent) = (client.clone(), Arc::new(Semaphore::new(0)));
    let tell = sent.clone();
    let says = move |channel: String, hint: String| {
        let client = client.clone();
        let sent = tell.clone();
        async move {
            client.publish(channel, hint.into()).await.unwrap();
            client.flush().await.unwrap();
            sent.add_permits(1);
        }
        .boxed()
    };
    let last = channels[1].clone();
    let [from, to] = wire(&nats, trouble, channels, hears, says);
    let mut heard = to.listen(NOBODY);
    let watched = Arc::new(OnceLock::new());
    let keep = watched.clone();
    let there = Options::new(&fresh.url)
        .wake(to)
        .watch_store(move |store| keep.get_or_init(|| Arc::new(support::Disturbed::new(store))).clone());
    let emitter = Tramline::with(Options::new(&fresh.url).wake(from)).await.unwrap();
    let worker = Tramline::with(there).await.unwrap();
    let (mut told, end) = working(&worker, false).await;
    let copies = trouble.pass(&mut Vec::new(), ()).len().try_into().unwrap();
    let store = watched.get().unwrap().clone();
    store.left_alone().await;
    let before = store.calls("claim");
    for _ in 0..EVENTS {
        emitter.emit(Event::new("t", "x")).await.unwrap();
        told.recv().await.unwrap();
        heard.arm();
        sent.acquire_many(copies).await.unwrap().forget();
        marks.publish(last.clone(), format!("0 {NOBODY}").into()).await.unwrap();
        heard.wait().await;
        store.left_alone().await;
    }
    let claims = store.calls("claim") - before;
    end().await;
    emitter.close().await;
    worker.close().await;
    fresh.close().await;
    claims
}

#[tokio::test]
async fn hints_that_come_ten_times_cost_hardly_more_claims() {
    let (once, often) = (claims_for(Trouble::Nothing).await, claims_for(Trouble::Repeated).await);
    assert!(often as f64 <= once as f64 * MORE, "{often} claims instead of {once}");
}

#[tokio::test]
async fn whatever_happens_to_hints_over_nats_changes_only_when_work_starts() {
    let nats = server("TRAMLINE_TEST_NATS");
    for place in [Place::Redis, Place::Mysql, Place::SqliteFile] {
        whatever_happens_between(place, async |trouble: Trouble| {
            let (client, channels) = (async_nats::connect(&nats).await.unwrap(), channels());
            let hears = client.subscribe(channels[0].clone()).await.unwrap();
            client.flush().await.unwrap();
            let hears = hears.map(|said| String::from_utf8(said.payload.to_vec()).unwrap());
            let says = move |channel: String, hint: String| {
                let client = client.clone();
                async move {
                    client.publish(channel, hint.into()).await.unwrap();
                    client.flush().await.unwrap();
                }
                .boxed()
            };
            wire(&nats, trouble, channels, hears, says)
        })
        .await;
    }
}

#[tokio::test]
async fn whatever_happens_to_hints_over_postgres_changes_only_when_work_starts() {
    let postgres = server("TRAMLINE_TEST_POSTGRES");
    whatever_happens_between(Place::Postgres, async |trouble: Trouble| {
        let (pool, channels) = (PgPool::connect(&postgres).await.unwrap(), channels());
        let mut listener = PgListener::connect(&postgres).await.unwrap();
        listener.listen(&channels[0]).await.unwrap();
        let hears = listener.into_stream().map(|said| said.unwrap().payload().to_owned()).boxed();
        let says = move |channel: String, hint: String| {
            let query = sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(hint);
            let pool = pool.clone();
            async move { query.execute(&pool).await.map(drop).unwrap() }.boxed()
        };
        wire(&postgres, trouble, channels, hears, says)
    })
    .await;
}

/// How many hints are looked at, and how many of them start work long before anybody looks by himself. Without hints none would: each
/// event comes just after somebody has looked.
const ROUNDS: usize = 10;
const MOST: usize = 7;
const SOON: Duration = Duration::from_millis(400);

/// Hints that arrive start work at once, not with the next slow poll.
async fn is_woken_over(wakes: &str) {
    let store = format!("{}?name=wakes_{:x}", server("TRAMLINE_TEST_REDIS"), Incarnation::random().0);
    let options = || Options::new(&store).wake_url(wakes);
    let (emitter, beside) =
        (Tramline::with(options()).await.unwrap(), Tramline::with(options()).await.unwrap());
    let (mut told, end) = working(&beside, false).await;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let id = emitter.emit(Event::new("t", "x")).await.unwrap().id();
        assert_eq!(told.recv().await.unwrap().0, id);
        took.push(start.elapsed());
    }
    assert!(took.iter().filter(|took| **took < SOON).count() >= MOST, "{took:?}");
    end().await;
}

#[tokio::test]
async fn a_store_in_redis_is_woken_over_nats() {
    is_woken_over(&server("TRAMLINE_TEST_NATS")).await;
}

/// Its nodes pass on to each other what any of them is told.
#[tokio::test]
async fn a_store_in_redis_is_woken_over_a_cluster_of_redis() {
    let nodes = server("TRAMLINE_TEST_REDIS_CLUSTER");
    is_woken_over(&nodes).await;
    let first = nodes.split(',').next().unwrap().replacen("redis://", "redis+cluster://", 1);
    is_woken_over(&first).await;
}

/// A NATS of the test's own. Killed when it is dropped.
struct Nats {
    process: Child,
    port: u16,
}

impl Nats {
    fn start(settings: &[&str]) -> Nats {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("nats-server");
        command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]).args(settings);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Nats { process, port }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.process.kill().ok(); // it may have ended before
        self.process.wait().ok();
    }
}

/// In a URL a password with an `@` is written with `%40`, and that was sent to the server.
#[tokio::test]
async fn a_password_that_a_url_cannot_hold_as_it_is_opens_nats() {
    let nats = Nats::start(&["--user", "me@home", "--pass", "p@ss:/%"]);
    let wake = open(&format!("nats://me%40home:p%40ss%3A%2F%25@127.0.0.1:{}", nats.port), None).unwrap();
    let mut listener = wake.listen(SubscriptionId(1));
    listener.arm();
    // Who begins to hear does not know what was said before, and is told so.
    let connected = tokio::time::timeout(Duration::from_secs(20), listener.wait()).await;
    assert!(connected.is_ok(), "never let in");
}

const TLS: &str = "TRAMLINE_TEST_NATS_TLS";

/// Which certificates a process trusts is set for all of it, so this takes one of its own.
#[test]
fn hints_travel_over_a_nats_with_a_trusted_certificate() {
    let file = |name: &str| format!("{}/tests/push/{name}", env!("CARGO_MANIFEST_DIR"));
    let nats = Nats::start(&["--tls", "--tlscert", &file("cert.pem"), "--tlskey", &file("key.pem")]);
    let heard = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "heard_by_a_process_that_trusts_it"])
        .env("SSL_CERT_FILE", file("cert.pem"))
        .env(TLS, format!("tls://127.0.0.1:{}", nats.port))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&heard.stdout);
    assert!(heard.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
#[ignore = "run by the test above"]
async fn heard_by_a_process_that_trusts_it() {
    // Somebody who runs all that is ignored has no such server.
    let Ok(url) = std::env::var(TLS) else { return };
    let (here, there) = (open(&url, None).unwrap(), open(&url, None).unwrap());
    let mut listener = here.listen(SubscriptionId(1));
    listener.arm();
    there.notify(&[SubscriptionId(1)]);
    let patience = Duration::from_secs(20);
    tokio::time::timeout(patience, listener.wait()).await.expect("it never connects");
    // A hint that the server has before the subscription is lost, as any may be: the two come over different connections.
    let heard = async {
        loop {
            listener.arm();
            there.notify(&[SubscriptionId(1)]);
            if tokio::time::timeout(Duration::from_millis(200), listener.wait()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(patience, heard).await.expect("nothing is heard");
}

/// It is said by the server for each hint.
#[tokio::test]
async fn that_nats_refuses_hints_is_logged_once() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let user = r#"{user: u, password: p, permissions: {publish: {deny: ">"}, subscribe: {deny: ">"}}}"#;
    std::fs::write(place("conf"), format!("authorization {{ users = [ {user} ] }}")).unwrap();
    let nats = Nats::start(&["--config", &place("conf"), "--log", &place("log")]);
    let warned = Warned::on_this_thread();
    let wake = open(&format!("nats://u:p@127.0.0.1:{}", nats.port), None).unwrap();
    let mut listener = wake.listen(SubscriptionId(1));
    listener.wait().await;
    let refusals =
        || std::fs::read_to_string(place("log")).unwrap_or_default().matches("Publish Violation").count();
    let (start, mut told) = (Instant::now(), 0);
    while told < 5 {
        if refusals() >= told {
            wake.notify(&[SubscriptionId(2)]);
            told += 1;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{told} hints, {} refused", refusals());
        tokio::task::yield_now().await;
    }
    while warned.of("NATS refuses wake-ups").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", warned.lines());
        tokio::task::yield_now().await;
    }
    assert_eq!(warned.of("NATS refuses wake-ups").len(), 1, "{:?}", warned.lines());
}

/// One word of a stranger that was no text ended the connection, and what was said until the next one was lost.
#[tokio::test]
async fn what_a_stranger_says_on_the_channel_ends_no_connection_to_redis() {
    let (redis, channel) = (server("TRAMLINE_TEST_REDIS"), format!("wakes_{:x}", Incarnation::random().0));
    let wake = open(&format!("{redis}?channel={channel}"), None).unwrap();
    let mut listener = wake.listen(SubscriptionId(7));
    listener.arm();
    tokio::time::timeout(Duration::from_secs(20), listener.wait()).await.expect("it connects");
    let stranger = redis::Client::open(redis).unwrap();
    let mut stranger = stranger.get_multiplexed_async_connection().await.unwrap();
    let mut says = async |said: &[u8]| {
        redis::cmd("PUBLISH").arg(&channel).arg(said).query_async::<u64>(&mut stranger).await.unwrap()
    };
    listener.arm();
    assert_eq!(says(b"\xff\xfe").await, 1);
    // Whoever has to connect again has missed something, and looks.
    let looks = tokio::time::timeout(Duration::from_secs(1), listener.wait()).await;
    assert!(looks.is_err(), "the connection was ended");
    assert_eq!(says(b"0 7").await, 1);
    tokio::time::timeout(Duration::from_secs(20), listener.wait()).await.expect("the next one is heard");
}

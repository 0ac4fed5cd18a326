//! The words in which the tests are written: a server of its own, and stores on it.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tramline::model::id::{Incarnation, SubscriptionId};
use tramline::model::lane::{Known, Share};
use tramline::model::outcome::Outcome;
use tramline::model::subscription::{Ordering, Policy, Start};
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{
    Claim, Claimed, Emission, Emit, Expected, PutSubscription, Settle, SettleSlice, Settled, Suspects,
};
use tramline::{Event, Result};

/// A server with its data in a directory. It ends with the value.
pub(crate) struct Server {
    port: u16,
    process: Child,
    directory: TempDir,
    settings: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(&[])
    }

    pub(crate) fn start_with(settings: &[&str]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
        let port = free_port();
        let process = run(port, &directory, &settings);
        Server { port, process, directory, settings }
    }

    /// Kills it, and starts it again on what it has written.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = run(self.port, &self.directory, &self.settings);
    }

    /// The same, but it takes its time to read that, and refuses everybody meanwhile.
    pub(crate) fn restart_slowly(&mut self, delay_per_command: Duration) {
        self.kill();
        let delay = delay_per_command.as_micros().to_string();
        let slow = ["--key-load-delay", &delay, "--loading-process-events-interval-bytes", "1024"];
        let settings: Vec<String> = self.settings.iter().cloned().chain(slow.map(str::to_owned)).collect();
        self.process = spawn(self.port, &self.directory, &settings);
        wait_until("the server is reached", || ping(self.port) != Ping::Nobody);
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// It answers nobody any more, and closes nothing.
    pub(crate) fn hang(&self) {
        let stopped = Command::new("kill").args(["-STOP", &self.process.id().to_string()]).status().unwrap();
        assert!(stopped.success());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) async fn open(&self) -> Result<RedisStore> {
        RedisStore::open(self.url().parse()?).await
    }

    /// A command of this test's own.
    pub(crate) async fn command(&self, words: &[&str]) -> redis::Value {
        self.try_command(words).await.unwrap()
    }

    pub(crate) async fn try_command(&self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await
    }

    /// How often scripts were called so far: that is how often somebody waited for the server.
    pub(crate) async fn trips(&self) -> u64 {
        self.calls("evalsha").await + self.calls("eval").await
    }

    /// How often a command was called so far, also by scripts.
    pub(crate) async fn calls(&self, command: &str) -> u64 {
        let redis::Value::BulkString(text) = self.command(&["INFO", "commandstats"]).await else {
            panic!("the server does not say what it was asked")
        };
        let (text, name) = (String::from_utf8(text).unwrap(), format!("cmdstat_{command}:calls="));
        let calls = text.lines().find_map(|line| line.strip_prefix(&name)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }

    /// How many words the longest command had since this was last asked, such as a call of a script with all that it reads and writes.
    /// The server has to write down all commands: see [`Server::that_tells_all`].
    pub(crate) async fn longest_command(&self) -> u64 {
        let redis::Value::Array(log) = self.command(&["SLOWLOG", "GET", "-1"]).await else {
            panic!("the server has no log of its commands")
        };
        self.command(&["SLOWLOG", "RESET"]).await;
        log.iter().map(words).max().unwrap_or(0)
    }

    pub(crate) fn that_tells_all() -> Server {
        Server::start_with(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"])
    }

    /// A figure that the server gives of itself.
    pub(crate) async fn figure(&self, section: &str, name: &str) -> u64 {
        let redis::Value::BulkString(text) = self.command(&["INFO", section]).await else {
            panic!("the server says nothing of {section}")
        };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok(); // it may have ended before
        self.process.wait().ok();
    }
}

/// How many words a command had, as the server's log tells it: the last one says how many more there were.
pub(crate) fn words(entry: &redis::Value) -> u64 {
    let redis::Value::Array(fields) = entry else { panic!("{entry:?}") };
    let Some(redis::Value::Array(words)) = fields.get(3) else { panic!("{entry:?}") };
    let more = match words.last() {
        Some(redis::Value::BulkString(last)) => String::from_utf8_lossy(last).into_owned(),
        _ => String::new(),
    };
    let more = more.strip_prefix("... (").and_then(|more| more.split(' ').next()?.parse::<u64>().ok());
    words.len() as u64 + more.map_or(0, |more| more - 1)
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn run(port: u16, directory: &TempDir, settings: &[String]) -> Child {
    let process = spawn(port, directory, settings);
    // It has read what it has written before.
    wait_until("the server starts", || ping(port) == Ping::Ready);
    process
}

fn spawn(port: u16, directory: &TempDir, settings: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
        .args(["--dir", directory.path().to_str().unwrap()])
        .args(settings)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed by ./test")
}

#[derive(PartialEq, Eq)]
enum Ping {
    Nobody,
    Loading,
    Ready,
}

fn ping(port: u16) -> Ping {
    let connect = || redis::Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection();
    let answer = connect().and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection));
    match answer {
        Ok(_) => Ping::Ready,
        Err(error) if error.code() == Some("LOADING") => Ping::Loading,
        Err(_) => Ping::Nobody,
    }
}

/// Asking is all that can be done from outside.
pub(crate) fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(20), "never came true: {what}");
        std::thread::yield_now();
    }
}

pub(crate) async fn subscribe(store: &dyn Store, ordering: Ordering) -> SubscriptionId {
    subscribe_to(store, "q", "t", ordering).await
}

pub(crate) async fn subscribe_to(
    store: &dyn Store,
    name: &str,
    topic: &str,
    ordering: Ordering,
) -> SubscriptionId {
    put(store, name, topic, Policy { ordering, ..Policy::default() }).await
}

pub(crate) async fn put(store: &dyn Store, name: &str, topic: &str, policy: Policy) -> SubscriptionId {
    let put = PutSubscription {
        name: name.into(),
        topics: vec![topic.into()],
        policy,
        start: Start::Now,
        expected: Expected::Anything,
        now: None,
    };
    store.put_subscription(put).await.unwrap().id
}

pub(crate) async fn emit(store: &dyn Store, events: Vec<Event>) -> Result<Emission> {
    store.emit(Emit { units: vec![events], now: None }).await?.pop().unwrap()
}

pub(crate) async fn claim(
    store: &dyn Store,
    subscription: SubscriptionId,
    max_events: u32,
) -> Result<Claimed> {
    claim_at(store, subscription, max_events, None).await
}

pub(crate) async fn claim_at(
    store: &dyn Store,
    subscription: SubscriptionId,
    max_events: u32,
    now: Option<Time>,
) -> Result<Claimed> {
    store.claim(Claim { now, ..claim_by(Incarnation::random(), subscription, max_events) }).await
}

pub(crate) fn claim_by(owner: Incarnation, subscription: SubscriptionId, max_events: u32) -> Claim {
    Claim {
        subscription,
        owner,
        max_events,
        max_bytes: 64 << 20,
        lease: None,
        suspects: Suspects::TakeOne,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    }
}

pub(crate) async fn done(
    store: &dyn Store,
    subscription: SubscriptionId,
    claimed: &Claimed,
) -> Result<Settled> {
    let outcomes = |slice: &tramline::store::verbs::ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|event| (event.event.id.index(), Outcome::Done)).collect(),
    };
    let results = claimed.slices.iter().map(outcomes).collect();
    store.settle(Settle { subscription, results, worker: None, now: None }).await
}

pub(crate) fn events(count: usize) -> Vec<Event> {
    (0..count).map(|n| Event::new("t", "x".repeat(100)).key(format!("key-{}", n % 1000))).collect()
}

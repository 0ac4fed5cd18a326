//! Clients over HTTP: emitters that never repeat what they are not allowed to, and workers that settle what they claim.

use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const TOPIC: &str = "crash";
pub(crate) const UNORDERED: &str = "unordered";
pub(crate) const ORDERED: &str = "ordered";

const DONE: &str = "done";
const RETRY: &str = "retry";
const KEYS: u64 = 7;
const EMITTERS: u64 = 3;
const WORKERS: usize = 2;
const LEASE_MS: i64 = 2_000;
/// An answer whose lease is about to end may be somebody else's by now.
const SPARE_MS: i64 = 300;
/// After one more crash alone an event has two left, of three.
const DANGER: u64 = 2;
/// How far emitters may be ahead of the slowest subscription.
const AHEAD: usize = 300;

/// One event that a worker was given.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) subscription: &'static str,
    pub(crate) id: i64,
    pub(crate) prev: Option<i64>,
    pub(crate) key: String,
    pub(crate) number: u64,
    pub(crate) attempt: u64,
    crashes: u64,
    /// When the worker asked for it.
    pub(crate) asked: Instant,
}

/// What clients did and saw.
#[derive(Clone, Default)]
pub(crate) struct Log {
    /// Every number that was ever sent.
    pub(crate) sent: HashSet<u64>,
    /// Number and id of what was acknowledged.
    pub(crate) acknowledged: Vec<(u64, i64)>,
    pub(crate) claims: Vec<Claimed>,
    /// When the server first said that they were settled as done, or as failed.
    pub(crate) done: HashMap<(&'static str, i64), Instant>,
    pub(crate) failed: HashMap<(&'static str, i64), Instant>,
    /// Events that kills have hit so often that one more could make them look like the cause. They get through first.
    pub(crate) in_danger: HashSet<(&'static str, i64)>,
    seen: HashMap<&'static str, HashSet<i64>>,
    none: HashSet<i64>,
}

impl Log {
    /// What a subscription was given.
    pub(crate) fn seen(&self, subscription: &str) -> &HashSet<i64> {
        self.seen.get(subscription).unwrap_or(&self.none)
    }

    fn settled(&mut self, subscription: &'static str, id: i64, outcome: &str) {
        let settled = if outcome == DONE { &mut self.done } else { &mut self.failed };
        settled.entry((subscription, id)).or_insert_with(Instant::now);
        self.in_danger.remove(&(subscription, id));
    }

    fn add(&mut self, claim: Claimed) {
        if claim.crashes >= DANGER {
            self.in_danger.insert((claim.subscription, claim.id));
        }
        self.seen.entry(claim.subscription).or_default().insert(claim.id);
        self.claims.push(claim);
    }
}

/// Everything that runs.
pub(crate) struct Load {
    shared: Arc<Shared>,
    emitters: Mutex<JoinSet<()>>,
    workers: Mutex<JoinSet<()>>,
}

struct Shared {
    nodes: Vec<String>,
    http: reqwest::Client,
    log: Mutex<Log>,
    grown: Notify,
    numbers: AtomicU64,
    no_more_emits: CancellationToken,
    no_more_work: CancellationToken,
}

impl Load {
    pub(crate) async fn start(nodes: Vec<String>) -> Load {
        tramline::tls::prepare();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
        let shared = Arc::new(Shared {
            nodes,
            http,
            log: Mutex::default(),
            grown: Notify::new(),
            numbers: AtomicU64::new(1),
            no_more_emits: CancellationToken::new(),
            no_more_work: CancellationToken::new(),
        });
        for (name, ordering) in [(UNORDERED, "none"), (ORDERED, "key")] {
            let wish = json!({ "topics": [TOPIC], "ordering": ordering, "lease_ms": LEASE_MS, "max_attempts": 5,
                "backoff": { "kind": "constant", "delay_ms": 50 } });
            let url = format!("{}/v1/subscriptions/{name}", shared.nodes[0]);
            let answer = shared.http.put(url).body(wish.to_string()).send().await.unwrap();
            assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        }
        let (mut emitters, mut workers) = (JoinSet::new(), JoinSet::new());
        for number in 0..EMITTERS {
            emitters.spawn(emit(shared.clone(), number));
        }
        for number in 0..WORKERS {
            workers.spawn(work(shared.clone(), number, UNORDERED));
            workers.spawn(work(shared.clone(), number, ORDERED));
        }
        Load { shared, emitters: Mutex::new(emitters), workers: Mutex::new(workers) }
    }

    pub(crate) fn claimed(&self) -> usize {
        self.shared.log.lock().unwrap().claims.len()
    }

    pub(crate) fn acknowledged(&self) -> Vec<(u64, i64)> {
        self.shared.log.lock().unwrap().acknowledged.clone()
    }

    /// Waits until the log is as wanted.
    pub(crate) async fn wait(&self, what: &str, within: Duration, reached: impl Fn(&Log) -> bool) {
        let wait = self.shared.until(reached);
        assert!(tokio::time::timeout(within, wait).await.is_ok(), "never came true: {what}");
    }

    /// Waits until the server says that a subscription has nothing left to do, and nothing dead.
    pub(crate) async fn finished(&self, subscription: &str, within: Duration) {
        let url = format!("{}/v1/subscriptions/{subscription}", self.shared.nodes[0]);
        let wait = async {
            loop {
                let answer = self.shared.http.get(&url).send().await.unwrap().text().await.unwrap();
                let answer: Value = serde_json::from_str(&answer).unwrap();
                let counts = answer["counts"].as_object().unwrap();
                if counts.values().all(|count| count == 0) {
                    return;
                }
                if counts["dead"] != 0 {
                    let dead = self.shared.http.get(format!("{url}/dead")).send().await.unwrap().text().await;
                    panic!("{subscription}: {}", dead.unwrap());
                }
                // Asking is all that can be done from outside.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(within, wait).await.is_ok(), "{subscription} is never done");
    }

    pub(crate) async fn stop_emitting(&self) {
        self.shared.no_more_emits.cancel();
        let mut emitters = std::mem::take(&mut *self.emitters.lock().unwrap());
        while let Some(ended) = emitters.join_next().await {
            ended.unwrap();
        }
    }

    pub(crate) async fn stop(self) -> Log {
        self.shared.no_more_work.cancel();
        let mut workers = std::mem::take(&mut *self.workers.lock().unwrap());
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
        self.shared.log.lock().unwrap().clone()
    }
}

impl Shared {
    async fn until(&self, reached: impl Fn(&Log) -> bool) {
        loop {
            let grown = self.grown.notified();
            if reached(&self.log.lock().unwrap()) {
                return;
            }
            grown.await;
        }
    }

    fn note(&self, note: impl FnOnce(&mut Log)) {
        note(&mut self.log.lock().unwrap());
        self.grown.notify_waiters();
    }

    /// The answer, if there was one and it says that all went well.
    async fn post(&self, node: usize, path: &str, body: &Value, idempotency: Option<&str>) -> Option<Value> {
        let url = format!("{}{path}", self.nodes[node % self.nodes.len()]);
        let mut request =
            self.http.post(url).body(body.to_string()).header("content-type", "application/json");
        if let Some(key) = idempotency {
            request = request.header("idempotency-key", key);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        assert!(status.is_success() || status.as_u16() == 503, "{path}: {status} {text}");
        status.is_success().then(|| serde_json::from_str(&text).unwrap())
    }
}

/// Emits numbered events to a few keys. The first emitter uses idempotency keys, and so may repeat until it knows.
async fn emit(shared: Arc<Shared>, emitter: u64) {
    let mut node = emitter as usize;
    while !shared.no_more_emits.is_cancelled() {
        let first = shared.numbers.fetch_add(3, Ordering::Relaxed);
        let numbers = [first, first + 1, first + 2];
        let events: Vec<Value> = numbers
            .iter()
            .map(|number| json!({ "payload": number, "key": format!("key:{}", number % KEYS) }))
            .collect();
        shared.note(|log| log.sent.extend(numbers));
        let key = format!("batch-{first}");
        let idempotency = (emitter == 0).then_some(key.as_str());
        let path = format!("/v1/topics/{TOPIC}/events");
        let answer = loop {
            let answer = shared.post(node, &path, &json!(events), idempotency).await;
            if answer.is_some() || idempotency.is_none() {
                break answer;
            }
            node += 1;
        };
        match answer {
            Some(answer) => shared.note(|log| {
                let ids = answer["events"].as_array().unwrap().iter().map(|event| id(&event["id"]).unwrap());
                log.acknowledged.extend(numbers.into_iter().zip(ids));
            }),
            None => node += 1, // the node is gone, and whether the events are stored is open
        }
        let enough = |log: &Log| {
            let seen = log.seen(UNORDERED).len().min(log.seen(ORDERED).len());
            seen + AHEAD > log.acknowledged.len()
        };
        tokio::select! {
            () = shared.until(enough) => {}
            () = shared.no_more_emits.cancelled() => {}
        }
    }
}

/// Claims and settles. Every tenth event fails once.
async fn work(shared: Arc<Shared>, worker: usize, subscription: &'static str) {
    let mut node = worker;
    while !shared.no_more_work.is_cancelled() {
        let wish = json!({ "worker": format!("worker-{worker}"), "max_events": 20, "wait_ms": 200 });
        let asked = Instant::now();
        let claim = format!("/v1/subscriptions/{subscription}/claim");
        let Some(answer) = shared.post(node, &claim, &wish, None).await else {
            node += 1;
            continue;
        };
        let events = answer["events"].as_array().unwrap();
        // The lease began after the question: if that is long ago, it may be over.
        let waited = asked.elapsed().as_millis() as i64;
        if events.is_empty() || waited > LEASE_MS - SPARE_MS {
            continue;
        }
        shared.note(|log| events.iter().for_each(|event| log.add(claimed(subscription, event, asked))));
        let results = outcomes(events, subscription == ORDERED);
        let settle = format!("/v1/subscriptions/{subscription}/settle");
        // If there is no answer the outcomes may be stored or not; what is not comes again.
        if let Some(answer) = shared.post(node, &settle, &json!({ "results": results }), None).await {
            let answers = answer["results"].as_array().unwrap().iter();
            let settled = answers.zip(&results).filter(|(answer, _)| answer["status"] == "settled");
            shared.note(|log| {
                for (answer, result) in settled {
                    assert_eq!(answer["id"], result["id"], "answers come in the order of results");
                    log.settled(
                        subscription,
                        id(&answer["id"]).unwrap(),
                        result["outcome"].as_str().unwrap(),
                    );
                }
            });
        }
    }
}

fn claimed(subscription: &'static str, event: &Value, asked: Instant) -> Claimed {
    Claimed {
        subscription,
        id: id(&event["id"]).unwrap(),
        prev: id(&event["prev"]),
        key: event["key"].as_str().unwrap().to_owned(),
        number: event["payload"].as_u64().unwrap(),
        attempt: event["attempt"].as_u64().unwrap(),
        crashes: event["crashes"].as_u64().unwrap(),
        asked,
    }
}

/// What follows a failure of its key does not run: the server sets it aside.
fn outcomes(events: &[Value], ordered: bool) -> Vec<Value> {
    let mut failed: HashSet<&str> = HashSet::new();
    let mut results = Vec::new();
    for event in events {
        let key = event["key"].as_str().unwrap();
        if ordered && failed.contains(key) {
            continue;
        }
        let fails = event["payload"].as_u64().unwrap().is_multiple_of(10) && event["attempt"] == 1;
        let outcome = if fails { RETRY } else { DONE };
        if fails {
            failed.insert(key);
        }
        results
            .push(json!({ "id": event["id"], "lease": event["lease"], "outcome": outcome, "error": "once" }));
    }
    results
}

fn id(value: &Value) -> Option<i64> {
    value.as_str()?.parse().ok()
}

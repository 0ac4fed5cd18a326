//! A store that cannot be written: nothing is acknowledged that is not stored, and the server goes on by itself.
//!
//! Full disks need rights that a test does not have everywhere. A limit on the size of files makes the same writes fail, and can
//! be lifted while the server runs. A Redis is full when it is told to be.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod own_redis;

use node::{Launch, Node, refused, until_true};
use own_redis::OwnRedis;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

/// Beyond this nothing can be written: less than the store has written when it is open.
const FULL: Option<u64> = Some(4096);

/// Limits the files of a server, or lifts the limit. The hard limit stays as it was inherited: raising it needs rights.
fn limit_files(node: &Node, size: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: size.or(maximum), maximum };
    prlimit(Some(Pid::from_child(&node.child)), Resource::Fsize, limit).unwrap();
}

/// Without this, the limit would end the server instead of failing its writes.
fn start() -> Node {
    Launch::default().after("trap '' XFSZ").start()
}

/// Status and body of an emit.
async fn emit(node: &Node, number: u32) -> (u16, Value) {
    let request = node.http.post(node.url("/v1/topics/t/events")).header("content-type", "application/json");
    let reply = request.body(json!({"payload": number}).to_string()).send().await.unwrap();
    let (status, retry) = (reply.status().as_u16(), reply.headers().get("retry-after").is_some());
    assert_eq!(status == 503, retry, "who is refused is told when to come back");
    (status, serde_json::from_str(&reply.text().await.unwrap()).unwrap())
}

async fn stored(node: &Node) -> Vec<(Value, Value)> {
    let page = node.get("/v1/topics/t/events?limit=1000").await;
    let items = page["items"].as_array().unwrap().iter();
    items.map(|event| (event["id"].clone(), event["payload"].clone())).collect()
}

#[tokio::test]
async fn while_the_disk_is_full_nothing_is_acknowledged_and_then_it_goes_on() {
    let mut node = start();
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    let mut acknowledged = Vec::new();
    let mut note = |number: u32, receipt: &Value| {
        acknowledged.push((receipt["events"][0]["id"].clone(), json!(number)));
    };
    for number in 0..10 {
        note(number, &emit(&node, number).await.1);
    }
    let claimed = node.post("/v1/subscriptions/s/claim", json!({"max_events": 3})).await;
    let result = |event: &Value| json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
    let results: Vec<Value> = claimed["events"].as_array().unwrap().iter().map(result).collect();
    limit_files(&node, FULL);
    for number in 100..110 {
        let (status, problem) = emit(&node, number).await;
        assert_eq!(status, 503, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("SQLite failed"), "{problem}");
    }
    for (verb, body) in [("claim", json!({})), ("settle", json!({"results": results}))] {
        let request = node.http.post(node.url(&format!("/v1/subscriptions/s/{verb}")));
        assert_eq!(request.body(body.to_string()).send().await.unwrap().status(), 503, "{verb}");
    }
    assert_eq!(stored(&node).await.len(), 10, "what is there can be read");
    let health = async |path: &str| node.http.get(node.url(path)).send().await.unwrap().status().as_u16();
    for _ in 0..3 {
        assert_eq!((health("/health/ready").await, health("/health/live").await), (503, 200));
    }
    limit_files(&node, None);
    until_true(async || health("/health/ready").await == 200).await;
    let mut number = 200;
    until_true(async || {
        number += 1;
        let (status, receipt) = emit(&node, number).await;
        if status == 201 {
            note(number, &receipt);
        }
        status == 201
    })
    .await;
    let settled = node.post("/v1/subscriptions/s/settle", json!({"results": results})).await;
    assert!(settled["results"].as_array().unwrap().iter().all(|result| result["status"] == "settled"));
    assert_eq!(stored(&node).await, acknowledged);
    node.kill();
    node.start_again().await;
    assert_eq!(stored(&node).await, acknowledged);
    assert_eq!(node.get("/v1/subscriptions/s").await["counts"]["ready"], 8);
}

/// As a backup or a shell might.
#[tokio::test]
async fn while_another_program_has_the_file_nothing_is_acknowledged_and_then_it_goes_on() {
    let node = Node::start(&["--store-timeout-ms", "300"]);
    assert_eq!(emit(&node, 1).await.0, 201);
    let other = rusqlite::Connection::open(node.directory.path().join("tramline.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(emit(&node, 2).await.0, 503);
    other.execute_batch("ROLLBACK").unwrap();
    until_true(async || emit(&node, 3).await.0 == 201).await;
    // Whether the second one was stored in the end was left open, and is now known: once or not at all.
    let payloads: Vec<Value> = stored(&node).await.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads.iter().filter(|payload| **payload == json!(1)).count(), 1);
    assert!(payloads.iter().filter(|payload| **payload == json!(2)).count() <= 1, "{payloads:?}");
    assert!(payloads.contains(&json!(3)));
}

#[test]
fn a_file_that_cannot_be_written_is_told_with_a_remedy() {
    for place in ["sqlite:///proc/tramline.db", "sqlite://no/such/folder/tramline.db", "sqlite://."] {
        let error = refused(&["--store", place]);
        assert!(error.contains("cannot be opened") && error.contains("check that"), "{place}: {error}");
    }
}

/// Limits the memory of a server; 0 lifts the limit.
fn hold(redis: &OwnRedis, memory: u64) {
    redis.ask::<()>(&["CONFIG", "SET", "maxmemory", &memory.to_string()]);
}

#[tokio::test]
async fn while_redis_is_full_emits_are_refused_and_what_is_there_is_worked_off() {
    let redis = OwnRedis::start();
    let node = Launch::with(&["--store", &redis.url()]).start();
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    let mut acknowledged = Vec::new();
    for number in 0..20 {
        acknowledged.push(emit(&node, number).await.1["events"][0]["id"].clone());
    }
    hold(&redis, 1);
    for number in 100..110 {
        let (status, problem) = emit(&node, number).await;
        assert_eq!(status, 503, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("Redis is full"), "{problem}");
        assert!(problem.to_string().contains("maxmemory"), "{problem}");
    }
    let mut worked = work_off(&node).await;
    hold(&redis, 0);
    acknowledged.push(emit(&node, 200).await.1["events"][0]["id"].clone());
    worked.extend(work_off(&node).await);
    assert_eq!(worked, acknowledged, "all that was acknowledged, and nothing else");
}

/// Claims and settles until nothing is left; gives what there was.
async fn work_off(node: &Node) -> Vec<Value> {
    let mut worked = Vec::new();
    loop {
        let claimed = node.post("/v1/subscriptions/s/claim", json!({"max_events": 7})).await;
        let events = claimed["events"].as_array().unwrap();
        if events.is_empty() {
            return worked;
        }
        worked.extend(events.iter().map(|event| event["id"].clone()));
        let result = |event: &Value| json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
        let results: Vec<Value> = events.iter().map(result).collect();
        node.post("/v1/subscriptions/s/settle", json!({"results": results})).await;
    }
}

/// Status and problem of what brings something new.
async fn refused_when_full(node: &Node, path: &str, body: Value) {
    let request = node.http.post(node.url(path)).header("content-type", "application/json");
    let reply = request.body(body.to_string()).send().await.unwrap();
    let (status, problem) = (reply.status(), reply.text().await.unwrap());
    assert_eq!(status, 503, "{path}: {problem}");
    assert!(problem.contains("maxmemory"), "{path}: {problem}");
}

#[tokio::test]
async fn while_redis_is_full_retries_leases_tallies_and_rules_go_on() {
    let redis = OwnRedis::start();
    let node = Launch::with(&["--store", &redis.url()]).start();
    let policy = json!({"topics": ["t"], "backoff": {"kind": "constant", "delay_ms": 0}});
    node.put("/v1/subscriptions/s", policy).await;
    node.put("/v1/subscriptions/told", json!({"topics": ["told"]})).await;
    let emitted = emit(&node, 1).await.1["events"][0]["id"].clone();
    let wish = json!({"on_complete": {"topic": "told", "payload": {"n": 1}}});
    let tally = node.post("/v1/tallies", wish).await["tally"].as_str().unwrap().to_owned();
    let tally = format!("/v1/tallies/{tally}");
    node.post(&format!("{tally}/add"), json!({"count": 100})).await;
    node.put("/v1/schedules/nightly", json!({"every_ms": 3_600_000, "topic": "t"})).await;
    hold(&redis, 1);
    refused_when_full(&node, "/v1/topics/t/events", json!({"payload": 2})).await;
    refused_when_full(&node, "/v1/tallies", json!({})).await;
    refused_when_full(&node, &format!("{tally}/add"), json!({"count": 1})).await;
    refused_when_full(&node, "/v1/schedules/nightly/run", json!({})).await;
    let claim = async || {
        node.post("/v1/subscriptions/s/claim", json!({"wait_ms": 30_000})).await["events"][0].clone()
    };
    let settle = async |event: &Value, outcome: &str| {
        let result = json!({"id": event["id"], "lease": event["lease"], "outcome": outcome, "error": "once"});
        let settled = node.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await;
        assert_eq!(settled["results"][0]["status"], "settled");
    };
    node.post("/v1/subscriptions/s/pause", json!({"reason": "a move"})).await;
    node.post("/v1/subscriptions/s/resume", json!({})).await;
    let first = claim().await;
    assert_eq!(first["id"], emitted);
    let extended = node.post("/v1/subscriptions/s/extend", json!({"leases": [first["lease"]]})).await;
    assert_eq!(extended["results"][0]["status"], "extended");
    settle(&first, "retry").await;
    let second = claim().await;
    assert_eq!((&second["id"], &second["attempt"]), (&emitted, &json!(2)));
    settle(&second, "done").await;
    node.post(&format!("{tally}/ack"), json!({"items": [[0, 98]]})).await;
    node.post(&format!("{tally}/seal"), json!({})).await;
    let last = node.post(&format!("{tally}/fail"), json!({"items": [99]})).await;
    assert_eq!(last["completed_now"], true);
    let told = node.post("/v1/subscriptions/told/claim", json!({"wait_ms": 30_000})).await;
    assert_eq!(told["events"][0]["payload"], json!({"n": 1}));
}

/// Nobody raises the limit: what was worked off goes at the end of its retention, and there is room again.
#[tokio::test]
async fn a_full_redis_takes_events_again_when_retention_has_made_room() {
    const ROOM: u64 = 8 << 20;
    let redis = OwnRedis::start();
    let node = Launch::with(&["--store", &redis.url()]).start();
    node.put("/v1/topics/t", json!({"retention_ms": 1})).await;
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    let info: String = redis.ask(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    hold(&redis, used.trim().parse::<u64>().unwrap() + ROOM);
    let large = async || {
        let request = node
            .http
            .post(node.url("/v1/topics/t/events"))
            .body(json!({"payload": "x".repeat(200 << 10)}).to_string());
        let reply = request.header("content-type", "application/json").send().await.unwrap();
        let (status, text) = (reply.status().as_u16(), reply.text().await.unwrap());
        assert!(status == 201 || (status == 503 && text.contains("Redis is full")), "{status}: {text}");
        let receipt: Value = serde_json::from_str(&text).unwrap();
        (status == 201).then(|| receipt["events"][0]["id"].clone())
    };
    let mut acknowledged = Vec::new();
    while let Some(id) = large().await {
        acknowledged.push(id);
    }
    assert!(acknowledged.len() > 10, "{acknowledged:?}");
    let mut worked = work_off(&node).await;
    until_true(async || {
        let emitted = large().await;
        acknowledged.extend(emitted.clone());
        emitted.is_some()
    })
    .await;
    worked.extend(work_off(&node).await);
    assert_eq!(worked, acknowledged, "all that was acknowledged, and nothing else");
}

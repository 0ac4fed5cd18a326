//! A store that cannot be written: nothing is acknowledged that is not stored, and the server goes on by itself.
//!
//! Full disks need rights that a test does not have everywhere. A limit on the size of files makes the same writes fail, and can
//! be lifted while the server runs. A Redis is full when it is told to be.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Launch, Node, refused, until_true};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

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

/// A Redis of the test's own. Killed when it is dropped.
struct Redis {
    child: Child,
    client: redis::Client,
    url: String,
    _directory: tempfile::TempDir,
}

impl Redis {
    fn start() -> Redis {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--appendonly",
            "yes",
            "--save",
            "",
        ]);
        let child = command.arg("--dir").arg(directory.path()).stdout(Stdio::null()).spawn().unwrap();
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(&*url).unwrap();
        node::until(|| redis::cmd("PING").query::<String>(&mut client.get_connection().ok()?).ok());
        Redis { child, client, url, _directory: directory }
    }

    fn hold(&self, memory: &str) {
        let mut connection = self.client.get_connection().unwrap();
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", memory]).query::<()>(&mut connection).unwrap();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn while_redis_is_full_emits_are_refused_and_what_is_there_is_worked_off() {
    let redis = Redis::start();
    let node = Launch::with(&["--store", &redis.url]).start();
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    let mut acknowledged = Vec::new();
    for number in 0..20 {
        acknowledged.push(emit(&node, number).await.1["events"][0]["id"].clone());
    }
    redis.hold("1");
    for number in 100..110 {
        let (status, problem) = emit(&node, number).await;
        assert_eq!(status, 503, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("Redis is full"), "{problem}");
        assert!(problem.to_string().contains("maxmemory"), "{problem}");
    }
    let mut worked = work_off(&node).await;
    redis.hold("0");
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

//! A store that cannot be written: nothing is acknowledged that is not stored, and the server goes on by itself.
//!
//! Full disks need rights that a test does not have everywhere. A limit on the size of files makes the same writes fail, and can
//! be lifted while the server runs.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Launch, Node, refused, until_true};
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

//! Nodes on one PostgreSQL whose wake-ups travel over NATS or Redis.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod stores;

use node::{Node, refused, until_true};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stores::Place;

/// Who waits without a hint finds an event after half a second on average: of many, most would be slower than this.
const SOON: Duration = Duration::from_millis(400);
const ROUNDS: usize = 15;
const MOST: usize = 12;

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run ./test"))
}

/// Two nodes on one database, with a subscription.
async fn two_nodes(place: &Place, wake: &str) -> (Node, Node) {
    let (first, second) = (place.launch(&["--wake", wake]).start(), place.launch(&["--wake", wake]).start());
    first.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    (first, second)
}

/// How long it takes until a claim that waits at one node has what is emitted at the other.
async fn hand_over(from: &Node, to: &Node) -> Duration {
    let asked = claims(to).await;
    let claim = to.post("/v1/subscriptions/s/claim", json!({"worker": "w", "wait_ms": 30_000}));
    let emit = async {
        until_true(async || claims(to).await > asked).await;
        let start = Instant::now();
        from.post("/v1/topics/t/events", json!({"payload": 1})).await;
        start
    };
    let (claimed, start) = tokio::join!(async { (claim.await, Instant::now()) }, emit);
    let event = &claimed.0["events"][0];
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
    to.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await;
    claimed.1 - start
}

/// How often the store was asked for events by this node.
async fn claims(node: &Node) -> u64 {
    let metrics = node.metrics().await;
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("tramline_store_seconds_count{verb=\"claim\"} "));
    line.map_or(0, |count| count.parse().unwrap())
}

async fn most_are_soon(from: &Node, to: &Node) {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        took.push(hand_over(from, to).await);
    }
    assert!(took.iter().filter(|took| **took < SOON).count() >= MOST, "{took:?}");
}

/// How many connections to the database listen for hints or give them.
async fn listeners(place: &Place) -> i64 {
    let mut connection = PgConnection::connect(&server("TRAMLINE_TEST_POSTGRES")).await.unwrap();
    let schema = place.url().split("schema=").nth(1).unwrap();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND strpos(query, $1) > 0";
    sqlx::query_scalar(sql).bind(schema).fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn nodes_wake_each_other_over_nats_and_the_database_is_not_asked_to() {
    let place = Place::postgres();
    let (first, second) =
        two_nodes(&place, &format!("{}?channel=nodes.a", server("TRAMLINE_TEST_NATS"))).await;
    most_are_soon(&first, &second).await;
    assert_eq!(listeners(&place).await, 0);
}

#[tokio::test]
async fn nodes_wake_each_other_over_redis() {
    let place = Place::postgres();
    let (first, second) =
        two_nodes(&place, &format!("{}?channel=nodes.b", server("TRAMLINE_TEST_REDIS"))).await;
    most_are_soon(&first, &second).await;
    assert_eq!(listeners(&place).await, 0);
}

#[tokio::test]
async fn nodes_on_mysql_can_wake_each_other_over_postgres() {
    let place = Place::mysql().await;
    let (first, second) =
        two_nodes(&place, &format!("{}?channel=nodes_c", server("TRAMLINE_TEST_POSTGRES"))).await;
    most_are_soon(&first, &second).await;
}

#[tokio::test]
async fn a_node_whose_hints_stay_in_the_process_listens_to_nobody() {
    let place = Place::postgres();
    let alone = place.launch(&["--wake", "in-process"]).start();
    alone.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    let took = hand_over(&alone, &alone).await;
    assert!(took < SOON, "{took:?}");
    assert_eq!(listeners(&place).await, 0);
    let usual = place.launch(&[]).start();
    hand_over(&usual, &usual).await;
    assert!(listeners(&place).await > 0, "this is how it is seen");
}

/// A server of the test's own, to take away. Killed when it is dropped.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(port: String) -> Server {
        let mut command = Command::new("nats-server");
        command.args(["--addr", "127.0.0.1", "--port", &port]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        node::until(|| std::net::TcpStream::connect(format!("127.0.0.1:{port}")).ok());
        Server { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn without_its_transport_work_goes_on_and_hints_come_back_with_it() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nats = Server::start(free.to_string());
    let place = Place::postgres();
    let (first, second) = two_nodes(&place, &format!("nats://127.0.0.1:{}", nats.port)).await;
    hand_over(&first, &second).await;
    let port = nats.port.clone();
    drop(nats);
    for _ in 0..3 {
        let took = hand_over(&first, &second).await;
        // A slow poll, and what a busy machine may take for the rest.
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
    let _nats = Server::start(port);
    // Connecting again waits for up to five seconds; until then hand-overs are slow.
    let back = async || {
        let (one, two) = (hand_over(&first, &second).await, hand_over(&first, &second).await);
        one < SOON / 4 && two < SOON / 4
    };
    until_true(back).await;
    second.signal("-TERM");
    let (_, log) = second.ended();
    assert_eq!(log.matches("the wake-up connection is lost").count(), 1, "{log}");
    assert_eq!(log.matches("the wake-up connection is back").count(), 1, "{log}");
}

#[test]
fn a_wake_that_is_none_is_refused_with_a_remedy() {
    let said = refused(&["--wake", "kafka://host"]);
    assert!(said.contains("nats://") && said.contains("redis://"), "{said}");
}

/// The URL of PostgreSQL was read when somebody waited, and that failed for ever.
#[test]
fn an_address_that_nobody_can_reach_is_refused_with_a_remedy() {
    for wake in ["postgres://h:nonsense/d", "nats://h:nonsense", "redis://h:nonsense"] {
        let said = refused(&["--wake", wake]);
        assert!(said.contains("://") && !said.contains("is lost"), "{wake}: {said}");
    }
}

#[test]
fn the_password_of_a_wake_is_not_shown() {
    let output =
        Command::new(node::PROGRAM).args(["config", "--wake", "nats://u:hidden@h"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("wake = \"nats://u:***@h\""), "{printed}");
}

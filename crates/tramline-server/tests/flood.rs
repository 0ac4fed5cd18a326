//! Thousands of clients that do nothing, or as good as nothing. Not part of the usual tests:
//! `cargo test --release -p tramline-server --test flood -- --ignored --nocapture` (needs `ulimit -n 20000`).
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells its figures"
)]

mod node;

use node::Node;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const IDLE: usize = 10_000;
const SLOW: usize = 5_000;
/// More than there are places for requests.
const SLOW_BODIES: usize = 1_500;
const HEALTHY: usize = 500;
/// How often a slow client sends a byte.
const PAUSE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "sixteen thousand connections"]
async fn healthy_requests_go_on_among_idle_and_slow_connections() {
    // Patient with all of them: what is cut off would prove nothing.
    let patient = ["--header-timeout-ms", "120000", "--body-timeout-ms", "120000"];
    let node = Node::start(&patient);
    let address = node.address.clone();
    let mut idle = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(&address).await.unwrap());
    }
    let mut slow = JoinSet::new();
    for number in 0..SLOW {
        let stream = TcpStream::connect(&address).await.unwrap();
        slow.spawn(dawdle(stream, HEAD, number));
    }
    for number in 0..SLOW_BODIES {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let begun = format!("{HEAD}y\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n");
        stream.write_all(begun.as_bytes()).await.unwrap();
        slow.spawn(dawdle(stream, "{\"payload\": \"", number));
    }
    let mut times = Vec::with_capacity(HEALTHY);
    for number in 0..HEALTHY {
        let start = Instant::now();
        let emitted = node.post("/v1/topics/t/events", json!({ "payload": number })).await;
        times.push(start.elapsed());
        assert!(emitted["events"][0]["id"].is_string(), "{emitted}");
    }
    times.sort();
    let memory = peak_mib(node.child.id());
    println!(
        "{IDLE} idle and {SLOW} slow connections, {SLOW_BODIES} slow bodies: {memory} MiB at most, emits in {:?} (median) and {:?} (99 %)",
        times[HEALTHY / 2],
        times[HEALTHY * 99 / 100]
    );
    assert!(memory < 1024, "{memory} MiB");
    slow.abort_all();
}

const HEAD: &str = "POST /v1/topics/t/events HTTP/1.1\r\nhost: localhost\r\nx-slow: ";

/// Sends the rest of a request byte by byte, and never ends it.
async fn dawdle(mut stream: TcpStream, rest: &'static str, number: usize) {
    // Not all at the same moment.
    tokio::time::sleep(PAUSE * number as u32 / SLOW as u32).await;
    for byte in rest.bytes().chain(std::iter::repeat(b'x')) {
        if stream.write_all(&[byte]).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn peak_mib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

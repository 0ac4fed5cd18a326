//! Servers that speak TLS.

use crate::bed::{Server, claim, emit, events, free_port, subscribe};
use std::process::Command;
use std::time::{Duration, Instant};
use tramline::error::Kind;
use tramline::model::id::SubscriptionId;
use tramline::model::subscription::Ordering;
use tramline::store::redis::RedisStore;
use tramline::wake::address::open;

const URL: &str = "TRAMLINE_TEST_REDIS_TLS";

fn file(name: &str) -> String {
    format!("{}/tests/push/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A server with a certificate that it has signed itself, and where it is.
fn server(more: &[&str]) -> (Server, String) {
    let port = free_port().to_string();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
    let settings = [&["--tls-port", &port, "--tls-auth-clients", "no"][..], &files[..], more].concat();
    (Server::start_with(&settings), format!("127.0.0.1:{port}"))
}

/// The same as a Cluster of one node, in which it names itself by the port for TLS.
async fn cluster() -> (Server, String) {
    let bus = free_port().to_string();
    let (server, place) =
        server(&["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    let start = Instant::now();
    let info = async || format!("{:?}", server.command(&["CLUSTER", "INFO"]).await);
    while !info().await.contains("cluster_state:ok") {
        assert!(start.elapsed() < Duration::from_secs(20), "the Cluster never came up");
        tokio::task::yield_now().await;
    }
    (server, place)
}

/// Nobody had said which cryptography to use, and the first connection was a panic.
#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let (_server, place) = server(&[]);
    let error = RedisStore::open(format!("rediss://{place}").parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

#[test]
fn a_server_with_a_trusted_certificate_is_used() {
    let (_server, place) = server(&[]);
    is_used(&format!("rediss://{place}"));
}

#[tokio::test]
async fn a_cluster_with_a_trusted_certificate_is_used() {
    let (_server, place) = cluster().await;
    is_used(&format!("rediss+cluster://{place}"));
}

#[test]
fn hints_travel_over_a_server_with_a_trusted_certificate() {
    let (_server, place) = server(&[]);
    succeeds("tls::heard_by_a_process_that_trusts_it", &format!("rediss://{place}"));
}

fn is_used(url: &str) {
    succeeds("tls::used_by_a_process_that_trusts_it", url);
}

/// Which certificates a process trusts is set for all of it, so this takes one of its own.
fn succeeds(test: &str, url: &str) {
    let used = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .env("SSL_CERT_FILE", file("cert.pem"))
        .env(URL, url)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&used.stdout);
    assert!(used.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
#[ignore = "run by the tests above"]
async fn used_by_a_process_that_trusts_it() {
    // Somebody who runs all that is ignored has no such server.
    let Ok(url) = std::env::var(URL) else { return };
    let store = RedisStore::open(url.parse().unwrap()).await.unwrap();
    let id = subscribe(&store, Ordering::None).await;
    emit(&store, events(3)).await.unwrap();
    assert_eq!(claim(&store, id, 10).await.unwrap().slices[0].events.len(), 3);
}

#[tokio::test]
#[ignore = "run by a test above"]
async fn heard_by_a_process_that_trusts_it() {
    let Ok(url) = std::env::var(URL) else { return };
    let (here, there) = (open(&url, None).unwrap(), open(&url, None).unwrap());
    let mut listener = here.listen(SubscriptionId(1));
    for _ in 0..2 {
        // First that it is connected, then what it hears.
        listener.arm();
        there.notify(&[SubscriptionId(1)]);
        tokio::time::timeout(Duration::from_secs(20), listener.wait()).await.expect("nothing is heard");
    }
}

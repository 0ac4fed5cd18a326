//! The server is killed again and again while clients emit and work over HTTP: on SQLite alone, on PostgreSQL as one of two
//! nodes. Nothing acknowledged is lost, nothing is invented, keys stay in order, and it serves again at once.
//!
//! `TRAMLINE_KILLS` says how often on each store; 30 unless set.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells how long it took"
)]

mod check;
mod clients;
#[path = "../node/mod.rs"]
mod node;

use clients::{ORDERED, UNORDERED};
use node::{Node, PATIENCE};
use std::time::Duration;

/// What has to happen between two kills, in events that were claimed.
const PROGRESS: usize = 20;

fn kills() -> usize {
    std::env::var("TRAMLINE_KILLS").map_or(30, |kills| kills.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_sqlite_survives_kills_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("crash.db").display());
    survive(vec![Node::start(&["--store", &store])]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_on_postgres_survive_kills_of_one_under_load() {
    let server = std::env::var("TRAMLINE_TEST_POSTGRES").expect("no PostgreSQL to test with: run ./test");
    let schema = format!("crash_{}", std::process::id());
    let store = format!("{server}?schema={schema}&max_connections=8");
    survive(vec![Node::start(&["--store", &store]), Node::start(&["--store", &store])]).await;
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&server).await.unwrap();
    let drop = sqlx::AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
    sqlx::Executor::execute(&mut connection, drop).await.unwrap();
}

async fn survive(mut nodes: Vec<Node>) {
    let load = clients::Load::start(nodes.iter().map(|node| node.url("")).collect()).await;
    let mut slowest = Duration::ZERO;
    for number in 0..kills() {
        let goal = load.claimed() + PROGRESS;
        load.wait("work goes on", PATIENCE, |log| log.claims.len() >= goal && log.in_danger.is_empty()).await;
        let victim = number % nodes.len();
        nodes[victim].kill();
        slowest = slowest.max(nodes[victim].start_again().await);
    }
    load.stop_emitting().await;
    let acknowledged = load.acknowledged();
    for subscription in [UNORDERED, ORDERED] {
        load.wait("everything acknowledged runs", PATIENCE, |log| {
            acknowledged.iter().all(|(_, id)| log.seen(subscription).contains(id))
        })
        .await;
        load.finished(subscription, PATIENCE).await;
    }
    let log = load.stop().await;
    check::nothing_invented(&log);
    check::in_order(&log);
    println!(
        "{} kills, {} events acknowledged, serving again after {slowest:?} at most",
        kills(),
        acknowledged.len()
    );
}

//! The server is killed again and again while clients emit and work over HTTP: on SQLite alone, on servers as one of two nodes.
//! Nothing acknowledged is lost, nothing is invented, keys stay in order, what was settled stays settled, and it serves again at
//! once. Schedules run beside it, each time once.
//!
//! `TRAMLINE_KILLS` says how often on each store; 30 unless set, and 10 on MySQL and Redis.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and tells how long it took"
)]

mod check;
mod clients;
#[path = "../node/mod.rs"]
mod node;
mod schedules;
#[path = "../stores/mod.rs"]
mod stores;

use clients::{ORDERED, UNORDERED};
use node::{Node, PATIENCE};
use std::time::Duration;
use stores::Place;

/// What has to happen between two kills, in events that were claimed.
const PROGRESS: usize = 20;

/// How soon it has to serve again.
const SOON: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_sqlite_survives_kills_under_load() {
    let place = Place::sqlite();
    survive(30, vec![place.node()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_on_postgres_survive_kills_of_one_under_load() {
    let place = Place::postgres();
    survive(30, two_nodes(&place)).await;
    let (server, schema) = place.url().split_once("?schema=").unwrap();
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(server).await.unwrap();
    let drop = sqlx::AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"));
    sqlx::Executor::execute(&mut connection, drop).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_on_mysql_survive_kills_of_one_under_load() {
    let place = Place::mysql().await;
    survive(10, two_nodes(&place)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_on_redis_survive_kills_of_one_under_load() {
    let place = Place::redis();
    survive(10, two_nodes(&place)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_on_a_redis_cluster_survive_kills_of_one_under_load() {
    let place = Place::redis_cluster();
    survive(10, two_nodes(&place)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_on_a_store_that_is_spread_survive_kills_of_one_under_load() {
    let place = Place::redis_spread();
    survive(10, two_nodes(&place)).await;
}

fn two_nodes(place: &Place) -> Vec<Node> {
    vec![place.node(), place.node()]
}

async fn survive(kills: usize, mut nodes: Vec<Node>) {
    let kills = std::env::var("TRAMLINE_KILLS").map_or(kills, |kills| kills.parse().unwrap());
    schedules::start(&nodes[0]).await;
    let load = clients::Load::start(nodes.iter().map(|node| node.url("")).collect()).await;
    let mut slowest = Duration::ZERO;
    for number in 0..kills {
        let goal = load.claimed() + PROGRESS;
        load.wait("work goes on", PATIENCE, |log| log.claims.len() >= goal && log.in_danger.is_empty()).await;
        let victim = number % nodes.len();
        nodes[victim].kill();
        slowest = slowest.max(nodes[victim].start_again().await);
        assert!(slowest < SOON, "it served again only after {slowest:?}");
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
    check::failures_hold_up_their_key(&log);
    check::settled_stays_settled(&log);
    let ticks = schedules::check(&nodes[0]).await;
    let events = acknowledged.len();
    println!(
        "{kills} kills, {events} events acknowledged, {ticks} scheduled, serving again after {slowest:?} at most"
    );
}

//! A store that fails, or is slow.

use super::bed::{Bed, Reply};
use crate::config::Config;
use rusqlite::Connection;
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

async fn bed(config: Config) -> (Bed, Connection, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("t.db");
    let bed = Bed::on_file(&path, config).await;
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    bed.post("/v1/topics/t/events", json!({"payload": 1})).await.good();
    (bed, Connection::open(path).unwrap(), folder)
}

/// The page of metrics was a 503 while the store was away: the figures that tell of the outage were missing just then.
#[tokio::test]
async fn metrics_without_a_store_are_what_the_node_itself_knows() {
    let (bed, database, _folder) = bed(Config::defaults().unwrap()).await;
    let page = async || bed.get("/metrics").await;
    let has = |page: &Reply, start: &str| page.text.lines().any(|line| line.starts_with(start));
    let whole = page().await;
    assert!(has(&whole, "tramline_store_up 1") && has(&whole, "tramline_events{subscription=\"s\""));
    database.execute_batch("ALTER TABLE tramline_slice RENAME TO away").unwrap();
    let page_away = page().await;
    assert_eq!(page_away.status, 200, "{}", page_away.text);
    for known in [
        "tramline_store_up 0",
        "tramline_store_failures_total{verb=\"stats\"} 1",
        "tramline_emitted_events_total{topic=\"t\"} 1",
    ] {
        assert!(has(&page_away, known), "{known} in {}", page_away.text);
    }
    assert!(!page_away.text.contains("tramline_events"), "nobody knows");
    database.execute_batch("ALTER TABLE away RENAME TO tramline_slice").unwrap();
    assert!(has(&page().await, "tramline_store_up 1"));
}

/// Whoever was told that the store is too slow had its events all the same, once the store had caught up: nobody knew of them until
/// their lease ended, and that counted as a crash.
#[tokio::test]
async fn what_a_claim_brings_after_its_time_is_given_back_uncounted() {
    let (bed, database, _folder) = bed(Config { store_timeout_ms: 200, ..Config::defaults().unwrap() }).await;
    let claim = async || bed.post("/v1/subscriptions/s/claim", json!({})).await;
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(claim().await.problem(503)["detail"], "the store did not answer in time");
    database.execute_batch("COMMIT").unwrap();
    let event = loop {
        let reply = claim().await;
        if reply.status.is_success()
            && let [event] = reply.json()["events"].as_array().unwrap().as_slice()
        {
            break event.clone();
        }
    };
    let never_tried: [&Value; 2] = [&json!(1), &json!(0)];
    assert_eq!([&event["attempt"], &event["crashes"]], never_tried);
}

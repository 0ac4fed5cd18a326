//! Live figures and metrics.

use super::bed::Bed;
use axum::http::Request;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

async fn bed() -> Bed {
    let bed = Bed::open().await;
    bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
    bed
}

async fn emit(bed: &Bed) {
    bed.post("/v1/topics/t/events", json!({"payload": 1})).await.good();
}

async fn has(bed: &Bed, line: &str) -> bool {
    bed.get("/metrics").await.text.lines().any(|found| found == line)
}

#[tokio::test]
async fn figures_and_metrics_show_what_happened() {
    let bed = bed().await;
    emit(&bed).await;
    bed.post("/v1/subscriptions/s/claim", json!({})).await.good();
    let stats = bed.get("/v1/stats").await.good();
    assert_eq!((&stats["counts"]["leased"], &stats["subscriptions"][0]["name"]), (&json!(1), &json!("s")));
    for line in [
        "tramline_emitted_events_total{topic=\"t\"} 1",
        "tramline_claimed_events_total{subscription=\"s\"} 1",
        "tramline_events{subscription=\"s\",status=\"leased\"} 1",
        "tramline_emit_seconds_count{topic=\"t\"} 1",
        "tramline_queue_seconds_count{subscription=\"s\"} 1",
    ] {
        assert!(has(&bed, line).await, "{line}");
    }
}

#[tokio::test]
async fn streams_of_lines_are_timed_like_other_emits() {
    let bed = bed().await;
    let request = Request::post("/v1/topics/t/events").header("content-type", "application/x-ndjson");
    bed.send(request.body("{\"payload\":1}\n{\"payload\":2}".into()).unwrap()).await.good();
    assert!(has(&bed, "tramline_emit_seconds_count{topic=\"t\"} 1").await);
}

/// What was there before says nothing about how long a hint takes.
#[tokio::test]
async fn the_wake_lag_is_of_events_that_somebody_waited_for() {
    let bed = bed().await;
    emit(&bed).await;
    // The claim must not begin in the millisecond of the emit, nor in the next.
    let soon = bed.app.tram.store().now().await.unwrap().after(Duration::from_millis(1));
    while bed.app.tram.store().now().await.unwrap() <= soon {}
    bed.post("/v1/subscriptions/s/claim", json!({"wait_ms": 60_000})).await.good();
    assert!(!bed.get("/metrics").await.text.contains("tramline_wake_lag_seconds_count"));
    let claim = bed.post("/v1/subscriptions/s/claim", json!({"wait_ms": 60_000}));
    let (claimed, ()) = tokio::join!(claim, async {
        while bed.app.waiting.available_permits() == bed.app.config.max_waiting {
            tokio::task::yield_now().await;
        }
        emit(&bed).await;
    });
    assert_eq!(claimed.good()["events"].as_array().unwrap().len(), 1);
    assert!(has(&bed, "tramline_wake_lag_seconds_count 1").await);
    assert!(has(&bed, "tramline_wake_lag_seconds_bucket{le=\"+Inf\"} 1").await);
}

/// Alerts on a metric that does not exist never fire.
#[tokio::test]
async fn the_metrics_of_the_documentation_are_those_that_are_served() {
    let documentation = include_str!("../../../../../docs/operations.md");
    let page = bed().await.get("/metrics").await.text;
    let served: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let (mut listed, mut alerted) = (BTreeSet::new(), BTreeSet::new());
    for line in documentation.lines().filter(|line| line.starts_with("| `")) {
        let cell = line.split('`').nth(1).unwrap();
        let names = cell.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names = names.filter(|name| name.starts_with("tramline_"));
        if cell.starts_with("tramline_") && !cell.contains([' ', '{']) {
            listed.extend(names);
        } else {
            alerted.extend(names.map(|name| name.trim_end_matches("_bucket")));
        }
    }
    assert_eq!(listed, served);
    assert!(alerted.len() > 5 && alerted.is_subset(&served), "{alerted:?}");
}

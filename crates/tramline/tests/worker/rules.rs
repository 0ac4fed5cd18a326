//! Rules by pattern, as workers meet them. Time stands still unless a test moves it, so nobody polls.

use crate::bed::event;
use crate::support::{start, until};
use std::time::Duration;
use tramline::store::verbs::{RuleEnd, SetPatternRule};
use tramline::testkit::TestKit;
use tramline::{RuleKind, Tramline};

async fn stop(tram: &Tramline, end: RuleEnd) -> i64 {
    let set = SetPatternRule {
        pattern: "acme/*".parse().unwrap(),
        topics: None,
        kind: RuleKind::Pause,
        until: end,
        by: "olga".into(),
        reason: String::new(),
        now: None,
    };
    tram.set_pattern_rule(set).await.unwrap().id
}

async fn pending(tram: &Tramline, name: &str) -> u64 {
    tram.stats(name).await.unwrap().counts.pending()
}

#[tokio::test]
async fn removing_a_rule_by_pattern_wakes_everything_that_it_held() {
    let kit = TestKit::new().await.unwrap();
    let tram = kit.tram();
    let rule = stop(tram, RuleEnd::Open).await;
    let names: Vec<String> = (0..5).map(|n| format!("acme/w{n}")).collect();
    let mut running = Vec::new();
    for name in &names {
        let worker = tram.worker(name).topics(["t"]).on_any(|| async {});
        worker.subscribe().await.unwrap();
        running.push(start(worker));
    }
    tram.emit(event("x")).await.unwrap();
    for name in &names {
        assert_eq!(pending(tram, name).await, 1, "{name}");
    }
    assert_eq!(tram.remove_pattern_rule(rule, "olga", "").await.unwrap(), 5);
    for name in &names {
        until("it is done", || async { pending(tram, name).await == 0 }).await;
    }
    for (shutdown, worker) in running {
        shutdown.start();
        worker.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_rule_that_ends_by_itself_lets_go_at_its_end_and_not_at_the_next_poll() {
    let kit = TestKit::new().await.unwrap();
    let tram = kit.tram();
    let half = Duration::from_millis(500);
    stop(tram, RuleEnd::At(kit.now().after(half))).await;
    let worker = tram.worker("acme/w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    tram.emit(event("x")).await.unwrap();
    let (shutdown, worker) = start(worker);
    assert_eq!(pending(tram, "acme/w").await, 1);
    kit.advance(half);
    until("it is done", || async { pending(tram, "acme/w").await == 0 }).await;
    shutdown.start();
    worker.await.unwrap().unwrap();
}

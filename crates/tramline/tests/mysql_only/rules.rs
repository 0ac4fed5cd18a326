//! Rules and claims that are under way while they are set.

use crate::bed::{Private, claim, event, ids};
use sqlx::{Connection, MySqlConnection};
use std::sync::Arc;
use tramline::Result;
use tramline::model::id::SubscriptionId;
use tramline::model::rule::RuleKind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::mysql::MysqlStore;
use tramline::store::verbs::{RuleEnd, SetPatternRule, SetRule};

/// A claim looks at the rules, and then for events. One that had looked before a rule was set took what was emitted after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sets_a_rule_waits_for_claims_that_have_not_seen_it() {
    for by_pattern in [false, true] {
        let store = Private::open().await;
        let queue = store.subscribe("q", Ordering::Key).await.id;
        store.emit(event("k")).await.unwrap();
        store.settle_done(queue, &store.claim(queue, 9).await).await;
        // Whoever reads passes; whoever locks rows does not, and a claim looks at the rules before that.
        let mut other = MySqlConnection::connect(&store.url).await.unwrap();
        sqlx::raw_sql("LOCK TABLES tramline_lane READ").execute(&mut other).await.unwrap();
        let begun = tokio::spawn({
            let store = store.store.clone();
            async move { store.claim(claim(queue, 9)).await.unwrap() }
        });
        let running =
            "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let claim_waits = format!("{running} AND state = 'Waiting for table metadata lock'");
        while store.rows(&claim_waits).await.is_empty() {}
        let pause = tokio::spawn(pause(store.store.clone(), queue, by_pattern));
        let pause_waits = format!("{running} AND info LIKE '%tramline_gate g ON g.kind = 1%FOR UPDATE'");
        while store.rows(&pause_waits).await.is_empty() {
            assert!(!pause.is_finished(), "a claim is under way that has not seen the rule");
        }
        sqlx::raw_sql("UNLOCK TABLES").execute(&mut other).await.unwrap();
        assert!(ids(&begun.await.unwrap()).is_empty());
        pause.await.unwrap().unwrap();
        store.emit(event("k")).await.unwrap();
        let stopped = store.claim(queue, 9).await;
        assert_eq!((ids(&stopped).len(), stopped.stopped_by), (0, Some(RuleKind::Pause)));
        store.close().await;
    }
}

async fn pause(store: Arc<MysqlStore>, subscription: SubscriptionId, by_pattern: bool) -> Result<()> {
    let (kind, until, by, reason, now) =
        (RuleKind::Pause, RuleEnd::Open, "olga".to_owned(), String::new(), None);
    if by_pattern {
        let (pattern, topics) = ("*".parse()?, None);
        let set = SetPatternRule { pattern, topics, kind, until, by, reason, now };
        return store.set_pattern_rule(set).await.map(|_| ());
    }
    store.set_rule(SetRule { subscription, kind, until: Some(until), by, reason, now }).await
}

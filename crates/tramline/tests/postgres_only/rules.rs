//! Rules and claims that are under way while they are set.

use crate::bed::{Private, claim, event, ids};
use sqlx::AssertSqlSafe;
use std::sync::Arc;
use tramline::Result;
use tramline::model::id::SubscriptionId;
use tramline::model::rule::RuleKind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::postgres::PostgresStore;
use tramline::store::verbs::{RuleEnd, SetPatternRule, SetRule};

/// A claim looks at the rules, and then for events. One that had looked before a rule was set took what was emitted after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sets_a_rule_waits_for_claims_that_have_not_seen_it() {
    // What each way to claim locks rows of, after its look at the rules.
    for (ordering, table, by_pattern) in [
        (Ordering::None, "slice", false),
        (Ordering::Key, "lane", false),
        (Ordering::None, "slice", true),
        (Ordering::Key, "lane", true),
    ] {
        let store = Private::open().await;
        let queue = store.subscribe("q", ordering).await.id;
        assert!(ids(&store.claim(queue, 9).await).is_empty(), "the store knows the subscription");
        let pool = store.pool().await;
        let mut tx = pool.begin().await.unwrap();
        // Whoever reads passes; whoever locks rows does not.
        let lock = format!("LOCK TABLE {}.tramline_{table} IN EXCLUSIVE MODE", store.schema);
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
        let begun = tokio::spawn({
            let store = store.store.clone();
            async move { store.claim(claim(queue, 9)).await.unwrap() }
        });
        let claim_waits = format!(
            "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '$s.tramline_{table}'::regclass AND mode = 'RowShareLock'"
        );
        while store.rows(&claim_waits).await.is_empty() {}
        let pause = tokio::spawn(pause(store.store.clone(), queue, by_pattern));
        let pause_waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                           AND classid = '$s.tramline_rule'::regclass::oid";
        while store.rows(pause_waits).await.is_empty() {
            assert!(!pause.is_finished(), "{ordering:?}: a claim is under way that has not seen the rule");
        }
        tx.rollback().await.unwrap();
        assert!(ids(&begun.await.unwrap()).is_empty());
        pause.await.unwrap().unwrap();
        store.emit(event("k")).await.unwrap();
        let stopped = store.claim(queue, 9).await;
        assert_eq!((ids(&stopped).len(), stopped.stopped_by), (0, Some(RuleKind::Pause)));
        store.close().await;
    }
}

async fn pause(store: Arc<PostgresStore>, subscription: SubscriptionId, by_pattern: bool) -> Result<()> {
    let (kind, until, by, reason, now) =
        (RuleKind::Pause, RuleEnd::Open, "olga".to_owned(), String::new(), None);
    if by_pattern {
        let (pattern, topics) = ("*".parse()?, None);
        return store
            .set_pattern_rule(SetPatternRule { pattern, topics, kind, until, by, reason, now })
            .await
            .map(|_| ());
    }
    store.set_rule(SetRule { subscription, kind, until: Some(until), by, reason, now }).await
}

/// One rule may stop more subscriptions than the server has room for locks of one transaction.
#[tokio::test]
async fn a_rule_by_pattern_stops_any_number_of_subscriptions() {
    let store = Private::open().await;
    let first = store.subscribe("q", Ordering::None).await.id;
    store
        .rows(
            "INSERT INTO $s.tramline_subscription (name, policy, created_at) \
             SELECT 'q' || n, policy, created_at FROM $s.tramline_subscription CROSS JOIN generate_series(1, 20000) n; \
             UPDATE $s.tramline_meta SET value = value + 1 WHERE name = 'catalog'",
        )
        .await;
    pause(store.store.clone(), first, true).await.unwrap();
    assert_eq!(store.pattern_rules(None).await.unwrap()[0].subscriptions, 20_001);
    store.close().await;
}

//! What a claim reads.

use crate::bed::{Private, claim, event, ids, server};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use std::time::Duration;
use tramline::model::lane::hash;
use tramline::model::mask::Mask;
use tramline::model::rule::RuleKind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Emit, RuleEnd, SetRule, Sweep};

/// A busy queue has far more that is not due than what is, and must not read it.
#[tokio::test]
async fn a_claim_reads_only_what_is_due() {
    let store = Private::open().await;
    store.rows("INSERT INTO $s.tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes) \
                SELECT n, n % 3, n % 2, 0, n % 10, 1000000 + n, 1, 1000000 + n, 100 FROM generate_series(1, 60000) n; \
                INSERT INTO $s.tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes) \
                SELECT 100000 + n, 1, 0, 0, 5, n, 1, n, 100 FROM generate_series(1, 50) n; ANALYZE $s.tramline_slice").await;
    let mut connection = PgConnection::connect(&server()).await.unwrap();
    let prepare = format!(
        "SET plan_cache_mode = force_generic_plan; PREPARE due (bigint, smallint, bigint, bigint, bigint) AS {}",
        store.claim_sql()
    );
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.unwrap();
    let explain =
        sqlx::raw_sql("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE due (1, 0::smallint, 5000, 32, -1)");
    let rows = explain.fetch_all(&mut connection).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("Index Scan using tramline_slice_claim"), "{plan}");
    assert!(
        !plan.contains("Seq Scan") && !plan.contains("Rows Removed by Filter") && !plan.contains("Sort"),
        "{plan}"
    );
    store.close().await;
}

/// The claim in one call splits masks by itself.
#[tokio::test]
async fn the_server_splits_masks_as_the_program_does() {
    let store = Private::open().await;
    let pool = store.pool().await;
    let sql = format!("SELECT {}.tramline_lowest($1, $2)", store.schema);
    for mask in
        [0, 1, i64::MIN, -1, i64::MAX, 0x5555_5555_5555_5555, -0x5555_5555_5555_5556, i64::MIN | 0b1011]
    {
        for wanted in [0, 1, 2, 31, 32, 33, 63, 64, 70] {
            let lowest = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql.clone()));
            let lowest = lowest.bind(mask).bind(i64::from(wanted)).fetch_one(&pool).await.unwrap();
            assert_eq!(
                Mask::from_i64(lowest),
                Mask::from_i64(mask).split_lowest(wanted).0,
                "{mask:x} {wanted}"
            );
        }
    }
    pool.close().await;
    store.close().await;
}

/// Small slices came first, so several large ones were locked for the rest; the second one was taken with no events of it.
#[tokio::test]
async fn what_is_locked_beyond_what_is_wanted_is_not_taken() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    store.emit(event("small")).await.unwrap();
    for _ in 0..3 {
        let unit = (0..64).map(|_| event("large")).collect();
        store.store.emit(Emit { units: vec![unit], now: None }).await.unwrap();
    }
    let first = store.claim(queue, 5).await;
    let counts: Vec<usize> = first.slices.iter().map(|slice| slice.events.len()).collect();
    assert_eq!(counts, [1, 4]);
    let rest = store.claim(queue, 1_000).await;
    assert_eq!(ids(&rest).len(), 3 * 64 - 4);
    assert!(rest.slices.iter().all(|slice| !slice.events.is_empty()));
    store.close().await;
}

/// Another claim locks more than it takes.
#[tokio::test]
async fn a_claim_tells_that_something_due_was_locked() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    let pool = store.pool().await;
    store.emit(event("a")).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let lock =
        format!("SELECT 1 FROM {}.tramline_slice WHERE subscription = {queue} FOR UPDATE", store.schema);
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
    store.emit(event("b")).await.unwrap();
    let first = store.claim(queue, 9).await;
    assert_eq!((ids(&first).len(), first.passed_over), (1, true));
    let none = store.claim(queue, 9).await;
    assert_eq!((ids(&none).len(), none.passed_over), (0, true));
    tx.rollback().await.unwrap();
    let second = store.claim(queue, 9).await;
    assert_eq!((ids(&second).len(), second.passed_over), (1, false));
    assert!(!store.claim(queue, 9).await.passed_over);
    store.close().await;
}

/// Claims that follow each other look only at what came meanwhile, but always at rules.
#[tokio::test]
async fn events_that_come_one_by_one_are_taken_one_by_one_unless_a_rule_says_otherwise() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    let pause = |until| SetRule {
        subscription: queue,
        kind: RuleKind::Pause,
        until,
        by: "olga".into(),
        reason: "because".into(),
        now: None,
    };
    assert!(ids(&store.claim(queue, 9).await).is_empty());
    for _ in 0..5 {
        let emitted = store.emit(event("a")).await.unwrap();
        let claimed = store.claim(queue, 9).await;
        assert_eq!(ids(&claimed), [emitted.events[0].id]);
        // Whoever takes something asks again soon: there may be more than it has looked at.
        assert!(claimed.next_due.is_some_and(|due| due <= claimed.now.after(Duration::from_secs(60))));
        assert_eq!(store.settle_done(queue, &claimed).await.accepted, [[true]]);
    }
    store.set_rule(pause(Some(RuleEnd::Open))).await.unwrap();
    let emitted = store.emit(event("b")).await.unwrap();
    let stopped = store.claim(queue, 9).await;
    assert_eq!((ids(&stopped).len(), stopped.stopped_by), (0, Some(RuleKind::Pause)));
    store.set_rule(pause(None)).await.unwrap();
    assert_eq!(ids(&store.claim(queue, 9).await), [emitted.events[0].id]);
    store.close().await;
}

/// A claim that looks only at what came meanwhile leaves priorities to the next one.
#[tokio::test]
async fn two_claims_take_all_priorities() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    for _ in 0..3 {
        assert!(ids(&store.claim(queue, 9).await).is_empty());
        let usual = store.emit(event("a")).await.unwrap();
        let urgent = store.emit(event("b").priority(0)).await.unwrap();
        let (first, second) = (store.claim(queue, 9).await, store.claim(queue, 9).await);
        let mut taken = [ids(&first), ids(&second)].concat();
        taken.sort();
        assert_eq!(taken, [usual.events[0].id, urgent.events[0].id]);
        for claimed in [first, second].iter().filter(|claimed| !claimed.slices.is_empty()) {
            store.settle_done(queue, claimed).await;
        }
    }
    store.close().await;
}

/// While there is a rule a claim has to look at it, step by step.
#[tokio::test]
async fn a_rule_that_has_ended_is_swept_away() {
    let store = Private::open().await;
    let subscription = store.subscribe("queue", Ordering::None).await.id;
    let (now, minute) = (store.now().await.unwrap(), Duration::from_secs(60));
    let set = |kind, until| SetRule {
        subscription,
        kind,
        until: Some(until),
        by: "olga".into(),
        reason: "because".into(),
        now: Some(now),
    };
    store.set_rule(set(RuleKind::Pause, RuleEnd::At(now.after(minute)))).await.unwrap();
    store.set_rule(set(RuleKind::Block, RuleEnd::Open)).await.unwrap();
    let rules = async || store.rows("SELECT kind FROM $s.tramline_rule").await.len();
    let sweep = |now| Sweep { dead_after: None, limit: 1, now: Some(now) };
    store.sweep(sweep(now)).await.unwrap();
    assert_eq!(rules().await, 2);
    store.sweep(sweep(now.after(minute))).await.unwrap();
    assert_eq!(rules().await, 1);
    store.close().await;
}

/// Claims note up to where the lanes of keys were cleared. An emit that drew an early number and commits late must not be below that.
#[tokio::test]
async fn an_emit_that_commits_late_is_claimed_whatever_was_claimed_meanwhile() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await.id;
    let beside = |key: &String| hash(key) % 32 == hash("slow") % 32;
    let beside = (0..).map(|number| format!("key{number}")).find(beside).unwrap();
    store.emit(event(&beside)).await.unwrap();
    let first = store.claim(queue, 9).await;
    store.settle_done(queue, &first).await;
    let mut now = first.now;
    let mut tx = store.store.pool().begin().await.unwrap();
    let late = store.emit_in(&mut tx, [event("slow")]).await.unwrap().events[0].id;
    for _ in 0..5 {
        let emitted = store.emit(event(&beside)).await.unwrap().events[0].id;
        now = now.after(Duration::from_secs(60));
        let claimed = store.store.claim(Claim { now: Some(now), ..claim(queue, 9) }).await.unwrap();
        assert!(ids(&claimed).contains(&emitted));
        store.settle_done(queue, &claimed).await;
    }
    tx.commit().await.unwrap();
    now = now.after(Duration::from_secs(60));
    let claimed = store.store.claim(Claim { now: Some(now), ..claim(queue, 9) }).await.unwrap();
    assert_eq!(ids(&claimed), [late]);
    store.close().await;
}

/// A claim that waited for a lock saw events that were emitted meanwhile as events of the future, and parked their keys: after some minutes
/// under an old transaction, the rows which that left behind were most of what every ordered claim read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_claim_that_waited_takes_what_came_meanwhile() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await.id;
    let pool = store.pool().await;
    let mut tx = pool.begin().await.unwrap();
    // What a claim locks after its look at the clock.
    let rules = format!(
        "SELECT pg_advisory_xact_lock('{}.tramline_rule'::regclass::oid::int, {})",
        store.schema, queue.0
    );
    sqlx::raw_sql(AssertSqlSafe(rules)).execute(&mut *tx).await.unwrap();
    let begun = tokio::spawn({
        let store = store.store.clone();
        async move { store.claim(claim(queue, 9)).await.unwrap() }
    });
    let claim_waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                       AND classid = '$s.tramline_rule'::regclass::oid";
    while store.rows(claim_waits).await.is_empty() {}
    let stored = store.emit(event("k")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(ids(&begun.await.unwrap()), [stored.events[0].id]);
    pool.close().await;
    store.close().await;
}

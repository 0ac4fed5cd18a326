//! What a claim reads, and which keys are the same.

use crate::bed::{Private, claim, done, event, ids, open};
use crate::silence::on_its_way;
use sqlx::{AssertSqlSafe, Row};
use std::collections::HashSet;
use std::time::Duration;
use tramline::Letters;
use tramline::model::id::{EventId, SubscriptionId};
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Emit, Revival, Revive, Suspects, Which};

/// A busy queue has far more that is not due than what is, and must not read it.
#[tokio::test]
async fn a_claim_reads_only_what_is_due_in_the_order_of_the_index() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    store.emit(event("k")).await.unwrap();
    let id = queue.id.0;
    let later = "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000 + 100000000 + n";
    let numbers =
        "WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < 900)";
    for rank in 0..10 {
        store
            .rows(&format!(
                "INSERT INTO tramline_slice (chunk, id, subscription, state, lane, `rank`, pos, mask, due_at, bytes) \
                 {numbers} SELECT 1000 + n, {rank}, {id}, 0, 0, {rank}, {later}, 1, {later}, 100 FROM numbers"
            ))
            .await;
    }
    store.rows("ANALYZE TABLE tramline_slice").await;
    let sql = store.claim_sql(queue.id).replace("@tramline_now", "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000");
    let plan = store.rows(&format!("EXPLAIN FORMAT = TRADITIONAL {sql}")).await;
    let column = |row: usize, name: &str| {
        plan[row].try_get_unchecked::<Option<String>, _>(name).unwrap().unwrap_or_default()
    };
    let of = |table: &str| (0..plan.len()).find(|row| column(*row, "table") == table).unwrap();
    let (found, locked) = (of("c"), of("s"));
    assert_eq!(column(found, "type"), "range");
    assert_eq!(column(found, "key"), "tramline_slice_claim");
    assert!((0..plan.len()).all(|row| !column(row, "Extra").contains("filesort")));
    assert_eq!((column(locked, "type"), column(locked, "key")), ("eq_ref".to_owned(), "PRIMARY".to_owned()));
    let read = store
        .rows(&format!(
            "FLUSH STATUS; SET @tramline_now = CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000; {}; \
             SHOW SESSION STATUS LIKE 'Handler_read_next'",
            store.claim_sql(queue.id)
        ))
        .await;
    let next: String = read.last().unwrap().try_get_unchecked(1).unwrap();
    assert!(next.parse::<u64>().unwrap() < 30, "{next} rows were read to find one");
    store.close().await;
}

/// Fills the lanes in which something is ready: with what is behind it, what waits and is not due, what is parked, and what is dead.
async fn fill_lanes(store: &Private) {
    let later = "CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000 + 100000000 + n";
    let numbers =
        "WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < 900)";
    for (state, rank, pos) in [(0, "0", "1000 + n"), (3, "0", later), (4, "n", "1000 + n"), (6, "0", "n")] {
        store
            .rows(&format!(
                "INSERT INTO tramline_slice (chunk, id, subscription, state, lane, `rank`, pos, mask, due_at, bytes) \
                 {numbers} SELECT 1000 + n, l.chunk * 10 + {state}, l.subscription, {state}, l.lane, {rank}, {pos}, 1, {later}, 100 \
                 FROM numbers CROSS JOIN tramline_slice l WHERE l.chunk < 1000"
            ))
            .await;
    }
    store.rows("ANALYZE TABLE tramline_slice, tramline_lane").await;
}

/// A claim of few events that leaves suspects alone.
fn plain(queue: SubscriptionId) -> Claim {
    Claim { suspects: Suspects::Leave, ..claim(queue, 8) }
}

const SET_NOW: &str = "SET @tramline_now = CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000";

/// The same where there is order: lanes are full of what waits, is parked or dead, and of what comes later.
#[tokio::test]
async fn an_ordered_claim_reads_only_what_it_may_take() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    store.emit(event("k")).await.unwrap();
    fill_lanes(&store).await;
    let read = store
        .rows(&format!(
            "{SET_NOW}; FLUSH STATUS; {}; SHOW SESSION STATUS LIKE 'Handler_read_next'",
            store.ordered_claim_sql(&plain(queue.id)).join("; ")
        ))
        .await;
    let next: String = read.last().unwrap().try_get_unchecked(1).unwrap();
    assert!(next.parse::<u64>().unwrap() < 100, "{next} rows were read to find eight");
    store.close().await;
}

/// Lanes are few, and every claim sorts them in another way. Of slices there may be millions.
#[tokio::test]
async fn an_ordered_claim_reads_slices_in_the_order_of_the_index() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    for key in ["a", "b", "c", "d", "e"] {
        store.emit(event(key)).await.unwrap();
    }
    fill_lanes(&store).await;
    let sql = store.ordered_claim_sql(&plain(queue.id));
    // As the store sets up its own connections: MySQL would cut the statement.
    let look = format!("SET SESSION group_concat_max_len = 1048576; {SET_NOW}; {}", sql[0]);
    let work = store.rows(&format!("{look}; SELECT @tramline_work")).await;
    let work: String = work.last().unwrap().try_get_unchecked(0).unwrap();
    let find = sql[0].replace(" INTO @tramline_lanes, @tramline_work", "");
    let (mut slices, mut lanes) = (0, 0);
    for statement in [&find, &sql[2], &work] {
        for row in store.rows(&format!("{look}; EXPLAIN FORMAT = TRADITIONAL {statement}")).await {
            let column =
                |name: &str| row.try_get_unchecked::<Option<String>, _>(name).unwrap().unwrap_or_default();
            let plan = (column("type"), column("key"), column("Extra"));
            let by_key = ["const", "eq_ref", "ref", "range"].contains(&plan.0.as_str());
            match column("table").as_str() {
                "s" => {
                    slices += 1;
                    assert!(by_key && plan.1 == "tramline_slice_claim", "{plan:?} in {statement}");
                    assert!(!plan.2.contains("filesort"), "{plan:?} in {statement}");
                }
                "l" => {
                    lanes += 1;
                    assert!(by_key && plan.1 == "PRIMARY", "{plan:?} in {statement}");
                }
                _ => {}
            }
        }
    }
    // Three looks into each lane to find it; suspects, what waits, and a page of each of several lanes to read them.
    assert!(slices > 3 + 2 + 1 && lanes == 2, "{slices} looks at slices, {lanes} at lanes");
    store.close().await;
}

/// So many are dead that they are not sorted for every step. Others' slices lie between them, and are passed over.
#[tokio::test]
async fn very_many_dead_events_are_gone_through_once() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    let other = store.subscribe("other", Ordering::None).await;
    let numbers =
        "WITH RECURSIVE numbers AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < 899)";
    for hundred in 0..25 {
        for (id, state, many) in [(queue.id.0, 6, 1), (other.id.0, 0, 0)] {
            store
                .rows(&format!(
                    "INSERT INTO tramline_slice (chunk, id, subscription, state, lane, `rank`, pos, mask, due_at, bytes, error) \
                     {numbers} SELECT 1000 + {hundred} * 900 + n, {state}, {id}, {state}, 0, 5, 1, 1, 1, 100, 'no' FROM numbers \
                     WHERE {many} OR n % 9 = 0"
                ))
                .await;
        }
    }
    let revive = async |which: Which| {
        let (mut count, mut after, mut steps) = (0, EventId(0), 0);
        loop {
            let how = Revival::Drop;
            let step = Revive { subscription: queue.id, which: which.clone(), how, after, now: None };
            let revived = store.store.revive(step).await.unwrap();
            (count, steps) = (count + revived.count, steps + 1);
            match revived.next {
                Some(next) => after = next,
                None => return (count, steps),
            }
        }
    };
    let nothing = Letters { error: Some("something else".into()), ..Letters::default() };
    let (count, steps) = revive(Which::Those(nothing)).await;
    assert!(count == 0 && steps < 60, "{count} in {steps} steps");
    assert_eq!(revive(Which::All).await.0, 25 * 900);
    assert_eq!(store.stats(queue.id, None).await.unwrap().counts.dead, 0);
    store.close().await;
}

/// A statement that locks waits for every row that it reads, wanted or not. Of most lanes of a subscription, and of most keys of a topic,
/// the servers would rather read all of them: steps on different lanes and keys waited for each other, and met in deadlocks.
#[tokio::test]
async fn who_locks_some_lanes_or_keys_waits_for_no_others() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    for n in 0..100 {
        store.emit(event(&format!("k{n}"))).await.unwrap();
    }
    let first = store.claim(queue.id, 3).await;
    let rest = store.claim(queue.id, 1000).await;
    assert!(ids(&first).len() == 3 && ids(&rest).len() > 60, "another worker has most lanes");
    let mut tx = store.store.pool().begin().await.unwrap();
    store.settle_in(&mut tx, done(queue.id, &first)).await.unwrap();
    store.emit_in(&mut tx, [event("k7")]).await.unwrap();
    let start = std::time::Instant::now();
    let settled = store.store.settle(done(queue.id, &rest)).await.unwrap();
    assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
    let units = (0..100).filter(|n| *n != 7).map(|n| vec![event(&format!("k{n}"))]).collect();
    for answer in store.store.emit(Emit { units, now: None }).await.unwrap() {
        answer.unwrap();
    }
    // Who waits does so for a second at least.
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    tx.rollback().await.unwrap();
    store.close().await;
}

/// Every collation that both servers know takes these for one key.
#[tokio::test]
async fn keys_that_differ_in_a_space_or_a_case_are_different() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::Key).await;
    let keys = ["a", "a ", "A", "\u{e4}", "a\u{308}", "ae"];
    for key in keys {
        assert_eq!(store.emit(event(key)).await.unwrap().events[0].prev, None, "{key:?}");
    }
    for key in keys {
        assert!(store.emit(event(key)).await.unwrap().events[0].prev.is_some());
        let once = event(key).idempotency_key(key);
        assert!(!store.emit(once).await.unwrap().repeated, "{key:?}");
    }
    let claimed: HashSet<_> = ids(&store.claim(queue.id, 99).await).into_iter().collect();
    assert_eq!(claimed.len(), 3 * keys.len());
    assert_eq!(store.head("t", "a  ").await.unwrap(), None);
    store.close().await;
}

/// A claim left entries of its index locked beyond what it took, and a settlement that needed them waited for it; met by the claim's
/// next look, which waits for a moment although it skips what is locked, that was a deadlock.
#[tokio::test]
async fn a_settlement_waits_for_no_claim() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    for _ in 0..3 {
        store.emit(event("k")).await.unwrap();
    }
    let first = store.claim(queue.id, 1).await;
    assert_eq!(ids(&first).len(), 1);
    let mut tx = store.store.pool().begin().await.unwrap();
    let sql = format!(
        "SET @tramline_now = CAST(UNIX_TIMESTAMP() AS SIGNED) * 1000 + 100000; {}",
        store.claim_sql(queue.id)
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
    let start = std::time::Instant::now();
    assert!(store.settle_done(queue.id, &first).await.accepted.iter().flatten().all(|accepted| *accepted));
    // Who waits does so for a second at least.
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    assert!(ids(&store.claim(queue.id, 9).await).is_empty(), "the others are locked");
    tx.rollback().await.unwrap();
    assert_eq!(ids(&store.claim(queue.id, 9).await).len(), 2);
    store.close().await;
}

/// Others may have locked more than a claim looks at.
#[tokio::test]
async fn a_claim_finds_what_is_behind_all_that_others_have_locked() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await;
    for _ in 0..40 {
        store.emit(event("k")).await.unwrap();
    }
    let mut tx = store.store.pool().begin().await.unwrap();
    let sql = "SELECT chunk FROM tramline_slice ORDER BY chunk LIMIT 39 FOR UPDATE";
    assert_eq!(sqlx::raw_sql(sql).fetch_all(&mut *tx).await.unwrap().len(), 39);
    assert_eq!(ids(&store.claim(queue.id, 1).await).len(), 1);
    assert!(ids(&store.claim(queue.id, 1).await).is_empty());
    tx.rollback().await.unwrap();
    store.close().await;
}

/// Another claim locks more than it takes. A worker that was told of nothing slept beside what it could have had a moment later.
#[tokio::test]
async fn a_claim_tells_that_something_due_was_locked() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    store.emit(event("a")).await.unwrap();
    let mut tx = store.store.pool().begin().await.unwrap();
    let lock = "SELECT chunk FROM tramline_slice ORDER BY chunk FOR UPDATE";
    assert_eq!(sqlx::raw_sql(lock).fetch_all(&mut *tx).await.unwrap().len(), 1);
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

/// The story: a server vanished when a claim had taken events, and was just asking when more of other priorities would be due. The claim
/// kept its connection at hand, and the next step waited there for an answer.
#[tokio::test]
async fn a_claim_that_is_not_answered_to_its_end_keeps_what_it_took_and_not_the_connection() {
    let store = Private::open().await;
    let queue = store.subscribe("q", Ordering::None).await.id;
    store.emit(event("a")).await.unwrap();
    store.emit(event("b").priority(0).delay(Duration::from_secs(60))).await.unwrap();
    let (way, url) = on_its_way(&store).await;
    let cut_off = open(&url).await.unwrap();
    // Behind the header of a packet; a longer one says when something is due at its end.
    way.swallow(|request| request.get(5..).is_some_and(|words| words.starts_with(b"SELECT NULLIF")));
    let claimed = cut_off.claim(claim(queue, 9)).await.unwrap();
    assert_eq!(ids(&claimed).len(), 1);
    assert_eq!(claimed.next_due, Some(claimed.now), "nobody knows, so it is asked again");
    let settled = cut_off.settle(done(queue, &claimed)).await.unwrap();
    assert_eq!(settled.accepted, [[true]]);
    cut_off.close().await;
    store.close().await;
}

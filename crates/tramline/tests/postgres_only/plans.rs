//! How PostgreSQL finds rows: by their keys, whatever its statistics say.

use crate::bed::{Private, WRITES_SOMETHING, claim, ids, open, server};
use sqlx::{Connection, Executor, PgConnection, Row};
use std::sync::Arc;
use tramline::Event;
use tramline::model::id::Incarnation;
use tramline::model::subscription::Ordering;
use tramline::model::tally::{NewTally, Parent, TallyItem};
use tramline::store::Store;
use tramline::store::verbs::{Claim, Emit, Suspects};
use tramline::store::verbs_tally::{AddItems, OpenTally};

const CHUNKS: usize = 200;
const TABLES: [&str; 7] = ["slice", "chunk", "head", "idempotency", "lane", "parked", "gap"];

/// The story: a benchmark that takes 2 s took 8 minutes once. The tables had been vacuumed while they were empty, so the
/// planner thought of one row, and every claim read the whole backlog for each slice that it took.
#[tokio::test]
async fn tables_vacuumed_while_empty_are_still_read_by_their_keys() {
    for ordering in [Ordering::None, Ordering::Key] {
        let bed = Private::open().await;
        bed.store.close().await;
        let fresh = reads(&bed, ROWS_FETCHED, async |store| drain(store, ordering).await).await;
        for table in TABLES {
            bed.rows(&format!("VACUUM (TRUNCATE false, ANALYZE) $s.tramline_{table}")).await;
        }
        let after = reads(&bed, ROWS_FETCHED, async |store| drain(store, ordering).await).await;
        assert!(after < fresh * 3 / 2, "{after} rows were read, {fresh} before the vacuum");
        bed.close().await;
    }
}

/// Among many tallies, those that stand for an item are found by their parent.
#[tokio::test]
async fn the_tally_of_an_item_is_found_without_reading_the_others() {
    let bed = Private::open().await;
    bed.store.close().await;
    for table in ["tally", "tally_extent", "tally_part"] {
        bed.rows(&format!("VACUUM (TRUNCATE false, ANALYZE) $s.tramline_{table}")).await;
    }
    let children: u64 = 300;
    let read = reads(&bed, ROWS_FETCHED, async |store| {
        let parent = store.open_tally(OpenTally { tally: NewTally::new(), now: None }).await.unwrap().id;
        let add = AddItems { tally: parent, count: children, within: None, token: None, now: None };
        store.add_items(add).await.unwrap();
        for number in 0..children {
            let child = NewTally::new().parent(Parent::Item(TallyItem { tally: parent, number }));
            store.open_tally(OpenTally { tally: child, now: None }).await.unwrap();
        }
    });
    let read = read.await.cast_unsigned();
    assert!(read < children * 20, "{read} rows were read to open {children} tallies");
    bed.close().await;
}

/// The story: while a report had its transaction open for five minutes, the entries of all that was taken meanwhile stayed in the index, and
/// every claim passed over all of them, until claims took longer than the events that they brought.
#[tokio::test]
async fn a_transaction_that_stays_open_does_not_make_claims_slow_for_long() {
    let (claims, taken) = (20, 400_000);
    let bed = Private::open().await;
    let id = bed.subscribe("queue", Ordering::None).await.id;
    bed.store.close().await;
    let mut report = PgConnection::connect(&server()).await.unwrap();
    report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    report.execute(WRITES_SOMETHING).await.unwrap();
    let sql = format!(
        "INSERT INTO $s.tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes) \
         SELECT n, {id}, 0, 0, 5, n, 1, n, 100 FROM generate_series(1, {taken}) n; \
         DELETE FROM $s.tramline_slice WHERE subscription = {id}"
    );
    bed.rows(&sql).await;
    let read = reads(&bed, ENTRIES_MET, async |store| {
        for _ in 0..claims {
            let event = store.emit(Event::new("t", "x")).await.unwrap().events[0].id;
            assert_eq!(ids(&store.claim(id, 64).await), [event]);
        }
    });
    let read = read.await;
    // One claim alone passes over all of them twice.
    assert!(read > taken, "{read} entries were met");
    assert!(read < claims * taken / 2, "{read} entries were met");
    report.close().await.unwrap();
    bed.close().await;
}

/// The same in lanes: there claims begin where the one before has seen the beginning. The rows of the lanes are written by every claim, so
/// what stays of them must not be met either.
#[tokio::test]
async fn a_transaction_that_stays_open_does_not_make_ordered_claims_slow() {
    let (claims, taken) = (20, 100_000);
    let bed = Private::open().await;
    let id = bed.subscribe("queue", Ordering::Key).await.id;
    let event = || Event::new("t", "x").key("a");
    bed.emit(event()).await.unwrap();
    bed.settle_done(id, &bed.claim(id, 1).await).await;
    bed.store.close().await;
    let mut report = PgConnection::connect(&server()).await.unwrap();
    report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    report.execute(WRITES_SOMETHING).await.unwrap();
    let sql = format!(
        "INSERT INTO $s.tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes) \
         SELECT n, l.subscription, 0, l.lane, 0, n, 1, n, 100 FROM generate_series(10, {taken}) n, $s.tramline_lane l \
         WHERE l.subscription = {id} AND l.epoch > 0; DELETE FROM $s.tramline_slice WHERE subscription = {id}; \
         SELECT setval('$s.tramline_chunk_number', {taken}); \
         DO 'BEGIN FOR i IN 1..400 LOOP UPDATE $s.tramline_lane SET epoch = epoch + 1 WHERE subscription = {id}; END LOOP; END'"
    );
    bed.rows(&sql).await;
    let read = reads(&bed, ENTRIES_MET, async |store| {
        for _ in 0..claims {
            let event = store.emit(event()).await.unwrap().events[0].id;
            let claimed = store.claim(id, 64).await;
            assert_eq!(ids(&claimed), [event]);
            store.settle_done(id, &claimed).await;
        }
    });
    let read = read.await;
    // The first claim passes over all of them: to find the lane, to find what is in it, to find where it begins.
    assert!(read > taken, "{read} entries were met");
    assert!(read < 5 * taken, "{read} entries were met");
    report.close().await.unwrap();
    bed.close().await;
}

/// Rows that index scans have fetched so far. Not what they met in the index: entries of dead rows are there for as long as a
/// transaction of any other test may want them.
const ROWS_FETCHED: &str =
    "SELECT coalesce(sum(idx_tup_fetch), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = '$s'";
/// What claims have met in their indexes so far.
const ENTRIES_MET: &str = "SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes \
    WHERE schemaname = '$s' AND indexrelname IN ('tramline_slice_claim', 'tramline_lane_pkey')";

/// How far a figure rises while a store of its own does something.
async fn reads(bed: &Private, figure: &str, work: impl AsyncFnOnce(&Private)) -> i64 {
    let before = figure_of(bed, figure).await;
    let url = format!("{}?schema={name}&application_name={name}", server(), name = bed.schema);
    let store = Private { store: Arc::new(open(&url).await.unwrap()), schema: bed.schema.clone(), url };
    work(&store).await;
    store.store.close().await;
    drop(store);
    figure_of(bed, figure).await - before
}

/// A backlog is emitted and worked off, one claim and one settlement after the other.
async fn drain(store: &Private, ordering: Ordering) {
    let id = store.subscribe("w", ordering).await.id;
    for chunk in 0..CHUNKS {
        let event = |n| Event::new("t", vec![0]).key(format!("{}", (chunk + n) % 50));
        let emit = Emit { units: vec![(0..64).map(event).collect()], now: None };
        store.store.emit(emit).await.unwrap().remove(0).unwrap();
    }
    let mut left = CHUNKS * 64;
    while left > 0 {
        let wish = Claim { owner: Incarnation(7), suspects: Suspects::Leave, ..claim(id, 256) };
        let claimed = store.store.claim(wish).await.unwrap();
        left -= ids(&claimed).len();
        store.settle_done(id, &claimed).await;
    }
}

/// Connections report when they end: this waits until they have.
async fn figure_of(bed: &Private, figure: &str) -> i64 {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = '$s'";
    while !bed.rows(sql).await.is_empty() {
        tokio::task::yield_now().await;
    }
    bed.rows(figure).await[0].get(0)
}

//! How PostgreSQL finds rows: by their keys, whatever its statistics say.

use crate::bed::{Private, claim, ids, open, server};
use sqlx::Row;
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
        let fresh = reads(&bed, async |store| drain(store, ordering).await).await;
        for table in TABLES {
            bed.rows(&format!("VACUUM (TRUNCATE false, ANALYZE) $s.tramline_{table}")).await;
        }
        let after = reads(&bed, async |store| drain(store, ordering).await).await;
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
    let read = reads(&bed, async |store| {
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

/// How many rows index scans read while a store of its own does something.
async fn reads(bed: &Private, work: impl AsyncFnOnce(&Private)) -> i64 {
    let before = rows_fetched(bed).await;
    let url = format!("{}?schema={name}&application_name={name}", server(), name = bed.schema);
    let store = Private { store: Arc::new(open(&url).await.unwrap()), schema: bed.schema.clone() };
    work(&store).await;
    store.store.close().await;
    drop(store);
    rows_fetched(bed).await - before
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

/// Rows that index scans have fetched so far. Not what they met in the index: entries of dead rows are there for as long as a
/// transaction of any other test may want them. Connections report when they end: this waits until they have.
async fn rows_fetched(bed: &Private) -> i64 {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = '$s'";
    while !bed.rows(sql).await.is_empty() {
        tokio::task::yield_now().await;
    }
    let sql =
        "SELECT coalesce(sum(idx_tup_fetch), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = '$s'";
    bed.rows(sql).await[0].get(0)
}

//! What every store has to do, in one suite: each test is written once against the trait `Store` and runs on each place.
//!
//! A new store adds one line to `conformance!`. Tests read as sentences with the verbs of [`bed`]; time is manual.
//! `cargo test --test conformance sqlite::` runs one store, `cargo test --test conformance order::` one area.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

/// Runs the named tests on every store, as `area::store::test`.
macro_rules! conformance {
    ($($test:ident,)*) => {
        conformance!(@store sqlite, SqliteFile, $($test,)*);
        conformance!(@store sqlite_memory, SqliteMemory, $($test,)*);
        conformance!(@store postgres, Postgres, $($test,)*);
        conformance!(@store mysql, Mysql, $($test,)*);
        conformance!(@store redis, Redis, $($test,)*);
        conformance!(@store redis_cluster, RedisCluster, $($test,)*);
        conformance!(@store redis_spread, RedisSpread, $($test,)*);
    };
    (@store $store:ident, $place:ident, $($test:ident,)*) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    let place = crate::stores::Place::$place;
                    let fresh = std::sync::Arc::new(crate::stores::Fresh::open(place).await);
                    super::$test(crate::bed::Bed::new(fresh.clone())).await;
                    fresh.close().await;
                }
            )*
        }
    };
}

mod arrival;
mod at_most_once;
mod backfill;
mod bed;
mod catalog;
mod claim;
mod compact;
mod dead;
mod deletion;
mod drops;
mod emit;
mod failures;
mod filters;
mod idempotency;
mod key_limits;
mod leases;
mod letters;
mod limits;
mod lives;
mod log;
mod many;
mod nodes;
mod order;
mod parked;
mod patterns;
mod push;
mod rates;
mod retention;
mod rules;
mod schedule_ticks;
mod schedules;
mod settle;
mod shed;
mod standing;
#[path = "../stores/mod.rs"]
mod stores;
mod suspects;
mod tally;
mod tally_events;
mod tally_news;
mod tally_races;
mod tally_upkeep;
mod tokens;
mod traps;
mod unique;
mod workers;

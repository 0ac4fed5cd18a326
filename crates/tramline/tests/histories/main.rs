//! Random histories: workers, failures, crashes, rules and control verbs in any interleaving, against a simple reference
//! model. What the store answers must be what the model allows, after every step; at the end everything is drained, and
//! nothing may be lost.
//!
//! - [`step`]: what can happen, and how often
//! - [`model`]: one subscription as it should be
//! - [`judge`]: whether a claim was allowed, and whether more was due
//! - [`world`]: takes the steps, on the store and in the models
//!
//! `TRAMLINE_HISTORIES=5` runs five times as many. Seeds of failures are kept in `histories.proptest-regressions`.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod judge;
mod model;
mod step;
#[path = "../stores/mod.rs"]
mod stores;
mod world;

use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use stores::{Fresh, Place};
use world::World;

#[test]
fn sqlite() {
    run(Place::SqliteFile, 1000);
}

#[test]
fn sqlite_memory() {
    run(Place::SqliteMemory, 100);
}

#[test]
fn postgres() {
    run(Place::Postgres, 200);
}

#[test]
fn mysql() {
    run(Place::Mysql, 200);
}

#[test]
fn redis() {
    run(Place::Redis, 200);
}

#[test]
fn redis_cluster() {
    run(Place::RedisCluster, 40);
}

fn run(place: Place, histories: u32) {
    let scale: f64 = std::env::var("TRAMLINE_HISTORIES").map_or(1.0, |scale| scale.parse().unwrap());
    let config = Config {
        cases: (f64::from(histories) * scale).ceil() as u32,
        max_shrink_iters: 5000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/histories.proptest-regressions",
        ))),
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tested = TestRunner::new(config).run(&step::history(), |history| {
        runtime.block_on(async {
            let fresh = Fresh::open(place).await;
            let mut world = World::new(fresh.store.clone(), &history).await;
            for step in &history.steps {
                world.take(step).await;
            }
            world.drain().await;
            fresh.close().await;
        });
        Ok(())
    });
    if let Err(error) = tested {
        panic!("{error}");
    }
}

//! Random histories: workers, failures, crashes, rules and control verbs in any interleaving, against a simple reference
//! model. What the store answers must be what the model allows, after every step; at the end everything is drained, and
//! nothing may be lost.
//!
//! - [`setting`], [`step`]: where a history happens, and what can happen in it, and how often
//! - [`course`]: which step may follow
//! - [`model`]: one subscription as it should be
//! - [`judge`]: whether a claim was allowed, and whether more was due
//! - [`world`]: takes the steps, on the store and in the models
//! - [`kept`]: histories that failed once
//!
//! `TRAMLINE_HISTORIES=5` runs five times as many. Seeds of failures are written to `histories.proptest-regressions`; they hold as
//! long as steps are drawn in the same way, so that a history that is to stay goes to [`kept`].

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod course;
mod judge;
mod kept;
mod model;
mod setting;
mod step;
#[path = "../stores/mod.rs"]
mod stores;
mod world;

use course::Course;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use std::marker::PhantomData;
use std::sync::LazyLock;
use step::Step;
use stores::{Fresh, Place};
use tokio::runtime::{Builder, Runtime};
use world::World;

#[test]
fn sqlite() {
    run::<SqliteFile>(1000);
}

#[test]
fn sqlite_memory() {
    run::<SqliteMemory>(100);
}

#[test]
fn postgres() {
    run::<Postgres>(200);
}

#[test]
fn mysql() {
    run::<Mysql>(200);
}

#[test]
fn redis() {
    run::<Redis>(200);
}

#[test]
fn redis_cluster() {
    run::<RedisCluster>(20);
}

#[test]
fn redis_spread() {
    run::<RedisSpread>(50);
}

/// Where histories are run.
trait On {
    const PLACE: Place;
}

macro_rules! on {
    ($($place:ident),*) => {$(
        struct $place;
        impl On for $place {
            const PLACE: Place = Place::$place;
        }
    )*};
}
on!(SqliteFile, SqliteMemory, Postgres, Mysql, Redis, RedisCluster, RedisSpread);

fn run<P: On>(histories: u32) {
    let scale: f64 = std::env::var("TRAMLINE_HISTORIES").map_or(1.0, |scale| scale.parse().unwrap());
    let config = Config {
        cases: (f64::from(histories) * scale).ceil() as u32,
        max_shrink_iters: 5000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/histories.proptest-regressions",
        ))),
        ..Config::default()
    };
    for (course, steps) in kept::kept() {
        Histories::<P>::test_sequential(config.clone(), course, steps, None);
    }
    let steps = Course::sequential_strategy(5..80);
    let tested = TestRunner::new(config.clone()).run(&steps, |(course, steps, seen)| {
        Histories::<P>::test_sequential(config.clone(), course, steps, seen);
        Ok(())
    });
    if let Err(error) = tested {
        panic!("{error}");
    }
}

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

struct Histories<P>(PhantomData<P>);

impl<P: On> StateMachineTest for Histories<P> {
    type SystemUnderTest = (Fresh, World);
    type Reference = Course;

    fn init_test(course: &Course) -> (Fresh, World) {
        RUNTIME.block_on(async {
            let fresh = Fresh::open(P::PLACE).await;
            let world = World::new(fresh.store.clone(), &course.setting).await;
            (fresh, world)
        })
    }

    fn apply((fresh, mut world): (Fresh, World), _: &Course, step: Step) -> (Fresh, World) {
        RUNTIME.block_on(world.take(&step));
        (fresh, world)
    }

    fn teardown((fresh, mut world): (Fresh, World), _: Course) {
        RUNTIME.block_on(async {
            world.drain().await;
            fresh.close().await;
        });
    }
}

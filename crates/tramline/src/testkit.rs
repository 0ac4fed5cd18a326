//! For the tests of programs that use Tramline: a store in memory, a clock to turn, and workers that run until nothing is left.
//!
//! ```
//! # use tramline::{Event, testkit::TestKit};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let kit = TestKit::new().await?;
//! let greeter = kit.tram().worker("greeter").topics(["people"]).on("born", || async {});
//! kit.tram().emit(Event::new("people", "Ada").kind("born")).await?;
//! assert_eq!(kit.drain_until_idle(&[&greeter]).await?, 1);
//! kit.assert_emitted("people", "born", 1).await;
//! # Ok::<(), tramline::Error>(()) }).unwrap();
//! ```

use crate::engine::clock::{Clock, ManualClock};
use crate::engine::options::Options;
use crate::engine::schedule;
use crate::engine::tramline::Tramline;
use crate::engine::worker::Worker;
use crate::error::{Kind, Result};
use crate::model::event::StoredEvent;
use crate::model::id::EventId;
use crate::model::time::Time;
use std::time::Duration;

/// The time at which every kit starts: 2030-01-01, so that tests do not depend on the day they run.
const START: Time = Time(1_893_456_000_000);
const PAGE: u32 = 1_000;

/// A Tramline in memory whose time stands still until it is advanced.
#[derive(Clone, Debug)]
pub struct TestKit {
    tram: Tramline,
    clock: ManualClock,
}

impl TestKit {
    /// A new, empty one.
    ///
    /// # Errors
    /// `Unavailable` when there is no memory for it.
    pub async fn new() -> Result<TestKit> {
        let clock = ManualClock::new(START);
        let options = Options::new("sqlite::memory:").clock(Clock::Manual(clock.clone()));
        Ok(TestKit { tram: Tramline::with(options).await?, clock })
    }

    /// The Tramline.
    pub fn tram(&self) -> &Tramline {
        &self.tram
    }

    /// What the clock shows.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Moves time forward. What becomes due runs with the next [`TestKit::drain_until_idle`].
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Runs the schedules that are due, then the workers, one after the other and again, until none of them finds anything that is
    /// due. Gives how many events ran (each retry counts again).
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub async fn drain_until_idle(&self, workers: &[&Worker]) -> Result<u64> {
        let mut sum = 0;
        schedule::tick(self.tram.presence()).await?;
        loop {
            let mut round = 0;
            for worker in workers {
                round += worker.drain().await?;
            }
            if round == 0 {
                return Ok(sum);
            }
            sum += round;
        }
    }

    /// Everything that was emitted to a topic, in order.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn emitted(&self, topic: &str) -> Result<Vec<StoredEvent>> {
        let mut all = Vec::new();
        let mut after = EventId(0);
        loop {
            let page = match self.tram.read_log(topic, after, PAGE).await {
                Err(error) if error.kind() == Kind::NotFound => return Ok(all),
                page => page?,
            };
            if page.events.is_empty() {
                return Ok(all);
            }
            after = page.next;
            all.extend(page.events);
        }
    }

    /// Checks how many events of a type were emitted to a topic.
    ///
    /// # Panics
    /// When it were not `count`, with what was emitted instead.
    pub async fn assert_emitted(&self, topic: &str, kind: &str, count: usize) {
        let emitted = match self.emitted(topic).await {
            Ok(emitted) => emitted,
            Err(error) => panic!("the topic {topic:?} could not be read: {error}"),
        };
        let kinds: Vec<&str> = emitted.iter().map(|event| &*event.kind).collect();
        let found = kinds.iter().filter(|found| **found == kind).count();
        assert_eq!(found, count, "events of type {kind:?} in topic {topic:?}; emitted were {kinds:?}");
    }
}

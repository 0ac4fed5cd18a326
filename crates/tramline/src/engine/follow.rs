//! Following a topic: what is stored, then what comes, in order and without a gap.

use crate::engine::tramline::Tramline;
use crate::error::Result;
use crate::model::event::StoredEvent;
use crate::model::id::EventId;
use crate::store::verbs::ReadLog;
use crate::wake::Listener;
use std::collections::VecDeque;
use std::time::Duration;

const PAGE: u32 = 256;
/// A hint may be lost: look at least this often.
const SLOW_POLL: Duration = Duration::from_secs(1);

/// Reads a topic for ever. Made by [`Tramline::follow`].
#[derive(Debug)]
pub struct Follow {
    tram: Tramline,
    topic: String,
    after: EventId,
    read: VecDeque<StoredEvent>,
    listener: Listener,
}

impl Follow {
    pub(crate) fn new(tram: Tramline, topic: String, after: EventId) -> Follow {
        Follow { listener: tram.wake().listen_to_all(), tram, topic, after, read: VecDeque::new() }
    }

    /// The next event; waits for one if there is none yet. Cancel-safe: nothing is missed or repeated.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic, `Unavailable` when the store does not answer. Calling again goes on where it was.
    pub async fn next(&mut self) -> Result<StoredEvent> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Ok(event);
            }
            self.listener.arm();
            if !self.read_on().await? {
                self.wait().await;
            }
        }
    }

    /// What is there and not yet taken, without waiting for more.
    ///
    /// # Errors
    /// As [`Follow::next`].
    pub async fn next_now(&mut self) -> Result<Option<StoredEvent>> {
        if self.read.is_empty() {
            self.read_on().await?;
        }
        Ok(self.read.pop_front())
    }

    /// True if something was read.
    async fn read_on(&mut self) -> Result<bool> {
        let read = ReadLog { topic: self.topic.clone(), after: self.after, limit: PAGE };
        let page = self.tram.store().read_log(read).await?;
        // Kept together: whoever drops the future before this line reads the same page again.
        self.after = page.next;
        self.read.extend(page.events);
        Ok(!self.read.is_empty())
    }

    async fn wait(&mut self) {
        tokio::select! {
            () = self.listener.wait() => {}
            () = self.tram.clock().sleep(SLOW_POLL) => {}
        }
    }
}

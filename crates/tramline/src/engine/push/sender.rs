//! One of the senders of a line: sends one batch after the other, as long as nothing speaks against it.

use super::batch::Batch;
use super::hand::Hand;
use super::scribe::{Hurry, Scribe};
use super::standing::Standing;
use super::{Shared, send};
use crate::engine::trace::Stopped;
use crate::model::health::Verdict;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, watch};

pub(super) struct Sender {
    pub(super) shared: Arc<Shared>,
    pub(super) hand: Arc<Hand>,
    pub(super) scribe: Arc<Scribe>,
    /// How the subscription stands, and whether that has changed since.
    pub(super) standing: Standing,
    pub(super) news: watch::Receiver<Standing>,
    /// What held the events back before.
    pub(super) stopped: Option<Stopped>,
    /// Room for one request.
    pub(super) room: OwnedSemaphorePermit,
}

/// How a sender ended.
pub(super) enum Ended {
    /// It has nothing more to send.
    HandEmpty,
    /// What came of its last batch is written, or was given up.
    Written,
}

impl Sender {
    /// Sends a batch, and what follows it in the hand.
    pub(super) async fn run(self, first: Batch) -> Ended {
        let mut next = Some(first);
        while let Some(batch) = next {
            let came = send::send(&self.shared, &self.standing, &batch, self.stopped).await;
            self.hand.pace(came.attempt.latency);
            if let Some(told) = &self.shared.watch.0 {
                told(&self.standing.subscription, &came.attempt);
            }
            // Where there is order, or something went wrong, what follows waits until this is written back; else the next one goes
            // at once, unless too much is still to be written.
            let is_plain =
                !self.standing.subscription.policy.is_ordered() && came.judged.verdict == Verdict::Delivered;
            if !is_plain || self.scribe.is_behind(self.standing.width()) {
                let report = self.scribe.report(batch, came, Hurry::Yes);
                drop(self.room);
                self.scribe.written(report).await;
                return Ended::Written;
            }
            self.scribe.report(batch, came, Hurry::No);
            next = self.next();
        }
        Ended::HandEmpty
    }

    /// The next batch; none if the line has to decide first: there is news, or somebody waits for room.
    fn next(&self) -> Option<Batch> {
        let is_news = self.news.has_changed().unwrap_or(true);
        if is_news || self.shared.requests.available_permits() == 0 {
            return None;
        }
        self.hand.take(self.shared.tram.clock().reading())
    }
}

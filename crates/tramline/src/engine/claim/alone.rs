//! How suspects run: one after the other, with nothing else in flight in the process.

use super::{Claimer, unless};
use crate::error::Result;
use crate::store::verbs::Suspects;
use std::time::Duration;

/// For how long suspects run one after the other before everything else of the process gets its turn. After a mass loss of leases
/// there are thousands of them.
const TURN: Duration = Duration::from_millis(100);

impl Claimer {
    /// Runs one suspect, and others for a while. Nothing else may be in flight. False if there was nothing to take.
    pub(super) async fn run_suspects(&mut self) -> Result<bool> {
        let run = self.run.clone();
        let clock = run.tram.clock();
        let begun = clock.reading();
        let before = self.claimed;
        loop {
            let suspects = self.suspects;
            self.claim(Suspects::TakeOne).await?;
            unless(&self.stop, run.ledger.drained()).await;
            let is_over = clock.reading().saturating_sub(begun) >= TURN;
            if self.suspects == suspects || is_over || self.stop.is_cancelled() {
                return Ok(self.claimed > before);
            }
        }
    }
}

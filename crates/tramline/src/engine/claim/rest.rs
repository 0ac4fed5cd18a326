//! How a claim loop waits: for a hint, for the time at which something is due, and with a claim that stands in the store.

use super::{Claimer, Found, SLOW_POLL, put_in_hand};
use crate::error::Result;
use crate::model::lane::Share;
use crate::store::standing::Standing;
use crate::store::verbs::Suspects;
use futures_util::FutureExt;
use std::time::Duration;

impl Claimer {
    /// Waits until there is something to look for. Meanwhile the claim stands in the store, if that serves such claims.
    pub(super) async fn rest(&mut self, next: Option<Duration>, mut again: Option<Duration>) -> Result<()> {
        // However often it is served meanwhile, that leaves out what has lapsed: everything is looked at once in a while.
        let poll = self.run.tram.clock().reading() + SLOW_POLL;
        let mut next = next.map_or(poll, |next| next.min(poll));
        loop {
            let Some((mut standing, wanted)) = self.stand() else {
                self.wait(Some(next), again).await;
                return Ok(());
            };
            let served = tokio::select! {
                biased;
                served = standing.served() => served?,
                () = self.wait(Some(next), again) => standing.withdraw().await?,
            };
            let Some(stood) = served else { return Ok(()) };
            let reading = self.run.tram.clock().reading().saturating_sub(stood.since.elapsed());
            let got = put_in_hand(&self.run, stood.claimed, reading).await;
            match self.judge(got, wanted, self.run.business()).await? {
                Found::All { next: due, again: soon } => {
                    next = due.map_or(next, |due| due.min(next));
                    again = soon;
                }
                Found::More | Found::Suspects => return Ok(()),
            }
        }
    }

    /// Leaves a claim for so many events with the store. Not where there is order: nothing may be claimed while a failure is being settled. Not
    /// by a clock that a test may move meanwhile. And nothing is taken that could not run soon.
    fn stand(&mut self) -> Option<(Standing, u32)> {
        let run = self.run.clone();
        self.pace.observe(run.tram.clock().reading(), run.ledger.load.events());
        let can_stand = !run.is_ordered() && run.tram.clock().now().is_none();
        if !can_stand || run.room(self.low()).now_or_never().is_none() {
            return None;
        }
        let wanted = self.wanted(Suspects::Leave);
        let wish = self.wish(Suspects::Leave, wanted, Share::ALL);
        Some((run.tram.store().stand(wish)?, wanted))
    }

    /// Waits until there may be something to claim. Cancel-safe.
    pub(super) async fn wait(&mut self, next: Option<Duration>, again: Option<Duration>) {
        let run = &self.run;
        let clock = run.tram.clock();
        let poll = clock.reading() + SLOW_POLL;
        let ordered = run.is_ordered();
        tokio::select! {
            // A hint is worth more than who has come or gone, after which only a part is looked at.
            biased;
            () = self.stop.cancelled() => {}
            () = self.listener.wait() => {}
            () = clock.sleep_until(next.map_or(poll, |next| next.min(poll))) => {}
            () = run.tram.gate().wanted() => {}
            _ = self.living.changed(), if ordered => self.own_only = true,
            () = tokio::time::sleep(again.unwrap_or(SLOW_POLL)), if again.is_some() => {}
        }
    }
}

//! The shortest claim: takes what came since the last look, and looks after nothing else.
//!
//! Most of the time of a claim that takes one event goes into what is almost never there: leases that have ended, suspects, back-fills,
//! priorities, and when something is due next. Where a claim has just found the queue empty and nothing of that, the next ones need not
//! look for it again, for a moment. Rules and the catalogue are looked at every time.

use super::PostgresStore;
use super::call::{AT, CHUNK};
use super::rows::{chunk_at, claimed_slice};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::store::claimed::RawClaim;
use crate::store::driver::asked;
use crate::store::verbs::{Claim, Suspects};
use sqlx::Row;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long nobody looks for anything else: by so much an event with a priority or a delay may be late.
const MOMENT: Duration = Duration::from_millis(20);
/// How many slices are taken at most. Where more came, it is time for a whole look.
const SLICES: u32 = 4;

/// The last whole look at subscriptions that were empty then.
#[derive(Debug, Default)]
pub(super) struct Glances(Mutex<HashMap<SubscriptionId, Look>>);

/// A look that found nothing to look after.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// The same by the clock of the store.
    now: Time,
    /// The version of the catalogue.
    version: i64,
    next_due: Option<Time>,
}

impl Glances {
    /// A claim has looked at everything, took all that was due and found nothing else.
    pub(super) fn looked(&self, id: SubscriptionId, at: Instant, version: i64, raw: &RawClaim) {
        self.looks().insert(id, Look { at, now: raw.now, version, next_due: raw.next_due });
    }

    pub(super) fn forget(&self, id: SubscriptionId) {
        self.looks().remove(&id);
    }

    /// The last look, if it is good enough for a glance.
    fn last(&self, id: SubscriptionId, now: Instant, version: i64) -> Option<Look> {
        let mut looks = self.looks();
        let fresh = looks.get(&id).copied().filter(|look| now < look.at + MOMENT && look.version == version);
        if fresh.is_none() {
            looks.remove(&id);
        }
        fresh
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<SubscriptionId, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PostgresStore {
    /// What came since the last look; see `migrations/0003_claim.sql`. `None` where that is nothing, or where one has to look at everything.
    pub(super) async fn glance(
        &self,
        claim: &Claim,
        policy: &Policy,
        version: i64,
    ) -> Result<Option<RawClaim>> {
        let may = claim.suspects == Suspects::Leave && claim.max_events >= SLICES && !self.texts.pooled;
        let plain = policy.limits.is_none() && !policy.is_ordered() && !policy.compact;
        if !may || !plain || claim.single || claim.now.is_some() || policy.is_at_most_once() {
            return Ok(None);
        }
        let id = claim.subscription;
        let Some(look) = self.glances.last(id, Instant::now(), version) else { return Ok(None) };
        let taker = Taker::new(claim, policy, Time(0));
        let sql = "SELECT * FROM tramline_glance($1, $2, $3, $4, $5, $6, $7)";
        let query = self.texts.query(sql).bind(version).bind(id.0).bind(claim.owner.0).bind(taker.until.0);
        let query = query.bind(i64::from(SLICES)).bind(i64::from(taker.events / SLICES));
        let query = query.bind(taker.bytes / i64::from(SLICES));
        let mut conn = self.connection().await?;
        let rows = asked(self.answer, query.fetch_all(&mut *conn)).await?;
        conn.keep();
        let Some(first) = rows.first() else {
            self.glances.forget(id);
            return Ok(None);
        };
        let now = Time(first.try_get(AT)?);
        let mut raw = RawClaim { now, until: Time(now.0 + taker.until.0), ..RawClaim::default() };
        for row in &rows {
            let slice = claimed_slice(row)?;
            raw.chunks.insert(slice.chunk, chunk_at(row, CHUNK)?);
            raw.slices.push(slice);
        }
        raw.next_due = Some(look.next_due.unwrap_or(Time::NEVER).min(look.now.after(MOMENT)).min(raw.until));
        if rows.len() >= SLICES as usize {
            self.glances.forget(id);
            raw.next_due = Some(now);
        }
        Ok(Some(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SubscriptionId = SubscriptionId(1);

    #[test]
    fn a_glance_is_enough_for_a_moment_after_a_whole_look_at_the_same_catalogue() {
        let (glances, start) = (Glances::default(), Instant::now());
        assert!(glances.last(ID, start, 1).is_none());
        glances.looked(ID, start, 1, &RawClaim::default());
        assert!(glances.last(ID, start + MOMENT / 2, 1).is_some());
        assert!(glances.last(SubscriptionId(2), start, 1).is_none());
        assert!(glances.last(ID, start + MOMENT, 1).is_none());
        glances.looked(ID, start, 1, &RawClaim::default());
        assert!(glances.last(ID, start, 2).is_none());
        assert!(glances.last(ID, start, 1).is_none());
    }
}

//! Which way a claim goes: in one call where that is possible, else step by step.

use super::PostgresStore;
use super::claim;
use super::floor::Way;
use super::rows::{chunk_at, claimed_slice};
use super::session::{Begin, POOLED};
use super::step::{Tries, step};
use crate::error::Result;
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::driver::asked;
use crate::store::verbs::{Claim, Claimed};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::sync::Arc;
use tokio::time::Instant;

/// Where the columns of the chunk and of the claim itself begin in a row of `tramline_claim_due`.
pub(super) const CHUNK: usize = 16;
pub(super) const AT: usize = 22;

impl PostgresStore {
    /// The shortest way that will do.
    pub(super) async fn claim_any(&self, claim: Claim) -> Result<Claimed> {
        let known = self.cache.get();
        // Nobody knows yet what is new, and what has an order has no floor but the beginnings of its lanes (`low.rs`).
        let policy = known.require_subscription(claim.subscription).ok().map(|it| &it.policy);
        let began = Instant::now();
        let way = match policy {
            Some(policy) if !policy.is_ordered() && claim.now.is_none() => {
                self.floors.way(claim.subscription, began)
            }
            _ => Way::Call,
        };
        let due = match (policy, way) {
            (Some(policy), Way::Call) => {
                if let Some(raw) = self.glance(&claim, policy, known.version).await? {
                    return raw.decode(&known);
                }
                self.claim_due(&claim, policy, known.version).await?
            }
            (_, Way::Call) => Due::Undecided,
            (_, Way::All) => {
                let (raw, catalog) = self.claim_by_steps(&claim, None).await?;
                self.looked(&claim, &raw, began);
                return raw.decode(&catalog);
            }
            (_, Way::After(floor)) => {
                let (raw, catalog) = self.claim_by_steps(&claim, Some(floor)).await?;
                return raw.decode(&catalog);
            }
        };
        let (first, rest) = match due {
            Due::All { raw, empty } => {
                self.looked(&claim, &raw, began);
                if empty {
                    self.glances.looked(claim.subscription, began, known.version, &raw);
                }
                return raw.decode(&known);
            }
            Due::Undecided => (None, claim),
            Due::Some(raw) => {
                let rest = raw.rest_of(&claim);
                (Some(raw), rest)
            }
        };
        match (first, self.claim_by_steps(&rest, None).await) {
            (None, claimed) => claimed.and_then(|(raw, catalog)| raw.decode(&catalog)),
            (Some(first), Ok((raw, catalog))) => first.and(raw).decode(&catalog),
            (Some(first), Err(error)) if first.slices.is_empty() => Err(error),
            // What was taken is taken; the next claim meets the error again.
            (Some(first), Err(_)) => first.decode(&known),
        }
    }

    /// What most claims come to, in one round trip; see `migrations/0003_claim.sql`.
    async fn claim_due(&self, claim: &Claim, policy: &Policy, version: i64) -> Result<Due> {
        let plain = policy.limits.is_none() && !policy.is_ordered() && !policy.compact;
        if !plain || claim.single || claim.max_events == 0 {
            return Ok(Due::Undecided);
        }
        let taker = Taker::new(claim, policy, Time(0));
        let sql = "SELECT * FROM tramline_claim_due($1, $2, $3, $4, $5, $6, $7, $8)";
        let query = self
            .texts
            .query(sql)
            .bind(version)
            .bind(claim.subscription.0)
            .bind(claim.owner.0)
            .bind(claim.now.map(|now| now.0))
            .bind(taker.until.0)
            .bind(taker.state() as i16)
            .bind(i64::from(taker.events))
            .bind(taker.bytes);
        let rows = if self.texts.pooled {
            let mut tx = self.begin().await?;
            asked(self.answer, self.texts.query(POOLED).execute(&mut *tx)).await?;
            let rows = asked(self.answer, query.fetch_all(&mut *tx)).await?;
            tx.commit().await?;
            rows
        } else {
            let mut conn = self.connection().await?;
            let rows = asked(self.answer, query.fetch_all(&mut *conn)).await?;
            conn.keep();
            rows
        };
        read_due(&rows, &taker)
    }

    /// Step by step; without order, and if a floor is given, only what became due after it.
    async fn claim_by_steps(&self, claim: &Claim, floor: Option<Time>) -> Result<(RawClaim, Arc<Catalog>)> {
        // At least once needs no sync: a claim that a power cut undoes is simply due again. What is consumed must stay so.
        let known = self.cache.get();
        let subscription = known.require_subscription(claim.subscription);
        let may_be_lost = subscription.is_ok_and(|subscription| !subscription.policy.is_at_most_once());
        let begin = Begin { may_be_lost, claims: true, ..Begin::writing(claim.now, claim.subscription) };
        let (raw, catalog, look) =
            step!(self, Tries::few(), |tx| self.session(tx, begin), |session| async {
                session.floor = floor.unwrap_or(session.floor);
                session.proofs = Some(&self.proofs);
                Ok((claim::claim(session, claim).await?, session.catalog.clone(), session.look.take()))
            })?;
        if let Some(look) = look {
            self.proofs.keep(&look);
        }
        Ok((raw, catalog))
    }

    /// Remembers how long it took to look at everything, and whether something is left.
    fn looked(&self, claim: &Claim, raw: &RawClaim, began: Instant) {
        if claim.now.is_some() {
            return;
        }
        let rest = raw.rest_of(claim);
        let all = rest.max_events > 0 && rest.max_bytes > 0 && raw.stopped_by.is_none() && !raw.backfilling;
        self.floors.looked(claim.subscription, began, Instant::now(), all.then_some(raw.now));
    }
}

/// What a claim in one round trip came to.
enum Due {
    /// Nothing was taken: there is more to decide.
    Undecided,
    /// All that is due, or as much as was wanted. `empty`: nothing of any priority is left that is due.
    All { raw: RawClaim, empty: bool },
    /// Some, and something is left: somebody else has it locked.
    Some(RawClaim),
}

/// The slices, and the last row with the claim itself.
fn read_due(rows: &[PgRow], taker: &Taker) -> Result<Due> {
    let Some((last, rows)) = rows.split_last() else { return Ok(Due::Undecided) };
    let Some(now) = last.try_get::<Option<i64>, _>(AT)? else { return Ok(Due::Undecided) };
    let mut raw = RawClaim { now: Time(now), until: Time(now + taker.until.0), ..RawClaim::default() };
    let (mut taken, mut weight) = (0, 0);
    for row in rows {
        let slice = claimed_slice(row)?;
        taken += slice.mask.count();
        weight += i64::from(slice.bytes);
        raw.chunks.insert(slice.chunk, chunk_at(row, CHUNK)?);
        raw.slices.push(slice);
    }
    if taken == taker.events || weight >= taker.bytes {
        return Ok(Due::All { raw, empty: false });
    }
    if last.try_get::<Option<bool>, _>(AT + 2)? == Some(true) {
        return Ok(Due::Some(raw));
    }
    let next = last.try_get::<Option<i64>, _>(AT + 1)?.map(Time);
    let own = (taken > 0).then_some(raw.until);
    raw.next_due = [next, own].into_iter().flatten().min();
    Ok(Due::All { raw, empty: last.try_get(AT + 3)? })
}

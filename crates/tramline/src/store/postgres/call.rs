//! Which way a claim goes: in one call where that is possible, else step by step.

use super::PostgresStore;
use super::claim;
use super::floor::Way;
use super::rows::{chunk_at, claimed_slice};
use super::session::{Begin, POOLED};
use super::step::{Tries, step};
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::subscription::{Policy, Subscription};
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::driver::asked;
use crate::store::verbs::{Claim, Claimed};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::HashMap;
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
                let due = self.claim_due(std::slice::from_ref(&claim), policy, known.version).await?.pop();
                due.unwrap_or(Due::Undecided)
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
        self.claim_rest(claim, due, &known, began).await
    }

    /// Whether claims of a subscription can be made in one call. Not at most once: an answer that is lost consumes what it has, which is not
    /// to be more than one of them wanted.
    pub(super) fn may_claim_together(&self, id: SubscriptionId) -> bool {
        let known = self.cache.get();
        let may = |it: &Subscription| is_plain(&it.policy) && !it.policy.is_at_most_once();
        known.require_subscription(id).is_ok_and(may) && self.floors.way(id, Instant::now()) == Way::Call
    }

    /// Several claims in one call, as far as that will do for them. The steps of one that needs more would hold up all others, whose leases
    /// have begun.
    pub(super) async fn claim_all(&self, claims: &[Claim]) -> Result<Vec<Result<Option<Claimed>>>> {
        let (known, began) = (self.cache.get(), Instant::now());
        let Some(last) = claims.last().filter(|last| self.may_claim_together(last.subscription)) else {
            return Ok(claims.iter().map(|_| Ok(None)).collect());
        };
        let policy = &known.require_subscription(last.subscription)?.policy;
        let dues = self.claim_due(claims, policy, known.version).await?;
        if let Some(Due::All { raw, .. }) = dues.last() {
            self.looked(last, raw, began);
        }
        let mut shared = HashMap::new();
        let answers = dues.into_iter().map(|due| {
            let raw = match due {
                Due::Undecided => return Ok(None),
                Due::Some(raw) if raw.slices.is_empty() => return Ok(None),
                Due::Some(raw) => RawClaim { next_due: Some(raw.now), ..raw },
                Due::All { raw, .. } => raw,
            };
            decode_next(raw, &mut shared, &known).map(Some)
        });
        Ok(answers.collect())
    }

    /// What a claim in one call left to do.
    async fn claim_rest(
        &self,
        claim: Claim,
        due: Due,
        known: &Arc<Catalog>,
        began: Instant,
    ) -> Result<Claimed> {
        let (first, rest) = match due {
            Due::All { raw, empty } => {
                self.looked(&claim, &raw, began);
                if empty {
                    self.glances.looked(claim.subscription, began, known.version, &raw);
                }
                return raw.decode(known);
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
            (Some(first), Err(_)) => first.decode(known),
        }
    }

    /// What most claims come to, in one round trip; see `migrations/0003_claim.sql`. They are of one subscription and for the same time.
    async fn claim_due(&self, claims: &[Claim], policy: &Policy, version: i64) -> Result<Vec<Due>> {
        let may = claims.iter().all(|claim| !claim.single && claim.max_events > 0);
        let takers: Vec<Taker> = claims.iter().map(|claim| Taker::new(claim, policy, Time(0))).collect();
        let (Some(claim), Some(taker), true) = (claims.first(), takers.first(), may && is_plain(policy))
        else {
            return Ok(claims.iter().map(|_| Due::Undecided).collect());
        };
        let sql = "SELECT * FROM tramline_claim_due($1, $2, $3, $4, $5, $6, $7, $8)";
        let query = self
            .texts
            .query(sql)
            .bind(version)
            .bind(claim.subscription.0)
            .bind(takers.iter().map(|taker| taker.owner.0).collect::<Vec<i64>>())
            .bind(claim.now.map(|now| now.0))
            .bind(taker.until.0)
            .bind(taker.state() as i16)
            .bind(takers.iter().map(|taker| i64::from(taker.events)).collect::<Vec<i64>>())
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
        read_due(&rows, &takers)
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
                session.recent = Some(&self.recent);
                let raw = claim::claim(session, claim).await?;
                Ok((raw, session.catalog.clone(), session.look.take()))
            })?;
        if let Some(look) = look {
            self.proofs.keep(&look);
        }
        self.recent.keep(self.proofs.known(claim.subscription), &raw);
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

/// Whether there is nothing to look after but what is due and when.
fn is_plain(policy: &Policy) -> bool {
    policy.limits.is_none() && !policy.is_ordered() && !policy.compact
}

/// Decodes one of several claims. `shared`: the chunk of which the one before took a part, and the next one may take another.
fn decode_next(
    mut raw: RawClaim,
    shared: &mut HashMap<ChunkId, Arc<[StoredEvent]>>,
    catalog: &Catalog,
) -> Result<Claimed> {
    raw.decoded = std::mem::take(shared);
    raw.decode_chunks(catalog)?;
    let last = raw.slices.last().and_then(|slice| raw.decoded.get_key_value(&slice.chunk));
    shared.extend(last.map(|(chunk, events)| (*chunk, events.clone())));
    raw.decode(catalog)
}

/// The slices of each owner, and the last row with the claim itself. Of parts of one slice only the first brings its chunk.
fn read_due(rows: &[PgRow], takers: &[Taker]) -> Result<Vec<Due>> {
    let undecided = || Ok(takers.iter().map(|_| Due::Undecided).collect());
    let Some((last, rows)) = rows.split_last() else { return undecided() };
    let Some(now) = last.try_get::<Option<i64>, _>(AT)? else { return undecided() };
    let mut slices =
        rows.iter().map(claimed_slice).collect::<Result<Vec<_>>>()?.into_iter().zip(rows).peekable();
    let mut dues = Vec::with_capacity(takers.len());
    let mut chunk: Option<ChunkRow> = None;
    for taker in takers {
        let mut raw = RawClaim { now: Time(now), until: Time(now + taker.until.0), ..RawClaim::default() };
        let (mut taken, mut weight) = (0, 0);
        while let Some((slice, row)) = slices.next_if(|(slice, _)| slice.owner == taker.owner) {
            taken += slice.mask.count();
            weight += i64::from(slice.bytes);
            let is_known = chunk.as_ref().is_some_and(|known| known.chunk == slice.chunk);
            if !is_known {
                chunk = Some(chunk_at(row, CHUNK)?);
            }
            raw.chunks.extend(chunk.clone().map(|chunk| (slice.chunk, chunk)));
            raw.slices.push(slice);
        }
        dues.push(if taken == taker.events || weight >= taker.bytes {
            Due::All { raw, empty: false }
        } else if last.try_get::<Option<bool>, _>(AT + 2)? == Some(true) {
            Due::Some(raw)
        } else {
            let next = last.try_get::<Option<i64>, _>(AT + 1)?.map(Time);
            let own = (taken > 0).then_some(raw.until);
            raw.next_due = [next, own].into_iter().flatten().min();
            Due::All { raw, empty: last.try_get(AT + 3)? }
        });
    }
    Ok(dues)
}

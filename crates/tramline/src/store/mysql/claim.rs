//! Claim where there is no order: one round trip looks out and locks what is due, another one takes it. Ordered subscriptions: see
//! [`super::order`].

use super::compact::compact;
use super::due::{CROWDED, SPARE, any_ready, due, due_sql, out_of_reach_sql, slices_wanted};
use super::lapsed::{EXPIRED, expire_leases};
use super::next_due::{LEFT, after_priorities, next_due_sql};
use super::outlook::{Outlook, outlook_sql};
use super::rows::{apply, chunk, chunks_sql, slices};
use super::session::{Begin, Rows, Session};
use super::sql::Columns;
use super::step::Tries;
use super::{MysqlStore, limit, order};
use crate::error::Result;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::limit::Crowd;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::limit::{take_by_key, take_suspect};
use crate::store::verbs::{Claim, Suspects};
use std::sync::Arc;

impl MysqlStore {
    /// Takes events. Decoding is left to the caller.
    pub(super) async fn claim_raw(&self, claim: &Claim) -> Result<(RawClaim, Arc<Catalog>)> {
        let begin = Begin::claiming(claim.now, claim.subscription);
        let mut tries = Tries::few();
        loop {
            let mut tx = self.begin().await?;
            let result = self.try_claim(&mut tx, claim, &begin).await;
            if let Some(result) = tries.end(tx, result).await {
                return result;
            }
        }
    }

    async fn try_claim(
        &self,
        tx: &mut super::Transaction<'_>,
        claim: &Claim,
        begin: &Begin,
    ) -> Result<(RawClaim, Arc<Catalog>)> {
        let known = self.common.cache.get();
        // Nothing is locked before it is known what the claim has to lock first.
        let first = match known.require_subscription(claim.subscription) {
            Ok(known) => First::of(claim, &known.policy),
            Err(_) => First::default(),
        };
        let (mut session, sets) =
            Session::reading(tx.conn(), &self.common, begin, first.statements()).await?;
        let catalog = session.catalog.clone();
        let policy = &catalog.require_subscription(claim.subscription)?.policy;
        let found = match sets.filter(|_| catalog.version == known.version) {
            Some(sets) => first.read(sets)?,
            None => {
                let first = First::of(claim, policy);
                first.read(session.sets(first.statements()).await?)?
            }
        };
        let (mut raw, others) = take_all(&mut session, claim, policy, found).await?;
        if let Some(others) = others {
            let ranked = after_priorities(&mut session, claim.subscription, others).await;
            // What was taken is taken, and stays so if this fails; but nothing more is asked on such a connection.
            let ranked = ranked.unwrap_or_else(|_| {
                tx.lose();
                Some(raw.now)
            });
            raw.next_due = [raw.next_due, ranked].into_iter().flatten().min();
        }
        Ok((raw, catalog))
    }
}

/// What a claim asks in its first round trip: what it may take under limits, what there is to look after, and what is to do.
///
/// A limit is locked first. Who has its turn there is the only one to claim, so that what it locks beyond its limit is in nobody's way.
#[derive(Default)]
struct First {
    limit: Vec<String>,
    outlook: Vec<String>,
    work: Vec<String>,
}

impl First {
    fn of(claim: &Claim, policy: &Policy) -> First {
        let (id, limits) = (claim.subscription, &policy.limits);
        First {
            limit: if limits.is_none() { Vec::new() } else { limit::first_reads(id, limits) },
            outlook: outlook_sql(id, policy.is_ordered()),
            // Where keys are limited, it takes more than one look to find what there is to do.
            work: match limits.per_key_concurrency {
                Some(_) => Vec::new(),
                None => work_reads(claim, policy.is_ordered()),
            },
        }
    }

    fn statements(&self) -> Vec<String> {
        self.limit.iter().chain(&self.outlook).chain(&self.work).cloned().collect()
    }

    fn read(&self, mut limit: Vec<Rows>) -> Result<Found> {
        let mut outlook = limit.split_off(self.limit.len());
        let work = outlook.split_off(self.outlook.len());
        Ok(Found { limit, outlook: Outlook::read(&outlook)?, work })
    }
}

/// What was found by that.
struct Found {
    limit: Vec<Rows>,
    outlook: Outlook,
    work: Vec<Rows>,
}

fn work_reads(claim: &Claim, ordered: bool) -> Vec<String> {
    if ordered {
        return order::first_reads(claim);
    }
    let limit = slices_wanted(claim.max_events, claim.single);
    let due = due_sql(claim.subscription, State::Ready, limit, limit.saturating_mul(SPARE));
    vec![due, out_of_reach_sql(claim.subscription)]
}

/// Takes, and commits that. Gives too whether other priorities than the usual one are in use, if that was asked.
async fn take_all(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    found: Found,
) -> Result<(RawClaim, Option<bool>)> {
    let mut raw = RawClaim { now: session.now, ..RawClaim::default() };
    if let Some(stop) = found.outlook.stop {
        session.commit(Vec::new()).await?;
        return Ok((raw.stopped(stop), None));
    }
    raw.backfilling = !found.outlook.backfills.is_empty();
    let later = match policy.limits.is_none() {
        true => take_rounds(session, claim, policy, &found.outlook, None, Some(found.work), &mut raw).await?,
        false => take_limited(session, claim, policy, found, &mut raw).await?,
    };
    raw.news = session.finish().await?;
    // What was taken is read in the round trip that takes it.
    let mut last: Vec<String> = later.into_iter().collect();
    let asked = last.len();
    last.extend(chunks_sql(raw.missing().into_iter()));
    let sets = session.commit(last).await?;
    let mut others = None;
    if asked > 0
        && let Some(row) = sets[0].first()
    {
        raw.next_due = [raw.next_due, row.maybe_int(0)?.map(Time)].into_iter().flatten().min();
        raw.passed_over = row.flag(1)?;
        // Not known where there is order.
        others = row.maybe_int(2)?.map(|others| others != 0);
    }
    for row in sets[asked..].iter().flatten() {
        let row = chunk(row)?;
        raw.chunks.insert(row.chunk, row);
    }
    Ok((raw, others))
}

/// Takes no more than the limits of the subscription allow. Gives the statement that says when something becomes due, if that
/// matters.
async fn take_limited(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    found: Found,
    raw: &mut RawClaim,
) -> Result<Option<String>> {
    let Found { limit, mut outlook, work } = found;
    let lapsed = policy.limits.most().is_some() && outlook.expired;
    // What was under the leases that have ended is read again.
    let (limit, work) = match lapsed {
        true => (None, None),
        false => (Some(limit), Some(work)),
    };
    let mut limit = limit::lay(session, claim, policy, &mut outlook, limit).await?;
    let mut later = None;
    if !limit.is_reached() {
        let clipped = limit.clip(claim);
        let crowd = limit.crowd.as_mut();
        later = take_rounds(session, &clipped, policy, &outlook, crowd, work, raw).await?;
    }
    if let Some(starts) = limit.end(raw) {
        limit::keep(session, claim.subscription, &starts);
    }
    if raw.limited {
        later = raw.next_due.is_none().then(|| match policy.is_ordered() {
            true => order::next_due_sql(claim.subscription),
            false => next_due_sql(session, claim, LEFT),
        });
    }
    Ok(later)
}

/// `found`: what was read already. Gives the statement that says when something becomes due, if that matters.
async fn take_rounds(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &Outlook,
    mut crowd: Option<&mut Crowd>,
    mut found: Option<Vec<Rows>>,
    raw: &mut RawClaim,
) -> Result<Option<String>> {
    let mut later = None;
    for _ in 0..ROUNDS {
        let mut taker = Taker::new(claim, policy, session.now);
        raw.until = taker.until;
        raw.next_due = None;
        later = if let Some(crowd) = crowd.as_deref_mut() {
            by_key(session, Look { claim, policy, outlook }, crowd, &mut taker, raw).await?
        } else {
            let found = match found.take() {
                Some(found) => found,
                None => session.sets(work_reads(claim, policy.is_ordered())).await?,
            };
            match policy.is_ordered() {
                true => order::claim(session, claim, policy, outlook, found, &mut taker, raw).await?,
                false => {
                    let look = Look { claim, policy, outlook };
                    unordered(session, look, found, &mut taker, raw).await?
                }
            }
        };
        let gave_way = policy.compact && compact(session, claim.subscription, raw).await?;
        if gave_way {
            raw.next_due = Some(session.now);
        }
        if !gave_way || !raw.slices.is_empty() {
            break;
        }
    }
    Ok(later)
}

/// What a claim without order goes by.
#[derive(Clone, Copy)]
struct Look<'a> {
    claim: &'a Claim,
    policy: &'a Policy,
    outlook: &'a Outlook,
}

impl Look<'_> {
    /// The suspects that the claim may take one of, at most `many`.
    async fn suspects(self, session: &mut Session<'_>, many: u32, raw: &mut RawClaim) -> Result<Vec<Slice>> {
        let Look { claim, policy, outlook } = self;
        let id = claim.subscription;
        let mut suspects = outlook.suspects;
        if outlook.expired {
            suspects |= expire_leases(session, id, policy, &[State::Leased, State::Consumed]).await?.suspects;
        }
        raw.suspects_wait = suspects && claim.suspects == Suspects::Leave;
        match suspects && claim.suspects == Suspects::TakeOne {
            true => due(session, id, State::Suspect, many).await,
            false => Ok(Vec::new()),
        }
    }
}

/// Where keys are limited. Gives the statement that says when something becomes due, if that matters.
async fn by_key(
    session: &mut Session<'_>,
    look: Look<'_>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<Option<String>> {
    let id = look.claim.subscription;
    let suspects = look.suspects(session, EXPIRED, raw).await?;
    take_suspect(session, suspects, crowd, taker, raw).await?;
    if !raw.slices.is_empty() {
        return Ok(None);
    }
    take_by_key(session, id, crowd, taker, raw).await?;
    Ok((!taker.is_full()).then(|| next_due_sql(session, look.claim, LEFT)))
}

/// Gives the statement that says when something becomes due, if that matters.
async fn unordered(
    session: &mut Session<'_>,
    look: Look<'_>,
    found: Vec<Rows>,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<Option<String>> {
    let Look { claim, outlook, .. } = look;
    let id = claim.subscription;
    let mut changes = Changes::default();
    let one = look.suspects(session, 1, raw).await?;
    if !one.is_empty() {
        raw.slices = take(one, taker, &mut changes);
        apply(session, id, &changes);
        return Ok(None);
    }
    let mut limit = slices_wanted(claim.max_events, claim.single);
    let mut ready = match outlook.expired {
        // What a sender had is ready again, and was not yet when the claim began.
        true => due(session, id, State::Ready, limit).await?,
        false => slices(found.first().map_or(&[][..], |rows| rows))?,
    };
    let out_of_reach = found.get(1).and_then(|rows| rows.first()).map_or(Ok(false), |row| row.flag(0))?;
    if ready.is_empty() && out_of_reach {
        let all = due_sql(id, State::Ready, limit, limit.saturating_mul(CROWDED));
        ready = slices(&session.rows(all).await?)?;
    }
    while !taker.is_full() {
        let all = (ready.len() as u32) < limit;
        raw.slices.extend(take(ready, taker, &mut changes));
        apply(session, id, &changes);
        changes = Changes::default();
        if all || taker.is_full() {
            break;
        }
        limit = (limit * 4).min(taker.events.max(1));
        ready = due(session, id, State::Ready, limit).await?;
    }
    Ok((!taker.is_full()).then(|| next_due_sql(session, claim, &any_ready(id))))
}

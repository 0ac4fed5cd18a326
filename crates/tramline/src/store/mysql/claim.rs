//! Claim where there is no order: one round trip looks out and locks what is due, another one takes it. Ordered subscriptions: see
//! [`super::order`].

use super::MysqlStore;
use super::compact::compact;
use super::limit;
use super::order;
use super::rows::{apply, chunk, chunks_sql, pick_sql, slices};
use super::session::{Begin, Rows, Session};
use super::sql::Columns;
use super::step::Tries;
use crate::error::Result;
use crate::model::event::DEFAULT_PRIORITY;
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::mask::Mask;
use crate::model::rule::RuleKind;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::expire::expire;
use crate::plan::limit::Crowd;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::limit::{take_by_key, take_suspect};
use crate::store::rules::Stop;
use crate::store::verbs::{Claim, Suspects};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// How many expired leases one claim looks after.
const EXPIRED: u32 = 64;
/// How many due slices a claim looks at for each that it wants, as others may have locked the first ones.
const SPARE: u32 = 4;
/// The same, after it got none of those.
const CROWDED: u32 = 64;

/// What there is to do besides taking.
pub(super) struct Outlook {
    /// Topics whose retained events are still being written: ordered claims stay below these chunks.
    pub(super) backfills: HashMap<TopicId, ChunkId>,
    /// Leases have ended that nobody looked after yet.
    pub(super) expired: bool,
    /// There are suspects.
    pub(super) suspects: bool,
    stop: Option<Stop>,
}

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

/// Rules, back-fills, expired leases, suspects. Leases hang on slices (one index probe per state and priority, however many are
/// leased) or on lanes.
fn outlook_sql(SubscriptionId(id): SubscriptionId, ordered: bool) -> Vec<String> {
    let expired = if ordered {
        format!(
            "SELECT 1 FROM tramline_lane WHERE subscription = {id} AND owner <> 0 AND until <= @tramline_now"
        )
    } else {
        format!(
            "SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {id} \
             AND state IN (1, 7) AND lane = 0 AND `rank` {RANKS} AND pos <= @tramline_now"
        )
    };
    vec![
        format!(
            "SELECT EXISTS ({expired}), EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
             WHERE subscription = {id} AND state = 2)"
        ),
        format!(
            "SELECT topic, backfill_next FROM tramline_subscription_topic \
             WHERE subscription = {id} AND backfill_next <= backfill_until"
        ),
        format!(
            "SELECT kind, until FROM tramline_rule WHERE subscription = {id} AND (until IS NULL OR until > @tramline_now)"
        ),
    ]
}

/// All priorities: each is a range of its own in the claim index.
pub(super) const RANKS: &str = "IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)";

impl Outlook {
    fn read(sets: &[Rows]) -> Result<Outlook> {
        let mut backfills = HashMap::new();
        for row in &sets[1] {
            backfills.insert(TopicId(row.int(0)?), ChunkId(row.int(1)?));
        }
        // A line of all events stays below all of them.
        if let Some(first) = backfills.values().min().copied() {
            backfills.insert(LaneId::WHOLE.topic(), first);
        }
        let mut rules = Vec::new();
        for row in &sets[2] {
            let kind = RuleKind::parse(&row.text(0)?).unwrap_or(RuleKind::Block);
            rules.push((kind, row.maybe_int(1)?.map(Time)));
        }
        let stop = Stop::of(rules.into_iter());
        let flag = |at| sets[0].first().map_or(Ok(false), |row| row.flag(at));
        Ok(Outlook { backfills, expired: flag(0)?, suspects: flag(1)?, stop })
    }
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

/// How many rows to lock at first: as if they were full, but not so few that small ones cost many rounds. Those that are
/// locked and not taken are free again at the end of the transaction.
fn slices_wanted(events: u32, single: bool) -> u32 {
    let full = if single { events } else { events.div_ceil(Mask::CAPACITY) };
    full.max(events.min(32))
}

/// Locks due slices of one state, by priority and then time: `limit` of the first `among`.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`: one range per priority, read in order and left as
/// soon as there is enough, so that neither what is not due nor what is not wanted costs anything.
pub(super) fn due_sql(id: SubscriptionId, state: State, limit: u32, among: u32) -> String {
    let found = format!(
        "SELECT c.chunk, c.id FROM tramline_slice c FORCE INDEX (tramline_slice_claim) WHERE {} \
         ORDER BY c.`rank`, c.pos LIMIT {among}",
        is_due("c", id, state)
    );
    pick_sql(&found, &is_due("s", id, state), limit)
}

fn is_due(slice: &str, SubscriptionId(id): SubscriptionId, state: State) -> String {
    format!(
        "{slice}.subscription = {id} AND {slice}.state = {} AND {slice}.lane = 0 AND {slice}.`rank` {RANKS} \
         AND {slice}.pos <= @tramline_now",
        state as i16
    )
}

/// True if something is ready although the statement before this one got nothing: others have locked all that it looked at.
fn out_of_reach_sql(id: SubscriptionId) -> String {
    format!("SELECT FOUND_ROWS() = 0 AND {}", any_ready(id))
}

/// Whether something is ready, of which a claim with room for more has taken all that nobody had locked.
fn any_ready(id: SubscriptionId) -> String {
    format!(
        "EXISTS (SELECT 1 FROM tramline_slice c FORCE INDEX (tramline_slice_claim) WHERE {})",
        is_due("c", id, State::Ready)
    )
}

/// In place of [`any_ready`]: under a limit, what is ready may have to wait for that.
const LEFT: &str = "FALSE";

pub(super) async fn due(
    session: &mut Session<'_>,
    id: SubscriptionId,
    state: State,
    limit: u32,
) -> Result<Vec<Slice>> {
    slices(&session.rows(due_sql(id, state, limit, limit.saturating_mul(SPARE).max(EXPIRED))).await?)
}

/// What became of leases that have ended.
struct Ended {
    count: usize,
    /// There are suspects now.
    suspects: bool,
}

/// Leases that have ended make their slices suspect, or dead.
async fn expire_leases(
    session: &mut Session<'_>,
    id: SubscriptionId,
    policy: &Policy,
    states: &[State],
) -> Result<Ended> {
    let mut changes = Changes::default();
    let mut count = 0;
    let sql = states.iter().map(|state| due_sql(id, *state, EXPIRED, EXPIRED * SPARE)).collect();
    for rows in session.sets(sql).await? {
        for slice in slices(&rows)? {
            expire(slice, policy, session.now, None, &mut changes);
            count += 1;
        }
    }
    apply(session, id, &changes);
    let suspects = changes.update.iter().any(|slice| slice.state == State::Suspect);
    Ok(Ended { count, suspects })
}

/// How often a claim looks for lanes whose lease has ended.
const LAPSED: u32 = 64;

/// Looks after every lease that has ended, but for those that somebody has locked.
pub(super) async fn end_lapsed(session: &mut Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<()> {
    if policy.is_ordered() {
        for _ in 0..LAPSED {
            if !order::interrupt(session, id, policy).await? {
                break;
            }
        }
        return Ok(());
    }
    let states = [State::Leased, State::Consumed];
    while expire_leases(session, id, policy, &states).await?.count as u32 >= EXPIRED {}
    Ok(())
}

/// The subscriptions of these, at most once, with claims that have ended: one index probe per subscription and priority, and
/// the lanes of ordered ones.
pub(super) async fn ended(session: &mut Session<'_>, once: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
    let sql = |SubscriptionId(id): &SubscriptionId| {
        format!(
            "SELECT EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {id} \
             AND state = 7 AND lane = 0 AND `rank` {RANKS} AND pos <= {now}) OR EXISTS (SELECT 1 FROM tramline_lane \
             WHERE subscription = {id} AND owner <> 0 AND until <= {now})",
            now = session.now.0
        )
    };
    let sql: Vec<String> = once.iter().map(sql).collect();
    if sql.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (id, rows) in once.iter().zip(session.sets(sql).await?) {
        if rows.first().map_or(Ok(false), |row| row.flag(0))? {
            found.push(*id);
        }
    }
    Ok(found)
}

/// At most once: claims that have ended are interrupted, also where nobody claims any more. True if there may be others.
pub(super) async fn interrupt(session: &mut Session<'_>, id: SubscriptionId) -> Result<bool> {
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(id)?.policy;
    if policy.is_ordered() {
        return order::interrupt(session, id, policy).await;
    }
    let ended = expire_leases(session, id, policy, &[State::Consumed]).await?;
    Ok(ended.count as u32 >= EXPIRED)
}

/// The next time at which something becomes due: a delay or a lease that ends; and whether something due was passed over. Of the usual
/// priority only, where there are no others; whether there are is asked once in a while, and NULL if it is not. A subquery for each
/// priority takes MariaDB more time than all the rest of a claim.
fn next_due_sql(session: &Session<'_>, claim: &Claim, passed_over: &str) -> String {
    let (id, usual) = (claim.subscription, i64::from(DEFAULT_PRIORITY));
    // A test's time may pass in a moment.
    let known = session.common.has_priorities(id).filter(|_| claim.now.is_none());
    let of_usual = || first_due(id, usual..usual + 1);
    match known {
        Some(true) => format!("SELECT {}, {passed_over}, NULL", first_due(id, 0..10)),
        Some(false) => format!("SELECT {}, {passed_over}, NULL", of_usual()),
        None => format!(
            "SELECT {}, {passed_over}, EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
             WHERE subscription = {} AND state IN (0, 1, 7) AND lane = 0 AND `rank` IN (0, 1, 2, 3, 4, 6, 7, 8, 9))",
            of_usual(),
            id.0
        ),
    }
}

/// The same of all priorities, if others than the usual one turned out to be in use.
async fn after_priorities(
    session: &mut Session<'_>,
    id: SubscriptionId,
    others: bool,
) -> Result<Option<Time>> {
    session.common.learn_priorities(id, others);
    if !others {
        return Ok(None);
    }
    let rows = session.rows(format!("SELECT {}", first_due(id, 0..10))).await?;
    Ok(rows.first().map_or(Ok(None), |row| row.maybe_int(0))?.map(Time))
}

/// When the first slice of some priorities is due that is not yet, or NULL. One index probe per state and priority, each a value of its
/// own: a UNION of them takes MariaDB longer, and what groups them may read all that is delayed, as its statistics will have it.
fn first_due(SubscriptionId(id): SubscriptionId, ranks: Range<i64>) -> String {
    let first = |state: State, rank: i64| {
        format!(
            "COALESCE((SELECT MIN(pos) FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {id} \
             AND state = {} AND lane = 0 AND `rank` = {rank} AND pos > @tramline_now), {NEVER})",
            state as i16
        )
    };
    let states = [State::Ready, State::Leased, State::Consumed];
    let all: Vec<String> =
        states.iter().flat_map(|state| ranks.clone().map(|rank| first(*state, rank))).collect();
    format!("NULLIF(LEAST({}), {NEVER})", all.join(", "))
}

/// Later than anything.
pub(super) const NEVER: i64 = i64::MAX;

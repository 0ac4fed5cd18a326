//! Claims step by step, and all of it where there is no order. Ordered subscriptions: see [`super::order`].

use super::compact::compact;
use super::limit;
use super::order;
use super::rows::{apply, chunks, slices};
use super::session::Session;
use crate::error::Result;
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
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::limit::{take_by_key, take_suspect};
use crate::store::rules::Stop;
use crate::store::verbs::{Claim, Suspects};
use sqlx::Row;
use std::collections::HashMap;

/// How many expired leases one claim looks after.
const EXPIRED: i64 = 64;

/// What there is to do besides taking: one look before anything is locked.
pub(super) struct Outlook {
    /// Topics whose retained events are still being written: ordered claims stay below these chunks.
    pub(super) backfills: HashMap<TopicId, ChunkId>,
    /// Leases have ended that nobody looked after yet.
    pub(super) expired: bool,
    /// There are suspects.
    pub(super) suspects: bool,
}

/// Takes events. Decoding is left to the caller, outside the transaction.
pub(super) async fn claim(session: &mut Session<'_>, claim: &Claim) -> Result<RawClaim> {
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(claim.subscription)?.policy;
    let mut raw = RawClaim { now: session.now, ..RawClaim::default() };
    let (stop, outlook) = look_out(session, claim, policy).await?;
    if let Some(stop) = stop {
        return Ok(raw.stopped(stop));
    }
    raw.backfilling = !outlook.backfills.is_empty();
    if policy.limits.is_none() {
        take_all(session, claim, policy, &outlook, None, &mut raw).await?;
    } else {
        take_limited(session, claim, policy, outlook, &mut raw).await?;
    }
    if let Some(recent) = session.recent.filter(|_| policy.is_ordered()) {
        raw.chunks.extend(recent.find(session.server, &raw.missing()));
    }
    let read = chunks(session, raw.missing().into_iter()).await?;
    raw.chunks.extend(read);
    raw.news = session.finish().await?;
    Ok(raw)
}

/// Takes no more than the limits of the subscription allow.
async fn take_limited(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    mut outlook: Outlook,
    raw: &mut RawClaim,
) -> Result<()> {
    let mut limit = limit::lay(session, claim, policy, &mut outlook).await?;
    if !limit.is_reached() {
        let clipped = limit.clip(claim);
        take_all(session, &clipped, policy, &outlook, limit.crowd.as_mut(), raw).await?;
    }
    if let Some(starts) = limit.end(raw) {
        limit::keep(session, claim.subscription, starts).await?;
    }
    if raw.limited && raw.next_due.is_none() {
        raw.next_due = match policy.is_ordered() {
            true => order::next_due(session, claim.subscription).await?,
            false => ahead(session, claim.subscription).await?.next_due,
        };
    }
    Ok(())
}

async fn take_all(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &Outlook,
    mut crowd: Option<&mut Crowd>,
    raw: &mut RawClaim,
) -> Result<()> {
    for _ in 0..ROUNDS {
        let mut taker = Taker::new(claim, policy, session.now);
        raw.until = taker.until;
        if policy.is_ordered() {
            order::claim(session, claim, policy, outlook, &mut taker, raw).await?;
        } else {
            let look = Look { claim, policy, outlook };
            unordered(session, look, crowd.as_deref_mut(), &mut taker, raw).await?;
        }
        let gave_way = policy.compact && compact(session, claim.subscription, raw).await?;
        if gave_way {
            raw.next_due = Some(session.now);
        }
        if !gave_way || !raw.slices.is_empty() {
            break;
        }
    }
    Ok(())
}

/// What a claim without order goes by.
#[derive(Clone, Copy)]
struct Look<'a> {
    claim: &'a Claim,
    policy: &'a Policy,
    outlook: &'a Outlook,
}

/// What there is besides taking: rules, back-fills, `$expired` leases, suspects.
macro_rules! outlook {
    ($expired:literal) => {
        concat!(
            "SELECT ru.kinds, ru.ends, b.topics, b.next, EXISTS (",
            $expired,
            "), EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 2) \
            FROM (SELECT coalesce(array_agg(st.topic), '{}') AS topics, coalesce(array_agg(st.backfill_next), '{}') AS next \
                FROM tramline_subscription_topic st \
                WHERE st.subscription = $1 AND st.backfill_next <= st.backfill_until) b, \
            (SELECT coalesce(array_agg(r.kind), '{}') AS kinds, coalesce(array_agg(coalesce(r.until, -1)), '{}') AS ends \
                FROM tramline_rule r WHERE r.subscription = $1 AND (r.until IS NULL OR r.until > $2)) ru"
        )
    };
}

/// Leases hang on slices: one index probe per state and priority, however many are leased.
const SLICES_EXPIRED: &str = outlook!(
    "SELECT 1 FROM generate_series(0, 9) AS p(rank) CROSS JOIN unnest('{1,7}'::smallint[]) AS t(state) \
    CROSS JOIN LATERAL (SELECT 1 FROM tramline_slice s WHERE s.subscription = $1 AND s.state = t.state \
    AND s.lane = 0 AND s.rank = p.rank AND s.pos <= $2 AND s.pos > $3 LIMIT 1) f"
);
/// Leases hang on lanes. Who neither takes suspects nor counts what is leased need not know: the lanes are looked at again in any case.
const LANES_EXPIRED: &str = outlook!(
    "WITH n AS (SELECT * FROM unnest($3::bigint[]) AS n(lane)), {newest} SELECT 1 FROM {lanes} \
    WHERE l.owner <> 0 AND l.until <= $2"
);

/// One look before anything is locked.
async fn look_out(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
) -> Result<(Option<Stop>, Outlook)> {
    let sql = if policy.is_ordered() { LANES_EXPIRED } else { SLICES_EXPIRED };
    let query = session.query(sql).bind(claim.subscription.0).bind(session.now.0);
    let matters = claim.suspects == Suspects::TakeOne || !policy.limits.is_none();
    let query = match policy.is_ordered() {
        true if matters => query.bind(order::lanes(session, claim.subscription)?),
        true => query.bind(Vec::<i64>::new()),
        false => query.bind(session.floor.0),
    };
    let row = query.fetch_one(&mut *session.conn).await?;
    let (kinds, ends): (Vec<String>, Vec<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let (topics, next): (Vec<i64>, Vec<i64>) = (row.try_get(2)?, row.try_get(3)?);
    let mut backfills: HashMap<TopicId, ChunkId> =
        topics.into_iter().map(TopicId).zip(next.into_iter().map(ChunkId)).collect();
    // A line of all events stays below all of them.
    if let Some(first) = backfills.values().min().copied() {
        backfills.insert(LaneId::WHOLE.topic(), first);
    }
    let outlook = Outlook { backfills, expired: row.try_get(4)?, suspects: row.try_get(5)? };
    let rule = |(kind, end): (&String, &i64)| {
        (RuleKind::parse(kind).unwrap_or(RuleKind::Block), Some(Time(*end)).filter(|end| end.0 >= 0))
    };
    Ok((Stop::of(kinds.iter().zip(&ends).map(rule)), outlook))
}

async fn unordered(
    session: &mut Session<'_>,
    Look { claim, policy, outlook }: Look<'_>,
    crowd: Option<&mut Crowd>,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let id = claim.subscription;
    let limited = crowd.is_some();
    let mut suspects = outlook.suspects;
    if outlook.expired {
        suspects |= expire_leases(session, id, policy, &[State::Leased, State::Consumed]).await?.suspects;
    }
    raw.suspects_wait = suspects && claim.suspects == Suspects::Leave;
    let many = if limited { EXPIRED } else { 1 };
    let suspects = match suspects && claim.suspects == Suspects::TakeOne {
        true => due(session, id, State::Suspect, many).await?,
        false => Vec::new(),
    };
    match crowd {
        Some(crowd) => {
            take_suspect(session, suspects, crowd, taker, raw).await?;
            if !raw.slices.is_empty() {
                return Ok(());
            }
            take_by_key(session, id, crowd, taker, raw).await?;
        }
        None if !suspects.is_empty() => {
            let mut changes = Changes::default();
            raw.slices = take(suspects, taker, &mut changes);
            return apply(session, id, &changes).await;
        }
        None => take_ready(session, id, taker, raw).await?,
    }
    if !taker.is_full() {
        let ahead = ahead(session, id).await?;
        raw.next_due = [raw.next_due, ahead.next_due].into_iter().flatten().min();
        // Under a limit, what is due may have to wait for that.
        raw.passed_over = ahead.is_due && !limited;
    }
    Ok(())
}

async fn take_ready(
    session: &mut Session<'_>,
    id: SubscriptionId,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let mut limit = slices_wanted(taker);
    while !taker.is_full() {
        let ready = due(session, id, State::Ready, limit).await?;
        let all = (ready.len() as i64) < limit;
        let mut changes = Changes::default();
        raw.slices.extend(take(ready, taker, &mut changes));
        apply(session, id, &changes).await?;
        if all {
            break;
        }
        limit = (limit * 4).min(i64::from(taker.events));
    }
    Ok(())
}

/// How many rows to lock at first: as if they were full, but not so few that small ones cost many rounds. Those that are
/// locked and not taken are free again at the end of the transaction.
fn slices_wanted(taker: &Taker) -> i64 {
    let full = if taker.single { taker.events } else { taker.events.div_ceil(Mask::CAPACITY) };
    i64::from(full.max(taker.events.min(32)))
}

/// Locks due slices of one state, by priority and then time.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`: one range per priority, read in order and left as
/// soon as there is enough, so that neither what is not due nor what is not wanted costs anything. `ORDER BY rank, pos`
/// over all priorities would walk through everything that is delayed in the first one to get to the second.
pub(super) async fn due(
    session: &mut Session<'_>,
    id: SubscriptionId,
    state: State,
    limit: i64,
) -> Result<Vec<Slice>> {
    let query = session.query(DUE).bind(id.0).bind(state as i16).bind(session.now.0).bind(limit);
    let query = query.bind(session.floor.0);
    slices(&session.all(query).await?)
}

pub(super) const DUE: &str = "SELECT {slice} FROM generate_series(0, 9) AS p(rank) CROSS JOIN LATERAL ( \
    SELECT * FROM tramline_slice s WHERE s.subscription = $1 AND s.state = $2 AND s.lane = 0 AND s.rank = p.rank \
    AND s.pos <= $3 AND s.pos > $5 ORDER BY s.pos LIMIT $4 FOR UPDATE SKIP LOCKED) s LIMIT $4";

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
    for &state in states {
        for slice in due(session, id, state, EXPIRED).await? {
            expire(slice, policy, session.now, None, &mut changes);
            count += 1;
        }
    }
    apply(session, id, &changes).await?;
    let suspects = changes.update.iter().any(|slice| slice.state == State::Suspect);
    Ok(Ended { count, suspects })
}

/// Looks after every lease that has ended, but for those that somebody has locked.
pub(super) async fn end_lapsed(session: &mut Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<()> {
    if policy.is_ordered() {
        while order::interrupt(session, id, policy).await? {}
        return Ok(());
    }
    let states = [State::Leased, State::Consumed];
    while expire_leases(session, id, policy, &states).await?.count as i64 >= EXPIRED {}
    Ok(())
}

/// The subscriptions of these, at most once, with claims that have ended: one index probe per subscription and priority, and
/// the lanes of ordered ones.
pub(super) async fn ended(session: &mut Session<'_>, once: &[SubscriptionId]) -> Result<Vec<SubscriptionId>> {
    let sql = "SELECT u.id FROM unnest($1::bigint[]) AS u(id) WHERE EXISTS ( \
                   SELECT 1 FROM generate_series(0, 9) AS p(rank) CROSS JOIN LATERAL (SELECT 1 FROM tramline_slice s \
                   WHERE s.subscription = u.id AND s.state = 7 AND s.lane = 0 AND s.rank = p.rank AND s.pos <= $2 LIMIT 1) f) \
               OR EXISTS (SELECT 1 FROM tramline_lane l WHERE l.subscription = u.id AND l.owner <> 0 AND l.until <= $2)";
    let query = session.query(sql).bind(once.iter().map(|id| id.0).collect::<Vec<i64>>()).bind(session.now.0);
    session.all(query).await?.iter().map(|row| Ok(SubscriptionId(row.try_get(0)?))).collect()
}

/// At most once: claims that have ended are interrupted, also where nobody claims any more. True if there may be others.
pub(super) async fn interrupt(session: &mut Session<'_>, id: SubscriptionId) -> Result<bool> {
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(id)?.policy;
    if policy.is_ordered() {
        return order::interrupt(session, id, policy).await;
    }
    let ended = expire_leases(session, id, policy, &[State::Consumed]).await?;
    Ok(ended.count as i64 >= EXPIRED)
}

/// What is left for later claims.
struct Ahead {
    /// The next time at which something becomes due: a delay or a lease that ends.
    next_due: Option<Time>,
    /// Something is ready and due already.
    is_due: bool,
}

/// One index probe per state and priority.
async fn ahead(session: &mut Session<'_>, id: SubscriptionId) -> Result<Ahead> {
    let sql = "SELECT (SELECT min(f.pos) FROM generate_series(0, 9) AS p(rank), unnest('{0,1,7}'::smallint[]) AS t(state) \
               CROSS JOIN LATERAL (SELECT s.pos FROM tramline_slice s WHERE s.subscription = $1 \
               AND s.state = t.state AND s.lane = 0 AND s.rank = p.rank AND s.pos > $2 ORDER BY s.pos LIMIT 1) f), \
               EXISTS (SELECT 1 FROM generate_series(0, 9) AS p(rank) CROSS JOIN LATERAL (SELECT 1 FROM tramline_slice s \
               WHERE s.subscription = $1 AND s.state = 0 AND s.lane = 0 AND s.rank = p.rank \
               AND s.pos <= $2 AND s.pos > $3 LIMIT 1) f)";
    let query = session.query(sql).bind(id.0).bind(session.now.0).bind(session.floor.0);
    let row = query.fetch_one(&mut *session.conn).await?;
    Ok(Ahead { next_due: row.try_get::<Option<i64>, _>(0)?.map(Time), is_due: row.try_get(1)? })
}

//! Claim where there is no order. Ordered subscriptions: see [`super::order`].

use super::compact::compact;
use super::limit;
use super::order;
use super::rows::{SLICE, apply, one_chunk, slice};
use super::rules;
use super::session::Session;
use crate::error::{Error, Result};
use crate::model::id::SubscriptionId;
use crate::model::slice::{Slice, State};
use crate::model::subscription::{Policy, Subscription};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::{Taker, take};
use crate::plan::expire::expire;
use crate::plan::limit::Crowd;
use crate::store::claimed::RawClaim;
use crate::store::compact::ROUNDS;
use crate::store::verbs::{Claim, Suspects};
use rusqlite::Connection;

/// How many expired leases one claim looks after.
const EXPIRED: usize = 64;
/// So few chunks are read at once by the writer: asking another thread would take longer.
const FEW: usize = 4;
/// Where something becomes due.
const PENDING: [State; 3] = [State::Ready, State::Leased, State::Consumed];

/// Takes events. Decoding is left to the caller, outside the transaction.
pub(super) fn claim(session: &Session<'_>, claim: &Claim) -> Result<RawClaim> {
    let subscription = session.catalog.require_subscription(claim.subscription)?;
    let mut raw = RawClaim { now: session.now, ..RawClaim::default() };
    if let Some(stop) = rules::stop(session, claim.subscription)? {
        return Ok(raw.stopped(stop));
    }
    raw.backfilling = backfilling(session.conn, claim.subscription)?;
    let policy = &subscription.policy;
    if policy.limits.is_none() {
        take_all(session, claim, policy, None, &mut raw)?;
    } else {
        take_limited(session, claim, policy, &mut raw)?;
    }
    raw.news = session.finish()?;
    if raw.missing().len() <= FEW {
        load_chunks(session.conn, &mut raw)?;
    }
    Ok(raw)
}

/// Takes what is ready, for a claim that found nothing a moment ago: what lapses meanwhile is for the next one that looks at everything.
/// Reads all that it takes.
pub(super) fn claim_ready(session: &Session<'_>, wish: &Claim) -> Result<RawClaim> {
    let (conn, id) = (session.conn, wish.subscription);
    let subscription = session.catalog.require_subscription(id)?;
    let policy = &subscription.policy;
    if policy.is_ordered() {
        let remedy = "claim when there is a hint: an owner has to know at every moment which lanes it holds";
        return Err(Error::invalid("a claim with order cannot stand", remedy));
    }
    let mut raw = RawClaim { now: session.now, ..RawClaim::default() };
    if !policy.limits.is_none() || policy.compact {
        raw = claim(session, wish)?;
    } else if let Some(stop) = rules::stop(session, id)? {
        return Ok(raw.stopped(stop));
    } else {
        raw.backfilling = backfilling(conn, id)?;
        let mut taker = Taker::new(wish, policy, session.now);
        raw.until = taker.until;
        take_ready(session, id, &mut taker, &mut raw)?;
        if !taker.is_full() {
            raw.next_due = next_due(conn, id, Time(0), &[State::Ready])?;
        }
    }
    load_chunks(conn, &mut raw)?;
    Ok(raw)
}

/// Takes no more than the limits of the subscription allow.
fn take_limited(session: &Session<'_>, claim: &Claim, policy: &Policy, raw: &mut RawClaim) -> Result<()> {
    let mut limit = limit::lay(session, claim, policy)?;
    if !limit.is_reached() {
        let clipped = limit.clip(claim);
        take_all(session, &clipped, policy, limit.crowd.as_mut(), raw)?;
    }
    if let Some(starts) = limit.end(raw) {
        limit::keep(session.conn, claim.subscription, &starts)?;
    }
    if raw.limited && raw.next_due.is_none() {
        raw.next_due = match policy.is_ordered() {
            true => order::next_due(session, claim.subscription)?,
            false => next_due(session.conn, claim.subscription, session.now, &PENDING)?,
        };
    }
    Ok(())
}

fn take_all(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    mut crowd: Option<&mut Crowd>,
    raw: &mut RawClaim,
) -> Result<()> {
    for _ in 0..ROUNDS {
        let mut taker = Taker::new(claim, policy, session.now);
        if policy.is_ordered() {
            order::claim(session, claim, policy, &mut taker, raw)?;
        } else {
            unordered(session, claim, policy, crowd.as_deref_mut(), &mut taker, raw)?;
        }
        let gave_way = policy.compact && compact(session, claim.subscription, raw)?;
        if gave_way {
            raw.next_due = Some(session.now);
        }
        if !gave_way || !raw.slices.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Reads the chunks of what was taken. They never change and cannot go while slices refer to them, so this may be done
/// after the claim's transaction and on another connection.
pub(super) fn load_chunks(conn: &Connection, raw: &mut RawClaim) -> Result<()> {
    for chunk in raw.missing() {
        if let Some(row) = one_chunk(conn, chunk)? {
            raw.chunks.insert(chunk, row);
        }
    }
    Ok(())
}

fn unordered(
    session: &Session<'_>,
    claim: &Claim,
    policy: &Policy,
    crowd: Option<&mut Crowd>,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let (conn, now, id) = (session.conn, session.now, claim.subscription);
    raw.until = taker.until;
    expire_leases(session, id, policy, &[State::Leased, State::Consumed])?;
    let many = if crowd.is_some() { EXPIRED as u32 } else { 1 };
    let suspects = due(conn, id, State::Suspect, now, many)?;
    raw.suspects_wait |= !suspects.is_empty() && claim.suspects == Suspects::Leave;
    let mut changes = Changes::default();
    match crowd {
        Some(crowd) => {
            let suspects = suspects.into_iter().filter(|_| claim.suspects == Suspects::TakeOne);
            limit::take_suspect(session, suspects, crowd, taker, raw)?;
            if !raw.slices.is_empty() {
                return Ok(());
            }
            limit::take_by_key(session, id, crowd, taker, raw)?;
        }
        None if claim.suspects == Suspects::TakeOne && !suspects.is_empty() => {
            raw.slices = take(suspects, taker, &mut changes);
            return apply(session, id, &changes);
        }
        None => take_ready(session, id, taker, raw)?,
    }
    if !taker.is_full() {
        let next = next_due(conn, id, Time(0), &PENDING)?;
        raw.next_due = [raw.next_due, next].into_iter().flatten().min();
    }
    Ok(())
}

fn take_ready(
    session: &Session<'_>,
    id: SubscriptionId,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let mut changes = Changes::default();
    let ready = due(session.conn, id, State::Ready, session.now, taker.events)?;
    raw.slices = take(ready, taker, &mut changes);
    apply(session, id, &changes)
}

/// Leases that have ended make their slices suspect, or dead. Gives how many.
fn expire_leases(
    session: &Session<'_>,
    id: SubscriptionId,
    policy: &Policy,
    states: &[State],
) -> Result<usize> {
    let mut changes = Changes::default();
    let mut count = 0;
    for &state in states {
        for slice in due(session.conn, id, state, session.now, EXPIRED as u32 * 64)?.into_iter().take(EXPIRED)
        {
            expire(slice, policy, session.now, None, &mut changes);
            count += 1;
        }
    }
    apply(session, id, &changes)?;
    Ok(count)
}

/// Looks after every lease that has ended.
pub(super) fn end_lapsed(session: &Session<'_>, id: SubscriptionId, policy: &Policy) -> Result<()> {
    if policy.is_ordered() {
        return order::interrupt(session, id, policy).map(|_| ());
    }
    while expire_leases(session, id, policy, &[State::Leased, State::Consumed])? >= EXPIRED {}
    Ok(())
}

/// At most once: claims that have ended are interrupted, also where nobody claims any more.
pub(super) fn interrupt(session: &Session<'_>, subscription: &Subscription) -> Result<Interrupted> {
    let (id, policy) = (subscription.id, &subscription.policy);
    let count = if policy.is_ordered() {
        order::interrupt(session, id, policy)?
    } else {
        expire_leases(session, id, policy, &[State::Consumed])?
    };
    Ok(Interrupted { some: count > 0, more: !policy.is_ordered() && count >= EXPIRED })
}

/// What became of claims that have ended.
pub(super) struct Interrupted {
    /// There were some.
    pub(super) some: bool,
    /// There may be others.
    pub(super) more: bool,
}

/// Due slices of one state, by priority and time, until they hold `events` events. Walks the claim index and stops, so the
/// cost does not grow with what is not due or not wanted. (One statement with `rank IN (..)` would have to sort.)
pub(super) fn due(
    conn: &Connection,
    id: SubscriptionId,
    state: State,
    now: Time,
    events: u32,
) -> Result<Vec<Slice>> {
    let mut statement = conn.prepare_cached(&due_sql())?;
    let (mut found, mut count) = (Vec::new(), 0);
    for rank in ranks(conn, id, state)? {
        let mut rows = statement.query([id.0, state as i64, rank, now.0])?;
        while count < events
            && let Some(row) = rows.next()?
        {
            let slice = slice(row)?;
            count += slice.mask.count();
            found.push(slice);
        }
    }
    Ok(found)
}

fn due_sql() -> String {
    format!(
        "SELECT {SLICE} FROM tramline_slice \
         WHERE subscription = ? AND state = ? AND lane = 0 AND rank = ? AND pos <= ? ORDER BY pos"
    )
}

const RANKS: &str =
    "SELECT min(rank) FROM tramline_slice WHERE subscription = ? AND state = ? AND lane = 0 AND rank > ?";

/// The priorities that slices of one state have. Hops from one to the next in the claim index: mostly there is one.
fn ranks(conn: &Connection, id: SubscriptionId, state: State) -> Result<Vec<i64>> {
    let mut statement = conn.prepare_cached(RANKS)?;
    let mut ranks = Vec::new();
    loop {
        let after = ranks.last().copied().unwrap_or(-1);
        let next: Option<i64> = statement.query_row([id.0, state as i64, after], |row| row.get(0))?;
        match next {
            Some(rank) => ranks.push(rank),
            None => return Ok(ranks),
        }
    }
}

const NEXT_DUE: &str = "SELECT min(pos) FROM tramline_slice WHERE subscription = ? AND state = ? AND lane = 0 \
                        AND rank = ? AND pos > ?";

/// The next time after another one at which something of these states becomes due: a delay or a lease that ends. One index look-up per
/// state and priority.
fn next_due(conn: &Connection, id: SubscriptionId, after: Time, states: &[State]) -> Result<Option<Time>> {
    let mut statement = conn.prepare_cached(NEXT_DUE)?;
    let mut next: Option<i64> = None;
    for &state in states {
        for rank in ranks(conn, id, state)? {
            let first: Option<i64> =
                statement.query_row([id.0, state as i64, rank, after.0], |row| row.get(0))?;
            next = [next, first].into_iter().flatten().min();
        }
    }
    Ok(next.map(Time))
}

fn backfilling(conn: &Connection, id: SubscriptionId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tramline_subscription_topic \
               WHERE subscription = ? AND backfill_next <= backfill_until)";
    Ok(conn.prepare_cached(sql)?.query_row([id.0], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::super::writer::Durable;
    use super::*;
    use crate::model::event::Event;
    use crate::model::id::Incarnation;
    use crate::model::lane::{Known, Share};
    use crate::model::rule::RuleKind;
    use crate::model::subscription::Start;
    use crate::store::Store;
    use crate::store::verbs::{Emit, Expected, PutSubscription, RuleEnd, SetRule};
    use rusqlite::StatementStatus;
    use std::time::Duration;

    const NOW: Time = Time(1_893_456_000_000);

    /// How far SQLite's machine has come in the statements that walk the claim index.
    async fn steps(store: &SqliteStore) -> i64 {
        let count = |session: &Session<'_>| {
            let mut steps = 0;
            for sql in [&due_sql(), RANKS, NEXT_DUE] {
                let statement = session.conn.prepare_cached(sql)?;
                assert_eq!(statement.get_status(StatementStatus::FullscanStep), 0, "{sql}");
                assert_eq!(statement.get_status(StatementStatus::Sort), 0, "{sql}");
                steps += i64::from(statement.get_status(StatementStatus::VmStep));
            }
            Ok(steps)
        };
        store.write(Durable::No, None, count).await.unwrap()
    }

    async fn emit(store: &SqliteStore, events: Vec<Event>) {
        let emitted = store.emit(Emit { units: vec![events], now: Some(NOW) }).await.unwrap();
        assert!(emitted.iter().all(Result::is_ok));
    }

    async fn subscribe(store: &SqliteStore, name: &str) -> SubscriptionId {
        let put = PutSubscription {
            name: name.into(),
            topics: vec!["t".into()],
            policy: Policy::default(),
            start: Start::Now,
            expected: Expected::Anything,
            now: Some(NOW),
        };
        store.put_subscription(put).await.unwrap().id
    }

    /// What it takes to claim the only event that is due.
    async fn cost(store: &SqliteStore, subscription: SubscriptionId) -> i64 {
        emit(store, vec![Event::new("t", "now")]).await;
        let before = steps(store).await;
        let claim = Claim {
            subscription,
            owner: Incarnation(1),
            max_events: 10,
            max_bytes: 1 << 20,
            lease: Some(Duration::from_secs(3600)),
            suspects: Suspects::Leave,
            share: Share::ALL,
            known: Known::All,
            single: false,
            now: Some(NOW),
        };
        assert_eq!(store.claim(claim).await.unwrap().slices.len(), 1);
        steps(store).await - before
    }

    /// Each at a time of its own, so that each is a row of its own.
    fn far_future(events: std::ops::Range<u64>) -> Vec<Event> {
        let day = Duration::from_secs(24 * 3600);
        events.map(|n| Event::new("t", "x").delay(day + Duration::from_millis(n))).collect()
    }

    #[tokio::test]
    async fn a_claim_does_not_pay_for_what_is_far_in_the_future_or_paused() {
        let store = SqliteStore::in_memory().await.unwrap();
        let (queue, paused) = (subscribe(&store, "q").await, subscribe(&store, "paused").await);
        let pause = SetRule {
            subscription: paused,
            kind: RuleKind::Pause,
            by: "ann".into(),
            reason: "test".into(),
            until: Some(RuleEnd::Open),
            now: Some(NOW),
        };
        store.set_rule(pause).await.unwrap();
        emit(&store, far_future(0..1)).await;
        cost(&store, queue).await; // from now on there are leases, too
        let few = cost(&store, queue).await;
        assert!(few > 0, "nothing was counted");
        for thousand in 0..60 {
            emit(&store, far_future(thousand * 1000..thousand * 1000 + 1000)).await;
        }
        assert_eq!(store.stats(queue, Some(NOW)).await.unwrap().counts.delayed, 60_001);
        assert_eq!(cost(&store, queue).await, few);
    }
}

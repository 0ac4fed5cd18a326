//! Limits: what a claim may take, counted where it is, under a lock that only claims of the same subscription take.

use super::claim::{Outlook, due, end_lapsed};
use super::rows::{SLICE, apply, keys, slices};
use super::session::Session;
use super::sql::{Columns, list, text};
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::limits::Starts;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::plan::Changes;
use crate::plan::claim::Taker;
use crate::plan::limit::{Crowd, crowded_ranges, disperse, hash_of, take};
use crate::store::claimed::RawClaim;
use crate::store::limit::{Limit, READY, ROUNDS, UnderWay};
use crate::store::verbs::Claim;

/// What a claim may take of a limited subscription; others wait here until it is committed. Leases that have ended are looked after
/// first, all of them: what could still be extended counts, and so does what somebody is just settling.
pub(super) async fn lay(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &mut Outlook,
) -> Result<Limit> {
    let (id, limits) = (claim.subscription, &policy.limits);
    // Locked for good at once, as the heads of keys are.
    session.write(format!(
        "INSERT INTO tramline_limit (subscription) VALUES ({}) ON DUPLICATE KEY UPDATE subscription = subscription",
        id.0
    ));
    if limits.most().is_some() && outlook.expired {
        end_lapsed(session, id, policy).await?;
        (outlook.expired, outlook.suspects) = (false, true);
    }
    let mut sql = vec![format!("SELECT starts FROM tramline_limit WHERE subscription = {} FOR UPDATE", id.0)];
    sql.extend(limits.most().map(|_| leased_sql(id)));
    let sets = session.sets(sql).await?;
    let starts = sets[0].first().map_or(Ok(String::new()), |row| row.text(0))?;
    let mut under_way = UnderWay { starts: Starts::read(&starts), ..UnderWay::default() };
    for row in sets[1..].iter().flatten() {
        under_way.leased.push((ChunkId(row.int(0)?), Mask::from_i64(row.int(1)?)));
    }
    if limits.per_key_concurrency.is_some() {
        under_way.keys = keys(session, under_way.leased.iter().map(|(chunk, _)| *chunk)).await?;
    }
    Ok(Limit::new(claim, policy, under_way, session.now))
}

/// All that is leased, in whatever lane: as many rows as the limit allows events, at most.
///
/// Uses `tramline_slice_claim (subscription, state, ..)`, one range per state.
fn leased_sql(id: SubscriptionId) -> String {
    format!(
        "SELECT chunk, mask FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
         WHERE subscription = {} AND state IN (1, 7)",
        id.0
    )
}

/// Writes down what started.
pub(super) fn keep(session: &mut Session<'_>, SubscriptionId(id): SubscriptionId, starts: &str) {
    session.write(format!("UPDATE tramline_limit SET starts = {} WHERE subscription = {id}", text(starts)));
}

/// Takes what the limit of each key allows, of those that had to wait and of those that are ready; another kind comes first every
/// time.
pub(super) async fn take_by_key(
    session: &mut Session<'_>,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let crowded_first = session.now.0 % 2 == 0;
    if crowded_first {
        take_crowded(session, id, crowd, taker, raw).await?;
    }
    take_ready(session, id, crowd, taker, raw).await?;
    if !crowded_first {
        take_crowded(session, id, crowd, taker, raw).await?;
    }
    Ok(())
}

/// One suspect whose keys allow it.
pub(super) async fn take_suspect(
    session: &mut Session<'_>,
    suspects: Vec<Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    for suspect in suspects {
        take_some(session, suspect.subscription, vec![suspect], crowd, taker, raw).await?;
        if !raw.slices.is_empty() {
            break;
        }
    }
    Ok(())
}

async fn take_ready(
    session: &mut Session<'_>,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    for _ in 0..ROUNDS {
        if taker.is_full() {
            return Ok(());
        }
        let ready = due(session, id, State::Ready, READY).await?;
        if ready.is_empty() {
            return Ok(());
        }
        take_some(session, id, ready, crowd, taker, raw).await?;
    }
    raw.next_due = Some(session.now);
    Ok(())
}

async fn take_crowded(
    session: &mut Session<'_>,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    if taker.is_full() {
        return Ok(());
    }
    let found = crowded(session, id, crowd, taker.events).await?;
    take_some(session, id, found, crowd, taker, raw).await
}

async fn take_some(
    session: &mut Session<'_>,
    id: SubscriptionId,
    found: Vec<Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    // Only the keys: most of what is found may have to wait, and payloads may be large.
    let keys = keys(session, found.iter().map(|slice| slice.chunk)).await?;
    let mut changes = Changes::default();
    raw.slices.extend(take(found, &keys, crowd, taker, &mut changes));
    apply(session, id, &changes);
    Ok(())
}

/// Slices of keys that had to wait and have room now, until they may hold `wanted` events. Hops from key to key in the claim index:
/// no more keys are without room than events are under way.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
async fn crowded(
    session: &mut Session<'_>,
    id: SubscriptionId,
    crowd: &Crowd,
    wanted: u32,
) -> Result<Vec<Slice>> {
    let SubscriptionId(number) = id;
    let first = |condition: &str| {
        format!(
            "(SELECT s.`rank` FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {number} \
             AND s.state = 8 AND s.lane = 0 AND {condition} ORDER BY s.`rank` LIMIT 1)"
        )
    };
    let ranges: Vec<String> = crowded_ranges(session.now)
        .into_iter()
        .enumerate()
        .map(|(place, (from, until))| {
            let first = first(&format!("s.`rank` >= {from} AND s.`rank` < {until}"));
            format!("SELECT {place} AS place, {first} AS `rank`, {until} AS until")
        })
        .collect();
    let full = crowd.full();
    let hop = format!(
        "WITH RECURSIVE hop AS ({} UNION ALL SELECT h.place, {}, h.until FROM hop h WHERE h.`rank` IS NOT NULL) \
         SELECT f.`rank` FROM (SELECT place, `rank` FROM hop WHERE `rank` IS NOT NULL LIMIT {}) f ORDER BY f.place, f.`rank`",
        ranges.join(" UNION ALL "),
        first("s.`rank` > h.`rank` AND s.`rank` < h.until"),
        full.len() + wanted as usize
    );
    let mut ranks: Vec<i64> = Vec::new();
    for row in &session.rows(hop).await? {
        ranks.push(row.int(0)?);
    }
    ranks.retain(|rank| !full.contains(&hash_of(*rank)));
    ranks.truncate(wanted as usize);
    if ranks.is_empty() {
        return Ok(Vec::new());
    }
    let of_key = |rank: i64| {
        format!(
            "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {number} \
             AND s.state = 8 AND s.lane = 0 AND s.`rank` = {rank} ORDER BY s.pos LIMIT {} FOR UPDATE SKIP LOCKED",
            crowd.most()
        )
    };
    let mut found = Vec::new();
    for rows in session.sets(ranks.into_iter().map(of_key).collect()).await? {
        found.extend(slices(&rows)?);
    }
    Ok(found)
}

/// What had to wait because of its keys is ready again where keys are limited no longer. Gives the subscriptions where there was
/// something; there may be more.
pub(super) async fn disperse_some(session: &mut Session<'_>, limit: u32) -> Result<Vec<SubscriptionId>> {
    let catalog = session.catalog.clone();
    let free = |policy: &Policy| policy.limits.per_key_concurrency.is_none() && !policy.is_ordered();
    let ids = catalog.subscriptions().iter().filter(|one| free(&one.policy)).map(|one| one.id.0);
    let sql = format!(
        "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription IN ({}) AND s.state = 8 \
         LIMIT {limit} FOR UPDATE SKIP LOCKED",
        list(ids)
    );
    let crowded = slices(&session.rows(sql).await?)?;
    let mut woken: Vec<SubscriptionId> = crowded.iter().map(|slice| slice.subscription).collect();
    woken.dedup();
    let Some(first) = woken.first().copied() else { return Ok(woken) };
    // Nothing but the rows change, so that it does not matter whose they are.
    let update = crowded.into_iter().map(disperse).collect();
    apply(session, first, &Changes { update, ..Changes::default() });
    Ok(woken)
}

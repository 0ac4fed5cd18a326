//! Limits: what a claim may take, counted where it is, under a lock that only claims of the same subscription take.

use super::claim::{Outlook, end_lapsed};
use super::order::lanes;
use super::rows::{apply, slices};
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::limits::Starts;
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::plan::Changes;
use crate::plan::limit::{Crowd, crowded_ranges, disperse, hash_of};
use crate::store::limit::{Limit, UnderWay};
use crate::store::rows::StepRows;
use crate::store::verbs::Claim;
use sqlx::Row;

/// What a claim may take of a limited subscription; others wait here until it is committed. Leases that have ended are looked after
/// first, all of them: what could still be extended counts, and so does what somebody is just settling.
pub(super) async fn lay(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &mut Outlook,
) -> Result<Limit> {
    let (id, limits) = (claim.subscription, &policy.limits);
    let mut under_way = UnderWay { starts: lock(session, id).await?, ..UnderWay::default() };
    if limits.most().is_some() {
        if outlook.expired {
            end_lapsed(session, id, policy).await?;
            (outlook.expired, outlook.suspects) = (false, true);
        }
        under_way.leased = leased(session, id).await?;
    }
    if limits.per_key_concurrency.is_some() {
        under_way.keys = session.keys(under_way.leased.iter().map(|(chunk, _)| *chunk).collect()).await?;
    }
    Ok(Limit::new(claim, policy, under_way, session.now))
}

async fn lock(session: &mut Session<'_>, id: SubscriptionId) -> Result<Starts> {
    let sql = "SELECT starts FROM tramline_limit WHERE subscription = $1 FOR UPDATE";
    loop {
        let query = session.query(sql).bind(id.0);
        if let Some(row) = session.all(query).await?.first() {
            return Ok(Starts::read(row.try_get(0)?));
        }
        let create = "INSERT INTO tramline_limit (subscription) VALUES ($1) ON CONFLICT DO NOTHING";
        let query = session.query(create).bind(id.0);
        session.run(query).await?;
    }
}

/// Writes down what started.
pub(super) async fn keep(session: &mut Session<'_>, id: SubscriptionId, starts: String) -> Result<()> {
    let query = session.query("UPDATE tramline_limit SET starts = $2 WHERE subscription = $1").bind(id.0);
    let query = query.bind(starts);
    session.run(query).await.map(|_| ())
}

/// All that is leased, in whatever lane: as many rows as the limit allows events, at most.
///
/// Uses `tramline_slice_claim (subscription, state, ..)`, one range per state, and one for each lane that is held.
async fn leased(session: &mut Session<'_>, id: SubscriptionId) -> Result<Vec<(ChunkId, Mask)>> {
    let sql = "WITH n AS (SELECT * FROM unnest($2::bigint[]) AS n(lane)), {newest} \
               SELECT s.chunk, s.mask FROM tramline_slice s WHERE s.subscription = $1 AND s.state IN (1, 7) \
               UNION ALL SELECT s.chunk, s.mask FROM {lanes} JOIN tramline_slice s ON s.subscription = $1 AND s.state = 0 \
                   AND s.lane = l.lane AND s.rank = 0 AND s.pos < l.low WHERE l.leased > 0";
    let query = session.query(sql).bind(id.0).bind(lanes(session, id)?);
    let rows = session.all(query).await?;
    rows.iter().map(|row| Ok((ChunkId(row.try_get(0)?), Mask::from_i64(row.try_get(1)?)))).collect()
}

/// Slices of keys that had to wait and have room now, until they may hold `wanted` events. Hops from key to key in the claim index:
/// no more keys are without room than events are under way.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
pub(super) async fn crowded(
    session: &mut Session<'_>,
    id: SubscriptionId,
    crowd: &Crowd,
    wanted: u32,
) -> Result<Vec<Slice>> {
    let hop = "WITH RECURSIVE hop (place, rank, until) AS ( \
               SELECT r.place, (SELECT s.rank FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 8 AND s.lane = 0 \
                   AND s.rank >= r.first AND s.rank < r.until ORDER BY s.rank LIMIT 1), r.until \
               FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS r(first, until, place) \
               UNION ALL SELECT h.place, (SELECT s.rank FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 8 \
                   AND s.lane = 0 AND s.rank > h.rank AND s.rank < h.until ORDER BY s.rank LIMIT 1), h.until \
               FROM hop h WHERE h.rank IS NOT NULL) \
               SELECT f.rank FROM (SELECT place, rank FROM hop WHERE rank IS NOT NULL LIMIT $4) f ORDER BY f.place, f.rank";
    let full = crowd.full();
    let (first, until): (Vec<i64>, Vec<i64>) = crowded_ranges(session.now).into_iter().unzip();
    let hops = full.len() as i64 + i64::from(wanted);
    let query = session.query(hop).bind(id.0).bind(first).bind(until).bind(hops);
    let mut ranks: Vec<i64> = Vec::new();
    for row in session.all(query).await? {
        ranks.push(row.try_get(0)?);
    }
    ranks.retain(|rank| !full.contains(&hash_of(*rank)));
    ranks.truncate(wanted as usize);
    if ranks.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT {slice} FROM unnest($2::bigint[]) WITH ORDINALITY AS r(rank, place) CROSS JOIN LATERAL ( \
               SELECT * FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 8 AND s.lane = 0 AND s.rank = r.rank \
               ORDER BY s.pos LIMIT $3 FOR UPDATE SKIP LOCKED) s ORDER BY r.place, s.pos";
    let query = session.query(sql).bind(id.0).bind(ranks).bind(i64::from(crowd.most()));
    slices(&session.all(query).await?)
}

/// What had to wait because of its keys is ready again where keys are limited no longer. Gives the subscriptions where there was
/// something; there may be more.
pub(super) async fn disperse_some(session: &mut Session<'_>, limit: u32) -> Result<Vec<SubscriptionId>> {
    let catalog = session.catalog.clone();
    let free = |policy: &Policy| policy.limits.per_key_concurrency.is_none() && !policy.is_ordered();
    let ids: Vec<i64> =
        catalog.subscriptions().iter().filter(|one| free(&one.policy)).map(|one| one.id.0).collect();
    let sql = "SELECT {slice} FROM unnest($1::bigint[]) AS u(id) CROSS JOIN LATERAL (SELECT * FROM tramline_slice s \
               WHERE s.subscription = u.id AND s.state = 8 LIMIT $2 FOR UPDATE SKIP LOCKED) s";
    let query = session.query(sql).bind(ids).bind(i64::from(limit));
    let crowded = slices(&session.all(query).await?)?;
    let mut woken: Vec<SubscriptionId> = crowded.iter().map(|slice| slice.subscription).collect();
    woken.dedup();
    let Some(first) = woken.first().copied() else { return Ok(woken) };
    // Nothing but the rows change, so that it does not matter whose they are.
    let update = crowded.into_iter().map(disperse).collect();
    apply(session, first, &Changes { update, ..Changes::default() }).await?;
    Ok(woken)
}

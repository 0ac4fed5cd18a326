//! Limits: what a claim may take, counted where it is, under a lock that only claims of the same subscription take.

use super::lapsed::end_lapsed;
use super::outlook::Outlook;
use super::rows::{apply, pick_sql, slices};
use super::session::{Rows, Session};
use super::sql::{Columns, list, text};
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::limits::{Limits, Starts};
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::plan::Changes;
use crate::plan::limit::{Crowd, crowded_ranges, disperse, hash_of};
use crate::store::limit::{Limit, UnderWay};
use crate::store::rows::StepRows;
use crate::store::verbs::Claim;
use std::collections::HashSet;

/// What a claim asks about its limits: it locks the row, and reads what is under way. Others wait there until it is committed.
///
/// Locked for good at once, as the heads of keys are.
pub(super) fn first_reads(id: SubscriptionId, limits: &Limits) -> Vec<String> {
    let lock = "INSERT INTO tramline_limit (subscription) VALUES";
    let mut sql = vec![format!("{lock} ({}) ON DUPLICATE KEY UPDATE subscription = subscription", id.0)];
    sql.extend(under_way_sql(id, limits));
    sql
}

fn under_way_sql(id: SubscriptionId, limits: &Limits) -> Vec<String> {
    let mut sql = vec![format!("SELECT starts FROM tramline_limit WHERE subscription = {}", id.0)];
    sql.extend(limits.most().map(|_| leased_sql(id)));
    sql
}

/// What a claim may take of a limited subscription, of which it has locked the limit. Leases that have ended are looked after first, all
/// of them: what could still be extended counts, and so does what somebody is just settling. `found`: what [`first_reads`] gave, if none
/// has.
pub(super) async fn lay(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &mut Outlook,
    found: Option<Vec<Rows>>,
) -> Result<Limit> {
    let (id, limits) = (claim.subscription, &policy.limits);
    let sets = match found {
        // Without what locks.
        Some(mut found) => found.split_off(1),
        None => {
            end_lapsed(session, id, policy).await?;
            (outlook.expired, outlook.suspects) = (false, true);
            session.sets(under_way_sql(id, limits)).await?
        }
    };
    let starts = sets[0].first().map_or(Ok(String::new()), |row| row.text(0))?;
    let mut under_way = UnderWay { starts: Starts::read(&starts), ..UnderWay::default() };
    for row in sets[1..].iter().flatten() {
        under_way.leased.push((ChunkId(row.int(0)?), Mask::from_i64(row.int(1)?)));
    }
    if limits.per_key_concurrency.is_some() {
        under_way.keys = session.keys(under_way.leased.iter().map(|(chunk, _)| *chunk).collect()).await?;
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

/// How many keys one statement hops over at most in each range. Both servers stop a recursion after a thousand steps unless told
/// otherwise: MySQL with an error, MariaDB without.
const HOPS: usize = 500;

/// Slices of keys that had to wait and have room now, until they may hold `wanted` events.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
pub(super) async fn crowded(
    session: &mut Session<'_>,
    id: SubscriptionId,
    crowd: &Crowd,
    wanted: u32,
) -> Result<Vec<Slice>> {
    let SubscriptionId(number) = id;
    let ranks = crowded_ranks(session, id, &crowd.full(), wanted as usize).await?;
    if ranks.is_empty() {
        return Ok(Vec::new());
    }
    let of_key = |rank: i64| {
        format!(
            "SELECT c.chunk, c.id FROM tramline_slice c FORCE INDEX (tramline_slice_claim) WHERE c.subscription = {number} \
             AND c.state = 8 AND c.lane = 0 AND c.`rank` = {rank} ORDER BY c.pos LIMIT {}",
            crowd.most()
        )
    };
    let pick = |rank: i64| pick_sql(&of_key(rank), "s.state = 8", crowd.most());
    let mut found = Vec::new();
    for rows in session.sets(ranks.into_iter().map(pick).collect()).await? {
        found.extend(slices(&rows)?);
    }
    Ok(found)
}

/// The ranks of keys that had to wait and have room now, in the order of the ranges: `wanted` of them, if there are so many. Hops from
/// key to key in the claim index: no more keys are without room than events are under way.
async fn crowded_ranks(
    session: &mut Session<'_>,
    id: SubscriptionId,
    full: &HashSet<i64>,
    wanted: usize,
) -> Result<Vec<i64>> {
    let mut ranges = crowded_ranges(session.now);
    let mut ranks: Vec<i64> = Vec::new();
    while !ranges.is_empty() && ranks.len() < wanted {
        let hops = (full.len() + wanted - ranks.len()).min(HOPS);
        let mut found = vec![Vec::new(); ranges.len()];
        for row in session.rows(hop_sql(id, &ranges, hops)).await? {
            found[row.int(0)? as usize].push(row.int(1)?);
        }
        let mut left = Vec::new();
        for ((from, until), found) in ranges.into_iter().zip(found) {
            // Behind a range that has more nothing is taken yet: its keys come first.
            if !left.is_empty() {
                left.push((from, until));
                continue;
            }
            ranks.extend(found.iter().filter(|rank| !full.contains(&hash_of(**rank))));
            if let Some(last) = found.last().filter(|_| found.len() >= hops) {
                left.push((last + 1, until));
            }
        }
        ranges = left;
    }
    ranks.truncate(wanted);
    Ok(ranks)
}

/// The ranks of the first keys in each of some ranges, in order.
fn hop_sql(SubscriptionId(id): SubscriptionId, ranges: &[(i64, i64)], hops: usize) -> String {
    let first = |condition: &str| {
        format!(
            "(SELECT s.`rank` FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {id} \
             AND s.state = 8 AND s.lane = 0 AND {condition} ORDER BY s.`rank` LIMIT 1)"
        )
    };
    let begin = |(place, (from, until)): (usize, &(i64, i64))| {
        let first = first(&format!("s.`rank` >= {from} AND s.`rank` < {until}"));
        format!("SELECT {place} AS place, {first} AS `rank`, {until} AS until, 1 AS hops")
    };
    format!(
        "WITH RECURSIVE hop AS ({} UNION ALL SELECT h.place, {}, h.until, h.hops + 1 FROM hop h \
         WHERE h.`rank` IS NOT NULL AND h.hops < {hops}) \
         SELECT place, `rank` FROM hop WHERE `rank` IS NOT NULL ORDER BY place, `rank`",
        ranges.iter().enumerate().map(begin).collect::<Vec<_>>().join(" UNION ALL "),
        first("s.`rank` > h.`rank` AND s.`rank` < h.until"),
    )
}

/// What had to wait because of its keys is ready again where keys are limited no longer. Gives the subscriptions where there was
/// something; there may be more.
pub(super) async fn disperse_some(session: &mut Session<'_>, limit: u32) -> Result<Vec<SubscriptionId>> {
    let catalog = session.catalog.clone();
    let free = |policy: &Policy| policy.limits.per_key_concurrency.is_none() && !policy.is_ordered();
    let ids = catalog.subscriptions().iter().filter(|one| free(&one.policy)).map(|one| one.id.0);
    let sql = format!(
        "SELECT c.chunk, c.id FROM tramline_slice c FORCE INDEX (tramline_slice_claim) WHERE c.subscription IN ({}) AND c.state = 8 \
         LIMIT {limit}",
        list(ids)
    );
    let crowded = slices(&session.rows(pick_sql(&sql, "s.state = 8", limit)).await?)?;
    let mut woken: Vec<SubscriptionId> = crowded.iter().map(|slice| slice.subscription).collect();
    woken.dedup();
    let Some(first) = woken.first().copied() else { return Ok(woken) };
    // Nothing but the rows change, so that it does not matter whose they are.
    let update = crowded.into_iter().map(disperse).collect();
    apply(session, first, &Changes { update, ..Changes::default() });
    Ok(woken)
}

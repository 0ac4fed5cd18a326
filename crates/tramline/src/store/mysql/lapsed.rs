//! Leases that have ended: what was taken under them becomes suspect, dead or interrupted.

use super::due::{SPARE, due_sql};
use super::order;
use super::outlook::RANKS;
use super::rows::{apply, slices};
use super::session::Session;
use super::sql::Columns;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::slice::State;
use crate::model::subscription::Policy;
use crate::plan::Changes;
use crate::plan::expire::expire;

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

/// How often a claim looks for lanes whose lease has ended.
const LAPSED: u32 = 64;

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

/// Leases that have ended make their slices suspect, or dead.
pub(super) async fn expire_leases(
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

/// How many expired leases one claim looks after.
pub(super) const EXPIRED: u32 = 64;

/// What became of leases that have ended.
pub(super) struct Ended {
    pub(super) count: usize,
    /// There are suspects now.
    pub(super) suspects: bool,
}

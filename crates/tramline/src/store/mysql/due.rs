//! Locks what is due, where there is no order.

use super::lapsed::EXPIRED;
use super::outlook::RANKS;
use super::rows::{pick_sql, slices};
use super::session::Session;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};

pub(super) async fn due(
    session: &mut Session<'_>,
    id: SubscriptionId,
    state: State,
    limit: u32,
) -> Result<Vec<Slice>> {
    slices(&session.rows(due_sql(id, state, limit, limit.saturating_mul(SPARE).max(EXPIRED))).await?)
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

/// How many rows to lock at first: as if they were full, but not so few that small ones cost many rounds. Those that are
/// locked and not taken are free again at the end of the transaction.
pub(super) fn slices_wanted(events: u32, single: bool) -> u32 {
    let full = if single { events } else { events.div_ceil(Mask::CAPACITY) };
    full.max(events.min(32))
}

/// True if something is ready although the statement before this one got nothing: others have locked all that it looked at.
pub(super) fn out_of_reach_sql(id: SubscriptionId) -> String {
    format!("SELECT FOUND_ROWS() = 0 AND {}", any_ready(id))
}

/// Whether something is ready, of which a claim with room for more has taken all that nobody had locked.
pub(super) fn any_ready(id: SubscriptionId) -> String {
    format!(
        "EXISTS (SELECT 1 FROM tramline_slice c FORCE INDEX (tramline_slice_claim) WHERE {})",
        is_due("c", id, State::Ready)
    )
}

/// How many due slices a claim looks at for each that it wants, as others may have locked the first ones.
pub(super) const SPARE: u32 = 4;

/// The same, after it got none of those.
pub(super) const CROWDED: u32 = 64;

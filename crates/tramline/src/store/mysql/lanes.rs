//! Lanes: how they are locked and read, always many at a time.

use super::rows::{LANE, SLICE, lane};
use super::session::Rows;
use super::sql::{list, numbered};
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId};
use crate::model::slice::State;
use crate::model::time::Time;
use crate::plan::LaneView;
use std::collections::{BTreeMap, BTreeSet};

/// Locks lanes in sorted order, waiting for whoever has them.
pub(super) fn lock_sql(id: SubscriptionId, lanes: impl Iterator<Item = LaneId>, lock: &str) -> String {
    let lanes: BTreeSet<i64> = lanes.map(|lane| lane.0).collect();
    lock_numbered_sql(id, &numbered(lanes), lock)
}

/// Locks lanes in the order of a table of numbers.
pub(super) fn lock_numbered_sql(id: SubscriptionId, numbered: &str, lock: &str) -> String {
    format!(
        "SELECT {LANE} FROM {numbered} STRAIGHT_JOIN tramline_lane l FORCE INDEX (PRIMARY) \
         ON l.subscription = {} AND l.lane = n.a {lock}",
        id.0
    )
}

/// What is taken in lanes, in the order of its numbers.
///
/// Uses `tramline_slice_claim (subscription, state, lane, ..)`.
pub(super) fn leased_sql(id: SubscriptionId, lanes: &[LaneId]) -> String {
    format!(
        "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE {} ORDER BY s.chunk, s.id",
        is_taken(id, lanes)
    )
}

/// Finds the first slice of a line of all events that is ready and that nobody took before: what has failed stands in front of it.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
pub(super) fn first_new_sql(SubscriptionId(id): SubscriptionId) -> String {
    format!(
        "SELECT pos FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {id} AND state = 0 \
         AND lane = 1 AND `rank` = 0 AND epoch = 0 ORDER BY pos LIMIT 1"
    )
}

/// What failed in lanes that are halted, and is not due. In a line of all events it is ready, up to `end`; elsewhere it waits, perhaps
/// beside what was delayed.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
pub(super) fn failed_sql(SubscriptionId(id): SubscriptionId, end: i64, Time(now): Time) -> String {
    let of = |lane: &str, state: State, more: &str| {
        format!(
            "(SELECT {SLICE} FROM tramline_lane l STRAIGHT_JOIN tramline_slice s FORCE INDEX (tramline_slice_claim) \
             ON s.subscription = {id} AND s.state = {} AND s.lane = {lane} AND s.`rank` = 0 AND {more} \
             WHERE l.subscription = {id} AND l.halted_until > {now} AND s.due_at > {now} AND s.epoch BETWEEN 1 AND l.epoch",
            state as i16
        )
    };
    format!(
        "{} AND l.lane <> 1) UNION ALL {} AND l.lane = 1)",
        of("l.lane", State::Waiting, &format!("s.pos > {now}")),
        of("1", State::Ready, &format!("s.pos <= {end}"))
    )
}

/// True for a slice `s` that is taken in one of the lanes.
pub(super) fn is_taken(SubscriptionId(id): SubscriptionId, lanes: &[LaneId]) -> String {
    let lanes = list(lanes.iter().map(|lane| lane.0));
    format!("s.subscription = {id} AND s.state IN (1, 7) AND s.lane IN ({lanes})")
}

/// Lanes as they were read.
pub(super) fn views(rows: &Rows) -> Result<BTreeMap<LaneId, LaneView>> {
    rows.iter().map(|row| lane(row).map(|lane| (lane.lane, LaneView::new(lane)))).collect()
}

//! Lanes: how they are locked and read, always many at a time.

use super::rows::{LANE, lane};
use super::session::Rows;
use super::sql::numbered;
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId};
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

/// Lanes as they were read.
pub(super) fn views(rows: &Rows) -> Result<BTreeMap<LaneId, LaneView>> {
    rows.iter().map(|row| lane(row).map(|lane| (lane.lane, LaneView::new(lane)))).collect()
}

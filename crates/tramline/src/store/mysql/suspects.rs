//! How an ordered claim finds a suspect: in one lane, which is all that it locks.

use super::lanes::views;
use super::offer::{
    IS_DUE, LEAST_PAGE, Lanes, Seen, TROUBLED, cursor, first_suspects_sql, range_sql, too_few,
};
use super::rows::{LANE, slices};
use super::session::Rows;
use super::sql::numbered_by;
use crate::error::Result;
use crate::model::id::{ChunkId, TopicId};
use crate::model::slice::State;
use crate::store::verbs::Claim;
use std::collections::HashMap;

/// How many statements [`look_sql`] is.
pub(super) const STATEMENTS: usize = 4;

/// The lane that a claim takes a suspect from is in this variable, or NULL.
pub(super) const LANE_FOUND: &str = "@tramline_lane";

/// A look for a lane that has suspects, or is about to have some because its lease has ended, in one round trip: finds those, locks
/// the first that nobody else has locked, and reads it. Whoever takes a suspect takes nothing else, so the other lanes stay
/// free: after a mass loss of leases every worker is here at the same time.
pub(super) fn look_sql(claim: &Claim, backfills: &HashMap<TopicId, ChunkId>) -> Vec<String> {
    let id = claim.subscription;
    let lanes = Lanes::of(claim, "l");
    // Asked once more of the lane that is locked: somebody may have taken it since it was found, and then another one will do.
    let free = format!("{} AND (l.owner = 0 OR {})", lanes.open, lanes.lapsed);
    let found = format!(
        "SELECT l.lane FROM tramline_lane l WHERE {free} AND ({} OR {} IS NOT NULL)",
        lanes.lapsed,
        lanes.first(State::Suspect, ""),
    );
    let below = match backfills.is_empty() {
        true => String::new(),
        false => format!(" AND s.pos < {}", cursor(LANE_FOUND, backfills)),
    };
    let page = (claim.max_events as usize).max(LEAST_PAGE) + 1;
    let work = [
        first_suspects_sql(id, LANE_FOUND),
        range_sql(id, State::Waiting, LANE_FOUND, IS_DUE, &TROUBLED.to_string()),
        range_sql(id, State::Ready, LANE_FOUND, &below, &page.to_string()),
    ];
    vec![
        format!(
            "SELECT GROUP_CONCAT(c.lane ORDER BY {}), NULL INTO @tramline_lanes, {LANE_FOUND} FROM ({found}) c",
            Lanes::of(claim, "c").order
        ),
        format!(
            "SELECT l.lane INTO {LANE_FOUND} FROM {} STRAIGHT_JOIN tramline_lane l FORCE INDEX (PRIMARY) \
             ON l.subscription = {} AND l.lane = n.a WHERE {free} LIMIT 1 FOR UPDATE SKIP LOCKED",
            numbered_by("@tramline_lanes"),
            id.0
        ),
        format!(
            "SELECT {LANE} FROM tramline_lane l WHERE l.subscription = {} AND l.lane = {LANE_FOUND}",
            id.0
        ),
        work.join(" UNION ALL "),
    ]
}

/// Reads what [`look_sql`] gave.
pub(super) fn read(sets: &[Rows]) -> Result<Seen> {
    let [_, _, locked, work] = sets else { return Err(too_few()) };
    let views = views(locked)?;
    Ok(Seen { chosen: views.keys().copied().collect(), views, work: slices(work)?, suspects_wait: false })
}

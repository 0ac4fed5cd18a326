//! When something becomes due next, where there is no order.

use super::session::Session;
use super::sql::Columns;
use crate::error::Result;
use crate::model::event::DEFAULT_PRIORITY;
use crate::model::id::SubscriptionId;
use crate::model::slice::State;
use crate::model::time::Time;
use crate::store::verbs::Claim;
use std::ops::Range;

/// The next time at which something becomes due: a delay or a lease that ends; and whether something due was passed over. Of the usual
/// priority only, where there are no others; whether there are is asked once in a while, and NULL if it is not. A subquery for each
/// priority takes MariaDB more time than all the rest of a claim.
pub(super) fn next_due_sql(session: &Session<'_>, claim: &Claim, passed_over: &str) -> String {
    let (id, usual) = (claim.subscription, i64::from(DEFAULT_PRIORITY));
    // A test's time may pass in a moment.
    let known = session.common.has_priorities(id).filter(|_| claim.now.is_none());
    let of_usual = || first_due(id, usual..usual + 1);
    match known {
        Some(true) => format!("SELECT {}, {passed_over}, NULL", first_due(id, 0..10)),
        Some(false) => format!("SELECT {}, {passed_over}, NULL", of_usual()),
        None => format!(
            "SELECT {}, {passed_over}, EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
             WHERE subscription = {} AND state IN (0, 1, 7) AND lane = 0 AND `rank` IN (0, 1, 2, 3, 4, 6, 7, 8, 9))",
            of_usual(),
            id.0
        ),
    }
}

/// In place of [`super::due::any_ready`]: under a limit, what is ready may have to wait for that.
pub(super) const LEFT: &str = "FALSE";

/// The same of all priorities, if others than the usual one turned out to be in use.
pub(super) async fn after_priorities(
    session: &mut Session<'_>,
    id: SubscriptionId,
    others: bool,
) -> Result<Option<Time>> {
    session.common.learn_priorities(id, others);
    if !others {
        return Ok(None);
    }
    let rows = session.rows(format!("SELECT {}", first_due(id, 0..10))).await?;
    Ok(rows.first().map_or(Ok(None), |row| row.maybe_int(0))?.map(Time))
}

/// When the first slice of some priorities is due that is not yet, or NULL. One index probe per state and priority, each a value of its
/// own: a UNION of them takes MariaDB longer, and what groups them may read all that is delayed, as its statistics will have it.
fn first_due(SubscriptionId(id): SubscriptionId, ranks: Range<i64>) -> String {
    let first = |state: State, rank: i64| {
        format!(
            "COALESCE((SELECT MIN(pos) FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {id} \
             AND state = {} AND lane = 0 AND `rank` = {rank} AND pos > @tramline_now), {NEVER})",
            state as i16
        )
    };
    let states = [State::Ready, State::Leased, State::Consumed];
    let all: Vec<String> =
        states.iter().flat_map(|state| ranks.clone().map(|rank| first(*state, rank))).collect();
    format!("NULLIF(LEAST({}), {NEVER})", all.join(", "))
}

/// Later than anything.
pub(super) const NEVER: i64 = i64::MAX;

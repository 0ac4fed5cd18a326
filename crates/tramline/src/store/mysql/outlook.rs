//! What a claim has to look after besides taking: rules, back-fills, leases that have ended, suspects.

use super::session::Rows;
use super::sql::Columns;
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::rule::RuleKind;
use crate::model::time::Time;
use crate::store::rules::Stop;
use std::collections::HashMap;

/// What there is to do besides taking.
pub(super) struct Outlook {
    /// Topics whose retained events are still being written: ordered claims stay below these chunks.
    pub(super) backfills: HashMap<TopicId, ChunkId>,
    /// Leases have ended that nobody looked after yet.
    pub(super) expired: bool,
    /// There are suspects.
    pub(super) suspects: bool,
    pub(super) stop: Option<Stop>,
}

impl Outlook {
    pub(super) fn read(sets: &[Rows]) -> Result<Outlook> {
        let mut backfills = HashMap::new();
        for row in &sets[1] {
            backfills.insert(TopicId(row.int(0)?), ChunkId(row.int(1)?));
        }
        // A line of all events stays below all of them.
        if let Some(first) = backfills.values().min().copied() {
            backfills.insert(LaneId::WHOLE.topic(), first);
        }
        let mut rules = Vec::new();
        for row in &sets[2] {
            let kind = RuleKind::parse(&row.text(0)?).unwrap_or(RuleKind::Block);
            rules.push((kind, row.maybe_int(1)?.map(Time)));
        }
        let stop = Stop::of(rules.into_iter());
        let flag = |at| sets[0].first().map_or(Ok(false), |row| row.flag(at));
        Ok(Outlook { backfills, expired: flag(0)?, suspects: flag(1)?, stop })
    }
}

/// Rules, back-fills, expired leases, suspects. Leases hang on slices (one index probe per state and priority, however many are
/// leased) or on lanes.
pub(super) fn outlook_sql(SubscriptionId(id): SubscriptionId, ordered: bool) -> Vec<String> {
    let expired = if ordered {
        format!(
            "SELECT 1 FROM tramline_lane WHERE subscription = {id} AND owner <> 0 AND until <= @tramline_now"
        )
    } else {
        format!(
            "SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) WHERE subscription = {id} \
             AND state IN (1, 7) AND lane = 0 AND `rank` {RANKS} AND pos <= @tramline_now"
        )
    };
    vec![
        format!(
            "SELECT EXISTS ({expired}), EXISTS (SELECT 1 FROM tramline_slice FORCE INDEX (tramline_slice_claim) \
             WHERE subscription = {id} AND state = 2)"
        ),
        format!(
            "SELECT topic, backfill_next FROM tramline_subscription_topic \
             WHERE subscription = {id} AND backfill_next <= backfill_until"
        ),
        format!(
            "SELECT kind, until FROM tramline_rule WHERE subscription = {id} AND (until IS NULL OR until > @tramline_now)"
        ),
    ]
}

/// All priorities: each is a range of its own in the claim index.
pub(super) const RANKS: &str = "IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)";

//! What lanes have to offer to an ordered claim: how they are found, locked and read in one round trip, and read on.

use super::lanes::{lock_numbered_sql, views};
use super::next_due::NEVER;
use super::outlook::Outlook;
use super::rows::{SLICE, slices};
use super::session::{Rows, Session};
use super::sql::{Columns, list, numbered_by, pairs};
use crate::error::{Error, Result};
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::lane::{Held, Known};
use crate::model::slice::{Slice, State};
use crate::plan::LaneView;
use crate::plan::claim::Taker;
use crate::store::lanes::{Work, group};
use crate::store::verbs::Claim;
use std::collections::{BTreeMap, HashMap};

/// How many lanes one claim locks at most.
pub(super) const LANES: usize = 64;
/// How many waiting slices one claim reads at most.
pub(super) const TROUBLED: usize = 4096;
/// How many ready slices of each lane are read at first, at least.
pub(super) const LEAST_PAGE: usize = 8;

/// A look at lanes in one round trip: finds them, locks them, and reads what they have to offer.
///
/// The server makes up the last statement from what the first one found. MariaDB has no lateral joins, and a join with the lanes
/// would read all that is in each of them. `unless`: with a value in that variable nothing is found.
pub(super) fn look_sql(
    claim: &Claim,
    backfills: &HashMap<TopicId, ChunkId>,
    unless: Option<&str>,
) -> Vec<String> {
    let id = claim.subscription;
    let lanes = "', GROUP_CONCAT(c.lane), '";
    let below = match backfills.is_empty() {
        true => String::new(),
        false => format!(" AND s.pos < ', {}, '", cursor("c.lane", backfills)),
    };
    let of_one = range_sql(id, State::Ready, "', c.lane, '", &below, "PAGE");
    let pages = format!(
        "REPLACE(GROUP_CONCAT('{of_one}' SEPARATOR ' UNION ALL '), 'PAGE', GREATEST({} DIV COUNT(*), {LEAST_PAGE}) + 1)",
        claim.max_events
    );
    let work = format!(
        "CONCAT('{} UNION ALL {} UNION ALL ', {pages})",
        first_suspects_sql(id, lanes),
        range_sql(id, State::Waiting, lanes, IS_DUE, &TROUBLED.to_string())
    );
    vec![
        format!(
            "SELECT GROUP_CONCAT(c.lane ORDER BY c.lane), COALESCE({work}, 'DO 0') INTO @tramline_lanes, @tramline_work FROM ({}) c",
            candidates_sql(claim, backfills, unless)
        ),
        format!("SELECT @tramline_lanes, {}", suspects_wait(claim)),
        lock_numbered_sql(id, &numbered_by("@tramline_lanes"), "FOR UPDATE SKIP LOCKED"),
        "PREPARE tramline_work FROM @tramline_work".to_owned(),
        "EXECUTE tramline_work".to_owned(),
        "DEALLOCATE PREPARE tramline_work".to_owned(),
    ]
}

/// What a look gave.
pub(super) struct Seen {
    pub(super) chosen: Vec<LaneId>,
    /// Those of them that are locked now.
    pub(super) views: BTreeMap<LaneId, LaneView>,
    /// The first page of what they have to offer.
    pub(super) work: Vec<Slice>,
    /// There are suspects in lanes that were not chosen, or may be.
    pub(super) suspects_wait: bool,
}

impl Seen {
    /// Reads what [`look_sql`] gave.
    pub(super) fn read(sets: &[Rows]) -> Result<Seen> {
        let [_, chosen, locked, _, work, _] = sets else { return Err(too_few()) };
        let first = chosen.first().ok_or_else(too_few)?;
        let chosen = first.maybe_text(0)?.unwrap_or_default();
        let chosen = chosen.split(',').filter_map(|lane| lane.parse().ok()).map(LaneId).collect();
        Ok(Seen { chosen, views: views(locked)?, work: slices(work)?, suspects_wait: first.flag(1)? })
    }
}

pub(super) fn too_few() -> Error {
    Error::unavailable("the server gave fewer answers than it was asked for", "try again")
}

/// Slices of one state in lanes, in their order. Part of a statement; there may be something else than numbers.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
pub(super) fn range_sql(
    SubscriptionId(id): SubscriptionId,
    state: State,
    lanes: &str,
    more: &str,
    limit: &str,
) -> String {
    format!(
        "(SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {id} \
         AND s.state = {} AND s.lane IN ({lanes}) AND s.`rank` = 0{more} ORDER BY s.lane, s.pos, s.chunk, s.id LIMIT {limit})",
        state as i16
    )
}

/// The suspects of lanes, of each only those of the first chunk that has any: there may be thousands. Part of a statement like
/// [`range_sql`].
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`; the position of a suspect in a lane is its chunk.
pub(super) fn first_suspects_sql(SubscriptionId(id): SubscriptionId, lanes: &str) -> String {
    format!(
        "(SELECT {SLICE} FROM (SELECT s.lane, MIN(s.pos) AS pos FROM tramline_slice s FORCE INDEX (tramline_slice_claim) \
         WHERE s.subscription = {id} AND s.state = {suspect} AND s.lane IN ({lanes}) AND s.`rank` = 0 GROUP BY s.lane) f \
         STRAIGHT_JOIN tramline_slice s FORCE INDEX (tramline_slice_claim) ON s.subscription = {id} \
         AND s.state = {suspect} AND s.lane = f.lane AND s.`rank` = 0 AND s.pos = f.pos)",
        suspect = State::Suspect as i16
    )
}

/// Of waiting slices.
pub(super) const IS_DUE: &str = " AND s.pos <= @tramline_now";

/// Conditions on a lane, as SQL.
pub(super) struct Lanes {
    id: SubscriptionId,
    /// The name of the lane's row.
    row: &'static str,
    /// It belongs to the subscription, to the worker's share, and nothing keeps the worker from taking from it.
    pub(super) open: String,
    /// The lease on it has ended, or its owner, who asks, knows nothing of it.
    pub(super) lapsed: String,
    /// Which come first: the worker's own, and of those another one every time.
    pub(super) order: String,
}

impl Lanes {
    pub(super) fn of(claim: &Claim, row: &'static str) -> Lanes {
        let (id, owner) = (claim.subscription, claim.owner.0);
        let own = format!("({row}.lane & 4095) % {} = {}", claim.share.of.max(1), claim.share.index);
        let share = if claim.share.help { String::new() } else { format!(" AND {own}") };
        let held = |closed: &dyn Fn(&Held) -> bool| match &claim.known {
            Known::All => pairs(("l.lane", "l.epoch"), []),
            Known::Only(held) => {
                let held = held.iter().filter(|held| closed(held)).map(|held| (held.lane.0, held.epoch));
                pairs(("l.lane", "l.epoch"), held)
            }
        };
        let forgotten = match &claim.known {
            Known::All => "FALSE".to_owned(),
            Known::Only(_) => format!("l.owner = {owner} AND NOT {}", held(&|_| true)),
        };
        let closed = held(&|held| held.closed);
        Lanes {
            id,
            row,
            open: format!(
                "l.subscription = {} AND l.halted_until <= @tramline_now AND (l.owner = 0 OR l.until <= @tramline_now \
                 OR l.owner = {owner} AND (l.lane <> 1 OR {forgotten})){share} AND NOT (l.owner = {owner} AND {closed})",
                id.0
            ),
            lapsed: format!("(l.owner <> 0 AND l.until <= @tramline_now OR {forgotten})"),
            order: format!("{own} DESC, ({row}.lane + @tramline_now) % 4093"),
        }
    }

    /// The position of the first slice of a state in the lane, or NULL.
    ///
    /// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, one probe. Not MIN, for which all would be read.
    pub(super) fn first(&self, state: State, more: &str) -> String {
        format!(
            "(SELECT s.pos FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {} \
             AND s.state = {} AND s.lane = {}.lane AND s.`rank` = 0{more} ORDER BY s.pos LIMIT 1)",
            self.id.0, state as i16, self.row
        )
    }
}

/// Open lanes with something to do. Nothing is locked, so that lanes beyond those that are wanted stay free; what is found is read
/// again once it is locked. Of a lane with suspects only what comes before these may be taken: one that has nothing of the kind is left
/// to those who take a suspect.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, a few probes per lane.
fn candidates_sql(claim: &Claim, backfills: &HashMap<TopicId, ChunkId>, unless: Option<&str>) -> String {
    let below = match backfills.is_empty() {
        true => String::new(),
        false => format!(" AND s.pos < {}", cursor("l.lane", backfills)),
    };
    let lanes = Lanes::of(claim, "l");
    let (suspect, ready) = (lanes.first(State::Suspect, ""), lanes.first(State::Ready, &below));
    let waiting = lanes.first(State::Waiting, IS_DUE);
    let unless = unless.map_or_else(String::new, |variable| format!(" AND {variable} IS NULL"));
    format!(
        "SELECT l.lane FROM tramline_lane l WHERE {}{unless} AND ({} OR {ready} <= COALESCE({suspect}, {NEVER}) \
         OR {waiting} IS NOT NULL AND {suspect} IS NULL) ORDER BY {} LIMIT {LANES}",
        lanes.open, lanes.lapsed, lanes.order
    )
}

/// Whether an open lane has suspects, locked by somebody or not. Where there are none at all, no lane is looked at.
fn suspects_wait(claim: &Claim) -> String {
    let lanes = Lanes::of(claim, "l");
    format!(
        "EXISTS (SELECT 1 FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {} AND s.state = {}) \
         AND EXISTS (SELECT 1 FROM tramline_lane l WHERE {} AND {} IS NOT NULL)",
        claim.subscription.0,
        State::Suspect as i16,
        lanes.open,
        lanes.first(State::Suspect, "")
    )
}

/// The cursor of the back-fill of a lane: what is above it has to wait.
pub(super) fn cursor(lane: &str, backfills: &HashMap<TopicId, ChunkId>) -> String {
    let cursors: Vec<String> =
        backfills.iter().map(|(topic, next)| format!(" WHEN {} THEN {}", topic.0, next.0)).collect();
    format!("CASE {lane} DIV 4096{} ELSE {} END", cursors.concat(), NEVER)
}

/// What lanes have to offer, page by page: suspects, due waiting slices and ready slices of all lanes in one round trip, and more ready
/// ones as long as less is there than wanted. Ready slices come as whole chunks and not beyond the bytes that are wanted.
pub(super) struct Reading {
    work: BTreeMap<LaneId, Work>,
    /// The lanes to read on, and behind which chunk.
    after: BTreeMap<LaneId, i64>,
    page: usize,
    first: bool,
    events: u64,
    bytes: i64,
}

impl Reading {
    pub(super) fn new(lanes: impl Iterator<Item = LaneId>, taker: &Taker) -> Reading {
        let after: BTreeMap<LaneId, i64> = lanes.map(|lane| (lane, -1)).collect();
        let page = (taker.events as usize / after.len().max(1)).max(LEAST_PAGE);
        Reading { work: BTreeMap::new(), after, page, first: true, events: 0, bytes: 0 }
    }

    /// The next page of each lane. First suspects and waiting slices are few, so those of all lanes are one range each.
    fn sql(&self, id: SubscriptionId, outlook: &Outlook) -> String {
        let range = |state: State, lanes: &str, more: &str, limit: usize| {
            range_sql(id, state, lanes, more, &limit.to_string())
        };
        let mut sql = Vec::new();
        if self.first {
            let lanes = list(self.after.keys().map(|lane| lane.0));
            sql.push(first_suspects_sql(id, &lanes));
            sql.push(range(State::Waiting, &lanes, IS_DUE, TROUBLED));
        }
        for (lane, after) in &self.after {
            let below = outlook.backfills.get(&lane.topic());
            let below = below.map_or_else(String::new, |chunk| format!(" AND s.pos < {}", chunk.0));
            let more = format!(" AND s.pos > {after}{below}");
            sql.push(range(State::Ready, &lane.0.to_string(), &more, self.page + 1));
        }
        sql.join(" UNION ALL ")
    }

    /// Takes a page in.
    pub(super) fn read(&mut self, found: Vec<Slice>) {
        let (ready, troubled): (Vec<Slice>, Vec<Slice>) =
            found.into_iter().partition(|slice| slice.state == State::Ready);
        for slice in troubled {
            self.count(&slice);
            let lane = self.work.entry(slice.lane).or_default();
            match slice.state {
                State::Suspect => lane.suspects.push(slice),
                _ => lane.waiting.push(slice),
            }
        }
        let mut ready = group(ready);
        let mut next = BTreeMap::new();
        for (lane, after) in std::mem::take(&mut self.after) {
            let mut found = ready.remove(&lane).unwrap_or_default();
            // One more than the page says that there is more, and that its chunk may be here in part only.
            if let Some(more) = found.get(self.page).map(|slice| slice.chunk) {
                found.retain(|slice| slice.chunk < more);
                next.insert(lane, found.last().map_or(after, |slice| slice.chunk.0));
            }
            found.iter().for_each(|slice| self.count(slice));
            if !found.is_empty() {
                self.work.entry(lane).or_default().ready.extend(found);
            }
        }
        // A chunk has at most 64 slices in a lane: soon one fits into a page.
        (self.after, self.page, self.first) = (next, self.page * 4, false);
    }

    /// Only these lanes are of interest: others could not be locked.
    pub(super) fn keep(&mut self, wanted: impl Fn(&LaneId) -> bool) {
        self.after.retain(|lane, _| wanted(lane));
        self.work.retain(|lane, _| wanted(lane));
        let slices =
            self.work.values().flat_map(|work| work.suspects.iter().chain(&work.waiting).chain(&work.ready));
        (self.events, self.bytes) = slices.fold((0, 0), |(events, bytes), slice| {
            (events + u64::from(slice.mask.count()), bytes + i64::from(slice.bytes))
        });
    }

    fn count(&mut self, slice: &Slice) {
        self.events += u64::from(slice.mask.count());
        self.bytes += i64::from(slice.bytes);
    }

    /// Reads on until there is as much as is wanted.
    pub(super) async fn rest(
        mut self,
        session: &mut Session<'_>,
        id: SubscriptionId,
        outlook: &Outlook,
        taker: &Taker,
    ) -> Result<BTreeMap<LaneId, Work>> {
        while !self.after.is_empty() && self.events < u64::from(taker.events) && self.bytes < taker.bytes {
            let rows = session.rows(self.sql(id, outlook)).await?;
            self.read(slices(&rows)?);
        }
        for lane in self.work.values_mut() {
            lane.ready.sort_by_key(|slice| (slice.chunk, slice.id));
        }
        Ok(self.work)
    }
}

//! What lanes have to offer to an ordered claim: how they are found, locked and read in one round trip, and read on.

use super::claim::{NEVER, Outlook};
use super::lanes::{lock_numbered_sql, views};
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
use crate::store::verbs::{Claim, Suspects};
use std::collections::{BTreeMap, HashMap};

/// How many lanes one claim locks at most.
pub(super) const LANES: usize = 64;
/// How many suspects, and how many waiting slices, one claim reads at most.
pub(super) const TROUBLED: usize = 4096;
/// How many ready slices of each lane are read at first, at least.
const LEAST_PAGE: usize = 8;

/// A look at lanes in one round trip: finds them, locks them, and reads what they have to offer.
///
/// The server makes up the last statement from what the first one found. MariaDB has no lateral joins, and a join with the lanes
/// would read all that is in each of them.
pub(super) fn look_sql(claim: &Claim, backfills: &HashMap<TopicId, ChunkId>) -> Vec<String> {
    let id = claim.subscription;
    let of_all = |state: State, more: &str, limit: usize| {
        range_sql(id, state, "', GROUP_CONCAT(c.lane), '", more, &limit.to_string())
    };
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
        of_all(State::Suspect, "", TROUBLED),
        of_all(State::Waiting, IS_DUE, TROUBLED)
    );
    vec![
        format!(
            "SELECT GROUP_CONCAT(c.lane ORDER BY c.lane), COALESCE({work}, 'DO 0') INTO @tramline_lanes, @tramline_work FROM ({}) c",
            candidates_sql(claim, backfills)
        ),
        "SELECT @tramline_lanes".to_owned(),
        lock_numbered_sql(id, &numbered_by("@tramline_lanes"), "FOR UPDATE SKIP LOCKED"),
        "PREPARE tramline_work FROM @tramline_work".to_owned(),
        "EXECUTE tramline_work".to_owned(),
        "DEALLOCATE PREPARE tramline_work".to_owned(),
    ]
}

/// What [`look_sql`] gave.
pub(super) struct Seen {
    pub(super) chosen: Vec<LaneId>,
    /// Those of them that are locked now.
    pub(super) views: BTreeMap<LaneId, LaneView>,
    /// The first page of what they have to offer.
    pub(super) work: Vec<Slice>,
}

impl Seen {
    pub(super) fn read(sets: &[Rows]) -> Result<Seen> {
        let [_, chosen, locked, _, work, _] = sets else {
            return Err(Error::unavailable(
                "the server gave fewer answers than it was asked for",
                "try again",
            ));
        };
        let chosen = chosen.first().map_or(Ok(None), |row| row.maybe_text(0))?.unwrap_or_default();
        let chosen = chosen.split(',').filter_map(|lane| lane.parse().ok()).map(LaneId).collect();
        Ok(Seen { chosen, views: views(locked)?, work: slices(work)? })
    }
}

/// Slices of one state in lanes, in their order. Part of a statement; there may be something else than numbers.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`.
fn range_sql(
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

/// Of waiting slices.
const IS_DUE: &str = " AND s.pos <= @tramline_now";

/// Open lanes with something to do. Nothing is locked, so that lanes beyond those that are wanted stay free; what is found is read
/// again once it is locked. Those with suspects, or about to have some, come first if a suspect is wanted, then the worker's own, and
/// of those another one every time.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, three probes per lane.
fn candidates_sql(claim: &Claim, backfills: &HashMap<TopicId, ChunkId>) -> String {
    let (SubscriptionId(id), owner) = (claim.subscription, claim.owner.0);
    let has = |state: State, more: &str| {
        format!(
            "EXISTS (SELECT 1 FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {id} \
             AND s.state = {} AND s.lane = l.lane{more})",
            state as i16
        )
    };
    let own = format!("(l.lane & 4095) % {} = {}", claim.share.of.max(1), claim.share.index);
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
    let below = match backfills.is_empty() {
        true => String::new(),
        false => format!(" AND s.pos < {}", cursor("l.lane", backfills)),
    };
    let troubled =
        format!("(l.owner <> 0 AND l.until <= @tramline_now OR {forgotten} OR {})", has(State::Suspect, ""));
    let first = match claim.suspects {
        Suspects::TakeOne => format!("{troubled} DESC, "),
        Suspects::Leave => String::new(),
    };
    format!(
        "SELECT l.lane FROM tramline_lane l WHERE l.subscription = {id} AND l.halted_until <= @tramline_now \
         AND (l.owner = 0 OR l.until <= @tramline_now OR l.owner = {owner} AND (l.lane <> 1 OR {forgotten})){share} AND NOT (l.owner = {owner} AND {closed}) \
         AND ({troubled} OR {} OR {}) ORDER BY {first}{own} DESC, (l.lane + @tramline_now) % 4093 LIMIT {LANES}",
        has(State::Ready, &format!(" AND s.`rank` = 0{below}")),
        has(State::Waiting, &format!(" AND s.`rank` = 0{IS_DUE}"))
    )
}

/// The cursor of the back-fill of a lane: what is above it has to wait.
fn cursor(lane: &str, backfills: &HashMap<TopicId, ChunkId>) -> String {
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
    /// Nothing is known of the suspects of lanes behind this one.
    unknown: Option<LaneId>,
}

impl Reading {
    pub(super) fn new(lanes: impl Iterator<Item = LaneId>, taker: &Taker) -> Reading {
        let after: BTreeMap<LaneId, i64> = lanes.map(|lane| (lane, -1)).collect();
        let page = (taker.events as usize / after.len().max(1)).max(LEAST_PAGE);
        Reading { work: BTreeMap::new(), after, page, first: true, events: 0, bytes: 0, unknown: None }
    }

    /// The next page of each lane. Suspects and waiting slices are few, so those of all lanes are one range each.
    fn sql(&self, id: SubscriptionId, outlook: &Outlook) -> String {
        let range = |state: State, lanes: &str, more: &str, limit: usize| {
            range_sql(id, state, lanes, more, &limit.to_string())
        };
        let mut sql = Vec::new();
        if self.first {
            let lanes = list(self.after.keys().map(|lane| lane.0));
            sql.push(range(State::Suspect, &lanes, "", TROUBLED));
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
        let (suspects, waiting) = troubled.into_iter().partition(|slice| slice.state == State::Suspect);
        self.read_suspects(suspects);
        for slice in waiting {
            self.count(&slice);
            self.work.entry(slice.lane).or_default().waiting.push(slice);
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

    /// Of each lane the suspects of the first chunk. If there are so many that not all could be read, nothing is known of the lanes
    /// behind them: whatever comes before a suspect runs before it, so they are left alone.
    fn read_suspects(&mut self, found: Vec<Slice>) {
        if let Some(last) = found.get(TROUBLED - 1).map(|slice| slice.lane) {
            self.unknown = Some(last);
        }
        for slice in found {
            let lane = self.work.entry(slice.lane).or_default();
            if lane.suspects.first().is_none_or(|first| first.chunk == slice.chunk) {
                self.events += u64::from(slice.mask.count());
                self.bytes += i64::from(slice.bytes);
                lane.suspects.push(slice);
            }
        }
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
        self.work.retain(|lane, _| self.unknown.is_none_or(|last| *lane <= last));
        for lane in self.work.values_mut() {
            lane.ready.sort_by_key(|slice| (slice.chunk, slice.id));
        }
        Ok(self.work)
    }
}

//! What is taken in a lane, and how that is told from what is ready.
//!
//! The lane has the lease, and a slice of it needs none. So what a claim takes from the beginning of a lane gets no mark: its rows stay as they
//! were emitted, and the row of the lane, which is written anyway, begins after them (`low`). What lies below is taken by the holder of the
//! lane, under its epoch. That saves a new version of each row and its entries in two indexes, which took a third of the server's time.
//!
//! That goes for whole slices without a gap, as far as it is proven that nothing can come between them any more ([`super::low`]). All other
//! slices are marked, as they are where there is no order. And before anything below a beginning becomes ready again, what is taken there
//! gets its mark ([`mark_before`]).

use super::low::made_ready;
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, Incarnation, LaneId, SliceId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::mask::Mask;
use crate::model::slice::{Slice, State};
use crate::plan::Changes;
use crate::store::rows::StepRows;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Where a lane begins, and who has taken what is below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) low: i64,
    epoch: i64,
    owner: Option<Incarnation>,
}

impl Start {
    pub(super) fn of(lane: &Lane, low: i64) -> Start {
        Start { low, epoch: lane.epoch, owner: lane.owner }
    }
}

/// Where lanes begin.
pub(super) type Starts = HashMap<(SubscriptionId, LaneId), Start>;

/// Where lanes begin at least.
pub(super) type Lows = BTreeMap<LaneId, i64>;

/// A slice as it is if its lane begins there.
pub(super) fn as_taken(slice: Slice, starts: &Starts) -> Slice {
    let start = starts.get(&(slice.subscription, slice.lane)).filter(|start| slice.chunk.0 < start.low);
    match start.and_then(|start| Some((start.epoch, start.owner?))) {
        Some((epoch, owner)) if slice.state == State::Ready && slice.is_ordered() => {
            Slice { state: State::Leased, epoch, owner, ..slice }
        }
        _ => slice,
    }
}

/// Marks what is taken in lanes that these changes set back. Comes before all that they write.
pub(super) async fn mark_before(
    session: &mut Session<'_>,
    id: SubscriptionId,
    changes: &Changes,
) -> Result<()> {
    let mut lanes = set_back(session, id, made_ready(changes)).await?;
    lanes.extend(changes.unpark.iter().map(|(lane, _)| *lane));
    mark(session, id, lanes).await
}

/// The lanes that begin after something which becomes ready in them. Those that the step has not locked are locked now.
pub(super) async fn set_back(
    session: &mut Session<'_>,
    id: SubscriptionId,
    ready: impl Iterator<Item = (LaneId, ChunkId)>,
) -> Result<BTreeSet<LaneId>> {
    let mut first: BTreeMap<LaneId, ChunkId> = BTreeMap::new();
    for (lane, chunk) in ready {
        let first = first.entry(lane).or_insert(chunk);
        *first = chunk.min(*first);
    }
    let unknown: BTreeSet<LaneId> =
        first.keys().copied().filter(|lane| !session.starts.contains_key(&(id, *lane))).collect();
    if !unknown.is_empty() {
        session.lock_lanes(id, &unknown).await?;
    }
    let is_before = |(lane, chunk): &(LaneId, ChunkId)| {
        session.starts.get(&(id, *lane)).is_some_and(|start| chunk.0 < start.low)
    };
    Ok(first.into_iter().filter(is_before).map(|(lane, _)| lane).collect())
}

/// Marks all that is taken in lanes, which the step has locked.
pub(super) async fn mark(
    session: &mut Session<'_>,
    id: SubscriptionId,
    lanes: BTreeSet<LaneId>,
) -> Result<()> {
    let start = |lane: LaneId| session.starts.get(&(id, lane)).map(|start| (lane, *start));
    let held: Vec<(LaneId, Start)> =
        lanes.into_iter().filter_map(start).filter(|(_, start)| start.owner.is_some()).collect();
    if held.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE tramline_slice s SET state = 1, epoch = u.epoch, owner = u.owner \
               FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS u(lane, low, epoch, owner) \
               WHERE s.subscription = $1 AND s.state = 0 AND s.lane = u.lane AND s.rank = 0 AND s.pos < u.low";
    let column = |value: fn(&(LaneId, Start)) -> i64| held.iter().map(value).collect::<Vec<i64>>();
    let query = session
        .query(sql)
        .bind(id.0)
        .bind(column(|(lane, _)| lane.0))
        .bind(column(|(_, start)| start.low))
        .bind(column(|(_, start)| start.epoch))
        .bind(column(|(_, start)| start.owner.map_or(0, |owner| owner.0)));
    session.run(query).await.map(|_| ())
}

/// A ready slice before a claim takes from its lane.
pub(super) struct Seen {
    chunk: ChunkId,
    id: SliceId,
    mask: Mask,
}

impl Seen {
    pub(super) fn of(slice: &Slice) -> Seen {
        Seen { chunk: slice.chunk, id: slice.id, mask: slice.mask }
    }
}

/// What a claim took without a mark.
pub(super) struct Unmarked {
    /// Up to where nothing can come between.
    proven: ChunkId,
    slices: HashSet<(ChunkId, SliceId)>,
    /// The lanes begin after it.
    pub(super) lows: Lows,
}

impl Unmarked {
    pub(super) fn up_to(proven: ChunkId) -> Unmarked {
        Unmarked { proven, slices: HashSet::new(), lows: Lows::new() }
    }

    /// What was taken from a lane. `seen` is what was ready there, from its beginning, in the order of chunks and without a gap.
    pub(super) fn add(&mut self, lane: LaneId, seen: &[Seen], taken: &[Slice]) {
        let taken: HashMap<(ChunkId, SliceId), &Slice> =
            taken.iter().map(|slice| ((slice.chunk, slice.id), slice)).collect();
        let is_whole = |seen: &Seen| {
            let slice = taken.get(&(seen.chunk, seen.id));
            slice.is_some_and(|slice| slice.mask == seen.mask && slice.state == State::Leased)
        };
        let chunks = seen.chunk_by(|a, b| a.chunk == b.chunk);
        for chunk in chunks.take_while(|chunk| chunk[0].chunk <= self.proven && chunk.iter().all(is_whole)) {
            self.slices.extend(chunk.iter().map(|seen| (seen.chunk, seen.id)));
            self.lows.insert(lane, chunk[0].chunk.0 + 1);
        }
    }

    /// What is not written of a claim.
    pub(super) fn leave_out(&self, changes: &mut Changes) {
        changes.update.retain(|slice| !self.slices.contains(&(slice.chunk, slice.id)));
    }
}

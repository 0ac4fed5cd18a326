//! Settle, extend and release: everything that a lease allows. One round trip locks, another one writes and commits.

use super::lanes::{is_taken, leased_sql, lock_sql, views};
use super::rows::{META, SLICE, apply, chunk, slices, write_lanes};
use super::session::{Rows, Session};
use super::sql::{LIST, fours, numbered, paired};
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SliceId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::plan::limit::Keys;
use crate::plan::release::{release as plan_release, release_lane};
use crate::plan::settle::{by_lane_of, settle as plan_settle, settle_lane};
use crate::plan::{Changes, LaneView};
use crate::store::lanes::{fill_keys, load_keys, load_marks};
use crate::store::rows::StepRows;
use crate::store::verbs::{Extend, Extended, Release, Settle, SettleSlice, Settled};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The rows that leases name, by their numbers.
type Named = BTreeMap<(ChunkId, SliceId), Slice>;

/// What a settlement asks in its first round trip: the rows that it is about, locked. Nothing of it depends on the catalogue.
pub(super) struct Asked {
    slices: Vec<String>,
    lanes: Vec<String>,
    /// Where there is order and something failed: all that is taken in those lanes, and its keys.
    taken: Vec<String>,
    failed: BTreeSet<LaneId>,
}

impl Asked {
    pub(super) fn by(settle: &Settle) -> Asked {
        Asked::locking(settle, lock_slices_sql(settle.subscription, unordered(settle)))
    }

    /// The same in a transaction of the caller, which cannot be repeated; `held` are the leases without order that hold. Newer servers of
    /// MariaDB refuse a statement that looks at a row and then locks it, if the row has changed in between, and undo the transaction.
    pub(super) fn knowing(settle: &Settle, held: &[Lease]) -> Asked {
        Asked::locking(settle, named_sql(settle.subscription, held.iter(), " FOR UPDATE"))
    }

    fn locking(settle: &Settle, slices: Vec<String>) -> Asked {
        let id = settle.subscription;
        let ordered: Vec<&Lease> =
            settle.results.iter().map(|result| &result.lease).filter(|lease| lease.is_ordered()).collect();
        let mut lanes = Vec::new();
        if !ordered.is_empty() {
            // What the leases name is read behind the locks: mostly it is all that matters.
            lanes.push(lock_sql(id, ordered.iter().map(|lease| lease.lane), "FOR UPDATE"));
            lanes.extend(named_sql(id, ordered.into_iter(), ""));
        }
        let failed =
            settle.results.iter().filter(|result| result.lease.is_ordered() && !result.is_all_done());
        let failed: BTreeSet<LaneId> = failed.map(|result| result.lease.lane).collect();
        let taken = if failed.is_empty() { Vec::new() } else { taken_sql(id, &failed) };
        Asked { slices, lanes, taken, failed }
    }

    pub(super) fn statements(&self) -> Vec<String> {
        self.slices.iter().chain(&self.lanes).chain(&self.taken).cloned().collect()
    }
}

fn unordered(settle: &Settle) -> impl Iterator<Item = &Lease> {
    settle.results.iter().map(|result| &result.lease).filter(|lease| !lease.is_ordered())
}

/// What tells which leases without order hold. Nothing is locked by it.
pub(super) fn look_sql(settle: &Settle) -> Vec<String> {
    named_sql(settle.subscription, unordered(settle), "")
}

/// The leases without order that hold, by what [`look_sql`] gave.
pub(super) fn held(settle: &Settle, sets: &[Rows]) -> Result<Vec<Lease>> {
    let rows = by_number(sets.iter())?;
    let holds =
        |lease: &&Lease| rows.get(&(lease.chunk, lease.slice)).is_some_and(|slice| slice.is_under(lease));
    Ok(unordered(settle).filter(holds).copied().collect())
}

/// All that is taken in lanes, and the keys of its chunks: a failure may concern it.
///
/// Uses `tramline_slice_claim (subscription, state, lane, ..)`.
fn taken_sql(id: SubscriptionId, lanes: &BTreeSet<LaneId>) -> Vec<String> {
    let lanes: Vec<LaneId> = lanes.iter().copied().collect();
    let chunks = format!(
        "SELECT DISTINCT s.chunk AS a FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE {}",
        is_taken(id, &lanes)
    );
    let keys = format!("SELECT {META} FROM ({chunks}) n STRAIGHT_JOIN tramline_chunk c ON c.chunk = n.a");
    vec![leased_sql(id, &lanes), keys]
}

/// What [`taken_sql`] gave, with the keys filled in.
fn taken_with_keys(sets: &[Rows], views: &mut BTreeMap<LaneId, LaneView>) -> Result<Vec<Slice>> {
    let [taken, metas] = sets else { return Ok(Vec::new()) };
    let taken = slices(taken)?;
    let mut keys: Keys = HashMap::new();
    for row in metas {
        let row = chunk(row)?;
        keys.insert(row.chunk, row.keys()?.into());
    }
    fill_keys(views, &taken, &keys);
    Ok(taken)
}

/// `session` may have asked already.
pub(super) async fn settle(session: &mut Session<'_>, settle: &Settle, asked: &Asked) -> Result<Settled> {
    let mut found = match session.found.take() {
        Some(found) => found,
        None => session.sets(asked.statements()).await?,
    };
    let mut lanes = found.split_off(asked.slices.len());
    let taken = lanes.split_off(asked.lanes.len());
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(settle.subscription)?.policy;
    let mut answer = Settled { accepted: vec![Vec::new(); settle.results.len()], ..Settled::default() };
    let (ordered, unordered): (Vec<usize>, Vec<usize>) =
        (0..settle.results.len()).partition(|at| settle.results[*at].lease.is_ordered());
    if !unordered.is_empty() {
        settle_slices(session, settle, &unordered, policy, by_number(found.iter())?, &mut answer);
    }
    if !ordered.is_empty() {
        let found = FoundLanes { lanes, taken, failed: &asked.failed };
        settle_lanes(session, settle, &ordered, policy, found, &mut answer).await?;
    }
    answer.wake |= answer.frees(policy);
    answer.news = session.finish().await?;
    Ok(answer)
}

fn settle_slices(
    session: &mut Session<'_>,
    settle: &Settle,
    results: &[usize],
    policy: &Policy,
    rows: Named,
    answer: &mut Settled,
) {
    // Several results may be about one lease: they are decided together, because each changes the row.
    let mut by_lease: BTreeMap<Lease, Vec<usize>> = BTreeMap::new();
    for at in results {
        by_lease.entry(settle.results[*at].lease).or_default().push(*at);
    }
    let mut changes = Changes { worker: settle.worker.clone(), ..Changes::default() };
    for (lease, results) in by_lease {
        let outcomes: Vec<(u32, Outcome)> =
            results.iter().flat_map(|at| settle.results[*at].outcomes.iter().cloned()).collect();
        let slice = rows.get(&(lease.chunk, lease.slice)).filter(|slice| slice.is_under(&lease));
        let accepted = match slice {
            Some(slice) => plan_settle(slice.clone(), &outcomes, policy, session.now, &mut changes),
            None => vec![false; outcomes.len()],
        };
        let mut accepted = accepted.into_iter();
        for at in results {
            answer.accepted[at] = accepted.by_ref().take(settle.results[at].outcomes.len()).collect();
        }
    }
    answer.wake |= changes.wake;
    apply(session, settle.subscription, &changes);
}

/// The rows that leases name, whether or not the leases still hold, by the primary key.
fn named_sql<'a>(id: SubscriptionId, leases: impl Iterator<Item = &'a Lease>, lock: &str) -> Vec<String> {
    let rows: BTreeSet<(i64, i64)> = leases.map(|lease| (lease.chunk.0, lease.slice.0)).collect();
    let rows: Vec<(i64, i64)> = rows.into_iter().collect();
    let select = |some: &[(i64, i64)]| {
        format!(
            "SELECT {SLICE} FROM {} STRAIGHT_JOIN tramline_slice s FORCE INDEX (PRIMARY) \
             ON s.chunk = n.a AND s.id = n.b WHERE s.subscription = {}{lock}",
            paired(some.iter().copied()),
            id.0
        )
    };
    rows.chunks(LIST).map(select).collect()
}

/// Locks the rows of leases that hold, in the order of their numbers. An old lease waits for nobody: whoever has its row now may keep it
/// locked for long, in a transaction of his own.
///
/// Which leases hold is read without locks: a statement that locks waits for every row that it reads. The LIMIT keeps MySQL from joining
/// the two into one.
fn lock_slices_sql<'a>(id: SubscriptionId, leases: impl Iterator<Item = &'a Lease>) -> Vec<String> {
    let leases: BTreeSet<[i64; 4]> =
        leases.map(|lease| [lease.chunk.0, lease.slice.0, lease.epoch, lease.owner.0]).collect();
    let leases: Vec<[i64; 4]> = leases.into_iter().collect();
    let lock = |some: &[[i64; 4]]| {
        format!(
            "SELECT {SLICE} FROM (SELECT n.a, n.b FROM {} STRAIGHT_JOIN tramline_slice h FORCE INDEX (PRIMARY) \
             ON h.chunk = n.a AND h.id = n.b WHERE h.epoch = n.c AND h.owner = n.d LIMIT {}) n \
             STRAIGHT_JOIN tramline_slice s FORCE INDEX (PRIMARY) ON s.chunk = n.a AND s.id = n.b \
             WHERE s.subscription = {} FOR UPDATE",
            fours(some),
            some.len(),
            id.0
        )
    };
    leases.chunks(LIST).map(lock).collect()
}

async fn lock_slices<'a>(
    session: &mut Session<'_>,
    id: SubscriptionId,
    leases: impl Iterator<Item = &'a Lease>,
) -> Result<Named> {
    let sets = session.sets(lock_slices_sql(id, leases)).await?;
    by_number(sets.iter())
}

fn by_number<'a>(sets: impl Iterator<Item = &'a Rows>) -> Result<Named> {
    let mut named = Named::new();
    for rows in sets {
        named.extend(slices(rows)?.into_iter().map(|slice| ((slice.chunk, slice.id), slice)));
    }
    Ok(named)
}

/// What was found of lanes.
struct FoundLanes<'a> {
    lanes: Vec<Rows>,
    taken: Vec<Rows>,
    failed: &'a BTreeSet<LaneId>,
}

async fn settle_lanes(
    session: &mut Session<'_>,
    settle: &Settle,
    results: &[usize],
    policy: &Policy,
    found: FoundLanes<'_>,
    answer: &mut Settled,
) -> Result<()> {
    let id = settle.subscription;
    let (mut views, named) = (views(&found.lanes[0])?, by_number(found.lanes[1..].iter())?);
    let mut by_lane: BTreeMap<LaneId, Vec<usize>> = BTreeMap::new();
    for &at in results {
        let lease = &settle.results[at].lease;
        if views.get(&lease.lane).is_some_and(|view| view.lane.is_under(lease)) {
            by_lane.entry(lease.lane).or_default().push(at);
        } else {
            answer.accepted[at] = vec![false; settle.results[at].outcomes.len()];
        }
    }
    views.retain(|lane, _| by_lane.contains_key(lane));
    let all = load_lanes(session, settle, &mut views, &by_lane, named, found).await?;
    let mut changes = Changes { worker: settle.worker.clone(), ..Changes::default() };
    let mut all = by_lane_of(all);
    for (lane, results) in &by_lane {
        let Some(view) = views.get_mut(lane) else { continue };
        let wanted: Vec<&SettleSlice> = results.iter().map(|at| &settle.results[*at]).collect();
        let leased = all.remove(lane).unwrap_or_default();
        let settled = settle_lane(view, leased, &wanted, policy, session.now, &mut changes)?;
        for (at, accepted) in results.iter().zip(settled.accepted) {
            answer.accepted[*at] = accepted;
        }
        answer.waiting.extend(settled.waiting);
    }
    answer.wake |= changes.wake;
    apply(session, id, &changes);
    let lanes: Vec<&Lane> = views.values().map(|view| &view.lane).collect();
    write_lanes(session, &lanes);
    Ok(())
}

/// What settlements may touch. In lanes without marks in which nothing failed, that is what they name, and no key has to be known;
/// in others everything that is taken, with its keys.
async fn load_lanes(
    session: &mut Session<'_>,
    settle: &Settle,
    views: &mut BTreeMap<LaneId, LaneView>,
    by_lane: &BTreeMap<LaneId, Vec<usize>>,
    named: Named,
    found: FoundLanes<'_>,
) -> Result<Vec<Slice>> {
    let is_plain = |lane: &LaneId, results: &[usize]| {
        views.get(lane).is_some_and(|view| view.lane.marks == 0)
            && results.iter().all(|at| settle.results[*at].is_all_done())
    };
    let others: BTreeSet<LaneId> =
        by_lane.iter().filter(|(lane, results)| !is_plain(lane, results)).map(|(lane, _)| *lane).collect();
    let mut all: Vec<Slice> = named.into_values().filter(Slice::is_taken).collect();
    all.retain(|slice| by_lane.contains_key(&slice.lane) && !others.contains(&slice.lane));
    if !others.is_empty() {
        let mut taken = taken_with_keys(&found.taken, views)?;
        // Nothing failed there, but they have marks.
        let marked: BTreeSet<LaneId> = others.difference(found.failed).copied().collect();
        if !marked.is_empty() {
            let sets = session.sets(taken_sql(settle.subscription, &marked)).await?;
            taken.extend(taken_with_keys(&sets, views)?);
        }
        taken.retain(|slice| others.contains(&slice.lane));
        taken.sort_by_key(|slice| (slice.chunk, slice.id));
        load_marks(session, views, &taken).await?;
        all.extend(taken);
    }
    Ok(all)
}

/// Rows that another transaction has locked are passed over: a handler's own transaction may have them for long, and the
/// other leases must not end because of that.
pub(super) async fn extend(session: &mut Session<'_>, extend: &Extend) -> Result<Vec<Extended>> {
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(extend.subscription)?.policy;
    let until = session.now.after(extend.lease.unwrap_or_else(|| policy.lease()));
    let mut answers = vec![Extended::Lost; extend.leases.len()];
    let (ordered, plain): (Vec<usize>, Vec<usize>) =
        (0..extend.leases.len()).partition(|at| extend.leases[*at].is_ordered());
    let answer = |under: bool, free: bool| match (under, free) {
        (true, true) => Extended::Until(until),
        (true, false) => Extended::Locked,
        (false, _) => Extended::Lost,
    };
    if !plain.is_empty() {
        let leases = || plain.iter().map(|at| &extend.leases[*at]);
        let mut sql = named_sql(extend.subscription, leases(), "");
        sql.extend(named_sql(extend.subscription, leases(), " FOR UPDATE SKIP LOCKED"));
        let sets = session.sets(sql).await?;
        let (seen, free) = sets.split_at(sets.len() / 2);
        let (seen, free) = (by_number(seen.iter())?, by_number(free.iter())?);
        let mut changes = Changes::default();
        for at in &plain {
            let lease = &extend.leases[*at];
            let under = |rows: &Named| {
                rows.get(&(lease.chunk, lease.slice)).is_some_and(|slice| slice.is_under(lease))
            };
            answers[*at] = answer(under(&seen), under(&free));
            if let (Extended::Until(_), Some(slice)) = (answers[*at], free.get(&(lease.chunk, lease.slice))) {
                changes.update.push(Slice { due_at: until, ..slice.clone() });
            }
        }
        apply(session, extend.subscription, &changes);
    }
    if !ordered.is_empty() {
        let lanes: BTreeSet<i64> = ordered.iter().map(|at| extend.leases[*at].lane.0).collect();
        let sql = |lock: &str| lock_sql(extend.subscription, lanes.iter().copied().map(LaneId), lock);
        let sets = session.sets(vec![sql(""), sql("FOR UPDATE SKIP LOCKED")]).await?;
        let (seen, free) = (views(&sets[0])?, views(&sets[1])?);
        let mut extended = BTreeSet::new();
        for at in &ordered {
            let lease = &extend.leases[*at];
            let under = |views: &BTreeMap<LaneId, LaneView>| {
                views.get(&lease.lane).is_some_and(|view| view.lane.is_under(lease))
            };
            answers[*at] = answer(under(&seen), under(&free));
            if matches!(answers[*at], Extended::Until(_)) {
                extended.insert(lease.lane.0);
            }
        }
        if !extended.is_empty() {
            session.write(format!(
                "UPDATE {} STRAIGHT_JOIN tramline_lane l FORCE INDEX (PRIMARY) \
                 ON l.subscription = {} AND l.lane = n.a SET l.until = {}",
                numbered(extended),
                extend.subscription.0,
                until.0
            ));
        }
    }
    Ok(answers)
}

pub(super) async fn release(session: &mut Session<'_>, release: &Release) -> Result<u64> {
    let id = release.subscription;
    let (given, plain): (BTreeSet<Lease>, BTreeSet<Lease>) =
        release.leases.iter().partition(|lease| lease.is_ordered());
    let mut changes = Changes::default();
    let (lanes, mut count) = release_in_lanes(session, id, &given, &mut changes).await?;
    let rows = match plain.is_empty() {
        true => Named::new(),
        false => lock_slices(session, id, plain.iter()).await?,
    };
    for lease in &plain {
        if let Some(slice) = rows.get(&(lease.chunk, lease.slice)).filter(|slice| slice.is_under(lease)) {
            plan_release(slice.clone(), session.now, &mut changes);
            count += 1;
        }
    }
    apply(session, id, &changes);
    write_lanes(session, &lanes.iter().collect::<Vec<_>>());
    Ok(count)
}

/// Gives what becomes of the lanes, and how many of the leases were given back.
async fn release_in_lanes(
    session: &mut Session<'_>,
    id: SubscriptionId,
    given: &BTreeSet<Lease>,
    changes: &mut Changes,
) -> Result<(Vec<Lane>, u64)> {
    if given.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let mut views = session.lock_lanes(id, &given.iter().map(|lease| lease.lane).collect()).await?;
    views.retain(|_, view| given.iter().any(|lease| view.lane.is_under(lease)));
    let all = session.leased(id, &views.keys().copied().collect::<Vec<_>>()).await?;
    let count = all.iter().filter(|slice| given.contains(&slice.lease())).count() as u64;
    // Keys matter only for what stays.
    if all.iter().any(|slice| !given.contains(&slice.lease())) {
        load_keys(session, &mut views, &all).await?;
    }
    for (lane, leased) in by_lane_of(all) {
        if let Some(view) = views.get_mut(&lane) {
            release_lane(view, leased, given, session.now, changes);
        }
    }
    Ok((views.into_values().map(|view| view.lane).collect(), count))
}

//! Settle, extend and release: everything that a lease allows.

use super::PostgresStore;
use super::rows::{apply, slices, write_lanes};
use super::session::{Begin, Ended, Query, Session};
use super::step::{Tries, step};
use super::taken::Starts;
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SliceId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::outcome::Outcome;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::model::tally::Ending;
use crate::plan::release::{release as plan_release, release_lane};
use crate::plan::settle::{by_lane_of, settle as plan_settle, settle_lane};
use crate::plan::{Changes, LaneView};
use crate::store::driver::asked;
use crate::store::lanes::{load_keys, load_marks};
use crate::store::rows::StepRows;
use crate::store::verbs::{Extend, Extended, Release, Settle, SettleSlice, Settled};
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::{BTreeMap, BTreeSet};

pub(super) async fn settle(session: &mut Session<'_>, settle: &Settle) -> Result<Settled> {
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(settle.subscription)?.policy;
    let mut answer = Settled { accepted: vec![Vec::new(); settle.results.len()], ..Settled::default() };
    let (ordered, unordered): (Vec<usize>, Vec<usize>) =
        (0..settle.results.len()).partition(|at| settle.results[*at].lease.is_ordered());
    if !unordered.is_empty() {
        settle_slices(session, settle, &unordered, policy, &mut answer).await?;
    }
    if !ordered.is_empty() {
        settle_lanes(session, settle, &ordered, policy, &mut answer).await?;
    }
    answer.wake |= answer.frees(policy);
    answer.news = session.finish().await?;
    Ok(answer)
}

impl PostgresStore {
    /// In one call what that will do for, and the rest step by step.
    pub(super) async fn settle_any(&self, settle: Settle) -> Result<Settled> {
        let done = self.settle_done(&settle).await?;
        if done.is_empty() {
            return self.settle_by_steps(&settle).await;
        }
        let left = settle.results.iter().enumerate().filter(|(at, _)| !done.contains(at));
        let results = left.map(|(_, result)| result.clone()).collect();
        let rest = Settle { results, ..settle.clone() };
        let mut settled = match rest.results.is_empty() {
            true => Settled::default(),
            false => self.settle_by_steps(&rest).await?,
        };
        let mut answers = settled.accepted.into_iter();
        let told = |(at, result): (usize, &SettleSlice)| match done.contains(&at) {
            true => vec![true; result.outcomes.len()],
            false => answers.next().unwrap_or_default(),
        };
        settled.accepted = settle.results.iter().enumerate().map(told).collect();
        Ok(settled)
    }

    async fn settle_by_steps(&self, settle: &Settle) -> Result<Settled> {
        let begin = Begin::writing(settle.now, settle.subscription);
        step!(self, Tries::few(), |tx| self.session(tx, begin), |session| self::settle(session, settle))
    }

    /// What most settlements come to, in one round trip: all that slices hold is done, and there is no order. Gives the results of
    /// which that is true; the others are as they were.
    async fn settle_done(&self, settle: &Settle) -> Result<BTreeSet<usize>> {
        let all: Vec<usize> = (0..settle.results.len()).collect();
        let wanted = whole(settle, &all);
        let is_plain = wanted.len() == all.len() && settle.results.iter().all(|one| !one.lease.is_ordered());
        let catalog = self.cache.get();
        let known = catalog.require_subscription(settle.subscription);
        // Where there are limits, somebody may wait for what comes free.
        let is_unlimited = known.is_ok_and(|subscription| subscription.policy.limits.is_none());
        if self.texts.pooled || !is_unlimited || !is_plain {
            return Ok(BTreeSet::new());
        }
        let mut conn = self.connection().await?;
        let query = bind_done(self.texts.query(ALONE), settle, &wanted, &Starts::new());
        let rows = asked(self.answer, query.fetch_all(&mut *conn)).await?;
        conn.keep();
        Ok(gone(&wanted, &rows)?.into_keys().collect())
    }
}

async fn settle_slices(
    session: &mut Session<'_>,
    settle: &Settle,
    results: &[usize],
    policy: &Policy,
    answer: &mut Settled,
) -> Result<()> {
    let rest = finish(session, settle, results, answer).await?;
    if rest.is_empty() {
        return Ok(());
    }
    // Several results may be about one lease: they are decided together, because each changes the row.
    let mut by_lease: BTreeMap<Lease, Vec<usize>> = BTreeMap::new();
    for at in rest {
        by_lease.entry(settle.results[at].lease).or_default().push(at);
    }
    let rows = lock_slices(session, settle.subscription, by_lease.keys()).await?;
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
    apply(session, settle.subscription, &changes).await
}

/// The common case in one statement: everything that a slice holds is done. Gives the results that were not of this
/// kind, or no longer under their lease.
async fn finish(
    session: &mut Session<'_>,
    settle: &Settle,
    results: &[usize],
    answer: &mut Settled,
) -> Result<Vec<usize>> {
    let gone = delete_done(session, settle, results).await?;
    for at in results.iter().filter(|at| gone.contains_key(at)) {
        answer.accepted[*at] = vec![true; settle.results[*at].outcomes.len()];
    }
    Ok(results.iter().copied().filter(|at| !gone.contains_key(at)).collect())
}

/// Deletes slices of which every event is done, and gives the lanes of those results. The leases of lanes were looked at before: what lies
/// below their beginnings is under them.
async fn delete_done(
    session: &mut Session<'_>,
    settle: &Settle,
    results: &[usize],
) -> Result<BTreeMap<usize, LaneId>> {
    let wanted = whole(settle, results);
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = bind_done(session.query(IN_A_STEP), settle, &wanted, &session.starts);
    let rows = session.all(query).await?;
    let mut ended = Vec::new();
    for row in &rows {
        if row.try_get(3)? {
            let (chunk, mask) = (ChunkId(row.try_get(0)?), Mask::from_i64(row.try_get(4)?));
            ended.push(Ended { subscription: settle.subscription, chunk, mask, ending: Ending::Done });
        }
    }
    session.end(ended.into_iter());
    gone(&wanted, &rows)
}

/// Uses the primary key `(chunk, id)`; the sums keep the server from thinking of `tramline_slice_claim` instead.
macro_rules! delete_done {
    ($and:literal) => {
        concat!(
            "DELETE FROM tramline_slice s USING unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], \
             $6::bigint[], $7::bigint[], $8::bigint[]) WITH ORDINALITY AS u(chunk, id, lane, epoch, owner, mask, low, place) \
             WHERE s.chunk = u.chunk AND s.id = u.id AND s.subscription + 0 = $1 AND s.lane + 0 = u.lane AND s.mask = u.mask \
             AND ((s.epoch = u.epoch AND s.owner = u.owner AND s.state + 0 IN (1, 7)) OR (s.state + 0 = 0 AND s.chunk + 0 < u.low))",
            $and,
            " RETURNING s.chunk, u.place, s.lane, s.tallied, s.mask"
        )
    };
}

const IN_A_STEP: &str = delete_done!("");
/// A transaction of its own: like a step it keeps the subscription from being deleted meanwhile, and nothing else may end with
/// the events.
const ALONE: &str = delete_done!(
    " AND NOT s.tallied \
     AND (SELECT pg_advisory_xact_lock_shared('tramline_subscription'::regclass::oid::int, $1::int)) IS NOT NULL"
);

/// Those of the results that may be all that their slices hold, all of it done, in the order of the rows.
fn whole(settle: &Settle, results: &[usize]) -> Vec<usize> {
    let is_whole = |at: &usize| settle.results[*at].is_all_done() && !settle.results[*at].outcomes.is_empty();
    let mut whole: Vec<usize> = results.iter().copied().filter(is_whole).collect();
    whole.sort_by_key(|at| row_of(settle, *at));
    whole
}

fn row_of(settle: &Settle, at: usize) -> (ChunkId, SliceId) {
    (settle.results[at].lease.chunk, settle.results[at].lease.slice)
}

fn bind_done(query: Query, settle: &Settle, wanted: &[usize], starts: &Starts) -> Query {
    let leases = wanted.iter().map(|at| &settle.results[*at].lease);
    let masks = wanted.iter().map(|at| settle.results[*at].mask().to_i64()).collect::<Vec<i64>>();
    let low =
        |lease: &Lease| starts.get(&(settle.subscription, lease.lane)).map_or(i64::MIN, |start| start.low);
    let lows = leases.clone().map(low).collect::<Vec<i64>>();
    bind_leases(query.bind(settle.subscription.0), leases).bind(masks).bind(lows)
}

/// The results whose rows were deleted, and their lanes. Of two equal results one counts; the other finds its lease gone. The place tells
/// which it was: an old lease may name the same row.
fn gone(wanted: &[usize], rows: &[PgRow]) -> Result<BTreeMap<usize, LaneId>> {
    let mut gone = BTreeMap::new();
    for row in rows {
        let (place, lane) = (row.try_get::<i64, _>(1)?, LaneId(row.try_get(2)?));
        let at = usize::try_from(place - 1).ok().and_then(|place| wanted.get(place));
        gone.extend(at.map(|at| (*at, lane)));
    }
    Ok(gone)
}

fn bind_leases<'a>(query: Query, leases: impl Iterator<Item = &'a Lease> + Clone) -> Query {
    let column = |value: fn(&Lease) -> i64| leases.clone().map(value).collect::<Vec<i64>>();
    query
        .bind(column(|lease| lease.chunk.0))
        .bind(column(|lease| lease.slice.0))
        .bind(column(|lease| lease.lane.0))
        .bind(column(|lease| lease.epoch))
        .bind(column(|lease| lease.owner.0))
}

/// Locks the rows of leases that hold, in the order of their numbers. An old lease waits for nobody: whoever has its row now may keep it
/// locked for long, in a transaction of his own.
async fn lock_slices<'a>(
    session: &mut Session<'_>,
    id: SubscriptionId,
    leases: impl Iterator<Item = &'a Lease> + Clone,
) -> Result<BTreeMap<(ChunkId, SliceId), Slice>> {
    let sql = "SELECT {slice} FROM tramline_slice s \
               JOIN unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) \
               AS u(chunk, id, lane, epoch, owner) ON s.chunk = u.chunk AND s.id = u.id AND s.lane = u.lane \
               AND s.epoch = u.epoch AND s.owner = u.owner \
               WHERE s.subscription + 0 = $1 ORDER BY s.chunk, s.id FOR UPDATE OF s";
    let query = bind_leases(session.query(sql).bind(id.0), leases);
    let rows = slices(&session.all(query).await?)?;
    Ok(rows.into_iter().map(|slice| ((slice.chunk, slice.id), slice)).collect())
}

async fn settle_lanes(
    session: &mut Session<'_>,
    settle: &Settle,
    results: &[usize],
    policy: &Policy,
    answer: &mut Settled,
) -> Result<()> {
    let id = settle.subscription;
    let lanes: BTreeSet<LaneId> = results.iter().map(|at| settle.results[*at].lease.lane).collect();
    let mut views = session.lock_lanes(id, &lanes).await?;
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
    finish_in_lanes(session, settle, &mut views, &mut by_lane, answer).await?;
    let all = load_lanes(session, settle, &mut views, &by_lane).await?;
    let mut changes = Changes { worker: settle.worker.clone(), ..Changes::default() };
    let mut all = by_lane_of(all);
    for (lane, results) in by_lane.iter().filter(|(_, results)| !results.is_empty()) {
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
    apply(session, id, &changes).await?;
    let lanes: Vec<&Lane> = views.values().map(|view| &view.lane).collect();
    write_lanes(session, &lanes).await
}

/// Lanes without marks in which nothing failed: whole slices go in one statement, and no key has to be known. What is
/// left of the results stays in `by_lane`.
async fn finish_in_lanes(
    session: &mut Session<'_>,
    settle: &Settle,
    views: &mut BTreeMap<LaneId, LaneView>,
    by_lane: &mut BTreeMap<LaneId, Vec<usize>>,
    answer: &mut Settled,
) -> Result<()> {
    let plain = |lane: &LaneId, results: &[usize]| {
        views.get(lane).is_some_and(|view| view.lane.marks == 0)
            && results.iter().all(|at| settle.results[*at].is_all_done())
    };
    let wanted: Vec<usize> = by_lane
        .iter()
        .filter(|(lane, results)| plain(lane, results))
        .flat_map(|(_, at)| at.clone())
        .collect();
    for (at, lane) in delete_done(session, settle, &wanted).await? {
        answer.accepted[at] = vec![true; settle.results[at].outcomes.len()];
        if let Some(results) = by_lane.get_mut(&lane) {
            results.retain(|other| *other != at);
        }
        if let Some(view) = views.get_mut(&lane) {
            view.lane.leased -= 1;
            view.let_go();
        }
    }
    Ok(())
}

/// What the remaining settlements may touch: everything that is taken in their lanes, with its keys.
async fn load_lanes(
    session: &mut Session<'_>,
    settle: &Settle,
    views: &mut BTreeMap<LaneId, LaneView>,
    by_lane: &BTreeMap<LaneId, Vec<usize>>,
) -> Result<Vec<Slice>> {
    let lanes: Vec<LaneId> =
        by_lane.iter().filter(|(_, results)| !results.is_empty()).map(|(lane, _)| *lane).collect();
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let all = session.leased(settle.subscription, &lanes).await?;
    load_keys(session, views, &all).await?;
    load_marks(session, views, &all).await?;
    Ok(all)
}

/// Rows that another transaction has locked are passed over: a handler's own transaction may have them for long, and the
/// other leases must not end because of that.
pub(super) async fn extend(session: &mut Session<'_>, extend: &Extend) -> Result<Vec<Extended>> {
    let catalog = session.catalog.clone();
    let policy = &catalog.require_subscription(extend.subscription)?.policy;
    let until = session.now.after(extend.lease.unwrap_or_else(|| policy.lease()));
    let slices = "WITH u AS MATERIALIZED (SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], \
            $5::bigint[], $6::bigint[]) WITH ORDINALITY AS u(chunk, id, lane, epoch, owner, place)), \
        under AS MATERIALIZED (SELECT s.chunk, s.id, u.place FROM u JOIN tramline_slice s \
            ON s.chunk = u.chunk AND s.id = u.id AND s.subscription + 0 = $1 AND s.lane + 0 = u.lane AND s.epoch = u.epoch \
            AND s.owner = u.owner AND s.state + 0 IN (1, 7)), \
        free AS MATERIALIZED (SELECT s.chunk, s.id FROM u JOIN tramline_slice s \
            ON s.chunk = u.chunk AND s.id = u.id AND s.subscription + 0 = $1 AND s.lane + 0 = u.lane AND s.epoch = u.epoch \
            AND s.owner = u.owner AND s.state + 0 IN (1, 7) ORDER BY s.chunk, s.id FOR UPDATE OF s SKIP LOCKED), \
        done AS (UPDATE tramline_slice s SET due_at = $7, pos = $7 FROM free \
            WHERE s.chunk = free.chunk AND s.id = free.id RETURNING s.chunk, s.id) \
        SELECT u.place, under.id IS NOT NULL, done.id IS NOT NULL FROM u LEFT JOIN under ON under.place = u.place \
        LEFT JOIN done ON done.chunk = under.chunk AND done.id = under.id";
    let lanes = "WITH u AS MATERIALIZED (SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], \
            $5::bigint[], $6::bigint[]) WITH ORDINALITY AS u(chunk, id, lane, epoch, owner, place)), \
        under AS MATERIALIZED (SELECT l.lane, u.place FROM u JOIN tramline_lane l ON l.subscription = $1 \
            AND l.lane = u.lane AND l.epoch = u.epoch AND l.owner = u.owner), \
        free AS MATERIALIZED (SELECT l.lane, l.epoch FROM u JOIN tramline_lane l ON l.subscription = $1 \
            AND l.lane = u.lane AND l.epoch = u.epoch AND l.owner = u.owner ORDER BY l.lane FOR UPDATE OF l SKIP LOCKED), \
        done AS (UPDATE tramline_lane l SET until = $7 FROM free \
            WHERE l.subscription = $1 AND l.lane = free.lane AND l.epoch = free.epoch RETURNING l.lane) \
        SELECT u.place, under.lane IS NOT NULL, done.lane IS NOT NULL FROM u LEFT JOIN under ON under.place = u.place \
        LEFT JOIN done ON done.lane = under.lane";
    let mut answers = vec![Extended::Lost; extend.leases.len()];
    for (sql, ordered) in [(slices, false), (lanes, true)] {
        let wanted: Vec<usize> =
            (0..extend.leases.len()).filter(|at| extend.leases[*at].is_ordered() == ordered).collect();
        if wanted.is_empty() {
            continue;
        }
        let query = session.query(sql).bind(extend.subscription.0);
        let query = bind_leases(query, wanted.iter().map(|at| &extend.leases[*at])).bind(until.0);
        for row in session.all(query).await? {
            let place: i64 = row.try_get(0)?;
            answers[wanted[place as usize - 1]] = match (row.try_get(1)?, row.try_get(2)?) {
                (true, true) => Extended::Until(until),
                (true, false) => Extended::Locked,
                (false, _) => Extended::Lost,
            };
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
    let rows = lock_slices(session, id, plain.iter()).await?;
    for lease in &plain {
        if let Some(slice) = rows.get(&(lease.chunk, lease.slice)).filter(|slice| slice.is_under(lease)) {
            plan_release(slice.clone(), session.now, &mut changes);
            count += 1;
        }
    }
    apply(session, id, &changes).await?;
    write_lanes(session, &lanes.iter().collect::<Vec<_>>()).await?;
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

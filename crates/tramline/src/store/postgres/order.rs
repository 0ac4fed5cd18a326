//! Ordered claims: many lanes in one transaction, whole chunks, oldest first.

use super::claim::Outlook;
use super::low::prove;
use super::rows::{apply, locked_lane, slices, write_lanes, write_taken};
use super::session::Session;
use super::taken::{Seen, Unmarked};
use crate::error::Result;
use crate::model::id::{LaneId, SubscriptionId};
use crate::model::lane::{self, Held, Known, Lane};
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::plan::lane::{take, take_over, take_suspect};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::lanes::{
    Work, add, choose_suspects, cut, group, load_chunks, load_keys, load_marks, load_running, prefer_earlier,
};
use crate::store::rows::StepRows;
use crate::store::verbs::{Claim, Suspects};
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet};

/// How many lanes one claim locks at most.
const LANES: i64 = 128;
/// How many waiting slices of a lane one claim reads at most.
const WAITING: i64 = 64;
/// How many events a row has, before one was read. What is read and not taken costs as much as what is.
const FIRST_GUESS: u64 = 8;
/// How often one claim looks behind events that it had to set aside.
const ROUNDS: u32 = 8;

/// Takes from as many lanes as needed, the worker's own first.
pub(super) async fn claim(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &Outlook,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    // With so many lanes there may be others: if these had nothing, the next claim looks at those.
    let mut crowded = false;
    for which in [Which::Troubled, Which::Own, Which::Others] {
        let wanted = match which {
            Which::Troubled => claim.suspects == Suspects::TakeOne && (outlook.suspects || outlook.expired),
            Which::Own => true,
            // Who is alone has no others.
            Which::Others => claim.share.help && claim.share.of > 1,
        };
        if !wanted || taker.is_full() {
            continue;
        }
        let turn = Turn { claim, outlook, which };
        let mut views = candidates(session, turn).await?;
        if views.is_empty() {
            continue;
        }
        crowded |= views.len() as i64 == LANES;
        // Before slices are read, so that all of them are seen; and after lanes were locked, so that there is something for which the commit
        // waits for the disk.
        let mut unmarked = Unmarked::up_to(prove(session, claim.subscription).await?);
        let before: Vec<Lane> = views.values().map(|view| view.lane.clone()).collect();
        let lapsed = views.values().filter(|it| it.lane.is_lapsed(claim.owner, &claim.known, session.now));
        let lapsed: Vec<LaneId> = lapsed.map(|view| view.lane.lane).collect();
        take_over_lapsed(session, claim.subscription, policy, lapsed, &mut views).await?;
        let over = take_from(session, turn, &mut views, taker, &mut unmarked, raw).await?;
        let lanes = views.values().map(|view| &view.lane).zip(&before);
        let changed: Vec<&Lane> = lanes.filter(|(now, then)| now != then).map(|(now, _)| now).collect();
        write_taken(session, claim.subscription, &changed, &unmarked.lows).await?;
        if over {
            return Ok(());
        }
    }
    if !taker.is_full() {
        if crowded && raw.slices.is_empty() {
            raw.next_due = Some(session.now);
        }
        let next = next_due(session, claim.subscription).await?;
        raw.next_due = [raw.next_due, next].into_iter().flatten().min();
    }
    Ok(())
}

/// All lanes of a subscription.
pub(super) fn lanes(session: &Session<'_>, id: SubscriptionId) -> Result<Vec<i64>> {
    let subscription = session.catalog.require_subscription(id)?;
    let topics = subscription.topics.iter().filter_map(|name| session.catalog.topic(name));
    let all = topics.map(|topic| lane::all(subscription.policy.ordering, topic));
    let lanes: BTreeSet<i64> = all.flat_map(|(first, count)| first.0..first.0 + i64::from(count)).collect();
    Ok(lanes.into_iter().collect())
}

/// Which lanes a claim looks at, in this order.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    /// One with suspects, or about to have some. Whoever takes one takes nothing else, so the other lanes stay free: after a mass loss of
    /// leases every worker is here at the same time.
    Troubled,
    /// The worker's own.
    Own,
    /// Those of other workers.
    Others,
}

/// What a claim goes by while it looks at some of the lanes.
#[derive(Clone, Copy)]
struct Turn<'a> {
    claim: &'a Claim,
    outlook: &'a Outlook,
    which: Which,
}

/// Open lanes with something to do. `$first` finds a ready slice of a lane, `$order` says which lanes come first.
macro_rules! candidates {
    ($first:literal, $order:literal) => {
        concat!(
            "WITH n AS (SELECT * FROM unnest($15::bigint[]) AS n(lane)), {newest} SELECT {lane} FROM {lanes} \
            LEFT JOIN unnest($7::bigint[], $8::bigint[]) AS b(topic, next) ON b.topic = l.lane >> 12 \
            LEFT JOIN LATERAL (SELECT s.pos FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 0 \
                AND s.lane = l.lane AND s.rank = 0 AND s.pos >= l.low ",
            $first,
            ") r ON r.pos < coalesce(b.next, r.pos + 1) \
            LEFT JOIN unnest($11::bigint[], $12::bigint[], $13::bool[]) AS k(lane, epoch, closed) \
                ON k.lane = l.lane AND k.epoch = l.epoch AND l.owner = $3 \
            WHERE l.halted_until <= $2 AND (l.owner = 0 OR l.until <= $2 \
                OR (l.owner = $3 AND (l.lane <> 1 OR ($14 AND k.lane IS NULL)))) \
            AND ($6 IS NULL OR ((l.lane & 4095) % $4 = $5) = $6) AND k.closed IS NOT TRUE \
            AND (($10 AND r.pos IS NOT NULL) OR (l.owner <> 0 AND l.until <= $2) \
                OR ($14 AND l.owner = $3 AND k.lane IS NULL) \
                OR ($10 AND EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 3 \
                    AND s.lane = l.lane AND s.rank = 0 AND s.pos <= $2)) \
                OR EXISTS (SELECT 1 FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 2 AND s.lane = l.lane)) \
            ORDER BY ",
            $order,
            " LIMIT $9 FOR UPDATE OF l SKIP LOCKED"
        )
    };
}

/// Looks at the end of each lane: at its beginning (`low`, see `low.rs`) are the index entries of what was taken a moment ago, and passing
/// over them takes longer than all the rest. Another lane comes first every time.
const ANY: &str = candidates!("ORDER BY s.pos DESC LIMIT 1", "r.pos IS NOT NULL, (l.lane + $2) % 4093");
/// During a back-fill the beginning matters: what is above its cursor has to wait. The oldest lanes come first.
const BELOW_CURSOR: &str = candidates!("ORDER BY s.pos LIMIT 1", "r.pos NULLS FIRST");

/// Locks open lanes with something to do. This is the only place where a locked lane is passed over: whoever has it takes
/// from it. What the lane holds is read again once it is locked, because another step may have changed it in between.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, three probes per lane.
async fn candidates(
    session: &mut Session<'_>,
    Turn { claim, outlook, which }: Turn<'_>,
) -> Result<BTreeMap<LaneId, LaneView>> {
    let sql = if outlook.backfills.is_empty() { ANY } else { BELOW_CURSOR };
    let own = match which {
        Which::Troubled => (!claim.share.help).then_some(true),
        Which::Own => Some(true),
        Which::Others => Some(false),
    };
    let held: &[Held] = match &claim.known {
        Known::All => &[],
        Known::Only(held) => held,
    };
    let query = session
        .query(sql)
        .bind(claim.subscription.0)
        .bind(session.now.0)
        .bind(claim.owner.0)
        .bind(i64::from(claim.share.of.max(1)))
        .bind(i64::from(claim.share.index))
        .bind(own)
        .bind(outlook.backfills.keys().map(|topic| topic.0).collect::<Vec<i64>>())
        .bind(outlook.backfills.values().map(|chunk| chunk.0).collect::<Vec<i64>>())
        .bind(if which == Which::Troubled { 1 } else { LANES })
        .bind(which != Which::Troubled)
        .bind(held.iter().map(|held| held.lane.0).collect::<Vec<i64>>())
        .bind(held.iter().map(|held| held.epoch).collect::<Vec<i64>>())
        .bind(held.iter().map(|held| held.closed).collect::<Vec<bool>>())
        .bind(claim.known != Known::All)
        .bind(lanes(session, claim.subscription)?);
    let rows = session.all(query).await?;
    rows.iter().map(|row| locked_lane(session, row).map(|lane| (lane.lane, LaneView::new(lane)))).collect()
}

/// Lanes whose lease has ended: what was taken under it becomes suspect, or interrupted, before anything is taken.
async fn take_over_lapsed(
    session: &mut Session<'_>,
    id: SubscriptionId,
    policy: &Policy,
    lapsed: Vec<LaneId>,
    views: &mut BTreeMap<LaneId, LaneView>,
) -> Result<()> {
    if lapsed.is_empty() {
        return Ok(());
    }
    let now = session.now;
    let taken = session.leased(id, &lapsed).await?;
    load_keys(session, views, &taken).await?;
    load_marks(session, views, &taken).await?;
    let mut changes = Changes::default();
    let mut by_lane = group(taken);
    for lane in lapsed {
        if let Some(view) = views.get_mut(&lane) {
            take_over(view, by_lane.remove(&lane).unwrap_or_default(), policy, now, &mut changes);
        }
    }
    apply(session, id, &changes).await
}

/// Lanes whose lease has ended, also where nobody claims any more. True if there may be others. Those that somebody has locked
/// are passed over: whoever has them sees to it.
pub(super) async fn interrupt(
    session: &mut Session<'_>,
    id: SubscriptionId,
    policy: &Policy,
) -> Result<bool> {
    let sql = "SELECT {lane} FROM tramline_lane l WHERE l.subscription = $1 AND l.owner <> 0 AND l.until <= $2 \
               ORDER BY l.lane LIMIT $3 FOR UPDATE OF l SKIP LOCKED";
    let query = session.query(sql).bind(id.0).bind(session.now.0).bind(LANES);
    let rows = session.all(query).await?;
    let lanes: Vec<Lane> = rows.iter().map(|row| locked_lane(session, row)).collect::<Result<_>>()?;
    let mut views: BTreeMap<LaneId, LaneView> =
        lanes.into_iter().map(|lane| (lane.lane, LaneView::new(lane))).collect();
    let lapsed = views.keys().copied().collect();
    take_over_lapsed(session, id, policy, lapsed, &mut views).await?;
    let lanes: Vec<&Lane> = views.values().map(|view| &view.lane).collect();
    write_lanes(session, &lanes).await?;
    Ok(lanes.len() as i64 == LANES)
}

/// Takes from locked lanes. True when the claim is over: it took a suspect.
async fn take_from(
    session: &mut Session<'_>,
    Turn { claim, outlook, which }: Turn<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    taker: &mut Taker,
    unmarked: &mut Unmarked,
    raw: &mut RawClaim,
) -> Result<bool> {
    for _ in 0..ROUNDS {
        let mut work = load_work(session, claim, outlook, views, taker).await?;
        catch_up(session, claim, &work).await?;
        let now = session.now;
        let mut changes = Changes::default();
        let are_cut = prefer_earlier(&mut work, views, now, &mut changes);
        raw.suspects_wait |= are_cut;
        apply(session, claim.subscription, &changes).await?;
        if let Some(work) = choose_suspects(claim, &mut work, views, now, raw) {
            if take_one(session, views, work, taker, raw).await? {
                return Ok(true);
            }
            continue;
        }
        if which == Which::Troubled {
            return Ok(false);
        }
        raw.suspects_wait |= work.values().any(|work| !work.suspects.is_empty());
        work.retain(|_, work| work.suspects.is_empty());
        cut(&mut work, taker.events);
        let more = work.values().any(|work| work.waiting.len() >= WAITING as usize);
        let free: Vec<Slice> =
            work.into_values().flat_map(|work| work.waiting.into_iter().chain(work.ready)).collect();
        if free.is_empty() {
            return Ok(false);
        }
        load_what_matters(session, views, &free, raw).await?;
        let mut changes = Changes::default();
        let before = raw.slices.len();
        for (lane, slices) in group(free) {
            if let Some(view) = views.get_mut(&lane).filter(|_| !taker.is_full()) {
                let (waiting, ready): (Vec<_>, Vec<_>) =
                    slices.into_iter().partition(|slice| slice.state == State::Waiting);
                let seen: Vec<Seen> = ready.iter().map(Seen::of).collect();
                let taken = take(view, waiting, ready, taker, now, &mut changes);
                if !are_cut {
                    unmarked.add(lane, &seen, &taken);
                }
                add(view, taken, raw);
            }
        }
        unmarked.leave_out(&mut changes);
        apply(session, claim.subscription, &changes).await?;
        if raw.slices.len() > before {
            // What is left because there is so much of it is due at once.
            raw.next_due = (!taker.is_full() && (claim.single || more)).then_some(now);
            return Ok(false);
        }
        if views.values().all(|view| view.lane.halted_until > now) {
            return Ok(false);
        }
        // Everything met was parked or not due: it is out of the way now, so look at what is behind it.
    }
    raw.next_due = Some(session.now);
    Ok(false)
}

/// What was emitted since this step looked at the clock, while it waited for a lock or just looked, seems to lie in the future. Its keys would be
/// parked for a moment, which costs more than all the rest and leaves rows behind; so the step looks at the clock again.
async fn catch_up(session: &mut Session<'_>, claim: &Claim, work: &BTreeMap<LaneId, Work>) -> Result<()> {
    let is_late = |slice: &Slice| slice.due_at > session.now;
    if claim.now.is_some() || !work.values().flat_map(|work| &work.ready).any(is_late) {
        return Ok(());
    }
    let query = session.query("SELECT tramline_now()");
    let now = Time(query.fetch_one(&mut *session.conn).await?.try_get(0)?);
    session.now = session.now.max(now);
    Ok(())
}

/// Suspects, due waiting slices and ready slices of all lanes in one statement, and more ready ones as long as less is
/// there than wanted. Ready slices come as whole chunks (`WITH TIES`) and not beyond the bytes that are wanted.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, three ranges per lane.
async fn load_work(
    session: &mut Session<'_>,
    claim: &Claim,
    outlook: &Outlook,
    views: &BTreeMap<LaneId, LaneView>,
    taker: &Taker,
) -> Result<BTreeMap<LaneId, Work>> {
    let sql = "SELECT {slice} FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS l(lane, after, below) \
        CROSS JOIN LATERAL ( \
            (SELECT * FROM tramline_slice s WHERE $7 AND s.subscription = $1 AND s.state = 2 AND s.lane = l.lane \
                AND s.rank = 0 ORDER BY s.pos FETCH FIRST 1 ROW WITH TIES) \
            UNION ALL (SELECT * FROM tramline_slice s WHERE $7 AND s.subscription = $1 AND s.state = 3 \
                AND s.lane = l.lane AND s.rank = 0 AND s.pos <= $5 ORDER BY s.pos, s.chunk, s.id LIMIT $8) \
            UNION ALL (SELECT * FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 0 \
                AND s.lane = l.lane AND s.rank = 0 AND s.pos > l.after AND s.pos < l.below \
                ORDER BY s.pos FETCH FIRST $6 ROWS WITH TIES)) s";
    let mut work: BTreeMap<LaneId, Work> = BTreeMap::new();
    let low = |lane: &LaneId| session.starts.get(&(claim.subscription, *lane)).map_or(0, |start| start.low);
    let mut after: BTreeMap<LaneId, i64> = views.keys().map(|lane| (*lane, low(lane) - 1)).collect();
    let (mut events, mut bytes) = (0_u64, 0_i64);
    let (mut rows, mut page) = (0, page(u64::from(taker.events), FIRST_GUESS, after.len()));
    let mut first = true;
    while !after.is_empty() && events < u64::from(taker.events) && bytes < taker.bytes {
        let below = |lane: &LaneId| outlook.backfills.get(&lane.topic()).map_or(i64::MAX, |chunk| chunk.0);
        let query = session
            .query(sql)
            .bind(claim.subscription.0)
            .bind(after.keys().map(|lane| lane.0).collect::<Vec<i64>>())
            .bind(after.values().copied().collect::<Vec<i64>>())
            .bind(after.keys().map(below).collect::<Vec<i64>>())
            .bind(session.now.0)
            .bind(page)
            .bind(first)
            .bind(WAITING);
        let mut next: BTreeMap<LaneId, (i64, i64)> = BTreeMap::new();
        for slice in slices(&session.all(query).await?)? {
            rows += 1;
            events += u64::from(slice.mask.count());
            bytes += i64::from(slice.bytes);
            let lane = work.entry(slice.lane).or_default();
            match slice.state {
                State::Suspect => lane.suspects.push(slice),
                State::Waiting => lane.waiting.push(slice),
                _ => {
                    let read = next.entry(slice.lane).or_insert((0, 0));
                    *read = (read.0 + 1, slice.chunk.0);
                    lane.ready.push(slice);
                }
            }
        }
        after = next
            .into_iter()
            .filter(|(_, (rows, _))| *rows >= page)
            .map(|(lane, (_, last))| (lane, last))
            .collect();
        page = self::page(u64::from(taker.events).saturating_sub(events), events / rows.max(1), after.len());
        first = false;
    }
    for lane in work.values_mut() {
        lane.ready.sort_by_key(|slice| (slice.chunk, slice.id));
    }
    Ok(work)
}

/// How many rows of each lane to read for so many events, if a row has so many: a few more than that, because not all are alike.
fn page(events: u64, of_a_row: u64, lanes: usize) -> i64 {
    let rows = events / of_a_row.max(1) / lanes.max(1) as u64;
    (rows + rows / 4).max(8).cast_signed()
}

/// Takes a part of one suspect. False when all of them wait behind their keys and were set aside.
async fn take_one(
    session: &mut Session<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    work: Work,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<bool> {
    let Work { suspects, ready, .. } = work;
    load_chunks(session, views, &suspects, raw).await?;
    load_marks(session, views, &suspects).await?;
    let Some((id, lane)) = suspects.first().map(|slice| (slice.subscription, slice.lane)) else {
        return Ok(false);
    };
    let Some(view) = views.get_mut(&lane) else { return Ok(false) };
    let mut changes = Changes::default();
    let taken = take_suspect(view, suspects, &ready, taker, &mut changes);
    let took = taken.is_some();
    add(view, taken.into_iter().collect(), raw);
    apply(session, id, &changes).await?;
    Ok(took)
}

/// Where no key is parked and nothing has to wait, keys do not matter: then only what is taken is read, after that.
async fn load_what_matters(
    session: &mut Session<'_>,
    views: &mut BTreeMap<LaneId, LaneView>,
    slices: &[Slice],
    raw: &mut RawClaim,
) -> Result<()> {
    let late = |slice: &&Slice| slice.state == State::Ready && slice.due_at > session.now;
    let delayed: BTreeSet<LaneId> = slices.iter().filter(late).map(|slice| slice.lane).collect();
    let marked = |lane: &LaneId| views.get(lane).is_some_and(|view| view.lane.marks > 0);
    let matters = |slice: &&Slice| delayed.contains(&slice.lane) || marked(&slice.lane);
    let known: Vec<Slice> = slices.iter().filter(matters).cloned().collect();
    load_chunks(session, views, &known, raw).await?;
    load_marks(session, views, &known).await?;
    load_running(session, views, &delayed).await
}

/// The next time at which something becomes due: a waiting event, the end of a lane's lease, the end of a halt.
pub(super) async fn next_due(session: &mut Session<'_>, id: SubscriptionId) -> Result<Option<Time>> {
    let sql = "WITH n AS (SELECT * FROM unnest($3::bigint[]) AS n(lane)), {newest} SELECT min(t.at) FROM {lanes} \
               LEFT JOIN LATERAL (SELECT s.pos FROM tramline_slice s WHERE s.subscription = $1 AND s.state = 3 \
                   AND s.lane = l.lane AND s.rank = 0 ORDER BY s.pos LIMIT 1) w ON true \
               CROSS JOIN LATERAL (VALUES (greatest(w.pos, l.halted_until)), (nullif(l.halted_until, 0)), \
                   (CASE WHEN l.owner <> 0 THEN l.until END)) AS t(at) \
               WHERE t.at > $2";
    let query = session.query(sql).bind(id.0).bind(session.now.0).bind(lanes(session, id)?);
    let next: Option<i64> = query.fetch_one(&mut *session.conn).await?.try_get(0)?;
    Ok(next.map(Time))
}

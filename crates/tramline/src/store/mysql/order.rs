//! Ordered claims: many lanes in one transaction, whole chunks, oldest first.

use super::claim::Outlook;
use super::lanes::{leased, load_chunks, load_keys, load_marks, load_running, lock_sql, views};
use super::rows::{SLICE, apply, slices, write_lanes};
use super::session::{Rows, Session};
use super::sql::{Columns, list, pairs};
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::lane::{Held, Known, Lane};
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::plan::claim::Taker;
use crate::plan::lane::{take, take_over, take_suspect};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::lanes::{Work, add, choose_suspects, cut, group, prefer_earlier};
use crate::store::verbs::{Claim, Suspects};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How many lanes one claim locks at most.
const LANES: usize = 64;
/// How often one claim looks behind events that it had to set aside.
const ROUNDS: u32 = 8;
/// How many suspects, and how many waiting slices, one claim reads at most.
const TROUBLED: usize = 4096;

/// What a claim asks in its first round trip: lanes of its own with something to do, if nothing is back-filled.
pub(super) fn first_reads(claim: &Claim) -> Vec<String> {
    vec![candidates_sql(claim, Which::Own, &HashMap::new())]
}

/// Takes from as many lanes as needed, the worker's own first. Gives the statement that says when something becomes due, if that
/// matters.
pub(super) async fn claim(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &Outlook,
    found: Vec<Rows>,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<Option<String>> {
    // With so many lanes there may be others: if these had nothing, the next claim looks at those.
    let mut crowded = false;
    let mut found = found.into_iter().next();
    for which in [Which::Troubled, Which::Own, Which::Others] {
        let wanted = match which {
            Which::Troubled => claim.suspects == Suspects::TakeOne && (outlook.suspects || outlook.expired),
            Which::Own => true,
            Which::Others => claim.share.help,
        };
        if !wanted || taker.is_full() {
            continue;
        }
        let rows = match found.take_if(|_| which == Which::Own && outlook.backfills.is_empty()) {
            Some(rows) => rows,
            None => session.rows(candidates_sql(claim, which, &outlook.backfills)).await?,
        };
        let chosen: Vec<LaneId> = rows.iter().map(|row| row.int(0).map(LaneId)).collect::<Result<_>>()?;
        crowded |= chosen.len() == LANES;
        if chosen.is_empty() {
            continue;
        }
        let look = Look { claim, policy, outlook, which };
        if look.take_lanes(session, chosen, taker, raw).await? == Taken::Suspect {
            return Ok(None);
        }
    }
    if taker.is_full() {
        return Ok(None);
    }
    if crowded && raw.slices.is_empty() {
        raw.next_due = Some(session.now);
    }
    Ok(Some(next_due_sql(claim.subscription)))
}

/// Which lanes a claim looks at, in this order.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    /// Those with suspects, or about to have some: whoever takes one takes nothing else.
    Troubled,
    /// The worker's own.
    Own,
    /// Those of other workers.
    Others,
}

/// A look at some lanes.
struct Look<'a> {
    claim: &'a Claim,
    policy: &'a Policy,
    outlook: &'a Outlook,
    which: Which,
}

/// Whether a claim may go on.
#[derive(PartialEq)]
enum Taken {
    /// It took a suspect, and nothing else may run beside it.
    Suspect,
    /// It may take more.
    Rest,
}

/// Open lanes with something to do. Nothing is locked, so that lanes beyond those that are wanted stay free; what is found is read
/// again once it is locked. Another lane comes first every time.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`, three probes per lane.
fn candidates_sql(claim: &Claim, which: Which, backfills: &HashMap<TopicId, ChunkId>) -> String {
    let (SubscriptionId(id), owner) = (claim.subscription, claim.owner.0);
    let has = |state: State, more: &str| {
        format!(
            "EXISTS (SELECT 1 FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {id} \
             AND s.state = {} AND s.lane = l.lane{more})",
            state as i16
        )
    };
    let own = match which {
        Which::Troubled => (!claim.share.help).then_some(true),
        Which::Own => Some(true),
        Which::Others => Some(false),
    };
    let share = own.map_or_else(String::new, |own| {
        let (of, index) = (claim.share.of.max(1), claim.share.index);
        format!(" AND ((l.lane & 4095) % {of} = {index}) = {own}")
    });
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
    let work = match which {
        Which::Troubled => String::new(),
        _ => format!(
            " OR {} OR {}",
            has(State::Ready, &format!(" AND s.`rank` = 0{}", below(backfills))),
            has(State::Waiting, " AND s.`rank` = 0 AND s.pos <= @tramline_now")
        ),
    };
    format!(
        "SELECT l.lane FROM tramline_lane l WHERE l.subscription = {id} AND l.halted_until <= @tramline_now \
         AND (l.owner = 0 OR l.until <= @tramline_now OR l.owner = {owner} AND (l.lane <> 1 OR {forgotten})){share} AND NOT (l.owner = {owner} AND {closed}) \
         AND (l.owner <> 0 AND l.until <= @tramline_now OR {forgotten} OR {}{work}) ORDER BY (l.lane + @tramline_now) % 4093 LIMIT {LANES}",
        has(State::Suspect, "")
    )
}

/// What is above the cursor of a back-fill has to wait.
fn below(backfills: &HashMap<TopicId, ChunkId>) -> String {
    if backfills.is_empty() {
        return String::new();
    }
    let cursors: Vec<String> =
        backfills.iter().map(|(topic, next)| format!(" WHEN {} THEN {}", topic.0, next.0)).collect();
    format!(" AND s.pos < CASE l.lane DIV 4096{} ELSE {} END", cursors.concat(), i64::MAX)
}

impl Look<'_> {
    /// Locks lanes and takes from them. This is the only place where a locked lane is passed over: whoever has it takes from it.
    async fn take_lanes(
        &self,
        session: &mut Session<'_>,
        chosen: Vec<LaneId>,
        taker: &mut Taker,
        raw: &mut RawClaim,
    ) -> Result<Taken> {
        let Claim { subscription, owner, known, .. } = self.claim;
        let mut reading = Reading::new(chosen.iter().copied(), taker);
        let mut sql = vec![lock_sql(*subscription, chosen.into_iter(), "FOR UPDATE SKIP LOCKED")];
        sql.extend(reading.sql(*subscription, self.outlook));
        let mut sets = session.sets(sql).await?;
        let found = sets.split_off(1);
        let mut views = views(&sets[0])?;
        let now = session.now;
        views.retain(|_, view| view.lane.is_open_to(*owner, known, now));
        let before: Vec<Lane> = views.values().map(|view| view.lane.clone()).collect();
        let lapsed = views.values().filter(|view| view.lane.is_lapsed(*owner, known, now));
        let lapsed: Vec<LaneId> = lapsed.map(|view| view.lane.lane).collect();
        let work = if lapsed.is_empty() {
            reading.read(&found)?;
            Some(reading.rest(session, *subscription, self.outlook, taker).await?)
        } else {
            // What was taken under those leases is work again.
            take_over_lapsed(session, *subscription, self.policy, lapsed, &mut views).await?;
            None
        };
        let taken = self.take_from(session, &mut views, work, taker, raw).await?;
        let lanes = views.values().map(|view| &view.lane).zip(&before);
        let changed: Vec<&Lane> = lanes.filter(|(now, then)| now != then).map(|(now, _)| now).collect();
        write_lanes(session, &changed);
        Ok(taken)
    }

    /// Takes from locked lanes. `found` is what they have to offer, if that was read.
    async fn take_from(
        &self,
        session: &mut Session<'_>,
        views: &mut BTreeMap<LaneId, LaneView>,
        mut found: Option<BTreeMap<LaneId, Work>>,
        taker: &mut Taker,
        raw: &mut RawClaim,
    ) -> Result<Taken> {
        let (claim, now) = (self.claim, session.now);
        for _ in 0..ROUNDS {
            let mut work = match found.take() {
                Some(work) => work,
                None => load_work(session, claim, self.outlook, views, taker).await?,
            };
            work.retain(|lane, _| views.contains_key(lane));
            let mut changes = Changes::default();
            raw.suspects_wait |= prefer_earlier(&mut work, views, now, &mut changes);
            apply(session, claim.subscription, &changes);
            if let Some(work) = choose_suspects(claim, &mut work, views, now, raw) {
                if take_one(session, views, work, taker, raw).await? {
                    return Ok(Taken::Suspect);
                }
                continue;
            }
            if self.which == Which::Troubled {
                return Ok(Taken::Rest);
            }
            raw.suspects_wait |= work.values().any(|work| !work.suspects.is_empty());
            work.retain(|_, work| work.suspects.is_empty());
            cut(&mut work, taker.events);
            let more = work.values().map(|work| work.waiting.len()).sum::<usize>() >= TROUBLED;
            let free: Vec<Slice> =
                work.into_values().flat_map(|work| work.waiting.into_iter().chain(work.ready)).collect();
            if free.is_empty() {
                return Ok(Taken::Rest);
            }
            load_what_matters(session, views, &free, raw).await?;
            let mut changes = Changes::default();
            let before = raw.slices.len();
            for (lane, slices) in group(free) {
                if let Some(view) = views.get_mut(&lane).filter(|_| !taker.is_full()) {
                    let (waiting, ready) =
                        slices.into_iter().partition(|slice| slice.state == State::Waiting);
                    let taken = take(view, waiting, ready, taker, now, &mut changes);
                    add(view, taken, raw);
                }
            }
            apply(session, claim.subscription, &changes);
            if raw.slices.len() > before {
                // What is left because there is so much of it is due at once.
                raw.next_due = (!taker.is_full() && (claim.single || more)).then_some(now);
                return Ok(Taken::Rest);
            }
            // Everything met was parked or not due: it is out of the way now, so look at what is behind it.
        }
        raw.next_due = Some(now);
        Ok(Taken::Rest)
    }
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
    let taken = leased(session, id, &lapsed).await?;
    load_keys(session, views, &taken).await?;
    load_marks(session, views, &taken).await?;
    let mut changes = Changes::default();
    let mut by_lane = group(taken);
    for lane in lapsed {
        if let Some(view) = views.get_mut(&lane) {
            take_over(view, by_lane.remove(&lane).unwrap_or_default(), policy, now, &mut changes);
        }
    }
    apply(session, id, &changes);
    Ok(())
}

/// Lanes whose lease has ended, also where nobody claims any more. True if there may be others. Those that somebody has locked
/// are passed over: whoever has them sees to it.
pub(super) async fn interrupt(
    session: &mut Session<'_>,
    id: SubscriptionId,
    policy: &Policy,
) -> Result<bool> {
    let now = session.now;
    let sql = format!(
        "SELECT lane FROM tramline_lane WHERE subscription = {} AND owner <> 0 AND until <= {} ORDER BY lane LIMIT {LANES}",
        id.0, now.0
    );
    let rows = session.rows(sql).await?;
    let chosen: Vec<LaneId> = rows.iter().map(|row| row.int(0).map(LaneId)).collect::<Result<_>>()?;
    let count = chosen.len();
    let mut views = views(&session.rows(lock_sql(id, chosen.into_iter(), "FOR UPDATE SKIP LOCKED")).await?)?;
    views.retain(|_, view| view.lane.owner.is_some() && view.lane.until <= now);
    let lapsed = views.keys().copied().collect();
    take_over_lapsed(session, id, policy, lapsed, &mut views).await?;
    let lanes: Vec<&Lane> = views.values().map(|view| &view.lane).collect();
    write_lanes(session, &lanes);
    Ok(count == LANES)
}

async fn load_work(
    session: &mut Session<'_>,
    claim: &Claim,
    outlook: &Outlook,
    views: &BTreeMap<LaneId, LaneView>,
    taker: &Taker,
) -> Result<BTreeMap<LaneId, Work>> {
    let reading = Reading::new(views.keys().copied(), taker);
    reading.rest(session, claim.subscription, outlook, taker).await
}

/// What lanes have to offer, page by page: suspects, due waiting slices and ready slices of all lanes in one round trip, and more ready
/// ones as long as less is there than wanted. Ready slices come as whole chunks and not beyond the bytes that are wanted.
///
/// Uses `tramline_slice_claim (subscription, state, lane, rank, pos)`. MariaDB has no lateral joins, so each lane is a statement of its
/// own.
struct Reading {
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
    fn new(lanes: impl Iterator<Item = LaneId>, taker: &Taker) -> Reading {
        let after: BTreeMap<LaneId, i64> = lanes.map(|lane| (lane, -1)).collect();
        let page = (taker.events as usize / after.len().max(1)).max(8);
        Reading { work: BTreeMap::new(), after, page, first: true, events: 0, bytes: 0, unknown: None }
    }

    /// The next page of each lane. Suspects and waiting slices are few, so those of all lanes are one range each.
    fn sql(&self, id: SubscriptionId, outlook: &Outlook) -> Vec<String> {
        let range = |state: State, lanes: &str, more: &str, limit: usize| {
            format!(
                "SELECT {SLICE} FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE s.subscription = {} \
                 AND s.state = {} AND s.lane IN ({lanes}) AND s.`rank` = 0{more} ORDER BY s.lane, s.pos, s.chunk, s.id LIMIT {limit}",
                id.0, state as i16
            )
        };
        let mut sql = Vec::new();
        if self.first {
            let lanes = list(self.after.keys().map(|lane| lane.0));
            sql.push(range(State::Suspect, &lanes, "", TROUBLED));
            sql.push(range(State::Waiting, &lanes, " AND s.pos <= @tramline_now", TROUBLED));
        }
        for (lane, after) in &self.after {
            let below = outlook.backfills.get(&lane.topic());
            let below = below.map_or_else(String::new, |chunk| format!(" AND s.pos < {}", chunk.0));
            let more = format!(" AND s.pos > {after}{below}");
            sql.push(range(State::Ready, &lane.0.to_string(), &more, self.page + 1));
        }
        sql
    }

    /// Takes a page in.
    fn read(&mut self, sets: &[Rows]) -> Result<()> {
        let mut ready = sets;
        if let (true, [suspects, waiting, rest @ ..]) = (self.first, sets) {
            ready = rest;
            self.read_suspects(slices(suspects)?);
            for slice in slices(waiting)? {
                self.count(&slice);
                self.work.entry(slice.lane).or_default().waiting.push(slice);
            }
        }
        let mut next = BTreeMap::new();
        for ((lane, after), rows) in std::mem::take(&mut self.after).into_iter().zip(ready) {
            let mut found = slices(rows)?;
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
        Ok(())
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
    async fn rest(
        mut self,
        session: &mut Session<'_>,
        id: SubscriptionId,
        outlook: &Outlook,
        taker: &Taker,
    ) -> Result<BTreeMap<LaneId, Work>> {
        while !self.after.is_empty() && self.events < u64::from(taker.events) && self.bytes < taker.bytes {
            let sets = session.sets(self.sql(id, outlook)).await?;
            self.read(&sets)?;
        }
        self.work.retain(|lane, _| self.unknown.is_none_or(|last| *lane <= last));
        for lane in self.work.values_mut() {
            lane.ready.sort_by_key(|slice| (slice.chunk, slice.id));
        }
        Ok(self.work)
    }
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
    apply(session, id, &changes);
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
pub(super) fn next_due_sql(SubscriptionId(id): SubscriptionId) -> String {
    let later = |at: &str| format!("MIN(IF({at} > @tramline_now, {at}, NULL))");
    format!(
        "SELECT NULLIF(LEAST(COALESCE({waiting}, {never}), COALESCE({halted}, {never}), COALESCE({until}, {never})), {never}) \
         FROM (SELECT l.owner, l.until, l.halted_until, (SELECT MIN(s.pos) FROM tramline_slice s FORCE INDEX (tramline_slice_claim) \
         WHERE s.subscription = {id} AND s.state = 3 AND s.lane = l.lane AND s.`rank` = 0) AS pos \
         FROM tramline_lane l WHERE l.subscription = {id}) t",
        waiting = later("GREATEST(t.pos, t.halted_until)"),
        halted = later("t.halted_until"),
        until = "MIN(IF(t.owner <> 0 AND t.until > @tramline_now, t.until, NULL))",
        never = i64::MAX,
    )
}

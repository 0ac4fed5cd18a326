//! Ordered claims: many lanes in one transaction, whole chunks, oldest first.

use super::lanes::{lock_sql, views};
use super::next_due::NEVER;
use super::offer::{LANES, Reading, Seen, TROUBLED, look_sql};
use super::outlook::Outlook;
use super::rows::{apply, write_lanes};
use super::session::{Rows, Session};
use super::sql::Columns;
use super::suspects;
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::lane::Lane;
use crate::model::slice::{Slice, State};
use crate::model::subscription::Policy;
use crate::plan::claim::Taker;
use crate::plan::lane::{take, take_over, take_suspect};
use crate::plan::{Changes, LaneView};
use crate::store::claimed::RawClaim;
use crate::store::lanes::{
    Work, add, choose_suspects, cut, group, load_chunks, load_keys, load_marks, load_running, prefer_earlier,
};
use crate::store::rows::StepRows;
use crate::store::verbs::{Claim, Suspects};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How often one claim looks behind events that it had to set aside.
const ROUNDS: u32 = 8;

/// What a claim asks in its first round trip, if nothing is back-filled.
pub(super) fn first_reads(claim: &Claim) -> Vec<String> {
    reads(claim, &HashMap::new())
}

/// What it asks: for a lane with suspects if it wants one, and for work unless there is such a lane.
fn reads(claim: &Claim, backfills: &HashMap<TopicId, ChunkId>) -> Vec<String> {
    match claim.suspects {
        Suspects::Leave => look_sql(claim, backfills, None),
        Suspects::TakeOne => {
            let mut reads = suspects::look_sql(claim, backfills);
            reads.extend(look_sql(claim, backfills, Some(suspects::LANE_FOUND)));
            reads
        }
    }
}

/// Takes a suspect if one is wanted, else from as many lanes as needed, the worker's own first. Gives the statement that says when
/// something becomes due, if that matters.
pub(super) async fn claim(
    session: &mut Session<'_>,
    claim: &Claim,
    policy: &Policy,
    outlook: &Outlook,
    found: Vec<Rows>,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<Option<String>> {
    let mut sets = match outlook.backfills.is_empty() {
        true => found,
        false => session.sets(reads(claim, &outlook.backfills)).await?,
    };
    let look = Look { claim, policy, outlook };
    if claim.suspects == Suspects::TakeOne {
        let work = sets.split_off(suspects::STATEMENTS.min(sets.len()));
        let seen = suspects::read(&sets)?;
        let is_locked = !seen.views.is_empty();
        if look.take_lanes(session, Wanted::Suspect, seen, taker, raw).await? == Taken::Suspect {
            return Ok(None);
        }
        sets = match is_locked {
            // What was found there has to wait, or follows what has not run yet.
            true => session.sets(look_sql(claim, &outlook.backfills, None)).await?,
            false => work,
        };
    }
    let seen = Seen::read(&sets)?;
    raw.suspects_wait |= seen.suspects_wait;
    // With so many lanes there may be others: if these had nothing, the next claim looks at those.
    let crowded = seen.chosen.len() == LANES;
    if look.take_lanes(session, Wanted::Work, seen, taker, raw).await? == Taken::Suspect {
        return Ok(None);
    }
    if taker.is_full() {
        return Ok(None);
    }
    if crowded && raw.slices.is_empty() {
        raw.next_due = Some(session.now);
    }
    Ok(Some(next_due_sql(claim.subscription)))
}

/// What a claim wants of lanes.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// A suspect: whoever takes one takes nothing else.
    Suspect,
    /// Whatever there is to do.
    Work,
}

/// A look at some lanes.
struct Look<'a> {
    claim: &'a Claim,
    policy: &'a Policy,
    outlook: &'a Outlook,
}

type Views = BTreeMap<LaneId, LaneView>;

/// Whether a claim may go on.
#[derive(PartialEq)]
enum Taken {
    /// It took a suspect, and nothing else may run beside it.
    Suspect,
    /// It may take more.
    Rest,
}

impl Look<'_> {
    /// Takes from the lanes that were locked. Where they were is the only place where a locked lane is passed over: whoever has it
    /// takes from it.
    async fn take_lanes(
        &self,
        session: &mut Session<'_>,
        wanted: Wanted,
        seen: Seen,
        taker: &mut Taker,
        raw: &mut RawClaim,
    ) -> Result<Taken> {
        let Claim { subscription, owner, known, share, .. } = self.claim;
        let Seen { chosen, mut views, work: found, .. } = seen;
        let now = session.now;
        views.retain(|_, view| view.lane.is_open_to(*owner, known, now));
        if views.is_empty() {
            return Ok(Taken::Rest);
        }
        let before: Vec<Lane> = views.values().map(|view| view.lane.clone()).collect();
        let lapsed = views.values().filter(|view| view.lane.is_lapsed(*owner, known, now));
        let lapsed: Vec<LaneId> = lapsed.map(|view| view.lane.lane).collect();
        let mut work = if lapsed.is_empty() {
            let mut reading = Reading::new(chosen.into_iter(), taker);
            reading.read(found);
            reading.keep(|lane| views.contains_key(lane));
            Some(reading.rest(session, *subscription, self.outlook, taker).await?)
        } else {
            // What was taken under those leases is work again.
            take_over_lapsed(session, *subscription, self.policy, lapsed, &mut views).await?;
            None
        };
        let mut taken = Taken::Rest;
        let others: Views = views.extract_if(.., |lane, _| !share.prefers(*lane)).collect();
        for mut some in [std::mem::take(&mut views), others] {
            if taken == Taken::Rest && !some.is_empty() && !taker.is_full() {
                let of_some = |work: &mut BTreeMap<LaneId, Work>| {
                    work.extract_if(.., |lane, _| some.contains_key(lane)).collect()
                };
                let work = work.as_mut().map(of_some);
                taken = self.take_from(session, wanted, &mut some, work, taker, raw).await?;
            }
            views.append(&mut some);
        }
        let lanes = views.values().map(|view| &view.lane).zip(&before);
        let changed: Vec<&Lane> = lanes.filter(|(now, then)| now != then).map(|(now, _)| now).collect();
        write_lanes(session, &changed);
        Ok(taken)
    }

    /// Takes from locked lanes. `found` is what they have to offer, if that was read.
    async fn take_from(
        &self,
        session: &mut Session<'_>,
        wanted: Wanted,
        views: &mut Views,
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
            if wanted == Wanted::Suspect {
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
            if views.values().all(|view| view.lane.halted_until > now) {
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

/// The next time at which something becomes due: a waiting event, the end of a lane's lease, the end of a halt. Whether a lane was
/// passed over is not told.
pub(super) fn next_due_sql(SubscriptionId(id): SubscriptionId) -> String {
    let later = |at: &str| format!("MIN(IF({at} > @tramline_now, {at}, NULL))");
    format!(
        "SELECT NULLIF(LEAST(COALESCE({waiting}, {never}), COALESCE({halted}, {never}), COALESCE({until}, {never})), {never}), FALSE, NULL \
         FROM (SELECT l.owner, l.until, l.halted_until, (SELECT MIN(s.pos) FROM tramline_slice s FORCE INDEX (tramline_slice_claim) \
         WHERE s.subscription = {id} AND s.state = 3 AND s.lane = l.lane AND s.`rank` = 0) AS pos \
         FROM tramline_lane l WHERE l.subscription = {id}) t",
        waiting = later("GREATEST(t.pos, t.halted_until)"),
        halted = later("t.halted_until"),
        until = "MIN(IF(t.owner <> 0 AND t.until > @tramline_now, t.until, NULL))",
        never = NEVER,
    )
}

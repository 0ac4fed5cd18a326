//! The claim loop: keeps just enough events in hand, and waits without polling when there are none.

mod alone;
mod rest;

use crate::engine::backoff::Outage;
use crate::engine::hand::{Hand, Taken};
use crate::engine::keeper;
use crate::engine::presence::share;
use crate::engine::run::Run;
use crate::engine::trace::Stopped;
use crate::error::{Kind, Result};
use crate::model::id::{EventId, LaneId};
use crate::model::lane::{Held, Known, Share};
use crate::store::verbs::{Claim, Claimed, Release, Suspects, Worker};
use crate::wake::Listener;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A hint may be lost: look at least this often.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// How soon to look again after a claim that may have passed over something because somebody else had it locked.
const AGAIN: Duration = Duration::from_millis(5);
/// How much work should be in hand: what is done in this time, so that a claim is over before the hand is empty.
const AHEAD: Duration = Duration::from_millis(50);
/// The most events in hand.
const MOST: usize = 4_096;
/// The most bytes of one claim.
const MAX_BYTES: usize = 8 << 20;
/// So few slices cannot have reached a limit in bytes, as a chunk weighs one MiB at most.
const FEW_SLICES: usize = 4;

/// Claims for one run.
#[derive(Debug)]
pub(crate) struct Claimer {
    run: Arc<Run>,
    listener: Listener,
    living: watch::Receiver<Vec<Worker>>,
    pace: Pace,
    outage: Outage,
    stop: CancellationToken,
    until_idle: bool,
    claimed: u64,
    /// How many of them were suspects.
    suspects: u64,
    again: Again,
    /// The same of suspects that others were about to take.
    missed: Again,
    /// Somebody has come or gone: what this changes is which lanes are its own, so others are not helped because of it.
    own_only: bool,
    /// Lanes of which the store may have given more than this process knows: an answer was lost.
    doubted: BTreeSet<(LaneId, i64)>,
}

/// What a claim came back with.
#[derive(Debug)]
enum Found {
    /// There may be more.
    More,
    /// Only suspects are left, or some wait.
    Suspects,
    /// All that was due. Look again at this reading, and after so long if somebody may have been in the way.
    All { next: Option<Duration>, again: Option<Duration> },
}

impl Claimer {
    pub(crate) fn new(run: Arc<Run>, stop: CancellationToken, until_idle: bool) -> Claimer {
        Claimer {
            listener: run.tram.wake().listen(run.subscription.id),
            living: run.tram.presence().living(),
            pace: Pace::new(run.concurrency * run.handlers.largest_batch(), run.tram.clock().reading()),
            outage: Outage::new("events are claimed"),
            stop,
            until_idle,
            claimed: 0,
            suspects: 0,
            again: Again::default(),
            missed: Again::default(),
            own_only: false,
            doubted: BTreeSet::new(),
            run,
        }
    }

    /// How many events were claimed so far.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Claims until it is stopped, or until nothing is due and nothing in flight if that is what was asked for. An error is one
    /// that does not pass by itself.
    ///
    /// Not to be dropped half-way: events whose claim was not awaited would be free only when their lease ends.
    pub(crate) async fn claim_all(&mut self) -> Result<()> {
        let run = self.run.clone();
        let stop = self.stop.clone();
        let gate = run.tram.gate();
        let Some(mut shared) = unless(&stop, gate.shared()).await else { return Ok(()) };
        while !stop.is_cancelled() {
            if gate.is_wanted() {
                // Another worker of this process has to run a suspect alone.
                unless(&stop, run.ledger.drained()).await;
                drop(shared);
                let Some(again) = unless(&stop, gate.shared()).await else { break };
                shared = again;
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = gate.wanted() => continue,
                () = run.room(self.low()) => {}
            }
            self.listener.arm();
            match self.claim(Suspects::Leave).await? {
                Found::More => {}
                Found::Suspects => {
                    unless(&stop, run.ledger.drained()).await;
                    drop(shared);
                    let Some(alone) = unless(&stop, gate.alone()).await else { break };
                    let some = self.run_suspects().await?;
                    drop(alone);
                    let Some(again) = unless(&stop, gate.shared()).await else { break };
                    shared = again;
                    let again = self.missed.after(!some, 0);
                    // Somebody else was faster, or will be: looking again at once would only be busy.
                    if !some {
                        if self.until_idle {
                            break;
                        }
                        self.wait(None, again).await;
                    }
                }
                Found::All { .. } if self.until_idle => {
                    if run.ledger.is_drained() {
                        break;
                    }
                    run.ledger.drained().await;
                }
                Found::All { next, again } => self.rest(next, again).await?,
            }
        }
        Ok(())
    }

    /// At how many events in hand it is time to claim.
    fn low(&self) -> usize {
        if self.claims_ahead() { self.pace.target() / 2 } else { self.run.concurrency - 1 }
    }

    /// At most once, what is claimed is consumed; under a limit it counts as under way, and as started. So nothing is claimed that could
    /// not run at once.
    fn claims_ahead(&self) -> bool {
        let policy = &self.run.subscription.policy;
        !policy.is_at_most_once() && policy.limits.is_none()
    }

    /// How many events to ask for.
    fn wanted(&self, suspects: Suspects) -> u32 {
        let most = self.run.subscription.policy.claim_size();
        let in_hand = self.run.ledger.load.events();
        let room = match suspects {
            Suspects::TakeOne => 64,
            Suspects::Leave if self.run.subscription.policy.is_at_most_once() => most as usize,
            Suspects::Leave if !self.claims_ahead() => self.pace.at_once.saturating_sub(in_hand),
            Suspects::Leave => self.pace.target().saturating_sub(in_hand),
        };
        // Whole slices where possible: taking a part of one costs another row.
        let room = if room >= 64 { room & !63 } else { room.max(1) };
        (room as u32).min(most)
    }

    async fn claim(&mut self, suspects: Suspects) -> Result<Found> {
        let run = self.run.clone();
        self.pace.observe(run.tram.clock().reading(), run.ledger.load.events());
        let wanted = self.wanted(suspects);
        let own = share(&self.living.borrow_and_update(), run.tram.incarnation(), run.subscription.id);
        let own = Share { help: own.of == 1, ..own };
        let business = run.business();
        let mut got = self.take(suspects, wanted, own).await?;
        let own_only = std::mem::take(&mut self.own_only);
        // Only a worker with nothing of its own to do helps with the lanes of others.
        if run.is_ordered() && !own.help && !own_only && got.is_nothing() && run.ledger.load.events() == 0 {
            got = self.take(suspects, wanted, Share { help: true, ..own }).await?;
        }
        self.judge(got, wanted, business).await
    }

    /// What follows from what a claim for so many events got.
    async fn judge(&mut self, got: Got, wanted: u32, business: (u64, u64)) -> Result<Found> {
        let run = self.run.clone();
        self.pace.taken(run.tram.clock().reading(), run.ledger.load.events());
        self.claimed += got.events as u64;
        self.suspects += got.suspects as u64;
        let again = self.again.after(got.answer.passed_over, got.events);
        if got.answer.backfilling {
            match run.tram.store().backfill(run.subscription.id).await {
                Err(error) if error.kind() != Kind::Unavailable => return Err(error),
                Err(error) => {
                    unless(&self.stop, self.outage.wait(run.tram.clock(), &error)).await;
                }
                Ok(_) => {}
            }
            return Ok(Found::More);
        }
        if got.answer.suspects_wait {
            return Ok(Found::Suspects);
        }
        // Ordered claims have more reasons to end early, so only an empty one shows that there is nothing more.
        let few =
            !run.is_ordered() && !run.single && got.slices <= FEW_SLICES && got.events < wanted as usize;
        if got.events > 0 && !few && !got.answer.limited {
            return Ok(Found::More);
        }
        let next = got.answer.next_due.map(|due| run.tram.clock().reading_of(due, got.answer.now));
        let in_the_way = run.is_ordered() && !run.store_was_free(business);
        Ok(Found::All { next, again: again.or(in_the_way.then_some(AGAIN)) })
    }

    /// Asks the store until it answers (or the run is stopped), and puts what it gives into hand.
    async fn take(&mut self, suspects: Suspects, wanted: u32, share: Share) -> Result<Got> {
        let run = self.run.clone();
        let clock = run.tram.clock();
        loop {
            // Held until the events are in line: a failure that is settled in between would be overlooked.
            let no_failures = if run.is_ordered() { Some(run.order.read().await) } else { None };
            let claim = self.wish(suspects, wanted, share);
            // Read before the store is asked: the lease is surely not older than this.
            let reading = clock.reading();
            let error = match run.tram.store().claim(claim).await {
                Ok(claimed) => {
                    self.outage.over();
                    return Ok(put_in_hand(&run, claimed, reading).await);
                }
                Err(error) => error,
            };
            drop(no_failures);
            if error.kind() != Kind::Unavailable {
                return Err(error);
            }
            // The claim may have been carried out and its answer lost.
            self.doubted.extend(run.ledger.lanes());
            if unless(&self.stop, self.outage.wait(clock, &error)).await.is_none() {
                return Ok(Got::default());
            }
        }
    }

    fn wish(&mut self, suspects: Suspects, wanted: u32, share: Share) -> Claim {
        Claim {
            subscription: self.run.subscription.id,
            owner: self.run.tram.incarnation(),
            max_events: wanted,
            max_bytes: MAX_BYTES,
            lease: Some(self.run.subscription.policy.lease()),
            suspects,
            share,
            known: self.known(),
            single: self.run.single,
            now: self.run.tram.clock().now(),
        }
    }

    /// The lanes of which something is in hand. What the store believes to be in hand beyond that was lost on the way, and
    /// joining it to what is would hold it for ever.
    fn known(&mut self) -> Known {
        if !self.run.is_ordered() {
            return Known::All;
        }
        let lanes = self.run.ledger.lanes();
        self.doubted.retain(|lane| lanes.contains(lane));
        let held = |(lane, epoch)| Held { lane, epoch, closed: self.doubted.contains(&(lane, epoch)) };
        Known::Only(lanes.into_iter().map(held).collect())
    }
}

/// How soon to look again for what was due and passed over. Another claim frees what it does not take within milliseconds; somebody's
/// open transaction may have it for long, and asking again and again would be busy.
#[derive(Debug, Default)]
pub(crate) struct Again {
    in_vain: u32,
}

impl Again {
    /// After a claim that took so many events. `None`: nothing was passed over.
    pub(crate) fn after(&mut self, passed_over: bool, events: usize) -> Option<Duration> {
        if !passed_over || events > 0 {
            self.in_vain = 0;
        }
        let again = AGAIN.saturating_mul(1 << self.in_vain.min(16)).min(SLOW_POLL);
        self.in_vain += u32::from(passed_over);
        passed_over.then_some(again)
    }
}

/// A claim's answer, after its slices went into hand.
#[derive(Debug, Default)]
struct Got {
    answer: Claimed,
    slices: usize,
    events: usize,
    /// How many of them were suspects.
    suspects: usize,
}

impl Got {
    fn is_nothing(&self) -> bool {
        self.events == 0 && self.answer.stopped_by.is_none()
    }
}

async fn put_in_hand(run: &Arc<Run>, mut claimed: Claimed, reading: Duration) -> Got {
    run.tram.courier().send(&claimed.news);
    if let Some(rule) = claimed.stopped_by {
        run.stop_by(Stopped { rule, at: claimed.now });
    }
    let taken = Taken { now: claimed.now, reading };
    let slices = std::mem::take(&mut claimed.slices);
    let events = slices.iter().map(|slice| slice.events.len()).sum();
    let suspects = slices.iter().filter(|slice| slice.crashes > 0).map(|slice| slice.events.len()).sum();
    let got = Got { answer: claimed, slices: slices.len(), events, suspects };
    if events == 0 {
        return got;
    }
    run.hooks.claimed(run.name(), events);
    if let Some(journal) = &run.journal
        && let Err(error) = journal.claimed(&slices).await
    {
        // What is not in the journal counts as begun after a crash, which is safe.
        tracing::error!(error = %error, subscription = run.name(), "the journal cannot be written");
    }
    let hands: Vec<Arc<Hand>> =
        slices.into_iter().map(|slice| Arc::new(Hand::new(run.clone(), slice, taken))).collect();
    if run.is_ordered() {
        meet_earlier(run, &hands);
    }
    // What came after the end of its lease would not be started, and the store would take that for a crash. The lease began late there, if the
    // claim was slow, so mostly it can be extended.
    let lasts = |hand: &Arc<Hand>| hand.deadline() > run.tram.clock().reading();
    let ended: Vec<Arc<Hand>> = hands.iter().filter(|hand| !lasts(hand)).cloned().collect();
    keeper::extend(run, ended).await;
    let (hands, late): (Vec<_>, Vec<_>) =
        hands.into_iter().partition(|hand| !hand.is_lost() && lasts(hand) && run.ledger.add(hand.clone()));
    run.dispatch.add(&hands);
    give_back(run, &late).await;
    got
}

/// What came too late is given back, uncounted: nobody has begun it. If that fails, the next claim does not name its lane, and the store gives
/// it anew.
async fn give_back(run: &Run, late: &[Arc<Hand>]) {
    if late.is_empty() {
        return;
    }
    let ids: Vec<EventId> =
        late.iter().flat_map(|hand| hand.events.iter().map(|event| event.event.id)).collect();
    run.hooks.lease_lost(run.name(), &ids);
    let leases = late.iter().map(|hand| hand.lease).collect();
    let release = Release { subscription: run.subscription.id, leases, now: run.tram.clock().now() };
    if let Err(error) = run.tram.store().release(release).await {
        tracing::debug!(error = %error, subscription = run.name(), "a late claim could not be given back");
    }
}

/// A lane that came under a new epoch was lost in between, with all that is still in hand of it. Under the same epoch that lasts
/// as long as what came now.
fn meet_earlier(run: &Run, hands: &[Arc<Hand>]) {
    let lanes: HashMap<LaneId, &Hand> = hands.iter().map(|hand| (hand.lease.lane, &**hand)).collect();
    for hand in run.ledger.all() {
        match lanes.get(&hand.lease.lane) {
            Some(new) if new.lease.epoch != hand.lease.epoch => run.lose(&hand),
            Some(new) => hand.extend(new.until(), new.deadline()),
            None => {}
        }
    }
}

/// The value of `future`, or `None` if the token is cancelled first.
async fn unless<T>(stop: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        value = future => Some(value),
    }
}

/// How fast events are done, and so how many should be in hand.
#[derive(Debug)]
struct Pace {
    /// How many events can run at the same time.
    at_once: usize,
    /// Events per second.
    rate: f64,
    at: Duration,
    in_hand: usize,
}

impl Pace {
    fn new(at_once: usize, at: Duration) -> Pace {
        Pace { at_once, rate: 0.0, at, in_hand: 0 }
    }

    fn target(&self) -> usize {
        let ahead = (self.rate * AHEAD.as_secs_f64()) as usize;
        ahead.max(self.at_once.saturating_mul(2)).min(MOST)
    }

    /// So many events are left of those that were taken. A faster pace counts at once, a slower one by and by.
    fn observe(&mut self, now: Duration, in_hand: usize) {
        let took = now.saturating_sub(self.at).as_secs_f64();
        if took <= 0.0 {
            return;
        }
        let rate = self.in_hand.saturating_sub(in_hand) as f64 / took;
        self.rate = if rate > self.rate { rate } else { self.rate * 0.8 + rate * 0.2 };
    }

    fn taken(&mut self, now: Duration, in_hand: usize) {
        self.at = now;
        self.in_hand = in_hand;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_passed_over_is_looked_for_soon_and_then_less_and_less_often() {
        let mut again = Again::default();
        assert_eq!(again.after(false, 0), None);
        let waits: Vec<u64> =
            (0..10).filter_map(|_| again.after(true, 0)).map(|wait| wait.as_millis() as u64).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert_eq!(again.after(true, 3), Some(AGAIN));
        assert_eq!(again.after(true, 0), Some(2 * AGAIN));
        assert_eq!(again.after(false, 0), None);
        assert_eq!(again.after(true, 0), Some(AGAIN));
    }

    #[test]
    fn the_hand_holds_fifty_milliseconds_of_work_within_bounds() {
        let mut pace = Pace::new(8, Duration::ZERO);
        assert_eq!(pace.target(), 16);
        pace.taken(Duration::ZERO, 1_000);
        pace.observe(Duration::from_millis(100), 0);
        assert_eq!(pace.target(), 500);
        pace.taken(Duration::from_millis(100), 1_000_000);
        pace.observe(Duration::from_millis(200), 0);
        assert_eq!(pace.target(), MOST);
        for second in 1..100 {
            pace.taken(Duration::from_secs(second), 10);
            pace.observe(Duration::from_secs(second + 1), 10);
        }
        assert_eq!(pace.target(), 16);
    }
}

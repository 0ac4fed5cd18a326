//! One push subscription: waits until a batch is to go, claims it, sends it.

use super::batch::{Batch, cut};
use super::gather::{Bucket, Go, decide};
use super::scribe::{self, Scribe};
use super::standing::Standing;
use super::{Shared, send};
use crate::engine::backoff::Outage;
use crate::engine::remote::Take;
use crate::engine::trace::Stopped;
use crate::error::{Kind, Result};
use crate::model::health::Verdict;
use crate::model::id::Incarnation;
use crate::model::subscription::Ordering;
use crate::store::verbs::{Claimed, Gather, Steer, SteerPush};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Atomic};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many events one claim takes at most, and about how much they weigh.
const MOST: u32 = 4_096;
const MOST_BYTES: usize = 4 << 20;
/// How many batches are claimed ahead, for each request that may be under way, where the receiver answers within this time.
const AHEAD: usize = 4;
const QUICK: Duration = Duration::from_millis(100);
/// How many requests may have their outcome unwritten, for each that may be under way.
const UNWRITTEN: usize = 16;
/// For how long a claimed batch may wait before it is sent.
const GOOD_FOR: Duration = Duration::from_secs(3);

pub(super) struct Line {
    shared: Arc<Shared>,
    standing: watch::Receiver<Standing>,
    scribe: Arc<Scribe>,
    /// Requests, until what came of them is written back; each gives how long it took.
    sending: JoinSet<Duration>,
    /// How many of them are still waiting for their answer.
    under_way: Arc<UnderWay>,
    /// Batches that are claimed and not sent yet.
    hand: VecDeque<Held>,
    /// Whether the last request was answered at once.
    is_quick: bool,
    bucket: Bucket,
    stopped: Option<Stopped>,
}

/// A claimed batch, and until when it may be sent: its lease is as long as a request may take, and a little more.
struct Held {
    batch: Batch,
    good_until: Duration,
}

/// Requests that wait for their answer.
#[derive(Debug, Default)]
struct UnderWay {
    count: AtomicUsize,
    left: Notify,
}

impl UnderWay {
    fn enter(this: &Arc<UnderWay>) -> Place {
        this.count.fetch_add(1, Atomic::SeqCst);
        Place(this.clone())
    }

    fn count(&self) -> usize {
        self.count.load(Atomic::SeqCst)
    }
}

struct Place(Arc<UnderWay>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Atomic::SeqCst);
        self.0.left.notify_one();
    }
}

/// What a line does next.
enum Next {
    /// Looks again.
    Again,
    /// Waits for a hint, news of its subscription, or the end of a request.
    Wait,
    /// The same, but not beyond this reading of the clock.
    Until(Duration),
}

impl Line {
    pub(super) fn new(shared: Arc<Shared>, standing: watch::Receiver<Standing>, scribe: Arc<Scribe>) -> Line {
        Line {
            shared,
            standing,
            scribe,
            sending: JoinSet::new(),
            under_way: Arc::default(),
            hand: VecDeque::new(),
            is_quick: false,
            bucket: Bucket::default(),
            stopped: None,
        }
    }

    /// Runs until it is stopped or its subscription is gone; then requests that are under way may take `grace` to finish.
    pub(super) async fn run(mut self, stop: CancellationToken, grace: Duration) {
        let shared = self.shared.clone();
        let (tram, clock) = (&shared.tram, shared.tram.clock());
        let mut listener = tram.wake().listen(self.standing.borrow().subscription.id);
        let mut outage = Outage::new("pushing");
        while !stop.is_cancelled() {
            listener.arm();
            let until = match self.step(&stop).await {
                Ok(Next::Again) => continue,
                Ok(Next::Wait) => Duration::MAX,
                Ok(Next::Until(reading)) => reading,
                Err(error) if error.kind() == Kind::NotFound => break,
                Err(error) => {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = outage.wait(clock, &error) => {}
                    }
                    continue;
                }
            };
            outage.over();
            let until =
                if self.scribe.is_behind() { until.min(clock.reading() + scribe::EVERY) } else { until };
            tokio::select! {
                () = stop.cancelled() => {}
                () = listener.wait() => {}
                known = self.standing.changed() => if known.is_err() { break },
                Some(ended) = self.sending.join_next() => self.pace(ended.ok()),
                () = self.under_way.left.notified() => {}
                () = clock.sleep_until(until) => {}
            }
        }
        self.give_back(|_| true).await;
        let ended = async { while self.sending.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, ended).await.is_err() {
            tracing::warn!("requests that were still under way are sent again when their lease ends");
        }
        self.scribe.finish().await;
    }

    async fn step(&mut self, stop: &CancellationToken) -> Result<Next> {
        while let Some(ended) = self.sending.try_join_next() {
            self.pace(ended.ok());
        }
        self.scribe.catch_up().await;
        let standing = self.standing.borrow_and_update().clone();
        let shared = self.shared.clone();
        let clock = shared.tram.clock();
        if let Some(until) = standing.closed_until(clock) {
            self.give_back(|_| true).await;
            return Ok(Next::Until(until));
        }
        let free = standing.width().saturating_sub(self.under_way.count());
        if free == 0 || self.sending.len() >= standing.width() * UNWRITTEN {
            self.give_back(|held| held.good_until <= clock.reading()).await;
            return Ok(self.hand.front().map_or(Next::Wait, |held| Next::Until(held.good_until)));
        }
        let wanted = if self.hand.is_empty() { self.wanted(&standing, free).await? } else { Go::Nothing };
        match wanted {
            Go::At(reading) => return Ok(Next::Until(reading)),
            Go::Nothing if self.hand.is_empty() => return Ok(Next::Wait),
            Go::Nothing | Go::Now(_) => {}
        }
        let Some(room) = self.room(stop).await else { return Ok(Next::Wait) };
        // Room may have come late: a lease has run on meanwhile, and the subscription may stand differently.
        self.give_back(|held| held.good_until <= clock.reading()).await;
        let standing = self.standing.borrow().clone();
        if standing.closed_until(clock).is_some() {
            return Ok(Next::Again);
        }
        if let (true, Go::Now(events)) = (self.hand.is_empty(), wanted) {
            match self.fill(&standing, events).await? {
                Next::Again => {}
                next => return Ok(next),
            }
        }
        self.send(&standing, free, room);
        Ok(Next::Again)
    }

    /// Claims what is to be sent next. [`Next::Again`]: there is something in hand, or may be soon.
    async fn fill(&mut self, standing: &Standing, events: u32) -> Result<Next> {
        if standing.is_to_be_asked() {
            return self.ask(standing).await;
        }
        let claimed = self.claim(standing, events).await?;
        if claimed.slices.is_empty() {
            return self.nothing(standing, &claimed).await;
        }
        let good_until = self.shared.tram.clock().reading() + GOOD_FOR;
        for batch in cut(claimed, standing.push.batch_size()) {
            self.bucket.take(batch.events.len() as u32);
            self.hand.push_back(Held { batch, good_until });
        }
        Ok(Next::Again)
    }

    /// How many events to claim now.
    async fn wanted(&mut self, standing: &Standing, free: usize) -> Result<Go> {
        let clock = self.shared.tram.clock();
        let size = standing.push.batch_size();
        // Where there is no order, one claim is for several requests, and some more if the receiver is quick. Else what one
        // claim takes must not be under way twice.
        let unordered = standing.subscription.policy.ordering == Ordering::None;
        let ahead = if self.is_quick { standing.width() * AHEAD } else { 0 };
        let batches = if unordered { (free + ahead) as u32 } else { 1 };
        let most = size.saturating_mul(batches).min(MOST.max(size));
        let room = match self.bucket.allowance(standing.push.rate, most, clock.reading()) {
            Ok(events) => events,
            Err(reading) => return Ok(Go::At(reading)),
        };
        if standing.push.timeout.is_zero() {
            return Ok(Go::Now(room));
        }
        let gather = Gather { subscription: standing.subscription.id, events: most, now: clock.now() };
        let gathered = self.shared.tram.store().gather(gather).await?;
        Ok(decide(&gathered, standing, room, clock))
    }

    /// Waits for room for a request. `None`: stopped meanwhile.
    async fn room(&self, stop: &CancellationToken) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            () = stop.cancelled() => None,
            permit = self.shared.requests.clone().acquire_owned() => permit.ok(),
        }
    }

    async fn claim(&self, standing: &Standing, events: u32) -> Result<Claimed> {
        let take = Take {
            subscription: standing.subscription.id,
            owner: Incarnation::random(),
            max_events: events,
            max_bytes: MOST_BYTES,
            lease: Some(standing.push.lease()),
        };
        self.shared.tram.take_now(&take).await
    }

    /// Nothing could be claimed: a rule stops it, a lane is taken, a back-fill goes on.
    async fn nothing(&mut self, standing: &Standing, claimed: &Claimed) -> Result<Next> {
        if let Some(rule) = claimed.stopped_by {
            self.stopped = Some(Stopped { rule, at: claimed.now });
        }
        if claimed.backfilling && claimed.stopped_by.is_none() {
            let more = self.shared.tram.store().backfill(standing.subscription.id).await?;
            return Ok(if more { Next::Again } else { Next::Wait });
        }
        let clock = self.shared.tram.clock();
        Ok(match claimed.next_due {
            // Due already, but in somebody else's hands: there will be a hint.
            Some(due) if due > claimed.now => Next::Until(clock.reading_of(due, claimed.now)),
            _ => Next::Wait,
        })
    }

    /// Sends as many batches from the hand as there is room for: for one, and for others as long as nobody has to wait.
    fn send(&mut self, standing: &Standing, free: usize, room: OwnedSemaphorePermit) {
        let mut room = Some(room);
        for _ in 0..free {
            let permit = room.take().or_else(|| self.shared.requests.clone().try_acquire_owned().ok());
            let Some(permit) = permit else { return };
            let Some(held) = self.hand.pop_front() else { return };
            let (shared, scribe, standing) = (self.shared.clone(), self.scribe.clone(), standing.clone());
            let (place, stopped) = (UnderWay::enter(&self.under_way), self.stopped);
            self.sending.spawn(async move {
                let (judged, attempt, _settling) = send::send(&shared, &standing, &held.batch, stopped).await;
                let latency = attempt.latency;
                drop(permit);
                // Where there is order, or something went wrong, what follows waits until this is written back; else the next
                // one goes at once.
                let waits = standing.subscription.policy.is_ordered() || judged.verdict != Verdict::Delivered;
                let place = Some(place).filter(|_| waits);
                scribe.report(held.batch, judged, attempt).await;
                drop(place);
                latency
            });
        }
    }

    /// Gives claimed batches back that are not to be sent.
    async fn give_back(&mut self, unwanted: impl Fn(&Held) -> bool) {
        let (back, kept): (Vec<Held>, VecDeque<Held>) = {
            let (back, kept): (Vec<Held>, Vec<Held>) = self.hand.drain(..).partition(unwanted);
            (back, kept.into())
        };
        self.hand = kept;
        if !back.is_empty() {
            self.scribe.give_back(back.into_iter().map(|held| held.batch)).await;
        }
    }

    /// Learns from a request that ended how quick the receiver is.
    fn pace(&mut self, latency: Option<Duration>) {
        self.is_quick = latency.is_some_and(|latency| latency < QUICK);
    }

    /// Asks the receiver whether it wants events.
    async fn ask(&mut self, standing: &Standing) -> Result<Next> {
        let subscription = standing.subscription.id;
        match send::ask(&self.shared, standing).await {
            Ok(()) => {
                let (tram, callback) = (&self.shared.tram, standing.push.callback.clone());
                let steer = Steer::Agreed { callback };
                let now = tram.clock().now();
                let steer = SteerPush { subscription, steer, by: "the receiver".to_owned(), now };
                let health = tram.store().steer_push(steer).await?;
                self.scribe.learn(health, standing.time(tram.clock()));
            }
            Err(attempt) => self.scribe.note(*attempt).await?,
        }
        Ok(Next::Again)
    }
}

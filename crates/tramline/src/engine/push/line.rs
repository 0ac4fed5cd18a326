//! One push subscription: waits until a batch is to go, claims it, and has it sent.

use super::batch::{Batch, cut};
use super::gather::{Bucket, Go, decide};
use super::hand::Hand;
use super::scribe::Scribe;
use super::sender::{Ended, Sender};
use super::standing::Standing;
use super::{Shared, send, share};
use crate::engine::backoff::Outage;
use crate::engine::remote::Take;
use crate::engine::trace::Stopped;
use crate::error::{Error, Kind, Result};
use crate::model::id::Incarnation;
use crate::model::mask::Mask;
use crate::model::subscription::Ordering;
use crate::store::verbs::{Claimed, Gather, Steer, SteerPush};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// How many events one claim takes at most, and about how much they weigh.
const MOST: u32 = 4_096;
const MOST_BYTES: usize = 4 << 20;
/// How many batches are claimed ahead, for each request that may be under way, where the receiver is quick.
const AHEAD: usize = 16;

pub(super) struct Line {
    shared: Arc<Shared>,
    standing: watch::Receiver<Standing>,
    scribe: Arc<Scribe>,
    hand: Arc<Hand>,
    /// Each has one request under way, or waits until what came of it is written.
    senders: JoinSet<Ended>,
    /// The last claim took all that was wanted, so there may be more.
    has_more: bool,
    /// The last claim took all that there was: unless something happens, there is nothing more before this reading of the clock.
    nothing_until: Option<Duration>,
    bucket: Bucket,
    /// The rule that last kept events from being claimed.
    stopped: Option<Stopped>,
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
            hand: Arc::default(),
            senders: JoinSet::new(),
            has_more: false,
            nothing_until: None,
            bucket: Bucket::default(),
            stopped: None,
        }
    }

    /// Runs until it is stopped or its subscription is gone; then requests that are under way may take `grace` to finish.
    pub(super) async fn run(mut self, stop: CancellationToken, grace: Duration) {
        let scribe = self.scribe.clone();
        let sending = async {
            self.send_all(&stop).await;
            self.give_back(self.hand.take_all()).await;
            let ended = async { while self.senders.join_next().await.is_some() {} };
            if tokio::time::timeout(grace, ended).await.is_err() {
                tracing::warn!("requests that were still under way are sent again when their lease ends");
            }
            self.senders.shutdown().await;
            scribe.close();
        };
        tokio::join!(sending, scribe.write_all());
    }

    async fn send_all(&mut self, stop: &CancellationToken) {
        let shared = self.shared.clone();
        let (tram, clock) = (&shared.tram, shared.tram.clock());
        let mut listener = tram.wake().listen(self.standing.borrow().subscription.id);
        let mut outage = Outage::new("pushing");
        while !stop.is_cancelled() {
            // A hint since the last claim still counts where no other one follows.
            if self.nothing_until.is_none() {
                listener.arm();
            }
            let until = match self.step(stop).await {
                Ok(Next::Again) => continue,
                Ok(Next::Wait) => Duration::MAX,
                Ok(Next::Until(reading)) => reading,
                Err(error) if error.kind() == Kind::NotFound => return,
                Err(error) => {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = outage.wait(clock, &error) => {}
                    }
                    continue;
                }
            };
            outage.over();
            tokio::select! {
                () = stop.cancelled() => {}
                () = listener.wait() => self.nothing_until = None,
                known = self.standing.changed() => match known {
                    Ok(()) => self.nothing_until = None,
                    Err(_) => return,
                },
                Some(ended) = self.senders.join_next() => self.ended(ended),
                () = self.hand.is_low() => {}
                () = clock.sleep_until(until) => {}
            }
        }
    }

    async fn step(&mut self, stop: &CancellationToken) -> Result<Next> {
        while let Some(ended) = self.senders.try_join_next() {
            self.ended(ended);
        }
        if self.standing.has_changed().unwrap_or(true) {
            self.nothing_until = None;
        }
        let standing = self.standing.borrow_and_update().clone();
        let shared = self.shared.clone();
        let clock = shared.tram.clock();
        if let Some(until) = standing.closed_until(clock).or(standing.is_locked().then_some(Duration::MAX)) {
            self.give_back(self.hand.take_all()).await;
            return Ok(Next::Until(until));
        }
        self.give_back(self.hand.take_stale(clock.reading())).await;
        let own = self.senders.len();
        let share = share::more(own, shared.requests.available_permits(), shared.all_requests);
        let free = standing.width().saturating_sub(own).min(share);
        let nothing = self.nothing_until.filter(|until| *until > clock.reading());
        let wanted = match (self.is_short(&standing, free), nothing) {
            (true, None) => self.wanted(&standing, free).await?,
            (true, Some(until)) => Go::At(until),
            (false, _) => Go::Nothing,
        };
        let waits = match (wanted, self.hand.good_until()) {
            (Go::Now(_), _) => None,
            (_, Some(until)) if free == 0 => Some(Next::Until(until)),
            (_, Some(_)) => None,
            (Go::At(reading), None) => Some(Next::Until(reading)),
            (Go::Nothing, None) => Some(Next::Wait),
        };
        if let Some(next) = waits {
            return Ok(next);
        }
        let room = if free > 0 { self.room(stop).await } else { None };
        if free > 0 && room.is_none() {
            return Ok(Next::Wait);
        }
        // Room may have come late: a lease has run on meanwhile, and the subscription may stand differently.
        self.give_back(self.hand.take_stale(clock.reading())).await;
        let standing = self.standing.borrow().clone();
        if !standing.is_open(clock) {
            return Ok(Next::Again);
        }
        let next = match wanted {
            Go::Now(events) => self.fill(&standing, events).await?,
            Go::At(_) | Go::Nothing => Next::Again,
        };
        // The same of a claim, which may even have brought what was given back because the subscription is disabled.
        if !self.standing.borrow().is_open(clock) {
            return Ok(Next::Again);
        }
        match room {
            Some(room) if self.hand.len() > 0 => {
                self.send(&standing, free, room);
                Ok(Next::Again)
            }
            _ => Ok(next),
        }
    }

    /// True if it is time to claim: there is nothing to send, or soon will be.
    fn is_short(&self, standing: &Standing, free: usize) -> bool {
        let most = (MOST / standing.push.batch_size().max(1)) as usize;
        let low = match self.has_more && self.hand.is_quick() {
            true => most.min(standing.width() * AHEAD) / 2,
            false => 0,
        };
        self.hand.is_at_most(low) && (free > 0 || low > 0)
    }

    /// Claims what is to be sent next. [`Next::Again`]: there is something in hand, or may be soon.
    async fn fill(&mut self, standing: &Standing, events: u32) -> Result<Next> {
        if standing.is_to_be_asked() {
            return self.ask(standing).await;
        }
        // Before the claim: its lease runs from when the store gives it, not from when the answer is here.
        let reading = self.shared.tram.clock().reading();
        let claimed = self.claim(standing, events).await?;
        let count: usize = claimed.slices.iter().map(|slice| slice.events.len()).sum();
        // What is under way in order must not be claimed beside.
        let is_ordered = standing.subscription.policy.ordering != Ordering::None;
        self.has_more = count >= events as usize && !is_ordered;
        self.nothing_until = if is_ordered { None } else { self.rest(&claimed) };
        if claimed.slices.is_empty() {
            return self.nothing(standing, &claimed).await;
        }
        self.bucket.take(count as u32);
        self.hand.add(cut(claimed, standing.push.batch_size()), reading);
        Ok(Next::Again)
    }

    /// Until which reading there is nothing to claim, if a claim has taken all that was due. What it has not told of, a hint does.
    fn rest(&self, claimed: &Claimed) -> Option<Duration> {
        let is_all =
            !(claimed.passed_over || claimed.suspects_wait || claimed.backfilling || claimed.limited);
        let next = claimed.next_due.filter(|_| is_all && !claimed.slices.is_empty())?;
        Some(self.shared.tram.clock().reading_of(next, claimed.now))
    }

    /// A sender that waited until an outcome was written may leave something that is due again.
    fn ended(&mut self, ended: Result<Ended, JoinError>) {
        if !matches!(ended, Ok(Ended::HandEmpty)) {
            self.nothing_until = None;
        }
    }

    /// How many events to claim now.
    async fn wanted(&mut self, standing: &Standing, free: usize) -> Result<Go> {
        let clock = self.shared.tram.clock();
        let most = self.most(standing, free);
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

    /// How many events one claim may take. Where there is no order, it is for several requests, and some more if the receiver is
    /// quick. Else what one claim takes must not be under way twice.
    fn most(&self, standing: &Standing, free: usize) -> u32 {
        let size = standing.push.batch_size();
        if standing.subscription.policy.ordering != Ordering::None {
            return size;
        }
        let ahead = if self.hand.is_quick() { standing.width() * AHEAD } else { 0 };
        let batches = (free + ahead).saturating_sub(self.hand.len()).max(1) as u32;
        let most = size.saturating_mul(batches).min(MOST.max(size));
        // Whole slices where possible: taking a part of one costs another row.
        if size == 1 && most > Mask::CAPACITY { most - most % Mask::CAPACITY } else { most }
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

    /// Starts senders: one, and others as long as nobody has to wait for room.
    fn send(&mut self, standing: &Standing, free: usize, room: OwnedSemaphorePermit) {
        let mut room = Some(room);
        for _ in 0..free {
            let room = room.take().or_else(|| self.shared.requests.clone().try_acquire_owned().ok());
            let Some(room) = room else { return };
            let Some(batch) = self.hand.take(self.shared.tram.clock().reading()) else { return };
            let sender = Sender {
                shared: self.shared.clone(),
                hand: self.hand.clone(),
                scribe: self.scribe.clone(),
                standing: standing.clone(),
                news: self.standing.clone(),
                stopped: self.stopped,
                room,
            };
            self.senders.spawn(sender.run(batch));
        }
    }

    /// Gives claimed batches back that are not to be sent.
    async fn give_back(&self, batches: Vec<Batch>) {
        if !batches.is_empty() {
            self.scribe.written(self.scribe.give_back(batches)).await;
        }
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
            Err(attempt) => {
                self.scribe.written(self.scribe.note(*attempt)).await;
                // Not by whether it is closed now: by the time this is known, it may be open again.
                if self.standing.borrow().health.failed == standing.health.failed {
                    // It could not be written down, so that nothing says when to ask again.
                    return Err(Error::unavailable("a refusal was not recorded", "wait for the store"));
                }
            }
        }
        Ok(Next::Again)
    }
}

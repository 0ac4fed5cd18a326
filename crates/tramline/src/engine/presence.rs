//! Signs of life: one heartbeat per process, and which share of the lanes that makes this process prefer.

use crate::engine::clock::Clock;
use crate::engine::courier::Courier;
use crate::engine::options::Kept;
use crate::engine::shed::Ceiling;
use crate::engine::{schedule, sweep};
use crate::error::{Error, Kind, Result};
use crate::model::id::{Incarnation, SubscriptionId};
use crate::model::lane::Share;
use crate::model::time::Time;
use crate::store::Store;
use crate::store::verbs::{Beat, Worker};
use crate::wake::Wake;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// After this many missed heartbeats a worker is dead.
const MISSED: u32 = 3;

/// Keeps this process known to the others while something of it runs.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) wake: Arc<dyn Wake>,
    pub(crate) care: Care,
    pub(crate) incarnation: Incarnation,
    /// Rings when a schedule was changed here.
    pub(crate) schedules: Notify,
    /// Rings when a heartbeat has found somebody dead.
    pub(crate) deaths: Notify,
    /// What the process calls itself.
    pub(crate) name: Arc<str>,
    every: Duration,
    members: Mutex<Members>,
    living: watch::Sender<Vec<Worker>>,
    /// How many heartbeats in a row worked and came in time, and when the last one was sent. A process that was asleep, or
    /// cut off, must not judge others, or itself, by its own silence.
    streak: Mutex<Streak>,
    /// One beat at a time, so that an older list of subscriptions never overwrites a newer one.
    beating: tokio::sync::Mutex<()>,
}

/// Heartbeats that came in time, one after the other. Whoever has not seen enough of them cannot tell who is dead: while the store was
/// away, nobody could beat.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    beats: u32,
    /// When the last one began, and the last that counts.
    last: Duration,
    counted: Duration,
    /// The last one by the clock of the store. That may jump, and a machine may sleep without its own clock noticing.
    at: Option<Time>,
}

impl Streak {
    fn add(&mut self, reading: Duration, at: Option<Time>, every: Duration) {
        let is_late = |since: Duration| since > every * 2;
        let jumped = self.at.zip(at).is_some_and(|(last, at)| is_late(at.since(last)));
        if self.beats == 0 || jumped || is_late(reading.saturating_sub(self.last)) {
            (self.beats, self.counted) = (1, reading);
        } else if reading.saturating_sub(self.counted) > every / 2 {
            // Those that come because a worker joins or leaves are no sign that others had time to beat.
            (self.beats, self.counted) = (self.beats.saturating_add(1), reading);
        }
        (self.last, self.at) = (reading, at);
    }
}

#[derive(Debug, Default)]
struct Members {
    reserved: HashSet<SubscriptionId>,
    /// Those of them that others hear of.
    subscriptions: Vec<SubscriptionId>,
    caretakers: usize,
    tasks: Option<Tasks>,
}

#[derive(Debug)]
struct Tasks {
    stop: CancellationToken,
    running: JoinSet<()>,
}

/// Who a process is and how it shows that it lives.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) incarnation: Incarnation,
    pub(crate) name: String,
    pub(crate) every: Duration,
}

/// What sweeps need to look after tallies, and how full the store may be.
#[derive(Debug)]
pub(crate) struct Care {
    pub(crate) courier: Arc<Courier>,
    pub(crate) kept: Kept,
    pub(crate) ceiling: Ceiling,
}

impl Presence {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        wake: Arc<dyn Wake>,
        who: Identity,
        care: Care,
    ) -> Arc<Presence> {
        Arc::new(Presence {
            store,
            clock,
            wake,
            care,
            incarnation: who.incarnation,
            schedules: Notify::new(),
            deaths: Notify::new(),
            name: who.name.into(),
            every: who.every,
            members: Mutex::default(),
            living: watch::Sender::new(Vec::new()),
            streak: Mutex::default(),
            beating: tokio::sync::Mutex::default(),
        })
    }

    /// Makes sure that this process has no other worker of a subscription. Nobody else hears of it before it joins.
    ///
    /// # Errors
    /// `Conflict` if it has one.
    pub(crate) fn reserve(self: &Arc<Self>, subscription: SubscriptionId) -> Result<Place> {
        if !self.members().reserved.insert(subscription) {
            return Err(Error::conflict(
                "this process already runs a worker of this subscription",
                "raise its concurrency, or open a second Tramline",
            ));
        }
        Ok(Place { presence: self.clone(), subscription })
    }

    /// Heartbeats and sweeps without a worker, until the membership is left.
    pub(crate) fn care(self: &Arc<Self>) -> Membership {
        let mut members = self.members();
        members.caretakers += 1;
        self.start(&mut members);
        Membership { presence: self.clone(), place: None, left: false }
    }

    /// The share of the lanes that this process prefers, as far as it knows, and a signal for changes.
    pub(crate) fn living(&self) -> watch::Receiver<Vec<Worker>> {
        self.living.subscribe()
    }

    /// After how much silence others may be declared dead; `None` while this process cannot judge.
    pub(crate) fn dead_after(&self) -> Option<Duration> {
        let streak = *self.streak();
        let is_awake = self.clock.reading().saturating_sub(streak.last) <= self.every * 2;
        (streak.beats >= MISSED && is_awake).then(|| self.every * MISSED)
    }

    fn streak(&self) -> std::sync::MutexGuard<'_, Streak> {
        self.streak.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn members(&self) -> std::sync::MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, members: &mut Members) {
        if members.tasks.is_some() {
            return;
        }
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(keep_beating(self.clone(), self.clock.reading() + self.every, stop.clone()));
        running.spawn(sweep::keep_burying(self.clone(), stop.clone()));
        running.spawn(sweep::keep_sweeping(self.clone(), stop.clone()));
        running.spawn(schedule::keep_ticking(self.clone(), stop.clone()));
        members.tasks = Some(Tasks { stop, running });
    }

    async fn beat(&self, leaving: bool) -> Result<()> {
        let _one_at_a_time = self.beating.lock().await;
        let reading = self.clock.reading();
        let beat = Beat {
            incarnation: self.incarnation,
            name: self.name.to_string(),
            subscriptions: self.members().subscriptions.clone(),
            leaving,
            now: self.clock.now(),
        };
        match self.store.beat(beat).await {
            Ok(known) => {
                let me = known.iter().find(|worker| worker.incarnation == self.incarnation);
                self.streak().add(reading, me.map(|me| me.beat_at), self.every);
                let living = self.without_dead(known);
                self.living.send_if_modified(|known| {
                    let moved = !known.iter().map(who).eq(living.iter().map(who));
                    *known = living;
                    moved
                });
                Ok(())
            }
            Err(error) => {
                self.streak().beats = 0;
                Err(error)
            }
        }
    }

    /// Leaves out those who have missed too many heartbeats, by the store's clock, and sees to it that they are buried: others take over
    /// their shares, and what they held, now.
    fn without_dead(&self, mut known: Vec<Worker>) -> Vec<Worker> {
        let me = known.iter().find(|worker| worker.incarnation == self.incarnation);
        if let (Some(now), Some(dead_after)) = (me.map(|me| me.beat_at), self.dead_after()) {
            let all = known.len();
            known.retain(|worker| worker.beat_at > now.before(dead_after));
            if known.len() < all {
                self.deaths.notify_one();
            }
        }
        known
    }

    /// Ends what only ran for the one that left. The last to leave says goodbye to the store.
    async fn part(&self, subscription: Option<SubscriptionId>) {
        let last = {
            let mut members = self.members();
            match subscription {
                Some(subscription) => members.subscriptions.retain(|known| *known != subscription),
                None => members.caretakers -= 1,
            }
            let over = members.subscriptions.is_empty() && members.caretakers == 0;
            if over { members.tasks.take() } else { None }
        };
        let leaving = last.is_some();
        if let Some(mut tasks) = last {
            tasks.stop.cancel();
            while tasks.running.join_next().await.is_some() {}
        }
        if let Err(error) = self.beat(leaving).await {
            tracing::debug!(error = %error, "the last heartbeat failed; others will notice the silence");
        }
    }
}

fn who(worker: &Worker) -> (Incarnation, &[SubscriptionId]) {
    (worker.incarnation, &worker.subscriptions)
}

/// The place of the one worker that this process may have of a subscription. Free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    presence: Arc<Presence>,
    subscription: SubscriptionId,
}

impl Place {
    /// This process works on the subscription from now on. Returns after the first heartbeat, so that others know before
    /// anything is claimed; when the store is away, the heartbeat is repeated in the background.
    pub(crate) async fn join(self) -> Result<Membership> {
        let presence = self.presence.clone();
        {
            let mut members = presence.members();
            members.subscriptions.push(self.subscription);
            presence.start(&mut members);
        }
        let membership = Membership { presence: presence.clone(), place: Some(self), left: false };
        match presence.beat(false).await {
            Err(error) if error.kind() != Kind::Unavailable => Err(error),
            _ => Ok(membership),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.presence.members().reserved.remove(&self.subscription);
    }
}

/// Says that something of this process runs. Leave it with [`Membership::leave`]; if it is dropped instead, the process stops
/// counting as a worker of the subscription with its next heartbeat.
#[derive(Debug)]
pub(crate) struct Membership {
    presence: Arc<Presence>,
    place: Option<Place>,
    left: bool,
}

impl Membership {
    pub(crate) async fn leave(mut self) {
        self.left = true;
        self.presence.part(self.subscription()).await;
    }

    fn subscription(&self) -> Option<SubscriptionId> {
        self.place.as_ref().map(|place| place.subscription)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let mut members = self.presence.members();
        match self.subscription() {
            Some(subscription) => members.subscriptions.retain(|known| *known != subscription),
            None => members.caretakers = members.caretakers.saturating_sub(1),
        }
        if members.subscriptions.is_empty() && members.caretakers == 0 {
            // Dropping the tasks aborts them.
            members.tasks = None;
        }
    }
}

/// Beats at fixed times, however long a beat takes; those that were missed are left out.
async fn keep_beating(presence: Arc<Presence>, first: Duration, stop: CancellationToken) {
    let (mut next, mut failing) = (first, false);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = presence.clock.sleep_until(next) => {}
        }
        let (due, now) = (next + presence.every, presence.clock.reading());
        next = if due > now { due } else { now + presence.every };
        match presence.beat(false).await {
            Ok(()) => failing = false,
            Err(error) if failing => tracing::debug!(error = %error, "heartbeat failed again"),
            Err(error) => {
                failing = true;
                tracing::warn!(error = %error, "a heartbeat failed; this process may lose its leases");
            }
        }
    }
}

/// The share of `me` among the living workers of a subscription, by birth order. Somebody who is not known yet shares with
/// all the others: the lease decides, the share is only a preference.
pub(crate) fn share(living: &[Worker], me: Incarnation, subscription: SubscriptionId) -> Share {
    let mut peers = living.iter().filter(|worker| worker.subscriptions.contains(&subscription));
    let of = peers.clone().count();
    match peers.position(|worker| worker.incarnation == me) {
        Some(index) => Share { index: index as u32, of: of as u32, help: false },
        None => Share { index: of as u32, of: of as u32 + 1, help: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Time;

    #[test]
    fn shares_follow_birth_order_among_the_workers_of_one_subscription() {
        let worker = |id, subscriptions: &[i64]| Worker {
            incarnation: Incarnation(id),
            name: format!("w{id}"),
            subscriptions: subscriptions.iter().copied().map(SubscriptionId).collect(),
            born_at: Time(id),
            beat_at: Time(id),
        };
        let living = [worker(7, &[1]), worker(8, &[2]), worker(9, &[1, 2])];
        let of = |me, subscription| {
            let share = share(&living, Incarnation(me), SubscriptionId(subscription));
            (share.index, share.of)
        };
        assert_eq!((of(7, 1), of(9, 1)), ((0, 2), (1, 2)));
        assert_eq!((of(8, 2), of(9, 2)), ((0, 2), (1, 2)));
        assert_eq!(of(1, 3), (0, 1));
        assert_eq!(of(1, 1), (2, 3));
    }

    #[test]
    fn only_heartbeats_that_others_had_time_for_count() {
        let (every, second) = (Duration::from_secs(2), Duration::from_secs(1));
        let at = |seconds: u32| Some(Time(i64::from(seconds) * 1000));
        let mut streak = Streak::default();
        // Three workers that join one after the other: the store may have come back a moment ago.
        for _ in 0..3 {
            streak.add(second, at(1), every);
        }
        assert_eq!(streak.beats, 1);
        for seconds in [3, 5, 7] {
            streak.add(second * seconds, at(seconds), every);
        }
        assert_eq!(streak.beats, 4);
        // The clock of the store jumps, or this machine has slept: everybody else looks silent.
        streak.add(second * 9, at(29), every);
        assert_eq!(streak.beats, 1);
        streak.add(second * 14, at(34), every);
        assert_eq!(streak.beats, 1);
    }
}

//! The words in which the tests are written: a store with a manual clock, its queues, and what was claimed.

use crate::stores::{Fresh, Place};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;
use tramline::model::event::Emitted;
use tramline::store::Store;

pub(crate) use tramline::error::{Kind, Result};
pub(crate) use tramline::model::dropped::{DropReason, DropRecord};
pub(crate) use tramline::model::event::Event;
pub(crate) use tramline::model::id::{EventId, Incarnation, SubscriptionId, TallyId};
pub(crate) use tramline::model::lane::{Held, Known, Share};
pub(crate) use tramline::model::lease::Lease;
pub(crate) use tramline::model::outcome::Outcome;
pub(crate) use tramline::model::push::Push;
pub(crate) use tramline::model::retry::Retry;
pub(crate) use tramline::model::rule::RuleKind;
pub(crate) use tramline::model::schedule::{Missed, Schedule, StoredSchedule};
pub(crate) use tramline::model::status::{Counts, Status};
pub(crate) use tramline::model::subscription::{
    Guarantee, OnExhausted, Ordering, Policy, Start, Subscription, Topic, TopicSettings, WhileRetrying,
};
pub(crate) use tramline::model::tally::{
    Ack, AckCount, Added, Ending, Items, NewTally, Parent, Tally, TallyItem, TallyState,
};
pub(crate) use tramline::model::time::Time;
pub(crate) use tramline::store::verbs::*;
pub(crate) use tramline::store::verbs_tally::*;

/// The topic of all events, unless a test needs another one.
pub(crate) const TOPIC: &str = "orders";
/// Two workers.
pub(crate) const ANNA: Incarnation = Incarnation(1001);
pub(crate) const BERT: Incarnation = Incarnation(2002);
/// Longer than every default lease.
pub(crate) const LEASE: Duration = Duration::from_secs(31);

/// A private store with a clock that only moves when a test says so.
#[derive(Clone)]
pub(crate) struct Bed {
    pub(crate) store: Arc<dyn Store>,
    fresh: Arc<Fresh>,
    clock: Arc<AtomicI64>,
}

impl Bed {
    pub(crate) fn new(fresh: Arc<Fresh>) -> Bed {
        Bed { store: fresh.store.clone(), fresh, clock: Arc::new(AtomicI64::new(1_800_000_000_000)) }
    }

    /// Another store on the same database and clock. What is in memory has only one: itself.
    pub(crate) async fn twin(&self) -> Bed {
        let store = match self.fresh.place {
            Place::SqliteMemory => self.store.clone(),
            Place::SqliteFile | Place::Postgres | Place::Mysql | Place::Redis | Place::RedisCluster => {
                tramline::store::open(&self.fresh.url).await.unwrap()
            }
        };
        Bed { store, ..self.clone() }
    }

    pub(crate) fn time(&self) -> Time {
        Time(self.clock.load(SeqCst))
    }

    pub(crate) fn now(&self) -> Option<Time> {
        Some(self.time())
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, duration: Duration) {
        self.clock.fetch_add(duration.as_millis() as i64, SeqCst);
    }

    pub(crate) async fn topic(&self, name: &str, lanes: u32) {
        let put = PutTopic { name: name.into(), settings: TopicSettings::lanes(lanes), now: self.now() };
        self.store.put_topic(put).await.unwrap();
    }

    /// A subscription `queue` of [`TOPIC`].
    pub(crate) async fn queue(&self, policy: Policy) -> Queue {
        self.queue_named("queue", &[TOPIC], policy).await
    }

    /// An ordered subscription of [`TOPIC`] with one lane, so that all keys share it.
    pub(crate) async fn lane(&self, policy: Policy) -> Queue {
        self.topic(TOPIC, 1).await;
        self.queue(policy).await
    }

    pub(crate) async fn queue_named(&self, name: &str, topics: &[&str], policy: Policy) -> Queue {
        let subscription = self.subscribe(name, topics, policy, Start::Now).await.unwrap();
        Queue { bed: self.clone(), id: subscription.id }
    }

    /// A subscription that starts in the past; nothing is back-filled yet.
    pub(crate) async fn queue_from(&self, start: Start, policy: Policy) -> Queue {
        let subscription = self.subscribe("queue", &[TOPIC], policy, start).await.unwrap();
        Queue { bed: self.clone(), id: subscription.id }
    }

    pub(crate) async fn subscribe(
        &self,
        name: &str,
        topics: &[&str],
        policy: Policy,
        start: Start,
    ) -> Result<Subscription> {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let put = PutSubscription { name: name.into(), topics, policy, start, now: self.now() };
        self.store.put_subscription(put).await
    }

    /// Emits one event.
    pub(crate) async fn emit(&self, event: Event) -> EventId {
        self.emit_together(vec![event]).await[0].id
    }

    /// Emits events as one unit.
    pub(crate) async fn emit_together(&self, events: Vec<Event>) -> Vec<Emitted> {
        self.try_emit(events).await.unwrap().events
    }

    /// Emits one unit that may be refused.
    pub(crate) async fn try_emit(&self, events: Vec<Event>) -> Result<Emission> {
        self.emit_units(vec![events]).await.remove(0)
    }

    pub(crate) async fn emit_units(&self, units: Vec<Vec<Event>>) -> Vec<Result<Emission>> {
        self.store.emit(Emit { units, now: self.now() }).await.unwrap()
    }

    /// Emits `count` events without a key, together.
    pub(crate) async fn emit_plain(&self, count: usize) -> Vec<EventId> {
        let emitted = self.emit_together(vec![plain_event(); count]).await;
        emitted.iter().map(|event| event.id).collect()
    }

    /// Emits one event after the other, with these keys.
    pub(crate) async fn emit_keys(&self, keys: &[&str]) -> Vec<EventId> {
        let mut ids = Vec::new();
        for key in keys {
            ids.push(self.emit(keyed(key)).await);
        }
        ids
    }

    pub(crate) async fn find(&self, id: EventId) -> Option<EventView> {
        self.store.event(FindEvent { id, now: self.now() }).await.unwrap()
    }

    pub(crate) async fn cancel(&self, id: EventId) -> usize {
        self.store.cancel(Cancel { id, now: self.now() }).await.unwrap().len()
    }

    /// One page of the log.
    pub(crate) async fn log_page(&self, after: EventId, limit: u32) -> LogPage {
        self.store.read_log(ReadLog { topic: TOPIC.into(), after, limit }).await.unwrap()
    }

    /// Follows the log from `after` until it has given `count` events. A store may keep events back while it cannot know
    /// whether earlier ones are still being written, so a page may be empty.
    pub(crate) async fn read_log(&self, after: EventId, count: usize) -> LogPage {
        let mut read = LogPage { events: Vec::new(), next: after };
        let follow = async {
            while read.events.len() < count {
                let page = self.log_page(read.next, 40).await;
                assert!(page.events.len() <= 40 && page.next >= read.next);
                read.events.extend(page.events);
                read.next = page.next;
            }
        };
        tokio::time::timeout(seconds(60), follow).await.expect("the log has all events");
        read
    }

    pub(crate) async fn open(&self, tally: NewTally) -> TallyId {
        self.try_open(tally).await.unwrap().id
    }

    pub(crate) async fn try_open(&self, tally: NewTally) -> Result<OpenedTally> {
        self.store.open_tally(OpenTally { tally, now: self.now() }).await
    }

    pub(crate) async fn add(&self, tally: TallyId, count: u64) -> Added {
        self.try_add(tally, count).await.unwrap()
    }

    pub(crate) async fn try_add(&self, tally: TallyId, count: u64) -> Result<Added> {
        self.store.add_items(AddItems { tally, count, within: None, token: None, now: self.now() }).await
    }

    /// Seals; true if this made it complete.
    pub(crate) async fn seal(&self, tally: TallyId) -> bool {
        self.try_seal(tally, None).await.unwrap().completed_now
    }

    pub(crate) async fn try_seal(&self, tally: TallyId, expected: Option<u64>) -> Result<SealedTally> {
        let by = Incarnation::random().0;
        self.store.seal_tally(SealTally { tally, expected, by, now: self.now() }).await
    }

    /// Items are done; true if this made the tally complete.
    pub(crate) async fn ack(&self, tally: TallyId, items: impl Into<Items>) -> bool {
        let acked = self.ack_all(vec![Ack { tally, items: vec![items.into()], ending: Ending::Done }]).await;
        !acked.completed.is_empty()
    }

    pub(crate) async fn fail(&self, tally: TallyId, items: impl Into<Items>) -> bool {
        let acked =
            self.ack_all(vec![Ack { tally, items: vec![items.into()], ending: Ending::Failed }]).await;
        !acked.completed.is_empty()
    }

    pub(crate) async fn ack_all(&self, acks: Vec<Ack>) -> AckedItems {
        let by = Incarnation::random().0;
        self.store.ack_items(AckItems { acks, by, now: self.now() }).await.unwrap()
    }

    pub(crate) async fn tally(&self, tally: TallyId) -> Tally {
        self.store.tally(NameTally { tally, now: self.now() }).await.unwrap().unwrap()
    }

    /// Total, done, failed.
    pub(crate) async fn tallied(&self, tally: TallyId) -> (u64, u64, u64) {
        let tally = self.tally(tally).await;
        (tally.total, tally.done, tally.failed)
    }

    pub(crate) async fn deliver(&self) -> Delivered {
        let mut sum = Delivered::default();
        loop {
            let delivered = self.store.deliver(Deliver { limit: 100, now: self.now() }).await.unwrap();
            sum.count += delivered.count;
            sum.wake.extend(delivered.wake);
            sum.completed.extend(delivered.completed);
            if !delivered.more {
                return sum;
            }
        }
    }

    pub(crate) async fn sweep_tallies(&self) -> SweptTallies {
        let week = seconds(7 * 24 * 3600);
        let sweep = SweepTallies { keep_open: week, keep_sealed: week, limit: 100, now: self.now() };
        self.store.sweep_tallies(sweep).await.unwrap()
    }

    pub(crate) async fn put_schedule(&self, schedule: Schedule) -> StoredSchedule {
        let put = PutSchedule { schedule, paused: None, over: Over::Anything, now: self.now() };
        self.store.put_schedule(put).await.unwrap()
    }

    pub(crate) async fn schedule(&self, name: &str) -> StoredSchedule {
        self.store.schedule(name).await.unwrap().unwrap()
    }

    pub(crate) async fn pause_schedule(&self, name: &str, paused: bool) -> StoredSchedule {
        let pause = PauseSchedule { name: name.into(), paused, now: self.now() };
        self.store.pause_schedule(pause).await.unwrap()
    }

    /// Ticks until nothing is due any longer; what somebody else has locked is waited for. Gives how many events that were.
    pub(crate) async fn tick(&self) -> u64 {
        let mut events = 0;
        loop {
            let ticked = self.store.tick(Tick { limit: 100, now: self.now() }).await.unwrap();
            events += ticked.events;
            if !ticked.more && ticked.next.is_none_or(|next| next > self.time()) {
                return events;
            }
            tokio::task::yield_now().await;
        }
    }

    /// For which times the events of a topic were scheduled.
    pub(crate) async fn scheduled(&self, topic: &str) -> Vec<String> {
        let mut after = EventId(0);
        let mut times = Vec::new();
        loop {
            let read = ReadLog { topic: topic.into(), after, limit: 1000 };
            let Ok(page) = self.store.read_log(read).await else { return times };
            if page.events.is_empty() {
                return times;
            }
            times.extend(page.events.iter().map(|event| event.headers["tramline-scheduled-at"].clone()));
            after = page.next;
        }
    }

    /// Changes the tables behind the store's back, with a statement that all databases know. False if that cannot be done.
    pub(crate) async fn spoil(&self, sql: &str) -> bool {
        match self.fresh.place {
            Place::SqliteMemory | Place::Redis | Place::RedisCluster => return false,
            Place::SqliteFile => {
                let path = self.fresh.url.trim_start_matches("sqlite://");
                rusqlite::Connection::open(path).unwrap().execute(sql, []).unwrap();
            }
            Place::Postgres | Place::Mysql => self.fresh.execute(sql).await,
        }
        true
    }

    /// Everything that was emitted to a topic.
    pub(crate) async fn emitted(&self, topic: &str) -> Vec<tramline::StoredEvent> {
        let read = ReadLog { topic: topic.into(), after: EventId(0), limit: 1000 };
        match self.store.read_log(read).await {
            Ok(page) => page.events,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NotFound);
                Vec::new()
            }
        }
    }

    pub(crate) async fn beat(&self, incarnation: Incarnation, name: &str) -> Vec<Worker> {
        let beat =
            Beat { incarnation, name: name.into(), subscriptions: vec![], leaving: false, now: self.now() };
        self.store.beat(beat).await.unwrap()
    }

    pub(crate) async fn sweep(&self, dead_after: Option<Duration>) -> Swept {
        self.store.sweep(Sweep { dead_after, limit: 1000, now: self.now() }).await.unwrap()
    }
}

/// A subscription and what can be done with it.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) bed: Bed,
    pub(crate) id: SubscriptionId,
}

impl Queue {
    /// The same subscription seen through another store.
    pub(crate) fn through(&self, bed: Bed) -> Queue {
        Queue { bed, id: self.id }
    }

    /// What an idle worker asks for.
    pub(crate) fn wish(&self, max_events: u32) -> Claim {
        Claim {
            subscription: self.id,
            owner: ANNA,
            max_events,
            max_bytes: usize::MAX >> 1,
            lease: None,
            suspects: Suspects::TakeOne,
            share: Share::ALL,
            known: Known::All,
            single: false,
            now: self.bed.now(),
        }
    }

    /// Anna claims; she has nothing else in flight.
    pub(crate) async fn claim(&self, max_events: u32) -> Claimed {
        self.take(self.wish(max_events)).await
    }

    pub(crate) async fn claim_by(&self, owner: Incarnation, max_events: u32) -> Claimed {
        self.take(Claim { owner, ..self.wish(max_events) }).await
    }

    pub(crate) async fn take(&self, claim: Claim) -> Claimed {
        self.bed.store.claim(claim).await.unwrap()
    }

    /// Settles all that was claimed; true if every outcome was taken.
    pub(crate) async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> bool {
        let outcomes: Vec<(EventId, Outcome)> =
            ids(claimed).into_iter().map(|id| (id, outcome.clone())).collect();
        self.settle_each(claimed, &outcomes).await.iter().all(|taken| *taken)
    }

    pub(crate) async fn done(&self, claimed: &Claimed) -> bool {
        self.settle(claimed, Outcome::Done).await
    }

    /// Settles some events; says for each whether its outcome was taken.
    pub(crate) async fn settle_each(&self, claimed: &Claimed, outcomes: &[(EventId, Outcome)]) -> Vec<bool> {
        self.try_settle(claimed, outcomes).await.unwrap().accepted.into_iter().flatten().collect()
    }

    pub(crate) async fn try_settle(
        &self,
        claimed: &Claimed,
        outcomes: &[(EventId, Outcome)],
    ) -> Result<Settled> {
        let results = outcomes
            .iter()
            .map(|(id, outcome)| SettleSlice {
                lease: lease_of(claimed, *id),
                outcomes: vec![(id.index(), outcome.clone())],
            })
            .collect();
        self.bed.store.settle(Settle { subscription: self.id, results, now: self.bed.now() }).await
    }

    /// Claims everything and settles it as done; gives the ids in the order in which they came.
    pub(crate) async fn drain(&self) -> Vec<EventId> {
        let mut drained = Vec::new();
        loop {
            let claimed = self.claim(1000).await;
            if claimed.slices.is_empty() {
                return drained;
            }
            drained.extend(ids(&claimed));
            assert!(self.done(&claimed).await);
        }
    }

    pub(crate) async fn extend(&self, claimed: &Claimed) -> Vec<Extended> {
        let extend =
            Extend { subscription: self.id, leases: leases(claimed), lease: None, now: self.bed.now() };
        self.bed.store.extend(extend).await.unwrap()
    }

    /// Gives back all that was claimed. Gives how many leases it was.
    pub(crate) async fn release(&self, claimed: &Claimed) -> u64 {
        let release = Release { subscription: self.id, leases: leases(claimed), now: self.bed.now() };
        self.bed.store.release(release).await.unwrap()
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.bed.store.stats(self.id, self.bed.now()).await.unwrap()
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.stats().await.counts
    }

    pub(crate) async fn status(&self, id: EventId) -> Status {
        self.delivery(id).await.status
    }

    pub(crate) async fn delivery(&self, id: EventId) -> Delivery {
        let name = self.name().await;
        let view = self.bed.find(id).await.unwrap();
        view.deliveries.into_iter().find(|delivery| delivery.subscription == name).unwrap()
    }

    async fn name(&self) -> Arc<str> {
        let subscriptions = self.bed.store.subscriptions().await.unwrap();
        subscriptions.into_iter().find(|subscription| subscription.id == self.id).unwrap().name
    }

    pub(crate) async fn dead(&self) -> Vec<DeadEvent> {
        self.bed.store.dead(self.page()).await.unwrap()
    }

    pub(crate) async fn dead_ids(&self) -> Vec<EventId> {
        self.dead().await.iter().map(|dead| dead.event.id).collect()
    }

    pub(crate) async fn parked(&self) -> Vec<ParkedKey> {
        self.bed.store.parked(self.page()).await.unwrap()
    }

    /// The first page of a list.
    pub(crate) fn page(&self) -> Page {
        Page { subscription: self.id, after: EventId(0), limit: 1000, now: self.bed.now() }
    }

    pub(crate) async fn replay(&self, which: Which) -> u64 {
        self.revive(which, Revival::Replay).await
    }

    pub(crate) async fn drop_dead(&self, which: Which) -> u64 {
        self.revive(which, Revival::Drop).await
    }

    async fn revive(&self, which: Which, how: Revival) -> u64 {
        let revive = Revive { subscription: self.id, which, how, now: self.bed.now() };
        self.bed.store.revive(revive).await.unwrap()
    }

    pub(crate) async fn resend(&self, ids: &[EventId]) -> u64 {
        let resend = Resend { subscription: self.id, ids: ids.to_vec(), now: self.bed.now() };
        self.bed.store.resend(resend).await.unwrap()
    }

    /// Lets parked keys of [`TOPIC`] go on; none named stands for all.
    pub(crate) async fn release_parked(&self, keys: &[&str]) -> u64 {
        let keys = keys.iter().map(|key| (TOPIC.to_owned(), (*key).to_owned())).collect();
        let release = ReleaseParked { subscription: self.id, keys, now: self.bed.now() };
        self.bed.store.release_parked(release).await.unwrap()
    }

    pub(crate) async fn set(&self, kind: RuleKind) {
        self.rule(kind, Some(RuleEnd::Open)).await;
    }

    pub(crate) async fn unset(&self, kind: RuleKind) {
        self.rule(kind, None).await;
    }

    pub(crate) async fn rule(&self, kind: RuleKind, until: Option<RuleEnd>) {
        let (by, reason) = ("olga".into(), "because".into());
        let set = SetRule { subscription: self.id, kind, until, by, reason, now: self.bed.now() };
        self.bed.store.set_rule(set).await.unwrap();
    }

    /// Writes all retained events into a new subscription; gives the number of steps.
    pub(crate) async fn backfill(&self) -> u32 {
        let mut steps = 1;
        while self.bed.store.backfill(self.id).await.unwrap() {
            steps += 1;
        }
        steps
    }
}

/// Runs `count` tasks at once, numbered from 1, and gives their results.
pub(crate) async fn in_parallel<T, F>(count: i64, task: impl Fn(i64) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = (1..=count).map(|number| tokio::spawn(task(number))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// An event without a key.
pub(crate) fn plain_event() -> Event {
    Event::new(TOPIC, "payload")
}

/// An event about an object.
pub(crate) fn keyed(key: &str) -> Event {
    plain_event().key(key)
}

/// The default policy.
pub(crate) fn unordered() -> Policy {
    Policy::default()
}

/// Ordered by key: two retries, a minute apart.
pub(crate) fn ordered() -> Policy {
    Policy { ordering: Ordering::Key, retry: Retry::constant(3, seconds(60)), ..Policy::default() }
}

/// Ordered by key; the first failure is the last one.
pub(crate) fn ordered_or(on_exhausted: OnExhausted) -> Policy {
    Policy { retry: Retry::never(), on_exhausted, ..ordered() }
}

/// Sent to a callback, without order: two retries, a minute apart.
pub(crate) fn pushed() -> Policy {
    let push = Some(Push::to("https://example.org/hook"));
    Policy { push, retry: Retry::constant(3, seconds(60)), ..Policy::default() }
}

/// The same in the order of arrival.
pub(crate) fn arrival() -> Policy {
    Policy { ordering: Ordering::Subscriber, ..pushed() }
}

pub(crate) fn at_most_once() -> Policy {
    Policy { guarantee: Guarantee::AtMostOnce, ..Policy::default() }
}

pub(crate) fn ordered_once() -> Policy {
    Policy { guarantee: Guarantee::AtMostOnce, ..ordered() }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The ids of what was claimed, in the order in which they came.
pub(crate) fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.id).collect()
}

/// The ids of what was claimed, ascending.
pub(crate) fn sorted_ids(claimed: &Claimed) -> Vec<EventId> {
    sorted(ids(claimed))
}

pub(crate) fn sorted(mut ids: Vec<EventId>) -> Vec<EventId> {
    ids.sort_unstable();
    ids
}

pub(crate) fn leases(claimed: &Claimed) -> Vec<Lease> {
    claimed.slices.iter().map(|slice| slice.lease).collect()
}

/// What the claimed event `id` says of its gaps.
pub(crate) fn skipped(claimed: &Claimed, id: EventId) -> Vec<EventId> {
    let mut events = claimed.slices.iter().flat_map(|slice| &slice.events);
    events.find(|event| event.event.id == id).unwrap().skipped.clone()
}

fn lease_of(claimed: &Claimed, id: EventId) -> Lease {
    let holds = |slice: &&ClaimedSlice| slice.events.iter().any(|event| event.event.id == id);
    claimed.slices.iter().find(holds).unwrap_or_else(|| panic!("{id} was not claimed")).lease
}

//! The words in which the tests are written: a store with a manual clock, its queues, and what was claimed.

use crate::stores::{Fresh, Place};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;
use tramline::model::event::Emitted;
use tramline::store::Store;

mod queue;
mod words;

pub(crate) use queue::Queue;
pub(crate) use words::*;

pub(crate) use tramline::error::{Kind, Result};
pub(crate) use tramline::model::dropped::{DropReason, DropRecord};
pub(crate) use tramline::model::event::Event;
pub(crate) use tramline::model::failure::Failure;
pub(crate) use tramline::model::id::{EventId, Incarnation, SubscriptionId, TallyId};
pub(crate) use tramline::model::lane::{Held, Known, Share};
pub(crate) use tramline::model::lease::Lease;
pub(crate) use tramline::model::letter::{Letters, Pace};
pub(crate) use tramline::model::limits::{Limits, Rate};
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
            _ => tramline::store::open(&self.fresh.url).await.unwrap(),
        };
        Bed { store, ..self.clone() }
    }

    /// Whether claims can stand in this store.
    pub(crate) fn keeps_claims(&self) -> bool {
        matches!(self.fresh.place, Place::SqliteFile | Place::SqliteMemory)
    }

    /// Whether each topic is somewhere else. Then nothing is about several topics at one moment: what would have to be is refused.
    pub(crate) fn is_spread(&self) -> bool {
        matches!(self.fresh.place, Place::RedisSpread)
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
        let (name, expected, now) = (name.into(), Expected::Anything, self.now());
        self.store.put_subscription(PutSubscription { name, topics, policy, start, expected, now }).await
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
            Place::SqliteMemory | Place::Redis | Place::RedisCluster | Place::RedisSpread => return false,
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

//! Takes the steps of a history, on the store and in the models, and compares.
//!
//! - `work`, `life`: what workers do, and how they come and go
//! - `control`: what somebody does to a subscription
//! - `compare`: whether the store shows what the models say

mod compare;
mod control;
mod life;
mod work;

use crate::model::{Item, Key, Place, Sub};
use crate::setting::Setting;
use crate::step::{New, Step, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tramline::model::event::Event;
use tramline::model::id::{EventId, Incarnation, TallyId};
use tramline::model::lane::{Known, Share};
use tramline::model::lease::Lease;
use tramline::model::rule::RuleKind;
use tramline::model::subscription::{Policy, Start, TopicSettings};
use tramline::model::tally::NewTally;
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Emit, Expected, PutSubscription, PutTopic, Suspects};
use tramline::store::verbs_tally::{OpenTally, SealTally};

const TOPIC: &str = "t";
const ONCE: usize = 3; // the subscription that is at most once
const DEAD_AFTER: Duration = Duration::from_millis(5500); // between the whole seconds in which time passes

pub(crate) struct World {
    store: Arc<dyn Store>,
    subs: Vec<Sub>,
    late: Policy,
    now: Time,
    /// Every event with its key and predecessor, and the sequence of every key.
    events: BTreeMap<EventId, (Option<Key>, Option<EventId>)>,
    chains: BTreeMap<Key, Vec<EventId>>,
    /// When each event is due in a subscription that has not touched it.
    due: BTreeMap<EventId, Time>,
    /// Who the workers are now, and who the store knows under their names.
    workers: Vec<Incarnation>,
    known: BTreeMap<usize, (Incarnation, Time)>,
    lives: i64,
    /// Everything that was ever claimed, for zombies.
    claimed: Vec<(usize, Lease, EventId)>,
    /// Whose counts are compared next.
    turn: usize,
    /// What the consumers of each subscription have been given or told of.
    seen: Vec<BTreeSet<EventId>>,
    /// One tally for each subscription that is there from the start.
    tallies: Vec<TallyId>,
}

impl World {
    pub(crate) async fn new(store: Arc<dyn Store>, setting: &Setting) -> World {
        let now = Time(1_800_000_000_000);
        let topic =
            PutTopic { name: TOPIC.into(), settings: TopicSettings::lanes(setting.lanes), now: Some(now) };
        store.put_topic(topic).await.unwrap();
        let mut world = World {
            store,
            subs: Vec::new(),
            late: setting.late.clone(),
            now,
            events: BTreeMap::new(),
            chains: BTreeMap::new(),
            due: BTreeMap::new(),
            workers: vec![Incarnation(1), Incarnation(2), Incarnation(3)],
            known: BTreeMap::new(),
            lives: 3,
            claimed: Vec::new(),
            turn: 0,
            seen: Vec::new(),
            tallies: Vec::new(),
        };
        for (name, policy) in ["plain", "strict", "sturdy", "once"].into_iter().zip(&setting.policies) {
            world.subscribe(name, policy.clone(), setting.lanes).await;
            let open = OpenTally { tally: NewTally::new(), now: Some(now) };
            world.tallies.push(world.store.open_tally(open).await.unwrap().id);
        }
        world
    }

    pub(crate) async fn take(&mut self, step: &Step) {
        let at = |sub: usize| sub % self.subs.len();
        match step {
            Step::Emit(events) => self.emit(events).await,
            Step::Claim { sub, worker, max, idle, share, single, known } => {
                let share = share.map_or(Share::ALL, |index| Share { index, of: 2, help: false });
                let suspects = if *idle { Suspects::TakeOne } else { Suspects::Leave };
                let (sub, owner) = (at(*sub), self.workers[*worker]);
                let known = known.map_or(Known::All, |closed| self.known_to(sub, owner, closed));
                let claim = Claim { suspects, share, single: *single, known, ..self.wish(sub, owner, *max) };
                self.claim(sub, claim).await;
            }
            Step::Settle { sub, worker, verdicts } => {
                let owner = self.holder(at(*sub), *worker);
                self.settle(at(*sub), owner, verdicts).await;
            }
            Step::SettleStale { pick } => self.settle_stale(*pick).await,
            Step::Extend { sub, worker } => {
                let owner = self.holder(at(*sub), *worker);
                self.extend(at(*sub), owner).await;
            }
            Step::Release { sub, worker, part } => {
                let owner = self.holder(at(*sub), *worker);
                self.release(at(*sub), owner, *part).await;
            }
            Step::Adopt { pick, part } => self.adopt(*pick, *part).await,
            Step::Crash { worker } => self.reborn(*worker),
            Step::Restart { worker } => {
                self.reborn(*worker);
                self.beat(*worker).await;
            }
            Step::Beat { worker } => self.beat(*worker).await,
            Step::Sweep => self.sweep().await,
            Step::Pass { seconds } => self.now = self.now.after(Duration::from_secs(*seconds)),
            Step::Rule { sub, kind, set } => self.rule(at(*sub), *kind, *set).await,
            Step::Cancel { pick } => self.cancel(*pick).await,
            Step::Revive { sub, pick, replay } => self.revive(at(*sub), *pick, *replay).await,
            Step::ReleaseParked { sub, key } => self.release_parked(at(*sub), *key).await,
            Step::Resend { sub, pick } => self.resend(at(*sub), *pick).await,
            Step::Subscribe => {
                self.subscribe("late", self.late.clone(), self.subs[0].lanes.len() as u32).await;
            }
            Step::Backfill => self.backfill().await,
        }
        match step {
            // Every subscription in turn is cheaper and finds as much: a wrong count does not go away by itself.
            Step::Emit(_) | Step::Pass { .. } | Step::Beat { .. } => {
                self.turn += 1;
                self.compare(self.turn % self.subs.len()).await;
            }
            _ => match step.sub() {
                Some(sub) => self.compare(sub % self.subs.len()).await,
                None => self.compare_all().await,
            },
        }
    }

    /// The worker, or else one that has something of the subscription.
    fn holder(&self, sub: usize, worker: usize) -> Incarnation {
        let mut from = self.workers.iter().cycle().skip(worker).take(self.workers.len());
        let holds = |owner: &&Incarnation| !self.subs[sub].leases_of(**owner).is_empty();
        *from.find(holds).unwrap_or(&self.workers[worker])
    }

    /// Everything comes to rest: nothing is lost, and nothing is left.
    pub(crate) async fn drain(&mut self) {
        for sub in 0..self.subs.len() {
            for kind in [RuleKind::Pause, RuleKind::Block] {
                self.rule(sub, kind, false).await;
            }
        }
        self.backfill().await;
        self.now = self.now.after(Duration::from_secs(61));
        for sub in 0..self.subs.len() {
            // Held events run when their keys are released, and the rest of the key follows.
            for _ in 0..3 {
                self.drain_one(sub).await;
                self.release_parked(sub, None).await;
            }
        }
        for sub in &self.subs {
            let left = sub.items.iter().find(|(_, item)| item.is_pending());
            assert!(left.is_none(), "{}: {left:?} never came to rest", sub.name);
        }
        self.look_at_everything().await;
        for (sub, tally) in self.subs.iter().zip(&self.tallies) {
            let seal = SealTally { tally: *tally, expected: None, by: 1, now: Some(self.now) };
            let sealed = self.store.seal_tally(seal).await.unwrap();
            assert!(sealed.completed_now, "{}: {:?} has ended", sub.name, sealed.tally);
        }
    }

    async fn drain_one(&mut self, sub: usize) {
        let owner = self.new_life();
        for _ in 0..1000 {
            let claim = self.wish(sub, owner, 100);
            let count = self.claim(sub, claim).await;
            self.compare(sub).await;
            if count == 0 {
                return;
            }
            self.settle(sub, owner, &[Verdict::Done]).await;
        }
        panic!("{}: there is no end of it", self.subs[sub].name);
    }

    async fn subscribe(&mut self, name: &str, policy: Policy, lanes: u32) {
        let (topics, start) = (vec![TOPIC.to_owned()], Start::Beginning);
        let put = PutSubscription {
            name: name.into(),
            topics,
            policy,
            start,
            expected: Expected::Anything,
            now: Some(self.now),
        };
        let made = self.store.put_subscription(put).await.unwrap();
        let mut sub = Sub::new(made.id, name.into(), made.policy, lanes);
        for (id, (key, prev)) in &self.events {
            sub.items.insert(*id, Item::new(key.clone(), *prev, Place::Unfilled));
        }
        self.subs.push(sub);
        self.seen.push(BTreeSet::new());
    }

    async fn backfill(&mut self) {
        let Some(late) = self.subs.get_mut(4) else { return };
        while self.store.backfill(late.id).await.unwrap() {}
        for (id, item) in late.items.iter_mut().filter(|(_, item)| item.place == Place::Unfilled) {
            item.place = Place::Free { due: self.due[id] };
        }
    }

    async fn emit(&mut self, events: &[New]) {
        let one_lane = self.subs[0].lanes.len() == 1;
        let keys: Vec<Option<Key>> = events
            .iter()
            .map(|new| new.key.or((!one_lane).then_some(0)).map(|key| format!("key{key}")))
            .collect();
        let unit = events.iter().zip(&keys).map(|(new, key)| {
            let event = Event::new(TOPIC, "x").delay(Duration::from_secs(new.delay)).priority(new.priority);
            let event = match new.tally {
                Some(sub) => event.tally_of(self.tallies[sub], &self.subs[sub].name),
                None => event,
            };
            key.iter().fold(event, |event, key| event.key(key))
        });
        let emit = Emit { units: vec![unit.collect()], now: Some(self.now) };
        let emission = self.store.emit(emit).await.unwrap().remove(0).unwrap();
        assert_eq!(emission.events.len(), events.len());
        for ((new, key), emitted) in events.iter().zip(keys).zip(emission.events) {
            let last = self.events.last_key_value().map(|(id, _)| *id);
            assert!(last.is_none_or(|last| last < emitted.id), "ids ascend");
            let prev = key.as_ref().and_then(|key| self.chains.get(key)?.last().copied());
            assert_eq!(emitted.prev, prev, "the predecessor of {} in {key:?}", emitted.id);
            let due = self.now.after(Duration::from_secs(new.delay));
            for sub in &mut self.subs {
                sub.items.insert(emitted.id, Item::new(key.clone(), prev, Place::Free { due }));
            }
            if let Some(sub) = new.tally {
                self.subs[sub].tallied.insert(emitted.id, None);
            }
            self.events.insert(emitted.id, (key.clone(), prev));
            self.due.insert(emitted.id, due);
            if let Some(key) = key {
                self.chains.entry(key).or_default().push(emitted.id);
            }
        }
    }
}

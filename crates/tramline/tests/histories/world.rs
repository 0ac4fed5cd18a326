//! Takes the steps of a history, on the store and in the models, and compares.

use crate::judge;
use crate::model::{Item, Key, Place, Sub};
use crate::step::{History, LEASE, New, Step, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tramline::model::event::Event;
use tramline::model::id::{EventId, Incarnation};
use tramline::model::lane::{Known, Share};
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::rule::RuleKind;
use tramline::model::status::Status;
use tramline::model::subscription::{OnExhausted, Policy, Start, TopicSettings};
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::verbs::*;

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
}

impl World {
    pub(crate) async fn new(store: Arc<dyn Store>, history: &History) -> World {
        let now = Time(1_800_000_000_000);
        let topic =
            PutTopic { name: TOPIC.into(), settings: TopicSettings::lanes(history.lanes), now: Some(now) };
        store.put_topic(topic).await.unwrap();
        let mut world = World {
            store,
            subs: Vec::new(),
            late: history.late.clone(),
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
        };
        for (name, policy) in ["plain", "strict", "sturdy", "once"].into_iter().zip(&history.policies) {
            world.subscribe(name, policy.clone(), history.lanes).await;
        }
        world
    }

    pub(crate) async fn take(&mut self, step: &Step) {
        let at = |sub: usize| sub % self.subs.len();
        match step {
            Step::Emit(events) => self.emit(events).await,
            Step::Claim { sub, worker, max, idle, share, single } => {
                let share = share.map_or(Share::ALL, |index| Share { index, of: 2, help: false });
                let suspects = if *idle { Suspects::TakeOne } else { Suspects::Leave };
                let claim = Claim {
                    suspects,
                    share,
                    single: *single,
                    ..self.wish(at(*sub), self.workers[*worker], *max)
                };
                self.claim(at(*sub), claim).await;
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
            Step::Subscribe if self.subs.len() == 4 => {
                self.subscribe("late", self.late.clone(), self.subs[0].lanes.len() as u32).await;
            }
            Step::Subscribe => {}
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

    fn new_life(&mut self) -> Incarnation {
        self.lives += 1;
        Incarnation(self.lives)
    }

    async fn subscribe(&mut self, name: &str, policy: Policy, lanes: u32) {
        let (topics, start) = (vec![TOPIC.to_owned()], Start::Beginning);
        let put = PutSubscription { name: name.into(), topics, policy, start, now: Some(self.now) };
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
            self.events.insert(emitted.id, (key.clone(), prev));
            self.due.insert(emitted.id, due);
            if let Some(key) = key {
                self.chains.entry(key).or_default().push(emitted.id);
            }
        }
    }

    fn wish(&self, sub: usize, owner: Incarnation, max_events: u32) -> Claim {
        Claim {
            subscription: self.subs[sub].id,
            owner,
            max_events,
            max_bytes: 1 << 30,
            lease: None,
            suspects: Suspects::TakeOne,
            share: Share::ALL,
            known: Known::All,
            single: false,
            now: Some(self.now),
        }
    }

    /// Claims; gives how many events there were.
    async fn claim(&mut self, sub: usize, claim: Claim) -> usize {
        let claimed = self.store.claim(claim.clone()).await.unwrap();
        judge::claimed(&mut self.subs[sub], &claim, &claimed, self.now);
        let mut events: Vec<&ClaimedEvent> = Vec::new();
        for slice in &claimed.slices {
            assert!(!claim.single || slice.events.len() == 1, "one event per lease was asked for");
            self.claimed.extend(slice.events.iter().map(|event| (sub, slice.lease, event.event.id)));
            events.extend(&slice.events);
        }
        events.sort_by_key(|event| event.event.id);
        for event in &events {
            self.consume(sub, event);
        }
        events.len()
    }

    /// The consumer's view: whatever precedes an event in its key was seen or is named as skipped.
    fn consume(&mut self, sub: usize, event: &ClaimedEvent) {
        let id = event.event.id;
        if self.subs[sub].ordered_key(id).is_some() {
            let chain = &self.chains[event.event.key.as_deref().expect("it is keyed")];
            for before in chain.iter().take_while(|before| **before < id) {
                let known = self.seen[sub].contains(before) || event.skipped.contains(before);
                assert!(known, "{}: {id} came without a word of {before}", self.subs[sub].name);
            }
        }
        self.seen[sub].insert(id);
        self.seen[sub].extend(&event.skipped);
    }

    /// A worker settles some of what it has; events of a key in order, up to the first that failed.
    async fn settle(&mut self, at: usize, owner: Incarnation, verdicts: &[Verdict]) {
        let sub = &self.subs[at];
        let mut mine: Vec<(EventId, usize)> = Vec::new();
        for lease in sub.leases_of(owner) {
            mine.extend(sub.leases[lease].events.iter().map(|id| (*id, lease)));
        }
        mine.sort_unstable();
        let in_hand: BTreeSet<EventId> = mine.iter().map(|(id, _)| *id).collect();
        let mut stopped: BTreeSet<Key> = BTreeSet::new();
        let mut by_lease: BTreeMap<usize, Vec<(EventId, Outcome)>> = BTreeMap::new();
        for ((id, lease), verdict) in mine.into_iter().zip(verdicts.iter().cycle()) {
            let key = sub.ordered_key(id);
            // A worker that gave an earlier event of the key back does not run this one.
            if key.is_some_and(|key| stopped.contains(key))
                || sub.pending_before(id).any(|before| !in_hand.contains(&before))
            {
                continue;
            }
            let goes_on = match verdict {
                Verdict::Done => true,
                Verdict::Dead => sub.policy.on_exhausted != OnExhausted::Hold,
                _ => false,
            };
            stopped.extend(key.filter(|_| !goes_on).cloned());
            if let Some(outcome) = verdict.outcome() {
                by_lease.entry(lease).or_default().push((id, outcome));
            }
        }
        let results = by_lease.iter().map(|(lease, outcomes)| SettleSlice {
            lease: sub.leases[*lease].lease,
            outcomes: outcomes.iter().map(|(id, outcome)| (id.index(), outcome.clone())).collect(),
        });
        let settle = Settle { subscription: sub.id, results: results.collect(), now: Some(self.now) };
        let settled = self.store.settle(settle).await.unwrap();
        let mut taken = Vec::new();
        for ((lease, outcomes), accepted) in by_lease.into_iter().zip(settled.accepted) {
            assert_eq!(accepted.len(), outcomes.len());
            let sub = &mut self.subs[at];
            if sub.is_live(lease, self.now) {
                assert!(accepted.iter().all(|taken| *taken), "{}: {outcomes:?} {accepted:?}", sub.name);
            } else if !accepted[0] {
                sub.crash(lease, self.now);
            }
            assert!(accepted.iter().all(|taken| *taken == accepted[0]), "{}: half a lease", sub.name);
            taken.extend(outcomes.into_iter().filter(|_| accepted[0]));
        }
        taken.sort_by_key(|(id, _)| *id);
        for (id, outcome) in taken {
            self.subs[at].settle(id, &outcome, self.now);
        }
    }

    /// A zombie settles what it had long ago.
    async fn settle_stale(&mut self, pick: usize) {
        let stale = |(sub, lease, id): &&(usize, Lease, EventId)| {
            let has = |held: &crate::model::Held| held.lease == *lease && held.events.contains(id);
            !self.subs[*sub].leases.iter().any(has)
        };
        let stale: Vec<_> = self.claimed.iter().filter(stale).collect();
        if stale.is_empty() {
            return;
        }
        let (sub, lease, id) = *stale[pick % stale.len()];
        let outcomes = vec![(id.index(), Outcome::retry("too late"))];
        let results = vec![SettleSlice { lease, outcomes }];
        let settle = Settle { subscription: self.subs[sub].id, results, now: Some(self.now) };
        let settled = self.store.settle(settle).await.unwrap();
        assert_eq!(settled.accepted, [[false]], "{}: an old lease on {id} was accepted", self.subs[sub].name);
        if self.subs[sub].leases.iter().any(|held| held.lease == lease && held.lost) {
            let subscription = self.subs[sub].id;
            let extend = Extend { subscription, leases: vec![lease], lease: None, now: Some(self.now) };
            let extended = self.store.extend(extend.clone()).await.unwrap();
            assert_eq!(extended, [Extended::Lost], "{}: an old lease was extended", self.subs[sub].name);
            let release = Release { subscription, leases: vec![lease], now: Some(self.now) };
            assert_eq!(
                self.store.release(release).await.unwrap(),
                0,
                "{}: an old lease was given back",
                self.subs[sub].name
            );
        }
    }

    async fn extend(&mut self, at: usize, owner: Incarnation) {
        let sub = &mut self.subs[at];
        let mine = sub.leases_of(owner);
        let leases = mine.iter().map(|lease| sub.leases[*lease].lease).collect();
        let extend = Extend { subscription: sub.id, leases, lease: None, now: Some(self.now) };
        let answers = self.store.extend(extend).await.unwrap();
        let until = self.now.after(Duration::from_secs(LEASE));
        for (lease, answer) in mine.into_iter().zip(answers) {
            let live = sub.is_live(lease, self.now);
            match answer {
                Extended::Until(end) => {
                    assert_eq!(end, until, "{}", sub.name);
                    let held = &mut sub.leases[lease];
                    held.until = end;
                    sub.lanes[held.lane].holder = Some((owner, end));
                }
                Extended::Lost if !live => sub.crash(lease, self.now),
                other => panic!("{}: a live lease is {other:?}", sub.name),
            }
        }
    }

    /// A graceful stop. Of a lease that has ended it is not known whether it can be given back, so those are kept.
    async fn release(&mut self, at: usize, owner: Incarnation, part: u8) {
        let sub = &mut self.subs[at];
        // At most once, a worker gives back all or nothing: what it keeps counts as begun if it ends, before what it gave back.
        let all = part.is_multiple_of(2) || sub.is_once();
        let chosen = |place: usize| all || part >> (place % 8) & 1 == 1;
        let live = sub.leases_of(owner).into_iter().filter(|lease| sub.is_live(*lease, self.now));
        let mine: Vec<usize> =
            live.enumerate().filter(|(place, _)| chosen(*place)).map(|(_, lease)| lease).collect();
        let leases = mine.iter().map(|lease| sub.leases[*lease].lease).collect();
        let release = Release { subscription: sub.id, leases, now: Some(self.now) };
        assert_eq!(self.store.release(release).await.unwrap(), mine.len() as u64, "{}", sub.name);
        for lease in mine {
            for id in sub.leases[lease].events.clone() {
                sub.release(id, self.now);
            }
        }
    }

    /// A restarted worker knows from its journal what its former life never started.
    async fn adopt(&mut self, pick: usize, part: u8) {
        let sub = &mut self.subs[ONCE];
        let live: Vec<usize> = (0..sub.leases.len())
            .filter(|lease| !sub.leases[*lease].events.is_empty() && sub.is_live(*lease, self.now))
            .collect();
        if live.is_empty() {
            return;
        }
        let held = &sub.leases[live[pick % live.len()]];
        let mut events: Vec<EventId> = Vec::new();
        for (at, id) in held.events.iter().enumerate().rev() {
            // Where a later event of the key has started, this one has started before it.
            let started = sub.leased_after(*id).any(|later| !events.contains(&later));
            if !started && part >> (at % 8) & 1 == 1 {
                events.push(*id);
            }
        }
        events.sort_unstable();
        let consumed = vec![(held.lease, events.clone())];
        let adopt = Adopt { subscription: sub.id, consumed, now: Some(self.now) };
        let mut adopted = self.store.adopt(adopt).await.unwrap();
        adopted.sort_unstable();
        assert_eq!(adopted, events, "{}: what was consumed can be adopted", sub.name);
        for id in events {
            sub.release(id, self.now);
        }
    }

    fn reborn(&mut self, worker: usize) {
        self.workers[worker] = self.new_life();
    }

    async fn beat(&mut self, worker: usize) {
        let (incarnation, now) = (self.workers[worker], Some(self.now));
        let beat =
            Beat { incarnation, name: format!("w{worker}"), subscriptions: vec![], leaving: false, now };
        let workers = self.store.beat(beat).await.unwrap();
        if let Some((former, _)) = self.known.insert(worker, (incarnation, self.now))
            && former != incarnation
        {
            self.end_leases(former);
        }
        let known: BTreeSet<Incarnation> = self.known.values().map(|(incarnation, _)| *incarnation).collect();
        assert_eq!(workers.iter().map(|worker| worker.incarnation).collect::<BTreeSet<_>>(), known);
    }

    async fn sweep(&mut self) {
        let sweep = Sweep { dead_after: Some(DEAD_AFTER), limit: 100, now: Some(self.now) };
        let swept = self.store.sweep(sweep).await.unwrap();
        let limit = self.now.before(DEAD_AFTER);
        let (dead, living) =
            std::mem::take(&mut self.known).into_iter().partition(|(_, (_, beat))| *beat < limit);
        self.known = living;
        let dead: BTreeMap<usize, (Incarnation, Time)> = dead;
        assert_eq!((swept.workers, swept.chunks), (dead.len() as u64, 0));
        for (incarnation, _) in dead.into_values() {
            self.end_leases(incarnation);
        }
        // What was consumed is never claimed again, so nobody else would notice.
        let now = self.now;
        for sub in self.subs.iter_mut().filter(|sub| sub.is_once()) {
            for lease in 0..sub.leases.len() {
                if !sub.leases[lease].events.is_empty() && !sub.is_live(lease, now) {
                    sub.crash(lease, now);
                }
            }
        }
    }

    /// A worker is known to be dead.
    fn end_leases(&mut self, owner: Incarnation) {
        for sub in &mut self.subs {
            for held in sub.leases.iter_mut().filter(|held| held.owner == owner) {
                held.until = held.until.min(self.now);
            }
            for (holder, until) in sub.lanes.iter_mut().filter_map(|lane| lane.holder.as_mut()) {
                *until = if *holder == owner { self.now.min(*until) } else { *until };
            }
        }
    }

    async fn rule(&mut self, sub: usize, kind: RuleKind, set: bool) {
        let (by, reason) = ("somebody".into(), "why not".into());
        let until = set.then_some(RuleEnd::Open);
        let set_rule =
            SetRule { subscription: self.subs[sub].id, kind, until, by, reason, now: Some(self.now) };
        self.store.set_rule(set_rule).await.unwrap();
        let rules = &mut self.subs[sub].rules;
        if set {
            rules.insert(kind)
        } else {
            rules.remove(&kind)
        };
    }

    fn pick_event(&self, pick: usize) -> Option<EventId> {
        self.events.keys().nth(pick % self.events.len().max(1)).copied()
    }

    async fn cancel(&mut self, pick: usize) {
        let Some(id) = self.pick_event(pick) else { return };
        let cancelled = self.store.cancel(Cancel { id, now: Some(self.now) }).await.unwrap();
        for sub in &mut self.subs {
            let was = cancelled.iter().any(|name| **name == *sub.name);
            match sub.items[&id].place {
                Place::Leased(at) if was && !sub.is_live(at, self.now) && !sub.is_once() => {
                    sub.crash(at, self.now); // it was noticed to be nobody's
                    sub.remove(id);
                }
                Place::Leased(at) if !sub.is_live(at, self.now) => {}
                Place::Free { .. } | Place::Held => {
                    assert!(was, "{}: {id} could have been cancelled", sub.name);
                    sub.remove(id);
                }
                other => assert!(!was, "{}: {id} was cancelled and is {other:?}", sub.name),
            }
        }
    }

    async fn revive(&mut self, at: usize, pick: Option<usize>, replay: bool) {
        let sub = &mut self.subs[at];
        let dead = |item: &Item| matches!(item.place, Place::Dead | Place::Held);
        let mut meant: Vec<EventId> =
            sub.items.iter().filter(|(_, item)| dead(item)).map(|(id, _)| *id).collect();
        let mut which = Which::All;
        if let (Some(pick), false) = (pick, meant.is_empty()) {
            meant = vec![meant[pick % meant.len()]];
            which = Which::Ids(meant.clone());
        }
        let how = if replay { Revival::Replay } else { Revival::Drop };
        let revive = Revive { subscription: sub.id, which, how, now: Some(self.now) };
        let count = self.store.revive(revive).await.unwrap();
        assert_eq!(count, meant.len() as u64, "{}: {meant:?}", sub.name);
        for id in meant {
            if replay { sub.replay(id, self.now) } else { sub.remove(id) }
        }
    }

    async fn release_parked(&mut self, at: usize, key: Option<u8>) {
        let blockers = self.check_parked(at).await;
        let keys: Vec<(String, String)> =
            key.iter().map(|key| (TOPIC.to_owned(), format!("key{key}"))).collect();
        let sub = &mut self.subs[at];
        let release = ReleaseParked { subscription: sub.id, keys: keys.clone(), now: Some(self.now) };
        let count = self.store.release_parked(release).await.unwrap();
        let meant = |key: &str| keys.is_empty() || keys.iter().any(|(_, meant)| *meant == *key);
        let (mut surely, mut perhaps) = (0, 0);
        for (key, id) in blockers.into_iter().filter(|(key, _)| meant(key)) {
            let lane = sub.lane_of(id);
            let now = self.now;
            match sub.items[&id].place {
                Place::Free { due } if due <= now => perhaps += 1,
                Place::Free { .. } | Place::Held => {
                    surely += 1;
                    sub.lanes[lane].halted.1 = now.min(sub.lanes[lane].halted.1);
                }
                _ => continue,
            }
            sub.lanes[lane].halted.0 = now.min(sub.lanes[lane].halted.0);
            sub.hasten(id, now);
            assert!(sub.items[&id].key.as_deref() == Some(&*key));
        }
        assert!((surely..=surely + perhaps).contains(&count), "{}: released {count}", sub.name);
    }

    /// Parked keys wait for the first of their events that is still to be done.
    async fn check_parked(&self, at: usize) -> Vec<(Arc<str>, EventId)> {
        let sub = &self.subs[at];
        let page = Page { subscription: sub.id, after: EventId(0), limit: 100, now: Some(self.now) };
        let parked = self.store.parked(page).await.unwrap();
        for one in &parked {
            let item = &sub.items[&one.blocked_by];
            assert!(item.is_pending(), "{}: {one:?}", sub.name);
            assert_eq!(sub.ordered_key(one.blocked_by).map(|key| &**key), Some(&*one.key), "{}", sub.name);
            assert_eq!(sub.pending_before(one.blocked_by).next(), None, "{}: {one:?}", sub.name);
            match item.place {
                Place::Held => assert_eq!(one.due_at, None, "{}: {one:?}", sub.name),
                Place::Free { due } if due > self.now => assert_eq!(one.due_at, Some(due), "{}", sub.name),
                _ => {}
            }
        }
        for (id, _) in sub.items.iter().filter(|(_, item)| item.place == Place::Held) {
            assert!(parked.iter().any(|one| one.blocked_by == *id), "{}: {id} is held", sub.name);
        }
        parked.into_iter().map(|one| (one.key, one.blocked_by)).collect()
    }

    async fn resend(&mut self, at: usize, pick: usize) {
        let Some(id) = self.pick_event(pick) else { return };
        let sub = &mut self.subs[at];
        let place = sub.items[&id].place;
        if place == Place::Unfilled {
            return;
        }
        let resend = Resend { subscription: sub.id, ids: vec![id], now: Some(self.now) };
        let count = self.store.resend(resend).await.unwrap();
        let lost = matches!(place, Place::Gone | Place::Dead | Place::Held);
        assert_eq!(count, u64::from(lost), "{}: {id} is {place:?}", sub.name);
        if lost {
            sub.replay(id, self.now);
        }
    }

    async fn compare_all(&mut self) {
        for at in 0..self.subs.len() {
            self.compare(at).await;
        }
    }

    /// Counts are what the model says.
    async fn compare(&mut self, at: usize) {
        self.notice(at).await;
        let sub = &self.subs[at];
        let counts = self.store.stats(sub.id, Some(self.now)).await.unwrap().counts;
        let allowed: Vec<Vec<Status>> = sub.items.keys().map(|id| sub.statuses(*id, self.now)).collect();
        let shown = [
            (Status::Ready, counts.ready),
            (Status::Delayed, counts.delayed),
            (Status::Leased, counts.leased),
            (Status::Parked, counts.parked),
            (Status::Dead, counts.dead),
        ];
        for (status, count) in shown {
            let least = allowed.iter().filter(|allowed| **allowed == [status]).count() as u64;
            let most = allowed.iter().filter(|allowed| allowed.contains(&status)).count() as u64;
            let fits = (least..=most).contains(&count);
            assert!(fits, "{}: {count} are {status:?}, not {least} to {most}: {counts:?}", sub.name);
        }
        let pending = sub.items.values().filter(|item| item.is_pending() && item.place != Place::Unfilled);
        assert_eq!(counts.pending(), pending.count() as u64, "{}: {counts:?}", sub.name);
    }

    /// Asks whether the store has noticed the end of leases whose events it would bury.
    async fn notice(&mut self, at: usize) {
        let ids: Vec<EventId> = self.subs[at].items.keys().copied().collect();
        for id in ids {
            let sub = &self.subs[at];
            let Place::Leased(lease) = sub.items[&id].place else { continue };
            if sub.is_live(lease, self.now) || !sub.would_bury(id, lease) {
                continue;
            }
            if matches!(self.status(at, id).await, Status::Dead | Status::Parked | Status::Settled) {
                self.subs[at].crash(lease, self.now);
            }
        }
    }

    async fn status(&self, at: usize, id: EventId) -> Status {
        let view =
            self.store.event(FindEvent { id, now: Some(self.now) }).await.unwrap().expect("it is kept");
        let name = &*self.subs[at].name;
        view.deliveries
            .into_iter()
            .find(|delivery| *delivery.subscription == *name)
            .expect("it has it")
            .status
    }

    async fn look_at_everything(&self) {
        let mut log = Vec::new();
        // Readers stay behind what others may still be writing, so the last events may take a moment.
        for _ in 0..10_000 {
            let read = ReadLog { topic: TOPIC.into(), after: EventId(0), limit: 10_000 };
            log = self.store.read_log(read).await.unwrap().events;
            if log.len() >= self.events.len() {
                break;
            }
        }
        let events =
            log.iter().map(|event| (event.id, (event.key.as_deref().map(str::to_owned), event.prev)));
        assert_eq!(events.collect::<BTreeMap<_, _>>(), self.events);
        for (key, chain) in &self.chains {
            let head = self.store.head(TOPIC, key).await.unwrap().map(|head| head.last_id);
            assert_eq!(head, chain.last().copied(), "{key}");
        }
        for id in self.events.keys() {
            let view = self.store.event(FindEvent { id: *id, now: Some(self.now) }).await.unwrap().unwrap();
            assert_eq!(view.deliveries.len(), self.subs.len());
            for delivery in view.deliveries {
                let sub = self.subs.iter().find(|sub| *sub.name == *delivery.subscription).unwrap();
                let dead = sub.items[id].place == Place::Dead;
                let expected = if dead { Status::Dead } else { Status::Settled };
                assert_eq!(delivery.status, expected, "{}: {id}", sub.name);
            }
        }
        for sub in &self.subs {
            let page = Page { subscription: sub.id, after: EventId(0), limit: 10_000, now: Some(self.now) };
            let dead = self.store.dead(page).await.unwrap().len();
            let expected = sub.items.values().filter(|item| item.place == Place::Dead).count();
            assert_eq!(dead, expected, "{}", sub.name);
        }
    }
}

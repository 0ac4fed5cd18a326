//! Workers: they claim, settle, extend, give back and adopt.

use super::{ONCE, World};
use crate::judge;
use crate::model::{Held, Key};
use crate::setting::LEASE;
use crate::step::Verdict;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tramline::model::id::{EventId, Incarnation};
use tramline::model::lane::{self, Known, Share};
use tramline::model::lease::Lease;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::OnExhausted;
use tramline::store::verbs::{
    Adopt, Claim, ClaimedEvent, Extend, Extended, Release, Settle, SettleSlice, Suspects,
};

impl World {
    pub(super) fn wish(&self, sub: usize, owner: Incarnation, max_events: u32) -> Claim {
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

    /// The lanes of which a worker has something in hand, as the workers of ordered subscriptions name them. To those whose bit is set
    /// nothing may be added.
    pub(super) fn known_to(&self, sub: usize, owner: Incarnation, closed: u8) -> Known {
        let sub = &self.subs[sub];
        let held = sub.leases_of(owner).into_iter().filter_map(|at| {
            let closed = closed >> (sub.leases[at].lane % 8) & 1 == 1;
            sub.leases[at].lease.held().map(|held| lane::Held { closed, ..held })
        });
        if sub.is_ordered() { Known::Only(held.collect()) } else { Known::All }
    }

    /// Claims; gives how many events there were.
    pub(super) async fn claim(&mut self, sub: usize, claim: Claim) -> usize {
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
    pub(super) async fn settle(&mut self, at: usize, owner: Incarnation, verdicts: &[Verdict]) {
        let sub = &self.subs[at];
        let mut mine: Vec<(EventId, usize)> = Vec::new();
        for lease in sub.leases_of(owner) {
            mine.extend(sub.leases[lease].events.iter().map(|id| (*id, lease)));
        }
        mine.sort_unstable();
        let mut stopped: BTreeSet<Key> = BTreeSet::new();
        let mut by_lease: BTreeMap<usize, Vec<(EventId, Outcome)>> = BTreeMap::new();
        for ((id, lease), verdict) in mine.into_iter().zip(verdicts.iter().cycle()) {
            let key = sub.ordered_key(id);
            if key.is_some_and(|key| stopped.contains(key)) {
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
        let settle =
            Settle { subscription: sub.id, results: results.collect(), worker: None, now: Some(self.now) };
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
    pub(super) async fn settle_stale(&mut self, pick: usize) {
        let stale = |(sub, lease, id): &&(usize, Lease, EventId)| {
            let has = |held: &Held| held.lease == *lease && held.events.contains(id);
            !self.subs[*sub].leases.iter().any(has)
        };
        let stale: Vec<_> = self.claimed.iter().filter(stale).collect();
        if stale.is_empty() {
            return;
        }
        let (sub, lease, id) = *stale[pick % stale.len()];
        let outcomes = vec![(id.index(), Outcome::retry("too late"))];
        let results = vec![SettleSlice { lease, outcomes }];
        let settle = Settle { subscription: self.subs[sub].id, results, worker: None, now: Some(self.now) };
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

    pub(super) async fn extend(&mut self, at: usize, owner: Incarnation) {
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
    pub(super) async fn release(&mut self, at: usize, owner: Incarnation, part: u8) {
        let sub = &mut self.subs[at];
        let all = part.is_multiple_of(2);
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
    pub(super) async fn adopt(&mut self, pick: usize, part: u8) {
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
}

//! Workers that come, go and are found dead.

use super::{DEAD_AFTER, World};
use std::collections::{BTreeMap, BTreeSet};
use tramline::model::id::Incarnation;
use tramline::model::time::Time;
use tramline::store::verbs::{Beat, Sweep};

impl World {
    pub(super) fn new_life(&mut self) -> Incarnation {
        self.lives += 1;
        Incarnation(self.lives)
    }

    pub(super) fn reborn(&mut self, worker: usize) {
        self.workers[worker] = self.new_life();
    }

    pub(super) async fn beat(&mut self, worker: usize) {
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

    pub(super) async fn sweep(&mut self) {
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
}

//! Whether the store shows what the models say.

use super::{TOPIC, World};
use crate::model::Place;
use std::collections::BTreeMap;
use std::sync::Arc;
use tramline::model::id::EventId;
use tramline::model::status::Status;
use tramline::model::tally::Ending;
use tramline::store::verbs::{FindEvent, Page, ReadLog};
use tramline::store::verbs_tally::NameTally;

impl World {
    pub(super) async fn compare_all(&mut self) {
        for at in 0..self.subs.len() {
            self.compare(at).await;
        }
    }

    /// Counts are what the model says.
    pub(super) async fn compare(&mut self, at: usize) {
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
        if let Some(tally) = self.tallies.get(at) {
            let name = NameTally { tally: *tally, now: Some(self.now) };
            let tally = self.store.tally(name).await.unwrap().unwrap();
            let expected = (sub.tallied.len() as u64, sub.ended(Ending::Done), sub.ended(Ending::Failed));
            assert_eq!((tally.total, tally.done, tally.failed), expected, "{}: its tally", sub.name);
        }
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

    /// Parked keys wait for the first of their events that is still to be done.
    pub(super) async fn check_parked(&self, at: usize) -> Vec<(Arc<str>, EventId)> {
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

    pub(super) async fn status(&self, at: usize, id: EventId) -> Status {
        let view =
            self.store.event(FindEvent { id, now: Some(self.now) }).await.unwrap().expect("it is kept");
        let name = &*self.subs[at].name;
        view.deliveries
            .into_iter()
            .find(|delivery| *delivery.subscription == *name)
            .expect("it has it")
            .status
    }

    pub(super) async fn look_at_everything(&self) {
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
            let dead = self.store.dead(page.into()).await.unwrap().events.len();
            let expected = sub.items.values().filter(|item| item.place == Place::Dead).count();
            assert_eq!(dead, expected, "{}", sub.name);
        }
    }
}

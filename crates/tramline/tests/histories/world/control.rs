//! What somebody does to a subscription and its events.

use super::{TOPIC, World};
use crate::model::{Item, Place};
use tramline::model::id::EventId;
use tramline::model::rule::RuleKind;
use tramline::model::status::Status;
use tramline::model::time::Time;
use tramline::store::verbs::{Cancel, ReleaseParked, Resend, Revival, Revive, RuleEnd, SetRule, Which};

impl World {
    pub(super) async fn rule(&mut self, sub: usize, kind: RuleKind, set: bool) {
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

    pub(super) async fn cancel(&mut self, pick: usize) {
        let Some(id) = self.pick_event(pick) else { return };
        let cancelled = self.store.cancel(Cancel { id, now: Some(self.now) }).await.unwrap();
        for sub in &mut self.subs {
            let was = cancelled.iter().any(|name| **name == *sub.name);
            match sub.items[&id].place {
                Place::Leased(at) if was && !sub.is_live(at, self.now) && !sub.is_once() => {
                    sub.crash(at, self.now); // it was noticed to be nobody's
                    sub.remove(id, self.now);
                }
                Place::Leased(at) if !sub.is_live(at, self.now) => {}
                Place::Free { .. } | Place::Held => {
                    assert!(was, "{}: {id} could have been cancelled", sub.name);
                    sub.remove(id, self.now);
                }
                other => assert!(!was, "{}: {id} was cancelled and is {other:?}", sub.name),
            }
        }
    }

    pub(super) async fn revive(&mut self, at: usize, pick: Option<usize>, replay: bool) {
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
        let revive = Revive { subscription: sub.id, which, how, after: EventId(0), now: Some(self.now) };
        let revived = self.store.revive(revive).await.unwrap();
        assert_eq!((revived.count, revived.next), (meant.len() as u64, None), "{}: {meant:?}", sub.name);
        for id in meant {
            if replay { sub.replay(id, self.now) } else { sub.remove(id, self.now) }
        }
    }

    pub(super) async fn release_parked(&mut self, at: usize, key: Option<u8>) {
        let blockers = self.check_parked(at).await;
        let keys: Vec<(String, String)> =
            key.iter().map(|key| (TOPIC.to_owned(), format!("key{key}"))).collect();
        let sub = &mut self.subs[at];
        let release = ReleaseParked { subscription: sub.id, keys: keys.clone(), now: Some(self.now) };
        let count = self.store.release_parked(release).await.unwrap();
        let stood_still: Vec<Time> = sub.lanes.iter().map(|lane| lane.halted.0).collect();
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
        for (lane, until) in stood_still.into_iter().enumerate().filter(|_| keys.is_empty()) {
            let (sure, unsure) = self.let_go(at, lane, until).await;
            surely += sure;
            perhaps += unsure;
        }
        let sub = &self.subs[at];
        assert!((surely..=surely + perhaps).contains(&count), "{}: released {count}", sub.name);
    }

    /// Where all may go on, so does what failed in a lane that stood still, surely until this time. A store may have let it go on
    /// before, and its events not. Gives how many went surely, and how many others did.
    async fn let_go(&mut self, at: usize, lane: usize, until: Time) -> (u64, u64) {
        let (mut surely, mut perhaps) = (0, 0);
        let failed: Vec<EventId> = self.subs[at].failed_in(lane, self.now).map(|(id, _)| id).collect();
        for id in failed {
            match until > self.now {
                true => surely += 1,
                false if self.status(at, id).await == Status::Delayed => continue,
                false => perhaps += 1,
            }
            self.subs[at].hasten(id, self.now);
        }
        let (sure, maybe) = self.subs[at].lanes[lane].halted;
        self.subs[at].lanes[lane].halted = (sure.min(self.now), maybe.min(self.now));
        (surely, perhaps)
    }

    pub(super) async fn resend(&mut self, at: usize, pick: usize) {
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
}

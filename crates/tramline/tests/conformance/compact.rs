//! Compaction: older events of a key give way to the newest.

use crate::bed::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

conformance![
    the_newest_event_of_a_key_stands_for_the_older_ones,
    other_keys_and_events_without_a_key_stay,
    keys_of_different_topics_do_not_give_way_to_each_other,
    what_is_under_way_gives_way_to_nothing,
    a_newer_event_that_is_under_way_stands_for_nothing,
    a_failed_event_gives_way_when_it_is_due,
    what_gave_way_is_recorded_and_a_gap,
    what_gave_way_is_done_as_an_item,
    what_gave_way_can_be_resent,
    a_filtered_newest_event_stands_for_nothing,
    a_long_backlog_of_one_key_is_gone_after_a_few_claims,
    at_most_once_takes_only_the_newest,
    without_compaction_everything_comes,
    every_key_ends_with_its_newest_event_whatever_happens,
];

fn compacting(policy: Policy) -> Policy {
    Policy { compact: true, ..policy }
}

fn all() -> [(&'static str, Policy); 6] {
    [
        ("unordered", unordered()),
        ("ordered", ordered()),
        ("pushed", pushed()),
        ("pushed by key", Policy { ordering: Ordering::Key, ..pushed() }),
        ("in line", arrival()),
        ("once", ordered_once()),
    ]
    .map(|(name, policy)| (name, compacting(policy)))
}

async fn compacted(bed: &Bed) -> u64 {
    let totals = bed.store.drop_totals().await.unwrap();
    totals.iter().filter(|total| total.reason == DropReason::Compacted).map(|total| total.events).sum()
}

async fn the_newest_event_of_a_key_stands_for_the_older_ones(bed: Bed) {
    for (name, policy) in all() {
        let queue = bed.queue(policy).await;
        let apart = bed.emit_keys(&["a", "b", "a", "a"]).await;
        let together = bed.emit_together(["b", "a", "b", "c"].map(keyed).to_vec()).await;
        let newest = [together[1].id, together[2].id, together[3].id];
        assert_eq!(sorted(queue.drain().await), newest, "{name}");
        assert_eq!(compacted(&bed).await, apart.len() as u64 + 1, "{name}");
        assert_eq!(queue.counts().await, Counts::default(), "{name}");
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn other_keys_and_events_without_a_key_stay(bed: Bed) {
    let queue = bed.queue(compacting(unordered())).await;
    let plain = bed.emit_plain(3).await;
    let ids = bed.emit_keys(&["a", "b"]).await;
    assert_eq!(sorted(queue.drain().await), [plain, ids].concat());
    assert_eq!(compacted(&bed).await, 0);
}

async fn keys_of_different_topics_do_not_give_way_to_each_other(bed: Bed) {
    let order = if bed.is_spread() { ordered() } else { arrival() };
    let queue = bed.queue_named("queue", &["one", "two"], compacting(order)).await;
    let one = bed.emit(Event::new("one", "x").key("a")).await;
    let two = bed.emit(Event::new("two", "x").key("a")).await;
    assert_eq!(sorted(queue.drain().await), [one, two]);
}

async fn what_is_under_way_gives_way_to_nothing(bed: Bed) {
    for policy in [compacting(unordered()), compacting(ordered())] {
        let queue = bed.queue(policy).await;
        let first = bed.emit(keyed("a")).await;
        let claimed = queue.claim(10).await;
        let later = bed.emit_keys(&["a", "a"]).await;
        assert_eq!(ids(&claimed), [first]);
        assert!(queue.done(&claimed).await);
        assert_eq!(queue.drain().await, later[1..]);
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

/// It may fail and be dropped; then the older ones would be all there is.
async fn a_newer_event_that_is_under_way_stands_for_nothing(bed: Bed) {
    let queue = bed.queue(compacting(unordered())).await;
    let late = bed.emit_together(vec![keyed("a").delay(seconds(10)), keyed("a").delay(seconds(10))]).await;
    let newest = bed.emit(keyed("a")).await;
    let claimed = queue.claim(10).await;
    assert_eq!(ids(&claimed), [newest]);
    bed.pass(seconds(10));
    let rest = queue.claim(10).await;
    assert_eq!(ids(&rest), [late[1].id], "of the other two the newer one");
}

async fn a_failed_event_gives_way_when_it_is_due(bed: Bed) {
    for policy in [unordered(), ordered(), arrival()] {
        let retry = Retry::constant(3, seconds(60));
        let queue = bed.queue(Policy { retry, ..compacting(policy) }).await;
        bed.emit(keyed("a")).await;
        queue.settle(&queue.claim(1).await, Outcome::retry("no")).await;
        bed.pass(seconds(60));
        let newest = bed.emit(keyed("a")).await;
        assert_eq!(queue.drain().await, [newest]);
        assert!(queue.parked().await.is_empty());
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn what_gave_way_is_recorded_and_a_gap(bed: Bed) {
    let queue = bed.lane(compacting(ordered())).await;
    let ids = bed.emit_keys(&["a", "b", "a", "a"]).await;
    let claimed = queue.claim(10).await;
    assert_eq!(skipped(&claimed, ids[3]), [ids[0], ids[2]]);
    assert_eq!(skipped(&claimed, ids[1]), []);
    assert_ne!(queue.release(&claimed).await, 0);
    let again = queue.claim(10).await;
    assert_eq!(skipped(&again, ids[3]), [ids[0], ids[2]], "until it is settled");
    assert!(queue.done(&again).await);
    let list = ListDrops { subscription: Some(queue.id), after: None, limit: 10 };
    let records = bed.store.drops(list).await.unwrap();
    let facts: Vec<_> = records.iter().map(|one| (one.reason, one.first, one.last, one.events)).collect();
    assert_eq!(facts, [(DropReason::Compacted, ids[0], ids[2], 2)]);
    let next = bed.emit(keyed("a")).await;
    assert_eq!(skipped(&queue.claim(10).await, next), []);
}

/// The newest event stands for it.
async fn what_gave_way_is_done_as_an_item(bed: Bed) {
    for (name, policy) in all() {
        let queue = bed.queue(policy).await;
        let tally = bed.open(NewTally::new()).await;
        bed.emit_together(vec![keyed("a").tally(tally); 5]).await;
        bed.seal(tally).await;
        let claimed = queue.claim(10).await;
        assert_eq!(bed.tallied(tally).await, (5, 4, 0), "{name}");
        assert!(queue.done(&claimed).await);
        assert_eq!(bed.tally(tally).await.state, TallyState::Complete, "{name}");
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn what_gave_way_can_be_resent(bed: Bed) {
    for (name, policy) in all() {
        let queue = bed.queue(policy).await;
        let ids = bed.emit_keys(&["a", "a"]).await;
        assert_eq!(queue.drain().await, ids[1..], "{name}");
        let newer = bed.emit(keyed("a")).await;
        assert_eq!(queue.resend(&ids[..1]).await, 1, "{name}");
        assert_eq!(sorted(queue.drain().await), [ids[0], newer], "{name}: it is wanted as it is");
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn a_filtered_newest_event_stands_for_nothing(bed: Bed) {
    for (name, policy) in all() {
        let filter = serde_json::from_value(json!([{"field": "type", "equals": "in"}])).unwrap();
        let queue = bed.queue(Policy { filter, ..policy }).await;
        let mut ids = Vec::new();
        for kind in ["in", "in", "out", "out", "in", "out"] {
            ids.push(bed.emit(keyed("a").kind(kind)).await);
        }
        assert_eq!(queue.drain().await, [ids[4]], "{name}");
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

async fn a_long_backlog_of_one_key_is_gone_after_a_few_claims(bed: Bed) {
    let queue = bed.lane(compacting(ordered())).await;
    let emitted = bed.emit_together(vec![keyed("a"); 3000]).await;
    let newest = emitted.last().map(|event| event.id).unwrap();
    let mut claims = 0;
    let claimed = loop {
        claims += 1;
        let claimed = queue.claim(100).await;
        if !claimed.slices.is_empty() {
            break claimed;
        }
        assert_eq!(claimed.next_due, Some(bed.time()), "there is more");
    };
    assert!(claims < 6, "{claims}");
    assert_eq!(ids(&claimed), [newest]);
    let skipped = skipped(&claimed, newest);
    assert_eq!(skipped.len(), 1000, "the last ones");
    assert_eq!(skipped.last(), emitted.iter().rev().nth(1).map(|event| &event.id));
    assert_eq!(compacted(&bed).await, 2999);
}

async fn at_most_once_takes_only_the_newest(bed: Bed) {
    let queue = bed.queue(compacting(at_most_once())).await;
    let ids = bed.emit_keys(&["a", "a", "a"]).await;
    let claimed = queue.claim(1).await;
    assert_eq!(self::ids(&claimed), ids[2..]);
    bed.pass(LEASE);
    assert!(self::ids(&queue.claim(10).await).is_empty());
    assert_eq!(queue.dead_ids().await, ids[2..]);
}

async fn without_compaction_everything_comes(bed: Bed) {
    let queue = bed.queue(ordered()).await;
    let ids = bed.emit_keys(&["a", "a"]).await;
    bed.queue(compacting(ordered())).await;
    bed.queue(ordered()).await;
    assert_eq!(queue.drain().await, ids);
}

/// Random histories against a simple model: nothing is given out while a newer event of its key is pending, every key ends with
/// its newest event, and all events were either delivered or recorded.
async fn every_key_ends_with_its_newest_event_whatever_happens(bed: Bed) {
    for (at, (name, policy)) in all().into_iter().enumerate() {
        if name == "once" {
            continue; // what fails there is dead, not delivered
        }
        let filter = serde_json::from_value(json!([{"field": "type", "equals": "in"}])).unwrap();
        let retry = Retry { max_attempts: Retry::FOR_EVER, ..Retry::constant(1, seconds(5)) };
        let queue = bed.queue(Policy { filter, retry, ..policy }).await;
        let before = compacted(&bed).await;
        let mut history = History::new(queue, at as u64 + 7);
        for _ in 0..60 {
            history.step().await;
        }
        history.end().await;
        let given_way = (compacted(&bed).await - before) as usize;
        assert_eq!(history.delivered.len() + given_way, history.keys.len(), "{name}");
        let newest: BTreeMap<u64, EventId> = history.keys.iter().map(|(id, key)| (*key, *id)).collect();
        for (key, id) in newest {
            assert!(history.delivered.contains(&id), "{name}: {id} of {key}");
        }
        bed.store.delete_subscription("queue").await.unwrap();
    }
}

/// A queue with a random life.
struct History {
    queue: Queue,
    random: u64,
    /// Every event that passed the filter, and its key.
    keys: BTreeMap<EventId, u64>,
    delivered: BTreeSet<EventId>,
    in_hand: Vec<Claimed>,
}

impl History {
    fn new(queue: Queue, random: u64) -> History {
        History { queue, random, keys: BTreeMap::new(), delivered: BTreeSet::new(), in_hand: Vec::new() }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    async fn step(&mut self) {
        match self.below(10) {
            0..4 => self.emit().await,
            4..7 => self.claim().await,
            7..9 => self.settle().await,
            _ => {
                let time = self.below(12);
                self.queue.bed.pass(seconds(time));
            }
        }
    }

    async fn emit(&mut self) {
        let mut drafts = Vec::new();
        for _ in 0..=self.below(4) {
            let (key, passes, delay) = (self.below(3), self.below(3) > 0, self.below(5).saturating_sub(3));
            let kind = if passes { "in" } else { "out" };
            let event = keyed(&format!("k{key}")).kind(kind).delay(seconds(delay * 4));
            drafts.push((key, passes, event));
        }
        let events = drafts.iter().map(|(_, _, event)| event.clone()).collect();
        let emitted = self.queue.bed.emit_together(events).await;
        for ((key, passes, _), event) in drafts.into_iter().zip(emitted) {
            if passes {
                self.keys.insert(event.id, key);
            }
        }
    }

    async fn claim(&mut self) {
        let mut pending = BTreeSet::new();
        for id in self.keys.keys() {
            let status = self.queue.status(*id).await;
            if matches!(status, Status::Ready | Status::Delayed | Status::Parked) {
                pending.insert(*id);
            }
        }
        let (owner, wanted) = ([ANNA, BERT][self.below(2) as usize], self.below(6) as u32 + 1);
        let claimed = self.queue.claim_by(owner, wanted).await;
        for id in ids(&claimed) {
            assert!(pending.contains(&id), "{id} was given out twice");
            let newer = pending.range(id..).skip(1).find(|other| self.keys[other] == self.keys[&id]);
            assert_eq!(newer, None, "{id} was given out while a newer one was pending");
        }
        if !claimed.slices.is_empty() {
            self.in_hand.push(claimed);
        }
    }

    /// Something in hand is done, fails or is given back; or it is forgotten, and its lease ends.
    async fn settle(&mut self) {
        if self.in_hand.is_empty() {
            return;
        }
        let at = self.below(self.in_hand.len() as u64) as usize;
        let claimed = self.in_hand.remove(at);
        match self.below(6) {
            0 => assert!(self.queue.release(&claimed).await <= claimed.slices.len() as u64),
            1 => {
                self.queue.settle(&claimed, Outcome::retry("no")).await;
            }
            2 => self.queue.bed.pass(LEASE),
            _ => self.done(&claimed).await,
        }
    }

    async fn done(&mut self, claimed: &Claimed) {
        let outcomes: Vec<_> = ids(claimed).into_iter().map(|id| (id, Outcome::Done)).collect();
        let taken = self.queue.settle_each(claimed, &outcomes).await;
        self.delivered.extend(outcomes.iter().zip(taken).filter(|(_, taken)| *taken).map(|((id, _), _)| *id));
    }

    /// All that is left is done.
    async fn end(&mut self) {
        for _ in 0..40 {
            self.queue.bed.pass(LEASE);
            self.claim().await;
            for claimed in std::mem::take(&mut self.in_hand) {
                self.done(&claimed).await;
            }
        }
        assert_eq!(self.queue.counts().await, Counts::default());
    }
}

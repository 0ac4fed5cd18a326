//! A key that goes on with much behind it: some at a time, and in order.

use crate::bed::{Server, claim_at, done, emit, subscribe};
use redis::Value;
use std::time::Duration;
use tramline::Event;
use tramline::model::id::{EventId, SubscriptionId};
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::{Claimed, ClaimedSlice, Settle, SettleSlice};

/// More than two steps move.
const BEHIND: usize = 450;

async fn emit_one(store: &RedisStore) -> EventId {
    emit(store, vec![Event::new("t", "x").key("k")]).await.unwrap().events[0].id
}

fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.id).collect()
}

/// A key whose first event is to be tried again, with so many behind it that were set aside; and the time.
async fn blocked(store: &RedisStore, id: SubscriptionId) -> (EventId, Vec<EventId>, Time) {
    let first = emit_one(store).await;
    let now = store.now().await.unwrap();
    let claimed = claim_at(store, id, 10, Some(now)).await.unwrap();
    let lease = claimed.slices[0].lease;
    let retry = SettleSlice { lease, outcomes: vec![(first.index(), Outcome::retry("not yet"))] };
    let retry = Settle { subscription: id, results: vec![retry], worker: None, now: Some(now) };
    store.settle(retry).await.unwrap();
    let mut behind = Vec::new();
    for _ in 0..BEHIND {
        behind.push(emit_one(store).await);
    }
    // Claims set aside what waits for its key, some at a time, too.
    while claim_at(store, id, 1000, Some(now)).await.unwrap().next_due == Some(now) {}
    assert_eq!(store.stats(id, Some(now)).await.unwrap().counts.parked, BEHIND as u64);
    (first, behind, now)
}

/// All of it was moved by the script that settled the event before it, however much it was, and the server stood still.
#[tokio::test]
async fn what_waits_behind_a_key_comes_back_in_order_and_in_steps() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    let (first, mut behind, now) = blocked(&store, id).await;
    let later = now.after(Duration::from_secs(400));
    let claimed = claim_at(&store, id, 10, Some(later)).await.unwrap();
    assert_eq!(ids(&claimed), [first]);
    done(&store, id, &claimed).await.unwrap();
    let on_their_way = format!("{{tramline}}:unparking:{id}");
    assert_eq!(server.command(&["HLEN", &on_their_way]).await, Value::Int(1));
    // This one is ready at once, and must not come first.
    behind.push(emit_one(&store).await);
    let mut ran = Vec::new();
    while ran.len() < behind.len() {
        let claimed = claim_at(&store, id, 64, Some(later)).await.unwrap();
        assert!(!claimed.slices.is_empty() || claimed.next_due == Some(later), "{} ran", ran.len());
        ran.extend(ids(&claimed));
        done(&store, id, &claimed).await.unwrap();
    }
    assert_eq!(ran, behind);
    assert_eq!(server.command(&["EXISTS", &on_their_way]).await, Value::Int(0));
    assert_eq!(store.stats(id, Some(later)).await.unwrap().counts.pending(), 0);
}

/// Each was asked for again whenever another one had gone on, and all of that was checked when it was written: a thousand keys took the
/// server half a second.
#[tokio::test]
async fn keys_that_go_on_together_are_asked_for_once() {
    const KEYS: u64 = 150;
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    let all = || (0..KEYS).map(|key| Event::new("t", "x").key(format!("key-{key}"))).collect::<Vec<_>>();
    let heads = emit(&store, all()).await.unwrap();
    let now = store.now().await.unwrap();
    let claimed = claim_at(&store, id, 1000, Some(now)).await.unwrap();
    assert_eq!(ids(&claimed).len(), heads.events.len());
    store.settle(Settle { now: Some(now), ..failed(id, &claimed) }).await.unwrap();
    emit(&store, all()).await.unwrap();
    while claim_at(&store, id, 1000, Some(now)).await.unwrap().next_due == Some(now) {}
    assert_eq!(store.stats(id, Some(now)).await.unwrap().counts.parked, KEYS);
    let later = now.after(Duration::from_secs(400));
    let claimed = claim_at(&store, id, 1000, Some(later)).await.unwrap();
    assert_eq!(ids(&claimed).len(), heads.events.len());
    let (asked, trips) = (server.calls("zrangebylex").await, server.trips().await);
    done(&store, id, &claimed).await.unwrap();
    let (asked, trips) = (server.calls("zrangebylex").await - asked, server.trips().await - trips);
    assert!(asked < 6 * KEYS, "{asked} looks for {KEYS} keys");
    assert!(trips < 30, "{trips} trips for {KEYS} keys");
    let mut ran = 0;
    while ran < KEYS {
        let claimed = claim_at(&store, id, 1000, Some(later)).await.unwrap();
        assert!(!claimed.slices.is_empty() || claimed.next_due == Some(later), "{ran} ran");
        ran += ids(&claimed).len() as u64;
        done(&store, id, &claimed).await.unwrap();
    }
    assert_eq!(store.stats(id, Some(later)).await.unwrap().counts.pending(), 0);
}

fn failed(subscription: SubscriptionId, claimed: &Claimed) -> Settle {
    let failed = |slice: &ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|one| (one.event.id.index(), Outcome::retry("not yet"))).collect(),
    };
    let results = claimed.slices.iter().map(failed).collect();
    Settle { subscription, results, worker: None, now: None }
}

/// The step that took the lane of a dead worker over brought back some of what waited, and gave out what was emitted later.
#[tokio::test]
async fn what_waits_behind_an_event_that_kills_its_workers_comes_back_in_order() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    let (first, mut behind, now) = blocked(&store, id).await;
    behind.push(emit_one(&store).await);
    let (mut now, mut ran) = (now.after(Duration::from_secs(400)), Vec::new());
    let mut claims = 0;
    while ran.len() < behind.len() {
        claims += 1;
        assert!(claims < 2 * BEHIND, "{} ran", ran.len());
        let claimed = claim_at(&store, id, 64, Some(now)).await.unwrap();
        if ids(&claimed) == [first] {
            // The worker dies.
            now = now.after(Duration::from_secs(3600));
            continue;
        }
        ran.extend(ids(&claimed));
        done(&store, id, &claimed).await.unwrap();
    }
    assert_eq!(ran, behind);
}

//! What takes more than one slot, and is given up at every point at which it waits. Another process finishes it.

use crate::bed::{Server, claim, claim_at, done, emit};
use crate::spread::{emit_to, ids, left, put_to, sweep};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tramline::Event;
use tramline::model::id::TallyId;
use tramline::model::rule::RuleKind;
use tramline::model::schedule::Schedule;
use tramline::model::subscription::{Ordering, Policy};
use tramline::model::tally::{NewTally, Tally};
use tramline::model::time::Time;
use tramline::store::Store;
use tramline::store::redis::SpreadStore;
use tramline::store::verbs::*;
use tramline::store::verbs_tally::*;

const TOPICS: [&str; 3] = ["a", "b", "c"];
const MINUTE: Duration = Duration::from_secs(60);

/// Goes on with something as often as this when it can, and then gives it up. What was on its way is done when this is over: it went
/// over the same connection.
async fn at_most<T>(store: &SpreadStore, polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let whole = {
        let (mut future, mut left) = (pin!(future), polls);
        poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            future.as_mut().poll(cx).map(Some)
        })
        .await
    };
    store.probe().await.unwrap();
    whole
}

#[tokio::test]
async fn a_subscription_gets_all_its_topics_or_there_is_none() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    emit_to(&store, &TOPICS).await;
    for polls in 1.. {
        let name = format!("q{polls}");
        let whole = at_most(&store, polls, put_to(&store, &name, &TOPICS, Policy::default())).await;
        sweep(&other, None).await;
        let known = other.subscriptions().await.unwrap();
        let known = known.iter().find(|one| *one.name == *name);
        assert!(known.is_some() || whole.is_none());
        if let Some(known) = known {
            let emitted = emit_to(&other, &TOPICS).await;
            let claimed = claim(&other, known.id, 10).await.unwrap();
            assert_eq!(ids(&claimed), emitted.into_iter().collect(), "given up after {polls}");
            other.delete_subscription(&name).await.unwrap();
        }
        if whole.is_some() {
            assert!(polls > 3, "it waits more than once");
            return;
        }
    }
}

#[tokio::test]
async fn a_rule_stops_all_topics_or_none() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    for polls in 1.. {
        let name = format!("q{polls}");
        let subscription = put_to(&store, &name, &TOPICS, Policy::default()).await.unwrap();
        let emitted = emit_to(&other, &TOPICS).await;
        let set = SetRule {
            subscription,
            kind: RuleKind::Pause,
            until: Some(RuleEnd::Open),
            by: "anna".into(),
            reason: String::new(),
            now: None,
        };
        let whole = at_most(&store, polls, store.set_rule(set)).await;
        sweep(&other, None).await;
        let is_set = !other.stats(subscription, None).await.unwrap().rules.is_empty();
        let claimed = claim(&other, subscription, 10).await.unwrap();
        assert_eq!(ids(&claimed).len(), if is_set { 0 } else { emitted.len() }, "given up after {polls}");
        assert_eq!(claimed.stopped_by.is_some(), is_set);
        other.delete_subscription(&name).await.unwrap();
        if whole.is_some() {
            assert!(is_set && polls > 3);
            return;
        }
    }
}

async fn open(store: &dyn Store, tally: NewTally) -> TallyId {
    store.open_tally(OpenTally { tally, now: None }).await.unwrap().id
}

async fn seen(store: &dyn Store, tally: TallyId) -> Tally {
    store.tally(NameTally { tally, now: None }).await.unwrap().unwrap()
}

async fn seal(store: &dyn Store, tally: TallyId) -> Tally {
    store.seal_tally(SealTally { tally, expected: None, by: 1, now: None }).await.unwrap().tally
}

#[tokio::test]
async fn no_tally_waits_for_an_event_that_was_never_stored() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    let id = put_to(&store, "q", &["a"], Policy::default()).await.unwrap();
    let mut none = 0;
    for polls in 1.. {
        let tally = open(&store, NewTally::default()).await;
        let event = || Event::new("a", "x").tally(tally).idempotency_key(format!("k{polls}"));
        let whole =
            at_most(&store, polls, emit(&store, vec![event(), Event::new("a", "y").tally(tally)])).await;
        let later = store.now().await.unwrap().after(MINUTE * 2);
        let claimed = claim(&other, id, 10).await.unwrap();
        let stored = ids(&claimed).len() as u64;
        done(&other, id, &claimed).await.unwrap();
        sweep(&other, Some(later)).await;
        let sealed = seal(&other, tally).await;
        assert!(sealed.state.has_ended(), "given up after {polls}: {sealed:?}");
        assert_eq!((sealed.total, sealed.done, sealed.failed), (stored, stored, 0), "given up after {polls}");
        none += u64::from(stored == 0);
        if whole.is_some() {
            assert!(stored == 2 && none > 3, "some were given up before they were stored");
            return;
        }
    }
}

#[tokio::test]
async fn who_gives_up_settling_leaves_the_tally_to_a_sweep() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    for ordering in [Ordering::None, Ordering::Key] {
        for polls in 1.. {
            let topics = ["a", "b"];
            let name = format!("q{polls}{ordering:?}");
            let id = put_to(&store, &name, &topics, Policy { ordering, ..Policy::default() }).await.unwrap();
            let tally = open(&store, NewTally::default()).await;
            for topic in topics {
                emit(&store, vec![Event::new(topic, "x").key("k").tally_of(tally, &*name)]).await.unwrap();
            }
            let claimed = claim(&store, id, 10).await.unwrap();
            let whole = at_most(&store, polls, done(&store, id, &claimed)).await;
            sweep(&other, None).await;
            let left = left(&other, id, None).await;
            assert_eq!(seen(&other, tally).await.done, 2 - left, "given up after {polls}");
            assert!(whole.is_none() || left == 0);
            other.delete_subscription(&name).await.unwrap();
            if whole.is_some() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_completion_is_told_once_whoever_gives_up_telling_it() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    let id = put_to(&store, "q", &["told"], Policy::default()).await.unwrap();
    for polls in 1.. {
        let tally = open(&store, NewTally::default().on_complete(Event::new("told", "x"))).await;
        seal(&store, tally).await;
        let deliver = Deliver { limit: 10, now: None };
        let whole = at_most(&store, polls, store.deliver(deliver)).await;
        other.deliver(deliver).await.unwrap();
        let claimed = claim(&other, id, 10).await.unwrap();
        assert_eq!(ids(&claimed).len(), 1, "given up after {polls}");
        done(&other, id, &claimed).await.unwrap();
        assert_eq!(other.deliver(deliver).await.unwrap().count, 0);
        if whole.is_some() {
            return;
        }
    }
}

#[tokio::test]
async fn a_run_is_emitted_once_whoever_gives_up_the_tick() {
    let server = Server::start();
    let (store, other) = (server.open_spread().await, server.open_spread().await);
    let mut now = Time(1_800_000_000_000);
    let schedule = Schedule::every("s", MINUTE, Event::new("ticks", "x"));
    let put = PutSchedule { schedule, paused: None, over: Over::Anything, now: Some(now) };
    store.put_schedule(put).await.unwrap();
    let id = put_to(&store, "q", &["ticks"], Policy::default()).await.unwrap();
    for polls in 1.. {
        now = now.after(MINUTE);
        let tick = Tick { limit: 10, now: Some(now) };
        let whole = at_most(&store, polls, store.tick(tick)).await;
        other.tick(tick).await.unwrap();
        let claimed = claim_at(&other, id, 10, Some(now)).await.unwrap();
        assert_eq!(ids(&claimed).len(), 1, "given up after {polls}");
        done(&other, id, &claimed).await.unwrap();
        if whole.is_some() {
            return;
        }
    }
}

//! A process keeps its store below the limit that it was given.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod support;

use support::Bench;
use tramline::store::verbs::ListDrops;
use tramline::{DropReason, DropRecord, Event, Policy, Push, Start, Store, Tramline};

/// What the events of a test weigh together, beside an empty store.
const EVENTS: u64 = 300;
const PAYLOAD: usize = 10_000;

/// A store with more than three megabytes of events in it, and its size.
async fn full(bench: &Bench, subscriptions: &[(&str, Policy)]) -> u64 {
    let tram = bench.process();
    for (name, policy) in subscriptions {
        tram.put_subscription(name, &["t"], policy.clone(), Start::Now).await.unwrap();
    }
    for _ in 0..EVENTS {
        tram.emit(Event::new("t", vec![7; PAYLOAD])).await.unwrap();
    }
    let size = bench.store.size().await.unwrap().bytes;
    assert!(size > EVENTS * PAYLOAD as u64);
    size
}

fn pushed() -> Policy {
    Policy { push: Some(Push::to("https://example.org/")), ..Policy::default() }
}

async fn left(tram: &Tramline, name: &str) -> u64 {
    tram.stats(name).await.unwrap().counts.ready
}

async fn drops(bench: &Bench) -> Vec<DropRecord> {
    bench.store.drops(ListDrops { subscription: None, after: None, limit: 10 }).await.unwrap()
}

on_every_store! {
    async fn a_store_below_its_limit_keeps_everything(bench: &Bench) {
        let size = full(bench, &[("hook", pushed())]).await;
        for tram in [bench.process(), bench.process_with(|options| options.store_limit(size * 2))] {
            tram.sweep().await.unwrap();
            assert_eq!(left(&tram, "hook").await, EVENTS);
        }
    }

    async fn settled_events_go_before_any_work_does(bench: &Bench) {
        let size = full(bench, &[]).await;
        let tram = bench.process_with(|options| options.store_limit(size));
        tram.put_subscription("hook", &["t"], pushed(), Start::Now).await.unwrap();
        for _ in 0..50 {
            tram.emit(Event::new("t", vec![7; PAYLOAD])).await.unwrap();
        }
        tram.sweep().await.unwrap();
        let after = bench.store.size().await.unwrap().bytes;
        assert!(after <= size * 8 / 10 && after > size / 2, "{size}, {after}");
        assert_eq!(left(&tram, "hook").await, 50);
        assert!(drops(bench).await.is_empty());
        let total = bench.store.topic_totals().await.unwrap()[0].1;
        assert_eq!(total, EVENTS + 50);
    }

    async fn the_oldest_work_of_push_subscriptions_goes_until_there_is_room(bench: &Bench) {
        let size = full(bench, &[("hook", pushed())]).await;
        let tram = bench.process_with(|options| options.store_limit(size));
        tram.sweep().await.unwrap();
        let after = bench.store.size().await.unwrap().bytes;
        assert!(after <= size * 8 / 10 && after > size / 2, "{size}, {after}");
        let left = left(&tram, "hook").await;
        assert!((EVENTS / 2..EVENTS).contains(&left), "{left}");
        let records = drops(bench).await;
        assert_eq!((records.len(), records[0].reason, records[0].events), (1, DropReason::Shed, EVENTS - left));
        // The last one may still be there, where it was enough to give up its work.
        let first = bench.store.event(tramline::store::verbs::FindEvent { id: records[0].first, now: None }).await;
        assert!(first.unwrap().is_none(), "what nobody needs any more is gone");
    }

    async fn work_of_workers_goes_only_where_that_was_allowed(bench: &Bench) {
        let size = full(bench, &[("queue", Policy::default())]).await;
        let careful = bench.process_with(|options| options.store_limit(size));
        careful.sweep().await.unwrap();
        assert_eq!(left(&careful, "queue").await, EVENTS);
        let bold = bench.process_with(|options| options.store_limit(size).shed_pull(true));
        bold.sweep().await.unwrap();
        assert!(left(&bold, "queue").await < EVENTS);
        assert!(bench.store.size().await.unwrap().bytes <= size * 8 / 10);
    }

    /// The story: servers keep the space of rows that were removed, and slices were counted by the space of their table. With small
    /// events they are most of a store, so that there was never room enough, and all work of push subscriptions went.
    async fn small_events_go_only_until_there_is_room(bench: &Bench) {
        const SMALL: u64 = 800;
        let names = ["a", "b", "c", "d", "e"];
        let tram = bench.process();
        for name in names {
            tram.put_subscription(name, &["t"], pushed(), Start::Now).await.unwrap();
        }
        let empty = bench.store.size().await.unwrap().bytes;
        for _ in 0..SMALL {
            tram.emit(Event::new("t", vec![7; 100])).await.unwrap();
        }
        let full = bench.store.size().await.unwrap().bytes;
        // Room enough is where a fifth of the limit is free.
        let enough = empty + (full - empty) / 2;
        let tram = bench.process_with(|options| options.store_limit(enough * 5 / 4));
        tram.sweep().await.unwrap();
        let after = bench.store.size().await.unwrap().bytes;
        assert!(after <= enough, "{empty}, {full}, {after}");
        let mut rest = 0;
        for name in names {
            rest += left(&tram, name).await;
        }
        let all = SMALL * names.len() as u64;
        // Chunks go with the last one that has to do them, so that it takes more than half of the work.
        assert!(rest >= all / 10 && rest < all, "{rest} of {all} are left: {empty}, {full}, {after}");
    }
}

//! A server that dies at once: what it has acknowledged just before is there when it comes back.

use crate::place::Place;
use crate::scenario::{AT_MOST_ONCE, TOPIC, UNORDERED};
use crate::worker::worker;
use std::time::Duration;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::lane::{Known, Share};
use tramline::store::verbs::{Claim, Claimed, Settle, SettleSlice, Suspects};
use tramline::{Event, Outcome, Tramline};

pub(crate) const STORES: [&str; 5] = ["postgres", "mysql", "redis", "redis_cluster", "redis_spread"];

const CRASHES: usize = 3;
const EVENTS: usize = 10;

pub(crate) async fn run(store: &str) {
    let place = Place::named(store).await;
    let mut tram = Tramline::open(&place.url).await.unwrap();
    worker(&tram, UNORDERED).subscribe().await.unwrap();
    worker(&tram, AT_MOST_ONCE).at_most_once().subscribe().await.unwrap();
    for _ in 0..CRASHES {
        let first = emit(&tram).await;
        settle(&tram, &claim(&tram, UNORDERED).await).await;
        assert_eq!(ids(&claim(&tram, AT_MOST_ONCE).await), first, "{store}");
        let last = emit(&tram).await;
        place.crash().await;
        tram.close().await;
        tram = Tramline::open(&place.url).await.unwrap();
        let left = claim(&tram, UNORDERED).await;
        assert_eq!(ids(&left), last, "{store}: what was acknowledged, and not what was settled");
        assert_eq!(ids(&claim(&tram, AT_MOST_ONCE).await), last, "{store}: what was consumed stays so");
        settle(&tram, &left).await;
    }
    tram.close().await;
    place.remove().await;
}

async fn emit(tram: &Tramline) -> Vec<EventId> {
    let mut ids = Vec::new();
    for _ in 0..EVENTS {
        ids.push(tram.emit(Event::new(TOPIC, "1")).await.unwrap().id());
    }
    ids
}

fn ids(claimed: &Claimed) -> Vec<EventId> {
    let mut ids: Vec<EventId> =
        claimed.slices.iter().flat_map(|slice| slice.events.iter().map(|event| event.event.id)).collect();
    ids.sort_unstable();
    ids
}

async fn subscription(tram: &Tramline, name: &str) -> SubscriptionId {
    let subscriptions = tram.store().subscriptions().await.unwrap();
    subscriptions.iter().find(|one| *one.name == *name).unwrap().id
}

/// Everything that is due: one claim may take a part of it.
async fn claim(tram: &Tramline, name: &str) -> Claimed {
    let mut all = Claimed::default();
    loop {
        let more = claim_some(tram, name).await;
        if more.slices.is_empty() {
            return all;
        }
        all.slices.extend(more.slices);
    }
}

async fn claim_some(tram: &Tramline, name: &str) -> Claimed {
    let claim = Claim {
        subscription: subscription(tram, name).await,
        owner: Incarnation::random(),
        max_events: 10 * EVENTS as u32,
        max_bytes: 1 << 20,
        lease: Some(Duration::from_secs(600)),
        suspects: Suspects::Leave,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    };
    tram.store().claim(claim).await.unwrap()
}

async fn settle(tram: &Tramline, claimed: &Claimed) {
    let results = claimed.slices.iter().map(|slice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|event| (event.event.id.index(), Outcome::Done)).collect(),
    });
    let subscription = subscription(tram, UNORDERED).await;
    let settle = Settle { subscription, results: results.collect(), worker: None, now: None };
    let settled = tram.store().settle(settle).await.unwrap();
    assert!(settled.accepted.iter().flatten().all(|accepted| *accepted));
}

//! Somebody beside the workers who claims, lets the lease end, and settles late.

use crate::recorder::{Log, Record, Recorder};
use crate::scenario::PATIENCE;
use std::time::Duration;
use tramline::model::id::Incarnation;
use tramline::model::lane::{Known, Share};
use tramline::store::verbs::{Claim, Claimed, Settle, SettleSlice, Suspects};
use tramline::{Outcome, Tramline};

/// How often it is tried to claim something: lanes that workers hold are not to be had at once.
const TRIES: usize = 50;

/// Nothing may change. Gives false when there was nothing to claim, or the server is just restarting.
pub(crate) async fn settlements_are_refused(tram: &Tramline, recorder: &Recorder, name: &str) -> bool {
    let store = tram.store();
    let Ok(subscriptions) = store.subscriptions().await else { return false };
    let subscription = subscriptions.iter().find(|s| *s.name == *name).unwrap().id;
    let claim = Claim {
        subscription,
        owner: Incarnation::random(),
        max_events: 3,
        max_bytes: 1 << 20,
        lease: Some(Duration::from_millis(50)),
        suspects: Suspects::Leave,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    };
    let (mut before, mut claimed) = (0, Claimed::default());
    for _ in 0..TRIES {
        before = recorder.look(|log| log.records.len());
        let Ok(got) = store.claim(claim.clone()).await else { return false };
        if !got.slices.is_empty() {
            claimed = got;
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let events = claimed.slices.iter().flat_map(|s| s.events.iter().map(|e| (e.event.id.0, s.crashes)));
    let events: Vec<(i64, u32)> = events.collect();
    // Whoever takes them over sees one crash more. An earlier try of theirs may still be recorded after the claim.
    let taken_over = |log: &Log| {
        let later = &log.records[before..];
        let seen = |r: &Record, id: i64| r.id == id && r.subscription == name;
        events.iter().all(|(id, crashes)| later.iter().any(|r| seen(r, *id) && r.crashes > *crashes))
    };
    assert!(recorder.wait(PATIENCE, taken_over).await, "events {events:?} were never taken over");
    let late = claimed.slices.iter().map(|slice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|e| (e.event.id.index(), Outcome::dead("too late"))).collect(),
    });
    let settle = Settle { subscription, results: late.collect(), worker: None, now: None };
    let Ok(settled) = store.settle(settle).await else { return false };
    assert!(settled.accepted.iter().flatten().all(|accepted| !accepted), "a stale lease was accepted");
    !events.is_empty()
}

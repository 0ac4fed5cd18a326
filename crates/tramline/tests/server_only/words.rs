//! Words of the tests that are the same on every server.

use tramline::Event;
use tramline::model::id::{EventId, Incarnation, SubscriptionId};
use tramline::model::lane::{Known, Share};
use tramline::model::outcome::Outcome;
use tramline::store::verbs::{Claim, Claimed, ClaimedSlice, ReadLog, Settle, SettleSlice, Suspects};

pub(crate) fn environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run ./test"))
}

pub(crate) fn claim(subscription: SubscriptionId, max_events: u32) -> Claim {
    Claim {
        subscription,
        owner: Incarnation::random(),
        max_events,
        max_bytes: 1 << 24,
        lease: None,
        suspects: Suspects::TakeOne,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    }
}

pub(crate) fn done(subscription: SubscriptionId, claimed: &Claimed) -> Settle {
    let result = |slice: &ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|event| (event.event.id.index(), Outcome::Done)).collect(),
    };
    Settle { subscription, results: claimed.slices.iter().map(result).collect(), worker: None, now: None }
}

pub(crate) fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| slice.events.iter().map(|event| event.event.id)).collect()
}

pub(crate) fn event(key: &str) -> Event {
    Event::new("t", "x").key(key)
}

pub(crate) fn read_log(after: EventId) -> ReadLog {
    ReadLog { topic: "t".into(), after, limit: 100 }
}

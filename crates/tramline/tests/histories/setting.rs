//! Where a history happens: a topic, and the subscriptions with their policies.

use proptest::prelude::*;
use std::time::Duration;
use tramline::model::retry::Retry;
use tramline::model::subscription::{Guarantee, OnExhausted, Ordering, Policy, WhileRetrying};

/// The length of every lease, and the wait between attempts, in seconds.
pub(crate) const LEASE: u64 = 10;
const RETRY: u64 = 5;

#[derive(Clone)]
pub(crate) struct Setting {
    /// How many lanes the topic has; events without a key are only emitted where there is one.
    pub(crate) lanes: u32,
    /// The subscriptions that are there from the start, and one that may come later.
    pub(crate) policies: Vec<Policy>,
    pub(crate) late: Policy,
}

impl Setting {
    /// Two attempts, then dead, everywhere.
    pub(crate) fn plain(lanes: u32, once: Ordering) -> Setting {
        let [plain, strict, sturdy, once, late] =
            [Ordering::None, Ordering::Key, Ordering::Key, once, Ordering::None]
                .map(|order| policy(order, 2));
        let once = Policy { guarantee: Guarantee::AtMostOnce, ..once };
        Setting { lanes, policies: vec![plain, strict, sturdy, once], late }
    }
}

/// One line per subscription, however the report is formatted.
impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} lanes", self.lanes)?;
        self.policies.iter().chain([&self.late]).try_for_each(|policy| {
            let Policy { ordering, guarantee, while_retrying, on_exhausted, retry, .. } = policy;
            let attempts = retry.max_attempts;
            writeln!(f, "{ordering:?} {guarantee:?} {while_retrying:?} {on_exhausted:?} {attempts} attempts")
        })
    }
}

pub(crate) fn setting() -> impl Strategy<Value = Setting> {
    let policies = (exhausted(), exhausted(), halting(), exhausted(), any::<bool>(), 2..4u32);
    let late = (any::<bool>(), exhausted());
    (1..3u32, policies, late).prop_map(|(lanes, policies, late)| {
        let (plain, strict, while_retrying, once, once_ordered, attempts) = policies;
        let policy = |ordered, on_exhausted| Policy { on_exhausted, ..policy(order(ordered), attempts) };
        let policies = vec![
            policy(false, plain),
            policy(true, OnExhausted::Dead),
            Policy { while_retrying, ..policy(true, strict) },
            Policy { guarantee: Guarantee::AtMostOnce, ..policy(once_ordered, once) },
        ];
        Setting { lanes, policies, late: policy(late.0, late.1) }
    })
}

fn order(by_key: bool) -> Ordering {
    if by_key { Ordering::Key } else { Ordering::None }
}

fn policy(ordering: Ordering, attempts: u32) -> Policy {
    Policy {
        ordering,
        retry: Retry::constant(attempts, Duration::from_secs(RETRY)),
        lease: Some(Duration::from_secs(LEASE)),
        ..Policy::default()
    }
}

fn exhausted() -> impl Strategy<Value = OnExhausted> {
    prop_oneof![Just(OnExhausted::Dead), Just(OnExhausted::Hold), Just(OnExhausted::Drop)]
}

fn halting() -> impl Strategy<Value = WhileRetrying> {
    prop_oneof![Just(WhileRetrying::Park), Just(WhileRetrying::Halt)]
}

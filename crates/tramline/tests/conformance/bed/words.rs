//! Events, policies, and what was claimed, in few words.

use super::*;

/// Runs `count` tasks at once, numbered from 1, and gives their results.
pub(crate) async fn in_parallel<T, F>(count: i64, task: impl Fn(i64) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = (1..=count).map(|number| tokio::spawn(task(number))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// An event without a key.
pub(crate) fn plain_event() -> Event {
    Event::new(TOPIC, "payload")
}

/// An event about an object.
pub(crate) fn keyed(key: &str) -> Event {
    plain_event().key(key)
}

/// Twenty events of twenty keys, one after the other.
pub(crate) async fn emit_twenty(bed: &Bed) {
    for number in 0..20 {
        bed.emit(keyed(&format!("key {number}"))).await;
    }
}

/// The default policy.
pub(crate) fn unordered() -> Policy {
    Policy::default()
}

/// Ordered by key: two retries, a minute apart.
pub(crate) fn ordered() -> Policy {
    Policy { ordering: Ordering::Key, retry: Retry::constant(3, seconds(60)), ..Policy::default() }
}

/// Ordered by key; the first failure is the last one.
pub(crate) fn ordered_or(on_exhausted: OnExhausted) -> Policy {
    Policy { retry: Retry::never(), on_exhausted, ..ordered() }
}

/// So many events under way.
pub(crate) fn at_most(concurrency: u32) -> Limits {
    Limits { concurrency: Some(concurrency), ..Limits::default() }
}

/// So many events of one key under way.
pub(crate) fn per_key(events: u32) -> Limits {
    Limits { per_key_concurrency: Some(events), ..Limits::default() }
}

/// So many events that start in a period.
pub(crate) fn rate(events: u32, per: Duration) -> Limits {
    Limits { rate: Some(Rate::new(events, per)), ..Limits::default() }
}

/// Without order, under limits.
pub(crate) fn limited(limits: Limits) -> Policy {
    Policy { limits, ..unordered() }
}

/// With and without order.
pub(crate) fn both(limits: Limits) -> [(&'static str, Policy); 2] {
    [("plain", limited(limits)), ("lanes", Policy { limits, ..ordered() })]
}

/// Sent to a callback, without order: two retries, a minute apart.
pub(crate) fn pushed() -> Policy {
    let push = Some(Push::to("https://example.org/hook"));
    Policy { push, retry: Retry::constant(3, seconds(60)), ..Policy::default() }
}

/// The same in the order of arrival.
pub(crate) fn arrival() -> Policy {
    Policy { ordering: Ordering::Subscriber, ..pushed() }
}

pub(crate) fn at_most_once() -> Policy {
    Policy { guarantee: Guarantee::AtMostOnce, ..Policy::default() }
}

pub(crate) fn ordered_once() -> Policy {
    Policy { guarantee: Guarantee::AtMostOnce, ..ordered() }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The ids of what was claimed, in the order in which they came.
pub(crate) fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.id).collect()
}

/// The ids of what was claimed, ascending.
pub(crate) fn sorted_ids(claimed: &Claimed) -> Vec<EventId> {
    sorted(ids(claimed))
}

pub(crate) fn sorted(mut ids: Vec<EventId>) -> Vec<EventId> {
    ids.sort_unstable();
    ids
}

pub(crate) fn leases(claimed: &Claimed) -> Vec<Lease> {
    claimed.slices.iter().map(|slice| slice.lease).collect()
}

/// What the claimed event `id` says of its gaps.
pub(crate) fn skipped(claimed: &Claimed, id: EventId) -> Vec<EventId> {
    let mut events = claimed.slices.iter().flat_map(|slice| &slice.events);
    events.find(|event| event.event.id == id).unwrap().skipped.clone()
}

pub(super) fn lease_of(claimed: &Claimed, id: EventId) -> Lease {
    let holds = |slice: &&ClaimedSlice| slice.events.iter().any(|event| event.event.id == id);
    claimed.slices.iter().find(holds).unwrap_or_else(|| panic!("{id} was not claimed")).lease
}

//! What must be true of the records, whatever happened.

use crate::recorder::{Log, Record, Stage};
use crate::worker;
use std::collections::{HashMap, HashSet};

/// Nothing acknowledged is lost: a subscription that runs events at least once has done it, and not only tried.
pub(crate) fn nothing_lost(log: &Log, subscription: &str) {
    everything_is(log, subscription, &HashSet::new());
}

/// What runs at most once and was acknowledged was done, or those whom it may concern can see that it was not.
pub(crate) fn nothing_vanished(log: &Log, subscription: &str, dead: &HashSet<i64>) {
    everything_is(log, subscription, dead);
    for record in of(&log.records, subscription) {
        let known = log.is_done(subscription, record.id) || dead.contains(&record.id);
        assert!(known, "was begun, and nobody knows what became of it: {record:?}");
    }
}

fn everything_is(log: &Log, subscription: &str, dead: &HashSet<i64>) {
    let ended = |id: i64| log.is_done(subscription, id) || dead.contains(&id);
    let lost: Vec<_> = log.emitted.acknowledged.iter().filter(|(_, id)| !ended(*id)).collect();
    let of_first: Vec<_> =
        of(&log.records, subscription).filter(|r| lost.first().is_some_and(|(_, id)| r.id == *id)).collect();
    assert!(
        lost.is_empty(),
        "{subscription}: {} acknowledged events were never done: {lost:?}; of the first: {of_first:?}",
        lost.len()
    );
}

/// Nothing is invented: every event that ran was emitted, under one id.
pub(crate) fn nothing_invented(log: &Log) {
    let mut ids: HashMap<u64, i64> = HashMap::new();
    let acknowledged = log.emitted.acknowledged.iter().copied();
    for (number, id) in acknowledged.chain(log.records.iter().map(|record| (record.number, record.id))) {
        assert!(log.emitted.sent.contains(&number), "{number} was never emitted, and is event {id}");
        let known = *ids.entry(number).or_insert(id);
        assert_eq!(known, id, "{number} was emitted once and became two events");
    }
}

/// Each event ran at most once.
pub(crate) fn never_twice(log: &Log, subscription: &str) {
    let mut seen = HashSet::new();
    for record in started(&log.records, subscription) {
        assert!(seen.insert(record.id), "ran twice: {record:?}");
    }
}

/// No two runs share a lease: an event runs again only after a failure that was settled, which is an attempt more, or after a lease
/// that ended without an answer, which is a crash more. So what was settled as done never runs again, and two never have it at once.
pub(crate) fn once_per_lease(log: &Log, subscription: &str) {
    let mut seen: HashMap<(i64, u32, u32), &Record> = HashMap::new();
    for record in started(&log.records, subscription) {
        let before = seen.insert((record.id, record.attempt, record.crashes), record);
        assert!(before.is_none(), "{subscription}: ran twice under one lease: {before:?}, then {record:?}");
    }
}

/// Attempts count failures: before each attempt there was a failure of the one before it, and what does not fail has only one.
pub(crate) fn attempts_follow_failures(log: &Log, subscription: &str) {
    let mut failed: HashSet<(i64, u32)> = HashSet::new();
    for record in of(&log.records, subscription) {
        if record.stage == Stage::Failed {
            failed.insert((record.id, record.attempt));
        }
        let counted = record.attempt == 1 || failed.contains(&(record.id, record.attempt - 1));
        assert!(counted, "an attempt was counted that never failed: {record:?}");
        let fails = worker::fails(record.number, record.attempt);
        assert!(record.stage == Stage::Started || fails == (record.stage == Stage::Failed), "{record:?}");
    }
}

/// Per key, no event starts before its predecessor was done, also not when it is seen again; what is new follows what was new before
/// it; what is seen again is unchanged. Nothing is left out, so nothing is skipped.
pub(crate) fn in_order(log: &Log, subscription: &str) {
    let mut last: HashMap<&str, i64> = HashMap::new();
    let mut seen: HashMap<i64, Option<i64>> = HashMap::new();
    let mut done: HashSet<i64> = HashSet::new();
    for record in of(&log.records, subscription) {
        if record.stage != Stage::Started {
            done.extend((record.stage == Stage::Done).then_some(record.id));
            continue;
        }
        let waited = record.prev.is_none_or(|prev| done.contains(&prev));
        assert!(waited, "started before its predecessor was done: {record:?}");
        assert!(record.skipped.is_empty(), "nothing was skipped: {record:?}");
        if let Some(prev) = seen.insert(record.id, record.prev) {
            assert_eq!(prev, record.prev, "a resend with another predecessor: {record:?}");
            continue;
        }
        let before = last.insert(record.key.as_deref().unwrap(), record.id);
        assert!(before.is_none_or(|before| before < record.id), "after {before:?}: {record:?}");
        assert_eq!(record.prev, before, "does not follow the one before it: {record:?}");
    }
}

fn of<'a>(records: &'a [Record], subscription: &'a str) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |record| record.subscription == subscription)
}

fn started<'a>(records: &'a [Record], subscription: &'a str) -> impl Iterator<Item = &'a Record> {
    of(records, subscription).filter(|record| record.stage == Stage::Started)
}

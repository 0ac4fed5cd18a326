//! What must be true of the records, whatever happened.

use crate::recorder::Record;
use std::collections::{BTreeSet, HashMap, HashSet};

/// What the emitter knows: the numbers it sent, and the ids of those that were acknowledged.
#[derive(Default)]
pub(crate) struct Emitted {
    /// Every number that was ever handed to `emit`.
    pub(crate) sent: HashSet<u64>,
    /// Number and id of what was acknowledged.
    pub(crate) acknowledged: Vec<(u64, i64)>,
}

/// Nothing acknowledged is lost: every subscription that runs events at least once has run it.
pub(crate) fn nothing_lost(emitted: &Emitted, records: &[Record], subscription: &str) {
    let ended: HashSet<i64> =
        of(records, subscription).filter(|record| record.ended).map(|record| record.id).collect();
    let lost: Vec<_> = emitted.acknowledged.iter().filter(|(_, id)| !ended.contains(id)).collect();
    assert!(lost.is_empty(), "{subscription}: {} acknowledged events never ran: {lost:?}", lost.len());
}

/// Nothing is invented: every event that ran was emitted, under one id.
pub(crate) fn nothing_invented(emitted: &Emitted, records: &[Record]) {
    let mut ids: HashMap<u64, i64> = emitted.acknowledged.iter().copied().collect();
    for record in records {
        assert!(emitted.sent.contains(&record.number), "never emitted: {record:?}");
        let id = ids.entry(record.number).or_insert(record.id);
        assert_eq!(*id, record.id, "one emit became two events: {record:?}");
    }
}

/// Each event ran at most once.
pub(crate) fn never_twice(records: &[Record], subscription: &str) {
    let mut seen = HashSet::new();
    for record in of(records, subscription).filter(|record| !record.ended) {
        assert!(seen.insert(record.id), "ran twice: {record:?}");
    }
}

/// Per key, ids only grow, and each event follows the one before it; what is seen again was seen before, unchanged.
pub(crate) fn in_order(records: &[Record], subscription: &str) {
    let mut last: HashMap<&str, i64> = HashMap::new();
    let mut seen: HashMap<i64, Option<i64>> = HashMap::new();
    for record in of(records, subscription).filter(|record| !record.ended) {
        let key = record.key.as_deref().unwrap();
        if let Some(prev) = seen.get(&record.id) {
            assert_eq!(*prev, record.prev, "a resend with another predecessor: {record:?}");
            continue;
        }
        seen.insert(record.id, record.prev);
        let before = last.insert(key, record.id);
        assert!(before.is_none_or(|before| before < record.id), "after {before:?}: {record:?}");
        let skipped: BTreeSet<i64> = record.skipped.iter().copied().collect();
        let follows = record.prev == before || record.prev.is_some_and(|prev| skipped.contains(&prev));
        assert!(follows, "does not follow {before:?}: {record:?}");
    }
}

fn of<'a>(records: &'a [Record], subscription: &'a str) -> impl Iterator<Item = &'a Record> {
    records.iter().filter(move |record| record.subscription == subscription)
}

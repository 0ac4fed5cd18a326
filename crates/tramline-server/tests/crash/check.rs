//! What must be true of the log, whatever was killed.

use crate::clients::{Log, ORDERED};
use std::collections::HashMap;

/// Every event that ran was sent, and one that was sent once is one event: also where it was repeated under one idempotency key.
pub(crate) fn nothing_invented(log: &Log) {
    let mut ids: HashMap<u64, i64> = HashMap::new();
    let acknowledged = log.acknowledged.iter().copied();
    for (number, id) in acknowledged.chain(log.claims.iter().map(|claim| (claim.number, claim.id))) {
        assert!(log.sent.contains(&number), "{number} was never sent");
        assert_eq!(*ids.entry(number).or_insert(id), id, "one emit became two events: {number}");
    }
}

/// Per key, ids grow and each event follows the one before it; what is seen again was seen before.
pub(crate) fn in_order(log: &Log) {
    let mut last: HashMap<&str, i64> = HashMap::new();
    let mut seen: HashMap<i64, Option<i64>> = HashMap::new();
    for claim in log.claims.iter().filter(|claim| claim.subscription == ORDERED) {
        if let Some(prev) = seen.insert(claim.id, claim.prev) {
            assert_eq!(prev, claim.prev, "seen again with another predecessor: {claim:?}");
            continue;
        }
        let before = last.insert(&claim.key, claim.id);
        assert_eq!(claim.prev, before, "does not follow the one before it: {claim:?}");
    }
}

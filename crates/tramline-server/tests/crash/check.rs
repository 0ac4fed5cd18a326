//! What must be true of the log, whatever was killed.

use crate::clients::{Claimed, Log, ORDERED};
use std::collections::{HashMap, HashSet};

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

/// Where a failure was settled, nothing later of its key comes before it is tried again.
pub(crate) fn failures_hold_up_their_key(log: &Log) {
    let mut tried_again: HashSet<i64> = HashSet::new();
    let ordered = |claim: &&Claimed| claim.subscription == ORDERED;
    let failed: HashMap<i64, &Claimed> = log
        .claims
        .iter()
        .filter(ordered)
        .filter(|claim| claim.attempt == 1 && log.failed.contains_key(&(ORDERED, claim.id)))
        .map(|claim| (claim.id, claim))
        .collect();
    for claim in log.claims.iter().filter(ordered) {
        if claim.attempt > 1 {
            tried_again.insert(claim.id);
        }
        for failure in failed.values().filter(|failure| failure.key == claim.key && failure.id < claim.id) {
            // Who asked before may have been given it before.
            let known = claim.asked > log.failed[&(ORDERED, failure.id)];
            let overtakes = known && !tried_again.contains(&failure.id);
            assert!(!overtakes, "{claim:?} came before {} was tried again", failure.id);
        }
    }
}

/// What was settled as done is never given to anybody who asks later.
pub(crate) fn settled_stays_settled(log: &Log) {
    for claim in &log.claims {
        let settled = log.done.get(&(claim.subscription, claim.id));
        assert!(settled.is_none_or(|at| claim.asked < *at), "was settled as done before: {claim:?}");
    }
}

//! The marks of a key in a lane: the event that it waits for, and the gaps that it was not told of yet.

use crate::error::Result;
use crate::model::id::{EventId, LaneId, SubscriptionId};
use crate::model::time::Time;
use crate::plan::Changes;
use crate::store::redis::pack::{Packer, Unpacker};
use crate::store::redis::session::{Session, hget};
use crate::store::redis::tuple::Tuple;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Each key once, however many gaps it got: compaction may bring thousands.
pub(super) fn change_gaps(
    session: &Session<'_>,
    subscription: SubscriptionId,
    changes: &Changes,
) -> Result<()> {
    let mut keys: BTreeMap<(LaneId, &str), (Vec<EventId>, EventId)> = BTreeMap::new();
    for (lane, key, event) in &changes.gaps {
        keys.entry((*lane, key)).or_default().0.push(*event);
    }
    for (lane, key, event) in &changes.told {
        let told = &mut keys.entry((*lane, key)).or_default().1;
        *told = (*told).max(*event);
    }
    session.for_each(keys, |((lane, key), (new, told))| {
        let mut known: BTreeSet<EventId> = gaps(session, subscription, lane, key)?.into_iter().collect();
        known.extend(new);
        let left: Vec<EventId> = known.into_iter().filter(|gap| *gap > told).collect();
        write_gaps(session, subscription, lane, key, &left);
        Ok(())
    })
}

/// Parked keys of a subscription, by lane and key; and by the event that blocks them.
pub(super) fn parked_key(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("parked:{subscription}"))
}

pub(in crate::store::redis) fn parked_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("blocked:{subscription}"))
}

pub(super) fn mark_field(lane: LaneId, key: &str) -> Vec<u8> {
    Tuple::new().with(&[lane.0]).text(key).bytes()
}

/// The event that blocks a key, and since when, if the key is parked.
pub(in crate::store::redis) fn parked(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<Option<(EventId, Time)>> {
    let Some(row) = session.get(&parked_key(session, subscription), &mark_field(lane, key))? else {
        return Ok(None);
    };
    let mut row = Unpacker::new(&row);
    Ok(Some((EventId(row.number()?), Time(row.number()?))))
}

pub(in crate::store::redis) fn remove_parked(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<()> {
    let Some((blocked_by, _)) = parked(session, subscription, lane, key)? else { return Ok(()) };
    session.remove(parked_key(session, subscription), mark_field(lane, key));
    let member = Tuple::new().with(&[blocked_by.0, lane.0]).text(key).bytes();
    session.withdraw(parked_index(session, subscription), member);
    Ok(())
}

/// Gaps of a subscription, by lane and key; and the index of those.
fn gaps_key(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("gaps:{subscription}"))
}

pub(in crate::store::redis) fn gaps_index(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("gapped:{subscription}"))
}

/// The gaps of a key, ascending.
pub(in crate::store::redis) fn gaps(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
) -> Result<Vec<EventId>> {
    let Some(row) = session.get(&gaps_key(session, subscription), &mark_field(lane, key))? else {
        return Ok(Vec::new());
    };
    Ok(Unpacker::new(&row).numbers()?.into_iter().map(EventId).collect())
}

pub(in crate::store::redis) fn write_gaps(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    key: &str,
    gaps: &[EventId],
) {
    let (table, index, field) =
        (gaps_key(session, subscription), gaps_index(session, subscription), mark_field(lane, key));
    if gaps.is_empty() {
        session.remove(table, field.clone());
        session.withdraw(index, field);
        return;
    }
    let numbers: Vec<i64> = gaps.iter().map(|gap| gap.0).collect();
    session.put(table, field.clone(), Packer::new().numbers(&numbers).done());
    session.enter(index, field);
}

/// Says that the marks of these keys will be read.
pub(in crate::store::redis) fn expect_marks<'k>(
    session: &Session<'_>,
    subscription: SubscriptionId,
    lane: LaneId,
    keys: impl Iterator<Item = &'k Arc<str>>,
) -> Result<()> {
    let tables = [parked_key(session, subscription), gaps_key(session, subscription)];
    let reads = |key: &'k Arc<str>| {
        let field = mark_field(lane, key);
        tables.each_ref().map(|table| hget(table, &field))
    };
    session.expect(keys.flat_map(reads))
}

//! Records of what subscriptions will never see.

use super::catalog::written;
use super::pack::damaged;
use super::session::{Session, hget, number};
use super::tuple::{Columns, Tuple};
use crate::error::Result;
use crate::model::dropped::{DropReason, DropRecord};
use crate::model::id::{EventId, SubscriptionId};
use crate::model::time::Time;
use crate::store::drops::{Drops, KEPT, MERGED, MOST};
use crate::store::verbs::{DropTotal, ListDrops};

/// How many records are read at a time.
const PAGE: usize = 200;

/// A record as it is stored: whose, why, the first and the last event, how many, and when.
type Row = (i64, String, i64, i64, i64, i64);

fn table(session: &Session<'_>) -> Vec<u8> {
    session.key("drops")
}

/// The numbers of all records; of one subscription; and how many events that were, ever.
fn index(session: &Session<'_>) -> Vec<u8> {
    session.key("dropped")
}

fn index_of(session: &Session<'_>, id: SubscriptionId) -> Vec<u8> {
    session.key(&format!("dropped:{id}"))
}

fn totals_key(session: &Session<'_>) -> Vec<u8> {
    session.key("drop_totals")
}

/// Writes down what a step dropped; what follows within a minute joins a record.
pub(super) fn record(session: &Session<'_>, drops: Drops) -> Result<()> {
    for (by, reason, span) in drops.into_spans() {
        let name = Tuple::new().with(&[by.0]).text(reason.as_str()).bytes();
        let last = number(session.get(&session.key("drop_last"), &name)?);
        let old = one(session, last)?.filter(|old| old.at > session.now.before(MERGED));
        let record = match old {
            Some(old) => DropRecord {
                first: old.first.min(span.first),
                last: old.last.max(span.last),
                events: old.events + span.events.cast_unsigned(),
                ..old
            },
            None => DropRecord {
                number: session.draw("drop", 1)?,
                subscription: by,
                reason,
                first: span.first,
                last: span.last,
                events: span.events.cast_unsigned(),
                at: session.now,
            },
        };
        write(session, &record);
        session.put(session.key("drop_last"), name.clone(), record.number.to_string().into_bytes());
        session.sum(totals_key(session), name, span.events);
    }
    Ok(())
}

fn write(session: &Session<'_>, record: &DropRecord) {
    let row: Row = (
        record.subscription.0,
        record.reason.as_str().to_owned(),
        record.first.0,
        record.last.0,
        record.events.cast_signed(),
        record.at.0,
    );
    session.put(table(session), record.number.to_string(), written(&row));
    let member = Tuple::new().with(&[record.number]).bytes();
    session.enter(index(session), member.clone());
    session.enter(index_of(session, record.subscription), member);
}

fn remove(session: &Session<'_>, record: &DropRecord) {
    let member = Tuple::new().with(&[record.number]).bytes();
    session.remove(table(session), record.number.to_string());
    session.withdraw(index(session), member.clone());
    session.withdraw(index_of(session, record.subscription), member);
}

fn one(session: &Session<'_>, number: i64) -> Result<Option<DropRecord>> {
    let Some(row) = session.get(&table(session), number.to_string().as_bytes())? else { return Ok(None) };
    let (subscription, reason, first, last, events, at): Row =
        serde_json::from_slice(&row).map_err(|error| damaged().because(error))?;
    Ok(Some(DropRecord {
        number,
        subscription: SubscriptionId(subscription),
        reason: DropReason::parse(&reason).unwrap_or(DropReason::Shed),
        first: EventId(first),
        last: EventId(last),
        events: events.max(0).cast_unsigned(),
        at: Time(at),
    }))
}

fn load(session: &Session<'_>, members: &[Vec<u8>]) -> Result<Vec<DropRecord>> {
    let numbers: Vec<i64> = members.iter().map(|member| Columns(member).number()).collect();
    session.expect(numbers.iter().map(|number| hget(&table(session), number.to_string().as_bytes())))?;
    let mut records = Vec::with_capacity(numbers.len());
    for number in numbers {
        records.extend(one(session, number)?);
    }
    Ok(records)
}

pub(super) fn list(session: &Session<'_>, list: &ListDrops) -> Result<Vec<DropRecord>> {
    let index = list.subscription.map_or_else(|| index(session), |id| index_of(session, id));
    let limit = list.limit as usize;
    let members = match list.after {
        Some(after) => {
            let from = Tuple::new().with(&[after.saturating_add(1)]).bytes();
            session.range(&index, (from, Tuple::new().end()), limit)?
        }
        None => session.range_back(&index, Tuple::new().all(), limit)?,
    };
    let mut records = load(session, &members)?;
    // Of a subscription that was deleted there may still be rows.
    let catalog = session.catalog();
    records.retain(|record| catalog.require_subscription(record.subscription).is_ok());
    Ok(records)
}

/// The newest record that an event may be in.
pub(super) fn about(session: &Session<'_>, of: SubscriptionId, event: EventId) -> Result<Option<DropRecord>> {
    let mut to = Tuple::new().end();
    loop {
        let members = session.range_back(&index_of(session, of), (Vec::new(), to), PAGE)?;
        let records = load(session, &members)?;
        let found = records.into_iter().find(|record| record.first <= event && event <= record.last);
        let last = members.last().filter(|_| members.len() == PAGE).cloned();
        match (found, last) {
            (None, Some(last)) => to = last,
            (found, _) => return Ok(found),
        }
    }
}

pub(super) fn totals(session: &Session<'_>) -> Result<Vec<DropTotal>> {
    let total = |(name, events): (Vec<u8>, Vec<u8>)| {
        let mut columns = Columns(&name);
        DropTotal {
            subscription: SubscriptionId(columns.number()),
            reason: DropReason::parse(&columns.text()).unwrap_or(DropReason::Shed),
            events: number(Some(events)).max(0).cast_unsigned(),
        }
    };
    Ok(session.all(&totals_key(session))?.into_iter().map(total).collect())
}

/// Removes some records of a subscription that is gone, and gives how many.
pub(super) fn forget_some(session: &Session<'_>, id: SubscriptionId, limit: i64) -> Result<i64> {
    let members = session.range(&index_of(session, id), Tuple::new().all(), limit.max(0) as usize)?;
    for record in load(session, &members)? {
        remove(session, &record);
    }
    Ok(members.len() as i64)
}

/// Records that are too old or too many go. Their sums stay.
pub(super) fn expire(session: &Session<'_>, limit: usize) -> Result<()> {
    let newest = session.draw("drop", 0)? - 1;
    let oldest = session.range(&index(session), Tuple::new().all(), limit)?;
    for record in load(session, &oldest)? {
        if record.at <= session.now.before(KEPT) || record.number <= newest - MOST {
            remove(session, &record);
        }
    }
    Ok(())
}

/// Forgets what a subscription was dropped. What is too much for a step is removed with its slices.
pub(super) fn forget(session: &Session<'_>, id: SubscriptionId) -> Result<()> {
    forget_some(session, id, PAGE as i64)?;
    for name in session.all(&totals_key(session))?.into_keys() {
        if Columns(&name).number() == id.0 {
            session.remove(totals_key(session), name.clone());
            session.remove(session.key("drop_last"), name);
        }
    }
    Ok(())
}

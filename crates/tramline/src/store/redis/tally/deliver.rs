//! Delivery: news leave the outbox in the transaction that emits them, so each is told exactly once.

use super::{ack, outbox, rows};
use crate::error::{Kind, Result};
use crate::model::event::Event;
use crate::model::id::SubscriptionId;
use crate::model::tally::Ack;
use crate::store::redis::emit;
use crate::store::redis::session::Session;
use crate::store::verbs_tally::{Deliver, Delivered};
use std::collections::BTreeSet;

pub(in crate::store::redis) fn deliver(session: &Session<'_>, deliver: Deliver) -> Result<Delivered> {
    let waiting = outbox::waiting(session, deliver.limit)?;
    let mut delivered = Delivered { count: waiting.len() as u64, ..Delivered::default() };
    let (mut events, mut acks): (Vec<Event>, Vec<Ack>) = (Vec::new(), Vec::new());
    for (_, out) in &waiting {
        match out.news.for_parent() {
            Some(ending) => {
                let parent = rows::stored(session, out.tally)?.and_then(|stored| stored.parent());
                acks.extend(parent.map(|item| Ack {
                    tally: item.tally,
                    items: vec![item.number.into()],
                    ending,
                }));
            }
            None => {
                if let Some(kept) = rows::note(session, out.tally, out.news as i16)? {
                    events.push(out.event(&kept)?);
                }
            }
        }
    }
    for (member, out) in waiting {
        outbox::take_out(session, member, out.tally);
    }
    delivered.wake = emit_all(session, events)?;
    let acked = ack::end(session, &acks, false, 0)?;
    delivered.completed = acked.completed.into_iter().map(|completed| completed.id).collect();
    delivered.more = delivered.count >= u64::from(deliver.limit) || !acked.news.is_empty();
    Ok(delivered)
}

/// Emits each event for itself. One that is refused will never be taken: its key was used by somebody else.
fn emit_all(session: &Session<'_>, events: Vec<Event>) -> Result<Vec<SubscriptionId>> {
    let mut wake = BTreeSet::new();
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let units: Vec<Vec<Event>> = events.into_iter().map(|event| vec![event]).collect();
    for emission in emit::emit(session, &units)? {
        match emission {
            Ok(emission) => wake.extend(emission.wake),
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => tracing::error!(error = %error, "the event of a tally was refused and is lost"),
        }
    }
    Ok(wake.into_iter().collect())
}

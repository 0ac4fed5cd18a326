//! Delivery: news leave the outbox in the transaction that emits them, so each is told exactly once.

use super::{ack, outbox, rows};
use crate::error::{Kind, Result};
use crate::model::event::Event;
use crate::model::id::SubscriptionId;
use crate::model::tally::Ack;
use crate::model::tally::news::Outgoing;
use crate::store::redis::emit;
use crate::store::redis::session::Session;
use crate::store::verbs::Emission;
use crate::store::verbs_tally::{Deliver, Delivered};
use std::collections::BTreeSet;

pub(in crate::store::redis) fn deliver(session: &Session<'_>, deliver: Deliver) -> Result<Delivered> {
    let due = due(session, deliver)?;
    let answers = match &due.events[..] {
        [] => Vec::new(),
        _ => emit::emit(session, &due.units())?,
    };
    let delivered = take_out(session, deliver, &due)?;
    Ok(Delivered { wake: wake(answers)?, ..delivered })
}

/// What is to be told now.
pub(in crate::store::redis) struct Due {
    waiting: Vec<(Vec<u8>, Outgoing)>,
    pub(in crate::store::redis) events: Vec<Event>,
    acks: Vec<Ack>,
}

impl Due {
    /// Each event for itself.
    pub(in crate::store::redis) fn units(&self) -> Vec<Vec<Event>> {
        self.events.iter().map(|event| vec![event.clone()]).collect()
    }
}

/// The first news, as events, and as what parents have to hear.
pub(in crate::store::redis) fn due(session: &Session<'_>, deliver: Deliver) -> Result<Due> {
    let waiting = outbox::waiting(session, deliver.limit)?;
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
    Ok(Due { waiting, events, acks })
}

/// News leave the outbox, and parents hear of their items. What somebody else has taken out meanwhile is not counted.
pub(in crate::store::redis) fn take_out(
    session: &Session<'_>,
    deliver: Deliver,
    due: &Due,
) -> Result<Delivered> {
    let still: BTreeSet<Vec<u8>> =
        outbox::waiting(session, deliver.limit)?.into_iter().map(|(member, _)| member).collect();
    let mut count = 0;
    for (member, out) in due.waiting.iter().filter(|(member, _)| still.contains(member)) {
        outbox::take_out(session, member.clone(), out.tally);
        count += 1;
    }
    let acked = ack::end(session, &due.acks, false, 0)?;
    Ok(Delivered {
        count,
        wake: Vec::new(),
        completed: acked.completed.into_iter().map(|completed| completed.id).collect(),
        more: due.waiting.len() >= deliver.limit as usize || !acked.news.is_empty(),
    })
}

/// Who has work because of events that were emitted each for itself. One that is refused will never be taken: its key was used by
/// somebody else.
pub(in crate::store::redis) fn wake(answers: Vec<Result<Emission>>) -> Result<Vec<SubscriptionId>> {
    let mut wake = BTreeSet::new();
    for answer in answers {
        match answer {
            Ok(emission) => wake.extend(emission.wake),
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => tracing::error!(error = %error, "the event of a tally was refused and is lost"),
        }
    }
    Ok(wake.into_iter().collect())
}

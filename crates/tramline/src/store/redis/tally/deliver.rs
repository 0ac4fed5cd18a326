//! Delivery: news leave the outbox in the transaction that emits them, so each is told exactly once.

use super::{ack, outbox, rows};
use crate::error::{Kind, Result};
use crate::model::event::Event;
use crate::model::id::{SubscriptionId, TallyId};
use crate::model::tally::Ack;
use crate::store::redis::emit;
use crate::store::redis::session::Session;
use crate::store::verbs::Emission;
use crate::store::verbs_tally::{Deliver, Delivered};
use std::collections::BTreeSet;

pub(in crate::store::redis) fn deliver(session: &Session<'_>, deliver: Deliver) -> Result<Delivered> {
    let news = due(session, deliver)?;
    let units: Vec<Vec<Event>> =
        news.iter().filter_map(News::event).map(|event| vec![event.clone()]).collect();
    let answers = if units.is_empty() { Vec::new() } else { emit::emit(session, &units)? };
    let mut wake = BTreeSet::new();
    for answer in answers {
        wake.extend(wakes(answer)?);
    }
    let delivered = take_out(session, deliver, &news)?;
    Ok(Delivered { wake: wake.into_iter().collect(), ..delivered })
}

/// A piece of news that waits, and what it becomes.
pub(in crate::store::redis) struct News {
    member: Vec<u8>,
    tally: TallyId,
    becomes: Becomes,
}

enum Becomes {
    Event(Box<Event>),
    /// Its parent hears how the item ended.
    Ack(Ack),
    Nothing,
}

impl News {
    /// The event that it becomes, if it becomes one.
    pub(in crate::store::redis) fn event(&self) -> Option<&Event> {
        match &self.becomes {
            Becomes::Event(event) => Some(event),
            Becomes::Ack(_) | Becomes::Nothing => None,
        }
    }
}

/// The first news.
pub(in crate::store::redis) fn due(session: &Session<'_>, deliver: Deliver) -> Result<Vec<News>> {
    let waiting = outbox::waiting(session, deliver.limit)?;
    let mut news = Vec::with_capacity(waiting.len());
    for (member, out) in waiting {
        let becomes = match out.news.for_parent() {
            Some(ending) => {
                let parent = rows::stored(session, out.tally)?.and_then(|stored| stored.parent());
                let ack = |tally, number: u64| Ack { tally, items: vec![number.into()], ending };
                parent.map(|item| Becomes::Ack(ack(item.tally, item.number)))
            }
            None => {
                let kept = rows::note(session, out.tally, out.news as i16)?;
                kept.map(|kept| out.event(&kept)).transpose()?.map(|event| Becomes::Event(Box::new(event)))
            }
        };
        news.push(News { member, tally: out.tally, becomes: becomes.unwrap_or(Becomes::Nothing) });
    }
    Ok(news)
}

/// News leave the outbox, and parents hear of their items. What somebody else has taken out meanwhile is not counted.
pub(in crate::store::redis) fn take_out<'n>(
    session: &Session<'_>,
    deliver: Deliver,
    news: impl IntoIterator<Item = &'n News>,
) -> Result<Delivered> {
    let waiting = outbox::waiting(session, deliver.limit)?;
    let still: BTreeSet<&Vec<u8>> = waiting.iter().map(|(member, _)| member).collect();
    let (mut count, mut acks) = (0, Vec::new());
    for News { member, tally, becomes } in news {
        if let Becomes::Ack(ack) = becomes {
            acks.push(ack.clone());
        }
        if still.contains(member) {
            outbox::take_out(session, member.clone(), *tally);
            count += 1;
        }
    }
    let acked = ack::end(session, &acks, false, 0)?;
    Ok(Delivered {
        count,
        wake: Vec::new(),
        completed: acked.completed.into_iter().map(|completed| completed.id).collect(),
        more: count >= u64::from(deliver.limit) || !acked.news.is_empty(),
    })
}

/// Who has work because of an event that was emitted for itself. One that is refused will never be taken: its key was used by somebody
/// else.
pub(in crate::store::redis) fn wakes(answer: Result<Emission>) -> Result<Vec<SubscriptionId>> {
    match answer {
        Ok(emission) => Ok(emission.wake),
        Err(error) if error.kind() == Kind::Unavailable => Err(error),
        Err(error) => {
            tracing::error!(error = %error, "the event of a tally was refused and is lost");
            Ok(Vec::new())
        }
    }
}

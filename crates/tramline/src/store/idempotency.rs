//! Idempotency keys: the same key gives the first receipt.

use crate::error::{Error, Result};
use crate::model::event::{Due, Emitted, Event};
use crate::model::id::{EventId, TopicId};
use crate::model::time::millis;
use crate::model::trace::is_about_trace;
use crate::store::catalog::Catalog;
use crate::store::verbs::Emission;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// How long an answer is kept.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// In place of a predecessor: the event was there already.
const DUPLICATE: i64 = -1;

/// The idempotency key of a unit: that of its first event, in that event's topic.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) topic: TopicId,
    pub(crate) key: String,
    /// What the unit is, so that another unit under the same key is noticed.
    pub(crate) hash: Vec<u8>,
}

impl Entry {
    /// The entry of a unit, if its first event has a key.
    pub(crate) fn of(unit: &[Event], catalog: &Catalog) -> Option<Entry> {
        let first = unit.first()?;
        let key = first.idempotency_key.clone()?;
        Some(Entry { topic: catalog.topic(&first.topic)?.id, key, hash: hash(unit) })
    }

    pub(crate) fn is_same_key(&self, other: &Entry) -> bool {
        self.topic == other.topic && self.key == other.key
    }

    /// The answer for a key that is known: the first receipt, or a conflict if it was another body.
    pub(crate) fn answer(&self, hash: &[u8], receipt: &str) -> Result<Emission> {
        if self.hash != hash {
            return Err(Error::conflict(
                format!("the idempotency key {:?} was used for other events", self.key),
                "use a new key for new events",
            ));
        }
        let pairs: Vec<(i64, i64)> = serde_json::from_str(receipt).unwrap_or_default();
        let emitted = |(id, prev): (i64, i64)| Emitted {
            id: EventId(id),
            prev: (prev > 0).then_some(EventId(prev)),
            duplicate: prev == DUPLICATE,
        };
        Ok(Emission { events: pairs.into_iter().map(emitted).collect(), wake: Vec::new(), repeated: true })
    }
}

/// A receipt as it is kept.
pub(crate) fn receipt(events: &[Emitted]) -> String {
    let prev = |event: &Emitted| match event.duplicate {
        true => DUPLICATE,
        false => event.prev.map_or(0, |prev| prev.0),
    };
    let pairs: Vec<(i64, i64)> = events.iter().map(|event| (event.id.0, prev(event))).collect();
    serde_json::to_string(&pairs).unwrap_or_default() // numbers always serialise
}

/// A digest over everything that makes an event. Every field is preceded by its length, so that no two units collide.
fn hash(unit: &[Event]) -> Vec<u8> {
    let mut digest = Sha256::new();
    let mut field = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    for event in unit {
        field(event.topic.as_bytes());
        field(event.kind.as_bytes());
        field(&[
            u8::from(event.key.is_some()),
            u8::from(event.state.is_some()),
            event.priority,
            u8::from(event.is_sub),
        ]);
        field(event.key.as_deref().unwrap_or_default().as_bytes());
        field(event.content_type.as_bytes());
        field(&event.payload);
        field(event.state.as_deref().unwrap_or_default());
        match event.due {
            Due::After(delay) => field(&millis(delay).to_le_bytes()),
            Due::At(time) => field(format!("at {}", time.0).as_bytes()),
        }
        if let Some(tally) = &event.tally {
            field(format!("tally {} {:?} {:?}", tally.id, tally.within, tally.subscription).as_bytes());
        }
        if let Some(unique) = &event.unique {
            field(format!("unique {:?} {}", unique.policy, millis(unique.window)).as_bytes());
            field(unique.key.as_bytes());
        }
        // Who repeats an emit may do so in another span.
        let headers = event.headers.iter().filter(|(name, _)| !is_about_trace(name));
        field(&(headers.clone().count() as u64).to_le_bytes());
        for (name, value) in headers {
            field(name.as_bytes());
            field(value.as_bytes());
        }
    }
    digest.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::TallyId;
    use crate::model::unique::Unique;

    #[test]
    fn every_part_of_an_event_counts() {
        let event = Event::new("t", "x").key("k").idempotency_key("i");
        let others = [
            Event::new("u", "x").key("k"),
            event.clone().kind("a"),
            event.clone().key("l"),
            event.clone().header("a", "b"),
            event.clone().priority(4),
            event.clone().delay(Duration::from_secs(1)),
            event.clone().state("s"),
            event.clone().content_type("x/y"),
            event.clone().sub_event(),
            event.clone().tally(TallyId(1)),
            event.clone().tally_of(TallyId(1), "s"),
            event.clone().unique("a"),
            event.clone().unique(Unique::new("a").replacing()),
            event.clone().unique(Unique::new("a").within(Duration::from_secs(1))),
            Event::new("t", "y").key("k"),
        ];
        for other in others {
            assert_ne!(hash(std::slice::from_ref(&event)), hash(std::slice::from_ref(&other)), "{other:?}");
        }
        let renamed = event.clone().idempotency_key("another");
        let traced = event.clone().header("traceparent", "a").header("tracestate", "b");
        for same in [renamed, traced] {
            assert_eq!(hash(std::slice::from_ref(&event)), hash(std::slice::from_ref(&same)));
        }
    }
}

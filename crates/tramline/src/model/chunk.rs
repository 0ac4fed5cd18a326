//! Chunks: how up to 64 events are written as one row.
//!
//! A row has two parts beside its numbers: `meta`, a JSON array with one small array per event, and `body`, the
//! payloads one after the other. JSON keeps the row readable for people and writable for programs in other languages.
//! The predecessors are a column of their own, because they are known only once the keys are locked.

use crate::error::{Error, Result};
use crate::model::event::{DEFAULT_PRIORITY, Due, Event, EventItem, Headers, JSON, MAIN_HEADER, StoredEvent};
use crate::model::id::{ChunkId, EventId, SubscriptionId, TallyId, TopicId};
use crate::model::mask::Mask;
use crate::model::tally::TallyItem;
use crate::model::time::{Time, millis};
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::sync::Arc;

/// The most that a chunk may weigh, unless one event alone is heavier.
pub const MAX_BYTES: usize = 1 << 20;

/// One event in `meta`: type, key, content type (`""` is JSON), headers, payload length; when it is due and how urgent it is,
/// unless that is at once and as usual; and the item of a tally that it is, if it is one.
#[derive(Deserialize)]
struct Meta<'a>(
    #[serde(borrow)] Cow<'a, str>,
    #[serde(borrow)] Option<Cow<'a, str>>,
    #[serde(borrow)] Cow<'a, str>,
    Option<Cow<'a, Headers>>,
    usize,
    #[serde(default)] Option<When>,
    #[serde(default)] Option<Item>,
);

/// The tally, the number of the item, and the subscription whose settling ends it.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Item(i64, u64, i64);

impl Item {
    fn of(event: &Event) -> Option<Item> {
        let EventItem { item, subscription } = event.item?;
        Some(Item(item.tally.0, item.number, subscription.0))
    }

    fn read(self) -> EventItem {
        let Item(tally, number, subscription) = self;
        let item = TallyItem { tally: TallyId(tally), number };
        EventItem { item, subscription: SubscriptionId(subscription) }
    }
}

/// The delay in milliseconds, the earliest time, the priority.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct When(i64, i64, u8);

impl When {
    const USUAL: When = When(0, 0, DEFAULT_PRIORITY);

    fn of(event: &Event) -> Option<When> {
        let (delay, at) = match event.due {
            Due::After(delay) => (millis(delay), 0),
            Due::At(at) => (0, at.0),
        };
        let usual = delay == 0 && at == 0 && event.priority == DEFAULT_PRIORITY;
        (!usual).then_some(When(delay, at, event.priority))
    }
}

impl Serialize for Meta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Meta(kind, key, content_type, headers, length, when, item) = self;
        match (when, item) {
            (None, None) => (kind, key, content_type, headers, length).serialize(serializer),
            (Some(when), None) => (kind, key, content_type, headers, length, when).serialize(serializer),
            (when, Some(item)) => {
                (kind, key, content_type, headers, length, when, item).serialize(serializer)
            }
        }
    }
}

/// What a later subscription has to know of a stored event.
pub(crate) struct Outline {
    pub(crate) key: Option<Arc<str>>,
    pub(crate) due_at: Time,
    pub(crate) priority: u8,
    pub(crate) item: Option<EventItem>,
}

/// The two parts of a chunk row.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// One small JSON array per event.
    pub meta: String,
    /// The payloads, one after the other.
    pub body: Vec<u8>,
}

/// Writes events as a chunk.
pub fn encode<'a>(events: impl Iterator<Item = &'a Event> + Clone) -> Encoded {
    let mut body = Vec::with_capacity(events.clone().map(|event| event.payload.len()).sum());
    let metas: Vec<Meta<'_>> = events
        .map(|event| {
            body.extend_from_slice(&event.payload);
            meta_of(event)
        })
        .collect();
    let meta = serde_json::to_string(&metas).unwrap_or_default(); // strings and numbers always serialise
    Encoded { meta, body }
}

fn meta_of(event: &Event) -> Meta<'_> {
    let content_type = if event.content_type == JSON { "" } else { &event.content_type };
    Meta(
        Cow::Borrowed(&event.kind),
        event.key.as_deref().map(Cow::Borrowed),
        Cow::Borrowed(content_type),
        (!event.headers.is_empty()).then_some(Cow::Borrowed(&event.headers)),
        event.payload.len(),
        When::of(event),
        Item::of(event),
    )
}

/// A chunk row as it was read.
#[derive(Clone, Debug)]
pub struct ChunkRow {
    /// Its number.
    pub chunk: ChunkId,
    /// The topic of all its events.
    pub topic: TopicId,
    /// When it was stored.
    pub emitted_at: Time,
    /// One small JSON array per event.
    pub meta: String,
    /// The predecessor of each event, zero for none; empty if no event has a key.
    pub prevs: Vec<i64>,
    /// The main event of each sub-event, zero for none; empty if there is no sub-event.
    pub mains: Vec<i64>,
    /// The payloads, one after the other.
    pub body: Bytes,
}

impl ChunkRow {
    /// The events of the chunk, in order.
    ///
    /// # Errors
    /// `Invalid` when the row was damaged or written by something else.
    pub fn decode(&self, topic: &Arc<str>) -> Result<Vec<StoredEvent>> {
        self.select(topic, Mask::first(Mask::CAPACITY))
    }

    /// The events whose positions are in `mask`, in order.
    ///
    /// # Errors
    /// `Invalid` when the row was damaged or written by something else.
    pub fn select(&self, topic: &Arc<str>, mask: Mask) -> Result<Vec<StoredEvent>> {
        let metas: Vec<Meta<'_>> =
            serde_json::from_str(&self.meta).map_err(|error| self.damaged().because(error))?;
        let json: Arc<str> = Arc::from(JSON);
        let no_headers = Arc::new(Headers::new());
        let mut kinds = Interner(Arc::from(""));
        let mut types = Interner(json.clone());
        let mut at = 0;
        let mut events = Vec::with_capacity(metas.len().min(mask.count() as usize));
        for (index, Meta(kind, key, content_type, headers, length, _, item)) in metas.into_iter().enumerate()
        {
            if at + length > self.body.len() {
                return Err(self.damaged());
            }
            let place = at..at + length;
            at = place.end;
            if !mask.contains(index as u32) {
                continue;
            }
            let item = item.map(Item::read);
            events.push(StoredEvent {
                id: EventId::at(self.chunk, index as u32),
                topic: topic.clone(),
                kind: kinds.get(&kind),
                key: key.as_deref().map(Arc::from),
                prev: self.prevs.get(index).filter(|prev| **prev != 0).map(|prev| EventId(*prev)),
                payload: self.body.slice(place),
                content_type: if content_type.is_empty() { json.clone() } else { types.get(&content_type) },
                headers: self.headers(index, headers, &no_headers),
                emitted_at: self.emitted_at,
                item: item.map(|item| item.item),
                item_ends_with: item.map(|item| item.subscription),
            });
        }
        Ok(events)
    }

    fn headers(&self, index: usize, own: Option<Cow<'_, Headers>>, none: &Arc<Headers>) -> Arc<Headers> {
        let main = self.mains.get(index).filter(|main| **main != 0);
        if own.is_none() && main.is_none() {
            return none.clone();
        }
        let mut headers = own.map(Cow::into_owned).unwrap_or_default();
        if let Some(main) = main {
            headers.insert(MAIN_HEADER.into(), main.to_string());
        }
        Arc::new(headers)
    }

    /// The keys of the events, in order, without the rest.
    ///
    /// # Errors
    /// `Invalid` when the row was damaged or written by something else.
    pub fn keys(&self) -> Result<Vec<Option<Arc<str>>>> {
        let metas: Vec<Meta<'_>> =
            serde_json::from_str(&self.meta).map_err(|error| self.damaged().because(error))?;
        Ok(metas.into_iter().map(|meta| meta.1.as_deref().map(Arc::from)).collect())
    }

    /// The types and keys of the events, in order.
    pub(crate) fn labels(&self) -> Result<Vec<(String, Option<String>)>> {
        let metas: Vec<Meta<'_>> =
            serde_json::from_str(&self.meta).map_err(|error| self.damaged().because(error))?;
        Ok(metas.into_iter().map(|meta| (meta.0.into_owned(), meta.1.map(Cow::into_owned))).collect())
    }

    /// The keys of the events, when they are due and how urgent they are, in order.
    pub(crate) fn outlines(&self) -> Result<Vec<Outline>> {
        let metas: Vec<Meta<'_>> =
            serde_json::from_str(&self.meta).map_err(|error| self.damaged().because(error))?;
        let outline = |meta: Meta<'_>| {
            let When(delay, at, priority) = meta.5.unwrap_or(When::USUAL);
            let due_at = Time(self.emitted_at.0.saturating_add(delay).max(at));
            let item = meta.6.map(Item::read);
            Outline { key: meta.1.as_deref().map(Arc::from), due_at, priority, item }
        };
        Ok(metas.into_iter().map(outline).collect())
    }

    /// The items of tallies that end when `subscription` is done with the events in `mask`.
    pub(crate) fn items(&self, subscription: SubscriptionId, mask: Mask) -> Result<Vec<TallyItem>> {
        let outlines = self.outlines()?;
        let items = mask.iter().filter_map(|index| outlines.get(index as usize)?.item);
        Ok(items.filter(|item| item.subscription == subscription).map(|item| item.item).collect())
    }

    fn damaged(&self) -> Error {
        Error::invalid(
            format!("chunk {} cannot be read", self.chunk),
            "it was not written by this program; restore it from a backup",
        )
    }
}

/// Events that are emitted together mostly share their type: one allocation serves a run of equal texts.
struct Interner(Arc<str>);

impl Interner {
    fn get(&mut self, text: &str) -> Arc<str> {
        if *self.0 != *text {
            self.0 = Arc::from(text);
        }
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(encoded: Encoded, prevs: Vec<i64>) -> ChunkRow {
        let body = Bytes::from(encoded.body);
        ChunkRow {
            chunk: ChunkId(3),
            topic: TopicId(1),
            emitted_at: Time(9),
            meta: encoded.meta,
            prevs,
            mains: vec![],
            body,
        }
    }

    prop_compose! {
        fn events()(parts in prop::collection::vec(
            ("[a-z]{0,3}", prop::option::of("\\PC{1,8}"), prop::collection::vec(any::<u8>(), 0..40),
             prop::collection::btree_map("\\PC{1,4}", "\\PC{0,4}", 0..3), any::<bool>()), 1..64)) -> Vec<Event> {
            parts.into_iter().map(|(kind, key, payload, headers, json)| {
                let event = Event::new("t", payload).kind(kind);
                let event = if json { event.content_type(JSON) } else { event };
                let event = headers.into_iter().fold(event, |event, (k, v)| event.header(k, v));
                match key { Some(key) => event.key(key), None => event }
            }).collect()
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(events in events()) {
            let topic: Arc<str> = Arc::from("t");
            let prevs: Vec<i64> = (0..events.len() as i64).collect();
            let read = row(encode(events.iter()), prevs).decode(&topic).unwrap();
            prop_assert_eq!(read.len(), events.len());
            for (index, (stored, event)) in read.iter().zip(&events).enumerate() {
                prop_assert_eq!(stored.id, EventId(3 * 64 + index as i64));
                prop_assert_eq!(&*stored.kind, event.kind.as_str());
                prop_assert_eq!(stored.key.as_deref(), event.key.as_deref());
                prop_assert_eq!(&stored.payload, &event.payload);
                prop_assert_eq!(&*stored.content_type, event.content_type.as_str());
                prop_assert_eq!(&*stored.headers, &event.headers);
                prop_assert_eq!(stored.prev, (index > 0).then_some(EventId(index as i64)));
            }
        }

        #[test]
        fn what_is_selected_is_what_was_decoded(events in events(), bits in any::<i64>()) {
            let (topic, mask): (Arc<str>, Mask) = (Arc::from("t"), Mask::from_i64(bits));
            let row = row(encode(events.iter()), vec![]);
            let mut all = row.decode(&topic).unwrap();
            all.retain(|event| mask.contains(event.id.index()));
            prop_assert_eq!(row.select(&topic, mask).unwrap(), all);
        }
    }

    #[test]
    fn a_damaged_row_is_an_error_and_no_panic() {
        let topic: Arc<str> = Arc::from("t");
        let event = Event::new("t", "payload");
        let whole = row(encode([&event].into_iter()), vec![]);
        for meta in ["", "[", "{}", "[[1]]", "[[\"\",null,\"\",null,9999999]]"] {
            assert!(ChunkRow { meta: meta.into(), ..whole.clone() }.decode(&topic).is_err(), "{meta}");
        }
    }
}

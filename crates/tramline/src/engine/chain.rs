//! The events of a key, back and forth.

use crate::engine::tramline::Tramline;
use crate::error::{Error, Result};
use crate::model::event::StoredEvent;
use crate::model::id::EventId;
use crate::store::verbs::{Trace, Traced};

/// How far the chain is followed back from its end to find what comes after an event: most keys have fewer events.
const WALK: u32 = 256;
/// How many events of the topic are read at once, and how often, where the chain is longer.
const SCAN: u32 = 1_024;
const SCANS: usize = 16;

/// From which end the events of a key are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the newest back.
    #[default]
    Newest,
    /// From the oldest retained one on.
    Oldest,
}

/// Some events of a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyEvents {
    /// The events, in the direction that was asked for. There may be fewer than were asked for, or none, and more to come.
    pub events: Vec<StoredEvent>,
    /// What to go on after; `None` when there is nothing more.
    pub next: Option<EventId>,
}

impl Tramline {
    /// The retained events of a key, each of which names its predecessor: at most `limit` after `after` in that direction. The cost of a
    /// call is bounded, however many events the key and the topic have.
    ///
    /// # Errors
    /// `NotFound` when there is no such topic; `Invalid` when `after` is not of this key, newest first.
    pub async fn key_events(
        &self,
        topic: &str,
        key: &str,
        direction: Direction,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<KeyEvents> {
        let Some(head) = self.store().head(topic, key).await? else { return Ok(KeyEvents::default()) };
        let of = Chain { tram: self, topic, key, head: head.last_id };
        match direction {
            Direction::Newest => of.back(after, limit).await,
            Direction::Oldest => of.forth(after.unwrap_or(EventId(0)), limit).await,
        }
    }
}

/// The chain of a key, up to its head.
struct Chain<'a> {
    tram: &'a Tramline,
    topic: &'a str,
    key: &'a str,
    head: EventId,
}

impl Chain<'_> {
    async fn back(&self, after: Option<EventId>, limit: u32) -> Result<KeyEvents> {
        let from = after.unwrap_or(self.head);
        let skipped = u32::from(after.is_some());
        let traced = self.trace(from, limit.saturating_add(skipped)).await?;
        if traced.events.iter().any(|event| !self.has(event)) {
            return Err(Error::invalid(
                format!("event {from} is not of this key"),
                "go on after an event of the key, or leave it out to begin with the newest",
            ));
        }
        let more = traced.next.is_some();
        let events: Vec<StoredEvent> = traced.events.into_iter().skip(skipped as usize).collect();
        let next = events.last().map(|event| event.id).filter(|_| more);
        Ok(KeyEvents { events, next })
    }

    async fn forth(&self, after: EventId, limit: u32) -> Result<KeyEvents> {
        if after >= self.head {
            return Ok(KeyEvents::default());
        }
        let traced = self.trace(self.head, WALK).await?;
        let arrived = traced.next.is_none_or(|next| next <= after);
        if !arrived {
            return self.scan(after, limit).await;
        }
        let mut events: Vec<StoredEvent> =
            traced.events.into_iter().filter(|event| event.id > after).collect();
        events.reverse();
        let more = events.len() > limit as usize;
        events.truncate(limit as usize);
        let next = events.last().map(|event| event.id).filter(|_| more);
        Ok(KeyEvents { events, next })
    }

    /// Reads a bounded part of the topic.
    async fn scan(&self, mut after: EventId, limit: u32) -> Result<KeyEvents> {
        let mut events = Vec::new();
        for _ in 0..SCANS {
            let page = self.tram.read_log(self.topic, after, SCAN).await?;
            for event in page.events {
                after = event.id;
                if self.has(&event) {
                    events.push(event);
                }
                if after >= self.head {
                    return Ok(KeyEvents { events, next: None });
                }
                if events.len() == limit as usize {
                    return Ok(KeyEvents { events, next: Some(after) });
                }
            }
            after = after.max(page.next);
        }
        Ok(KeyEvents { events, next: Some(after).filter(|after| *after < self.head) })
    }

    async fn trace(&self, from: EventId, limit: u32) -> Result<Traced> {
        self.tram.store().trace(Trace { from, limit }).await
    }

    fn has(&self, event: &StoredEvent) -> bool {
        *event.topic == *self.topic && event.key.as_deref() == Some(self.key)
    }
}

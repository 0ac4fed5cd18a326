//! Keeps a store below its limit: what it can do without goes, oldest first, before nothing can be stored any more.

use crate::engine::presence::Presence;
use crate::error::Result;
use crate::model::id::{EventId, SubscriptionId};
use crate::store::verbs::{Shed, Shedded, Surplus};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How many steps a sweep has at most for what is retained, and for work; what is left waits for the next one.
const STEPS: u32 = 50;
/// How many rows go in a step at most.
const LIMIT: u32 = 1_000;

/// How full a store may be, and what may go then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ceiling {
    pub(crate) bytes: Option<u64>,
    pub(crate) include_pull: bool,
}

/// Makes room when the store is within a tenth of its limit, until a fifth of it is free.
pub(crate) async fn shed(presence: &Presence) -> Result<()> {
    let ceiling = presence.care.ceiling;
    let Some(limit) = ceiling.bytes else { return Ok(()) };
    let size = presence.store.size().await?.bytes;
    if size <= limit - limit / 10 {
        return Ok(());
    }
    let mut shedding = Shedding { presence, low: limit - limit / 5, removed: 0, dropped: BTreeMap::new() };
    let surplus = Surplus::Work { include_pull: ceiling.include_pull };
    let result = match shedding.retained().await {
        Ok(ControlFlow::Continue(())) => shedding.work(surplus).await,
        result => result,
    };
    // Also what went before a step failed.
    shedding.tell(size, limit).await;
    if let ControlFlow::Continue(()) = result? {
        tracing::warn!(limit, "the store is above its limit, and nothing more may go; raise the limit");
    }
    Ok(())
}

/// One making of room.
struct Shedding<'a> {
    presence: &'a Presence,
    /// Room enough.
    low: u64,
    removed: u64,
    dropped: BTreeMap<SubscriptionId, u64>,
}

/// Whether to go on.
type Flow = ControlFlow<()>;

impl Shedding<'_> {
    /// Events that nobody has to do any more.
    async fn retained(&mut self) -> Result<Flow> {
        let mut after = EventId(0);
        for _ in 0..STEPS {
            let Some(went) = self.step(Surplus::Retained, after).await? else { return Ok(Flow::Break(())) };
            match went.next {
                Some(next) => after = next,
                None => break,
            }
        }
        Ok(Flow::Continue(()))
    }

    /// The oldest work, and then the events that nobody has to do any more because of that.
    async fn work(&mut self, surplus: Surplus) -> Result<Flow> {
        let mut after = EventId(0);
        for _ in 0..STEPS {
            let Some(went) = self.step(surplus, after).await? else { return Ok(Flow::Break(())) };
            let Some(next) = went.next else { return Ok(Flow::Continue(())) };
            after = next;
            if went.dropped.is_some() && self.step(Surplus::Retained, after).await?.is_none() {
                return Ok(Flow::Break(()));
            }
        }
        Ok(Flow::Break(()))
    }

    /// One step; `None` if there is room enough already.
    async fn step(&mut self, surplus: Surplus, after: EventId) -> Result<Option<Shedded>> {
        let size = self.presence.store.size().await?.bytes;
        if size <= self.low {
            return Ok(None);
        }
        let (bytes, now) = (size - self.low, self.presence.clock.now());
        let shed = Shed { surplus, after, limit: LIMIT, bytes, now };
        let went = self.presence.store.shed(shed).await?;
        self.removed += went.removed;
        if let Some((subscription, events)) = went.dropped {
            *self.dropped.entry(subscription).or_default() += events;
            if went.wake {
                self.presence.wake.notify(&[subscription]);
            }
        }
        Ok(Some(went))
    }

    async fn tell(&self, size: u64, limit: u64) {
        let removed = self.removed;
        tracing::warn!(
            size,
            limit,
            removed,
            "the store is nearly full; settled events went before their time"
        );
        let all =
            if self.dropped.is_empty() { Ok(Vec::new()) } else { self.presence.store.subscriptions().await };
        let all = all.unwrap_or_default();
        for (id, events) in &self.dropped {
            let named = all.iter().find(|subscription| subscription.id == *id);
            let subscription = named.map_or_else(|| id.to_string(), |one| one.name.to_string());
            tracing::warn!(subscription, events, "the store is nearly full; the oldest work was dropped");
        }
    }
}

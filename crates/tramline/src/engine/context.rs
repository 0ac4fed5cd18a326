//! What a handler knows of the event it runs.

use crate::engine::dispatch::Task;
use crate::engine::hand::Hand;
use crate::engine::hooks::Progress;
use crate::engine::tramline::Tramline;
use crate::model::event::{Event, StoredEvent};
use crate::model::id::EventId;
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::tally::TallyItem;
use crate::model::time::Time;
use crate::store::verbs::{Settle, SettleSlice};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The event at hand and everything around it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) hand: Arc<Hand>,
    pub(crate) at: u32,
    /// All skipped ids, if some became known after the claim.
    skipped: Option<Arc<[EventId]>>,
}

impl Context {
    pub(crate) fn new(task: &Task) -> Context {
        let mut skipped = None;
        if !task.skipped.is_empty() {
            let mut all = task.hand.events[task.at as usize].skipped.clone();
            all.extend(&task.skipped);
            all.sort_unstable();
            all.dedup();
            skipped = Some(all.into());
        }
        Context { hand: task.hand.clone(), at: task.at, skipped }
    }

    /// The event.
    pub fn event(&self) -> &StoredEvent {
        &self.hand.events[self.at as usize].event
    }

    /// The subscription that it runs for.
    pub fn subscription(&self) -> &str {
        &self.hand.run.subscription.name
    }

    /// Which try this is, from 1. Crashes and lost leases do not count.
    pub fn attempt(&self) -> u32 {
        self.hand.attempts + 1
    }

    /// How many leases on the event ended without an answer.
    pub fn crashes(&self) -> u32 {
        self.hand.crashes
    }

    /// Preceding events of its key that this subscription will never see.
    pub fn skipped(&self) -> &[EventId] {
        match &self.skipped {
            Some(skipped) => skipped,
            None => &self.hand.events[self.at as usize].skipped,
        }
    }

    /// True if somebody replayed it: it may be out of order.
    pub fn is_replayed(&self) -> bool {
        self.hand.replayed
    }

    /// How long the event had been stored when it was claimed.
    pub fn queued(&self) -> Duration {
        self.hand.taken.now.since(self.event().emitted_at)
    }

    /// Waits until the work has become pointless: the lease was lost or the worker gives up. Cancel-safe.
    pub async fn cancelled(&self) {
        self.hand.cancel.cancelled().await;
    }

    /// True once the work has become pointless; its outcome will not count.
    pub fn is_cancelled(&self) -> bool {
        self.hand.cancel.is_cancelled()
    }

    /// Tells the hooks how far the handler is.
    pub fn progress(&self, percent: impl Into<Option<f32>>, text: impl Into<String>) {
        self.hand.run.hooks.progress(self, &Progress { percent: percent.into(), text: text.into() });
    }

    /// What to give to `settle_in` of a SQL store, for handlers that settle in their own transaction: what the handler wrote and the
    /// outcome are stored together or not at all. The worker needs [`crate::Worker::settles_in_transaction`]; what the handler returns
    /// counts only if its transaction did not settle.
    pub fn settlement(&self, outcome: Outcome) -> Settle {
        let run = &self.hand.run;
        if !outcome.is_done() {
            self.hand.doubt();
        }
        let outcomes = vec![(self.event().id.index(), outcome)];
        let results = vec![SettleSlice { lease: self.hand.lease, outcomes }];
        let (subscription, worker) = (run.subscription.id, Some(run.tram.presence().name.clone()));
        Settle { subscription, results, worker, now: run.tram.clock().now() }
    }

    /// The lease, by which the store knows who may settle.
    pub fn lease(&self) -> Lease {
        self.hand.lease
    }

    /// When the lease ends by the store's clock, unless it is extended again, which happens by itself.
    pub fn lease_deadline(&self) -> Time {
        self.hand.until()
    }

    /// The item of a tally that the event is.
    pub fn item(&self) -> Option<TallyItem> {
        self.event().item
    }

    /// Makes `event` an item of the tally whose item the event at hand is; a growing tally takes it even after it was sealed. In the
    /// same topic it ends with this subscription, unless it names another one. Changes nothing if the event at hand is no item.
    #[must_use]
    pub fn grow(&self, event: Event) -> Event {
        let Some(item) = self.item() else { return event };
        let own = event.tally.is_none() && event.topic == *self.event().topic;
        let event = if own { event.tally_of(item.tally, self.subscription()) } else { event };
        event.within(item)
    }

    /// To emit from a handler.
    pub fn tramline(&self) -> &Tramline {
        &self.hand.run.tram
    }

    /// What the worker was given with `.state(value)`.
    ///
    /// # Panics
    /// When it was given no value of this type; the event is then retried with that text.
    pub fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        self.find_state().unwrap_or_else(|| panic!("{}", missing_state::<T>()))
    }

    pub(crate) fn find_state<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.hand.run.states.get()
    }
}

pub(crate) fn missing_state<T>() -> String {
    format!("the worker has no state of type {}; give it one with .state(value)", std::any::type_name::<T>())
}

/// Values shared by all handlers of a worker, at most one of each type.
#[derive(Clone, Debug, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn put<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }
}

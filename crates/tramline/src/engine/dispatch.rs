//! Which event runs next: one queue for all runners, and one line per key where order matters.

use crate::engine::hand::Hand;
use crate::engine::handler::Handlers;
use crate::model::id::{EventId, LaneId};
use crate::model::lease::Lease;
use crate::model::outcome::Outcome;
use crate::model::subscription::{OnExhausted, Policy};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// An event to run.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) hand: Arc<Hand>,
    pub(crate) at: u32,
    /// Preceding events of its key that died while it was in hand: the claim could not name them.
    pub(crate) skipped: Vec<EventId>,
}

impl Task {
    fn id(&self) -> EventId {
        self.hand.id(self.at)
    }
}

/// Hands events to runners.
#[derive(Debug)]
pub(crate) struct Dispatch {
    ordered: bool,
    state: Mutex<State>,
    idle: AtomicUsize,
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Task>,
    lines: HashMap<(LaneId, Arc<str>), Line>,
    closed: bool,
}

/// The events of one key. A line exists while one of them runs or waits, and while a failure of one is not yet settled: until
/// then the store may still give later ones away, without knowing.
#[derive(Debug, Default)]
struct Line {
    running: bool,
    waiting: VecDeque<Task>,
    /// This event has to run again first; what follows it under the same epoch must not run. Under another epoch the store has
    /// decided anew.
    stopped_by: Option<(i64, EventId)>,
    /// The first event that was refused because of that.
    refused: Option<(Lease, EventId)>,
    /// Events that died; whoever comes next is told.
    skipped: Vec<EventId>,
}

/// What an outcome means for the later events of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// They go on.
    GoOn,
    /// They go on, and are told that this one was skipped.
    Skip,
    /// They wait until this one has run again.
    Stop,
}

impl Dispatch {
    pub(crate) fn new(ordered: bool) -> Dispatch {
        Dispatch { ordered, state: Mutex::default(), idle: AtomicUsize::new(0), more: Notify::new() }
    }

    /// Adds what one claim gave. Gives back events that must not run: an earlier one of their key has failed meanwhile, and the
    /// store will set them aside when it learns of that.
    pub(crate) fn add(&self, hands: &[Arc<Hand>]) -> Vec<Task> {
        let mut tasks: Vec<Task> = Vec::with_capacity(hands.iter().map(|hand| hand.events.len()).sum());
        for hand in hands {
            let all = 0..hand.events.len() as u32;
            tasks.extend(all.map(|at| Task { hand: hand.clone(), at, skipped: Vec::new() }));
        }
        if self.ordered {
            // Events of one key may be spread over several slices of one chunk, and slices come in no order of their events.
            tasks.sort_by_key(Task::id);
        }
        let mut refused = Vec::new();
        let mut state = self.state();
        let before = state.ready.len();
        for task in tasks {
            match self.line_of(&task) {
                None => state.ready.push_back(task),
                Some(key) => refused.extend(state.queue_up(key, task)),
            }
        }
        let added = state.ready.len() - before;
        drop(state);
        for _ in 0..added.min(self.idle.load(Ordering::SeqCst)) {
            self.more.notify_one();
        }
        refused
    }

    /// Takes the next event, and more of its type if its handler takes several at once. False when there will be none any more.
    pub(crate) async fn next(&self, handlers: &Handlers, tasks: &mut Vec<Task>) -> bool {
        loop {
            if let Some(found) = self.take(handlers, tasks) {
                return found;
            }
            let more = self.more.notified();
            tokio::pin!(more);
            // Registered before the second look: what is added after it wakes this runner.
            more.as_mut().enable();
            self.idle.fetch_add(1, Ordering::SeqCst);
            let found = self.take(handlers, tasks);
            if found.is_none() {
                more.await;
            }
            self.idle.fetch_sub(1, Ordering::SeqCst);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// `None`: nothing now. Hands count as started from here on, so that closing gives back only what nobody has.
    fn take(&self, handlers: &Handlers, tasks: &mut Vec<Task>) -> Option<bool> {
        let mut state = self.state();
        if state.closed {
            return Some(false);
        }
        let first = state.ready.pop_front()?;
        first.hand.start();
        let most = handlers.most_at_once(kind(&first));
        tasks.push(first);
        while tasks.len() < most
            && let Some(task) = state.ready.pop_front_if(|task| kind(task) == kind(&tasks[0]))
        {
            task.hand.start();
            tasks.push(task);
        }
        Some(true)
    }

    /// An event has its outcome; `None` if it will get none. What was lost gets none. Gives back later events of its key that must not run now, and
    /// whether the hand has all its outcomes.
    pub(crate) fn record(
        &self,
        task: &mut Task,
        outcome: Option<Outcome>,
        policy: &Policy,
    ) -> (bool, Vec<Task>) {
        let Some(key) = self.line_of(task) else {
            let outcome = outcome.filter(|_| !task.hand.is_lost());
            return (keep(task, outcome), Vec::new());
        };
        // Recorded while the state is locked: the settler takes all outcomes of a lane in one step under the same lock, so a
        // later event of a key is never settled without the earlier one.
        // Whoever loses a hand clears away its failures after that, and under the lock too.
        let mut state = self.state();
        let outcome = outcome.filter(|_| !task.hand.is_lost());
        let next = outcome.as_ref().map_or(Next::GoOn, |outcome| next(task, outcome, policy));
        let finished = keep(task, outcome);
        let refused = state.go_on(key, task, next);
        drop(state);
        (finished, refused)
    }

    /// Runs `take` while no outcome can be recorded in an ordered subscription.
    pub(crate) fn locked<T>(&self, take: impl FnOnce() -> T) -> T {
        let _state = self.ordered.then(|| self.state());
        take()
    }

    /// The store knows of these failures, or never will: what it gives out from now on takes them into account, or runs them
    /// again first. Gives the first event of each key that was refused because of them.
    pub(crate) fn confirm(&self, hand: &Hand, positions: impl Iterator<Item = u32>) -> Vec<(Lease, EventId)> {
        let mut refused = Vec::new();
        if !self.ordered {
            return refused;
        }
        let mut state = self.state();
        for at in positions {
            let Some(key) = line_of(hand, at) else { continue };
            if let Entry::Occupied(mut entry) = state.lines.entry(key) {
                let line = entry.get_mut();
                if line.stopped_by == Some((hand.lease.epoch, hand.id(at))) {
                    line.stopped_by = None;
                    refused.extend(line.refused.take());
                }
                // Later ones may have died since these outcomes were taken; the store does not know of them yet.
                line.skipped.retain(|skipped| *skipped > hand.id(at));
                if line.is_over() {
                    entry.remove();
                }
            }
        }
        refused
    }

    /// Gives out nothing any more, and gives back what nobody has begun.
    pub(crate) fn close(&self) -> Vec<Task> {
        let mut state = self.state();
        state.closed = true;
        let mut tasks: Vec<Task> = state.ready.drain(..).collect();
        for (_, line) in state.lines.drain() {
            tasks.extend(line.waiting);
        }
        drop(state);
        self.more.notify_waiters();
        tasks
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line_of(&self, task: &Task) -> Option<(LaneId, Arc<str>)> {
        if self.ordered { line_of(&task.hand, task.at) } else { None }
    }
}

impl State {
    /// Puts an event at the end of its line; the first one is ready. Gives it back if it must not run.
    fn queue_up(&mut self, key: (LaneId, Arc<str>), mut task: Task) -> Option<Task> {
        let line = self.lines.entry(key).or_default();
        let stops = |(epoch, by)| epoch == task.hand.lease.epoch && by < task.id();
        if !task.hand.replayed && line.stopped_by.is_some_and(stops) {
            line.refuse(&task);
            return Some(task);
        }
        task.skipped.append(&mut line.skipped);
        if line.running {
            line.waiting.push_back(task);
        } else {
            line.running = true;
            self.ready.push_back(task);
        }
        None
    }

    /// An event of a line has ended.
    fn go_on(&mut self, key: (LaneId, Arc<str>), ended: &mut Task, next: Next) -> Vec<Task> {
        let id = ended.id();
        let mut refused = Vec::new();
        let Entry::Occupied(mut entry) = self.lines.entry(key) else { return refused };
        let line = entry.get_mut();
        line.running = false;
        match next {
            Next::GoOn => {}
            Next::Skip => {
                let skipped = line.waiting.front_mut().map_or(&mut line.skipped, |task| &mut task.skipped);
                skipped.append(&mut ended.skipped);
                skipped.push(id);
            }
            Next::Stop => {
                line.stopped_by = Some((ended.hand.lease.epoch, id));
                let may_run = |task: &Task| task.hand.replayed || task.id() < id;
                let (stay, go) = line.waiting.drain(..).partition(may_run);
                line.waiting = stay;
                refused = go.into();
                line.refused = None;
                refused.iter().for_each(|task| line.refuse(task));
            }
        }
        if let Some(task) = line.waiting.pop_front() {
            line.running = true;
            self.ready.push_back(task);
        } else if line.is_over() {
            entry.remove();
        }
        refused
    }
}

impl Line {
    fn refuse(&mut self, task: &Task) {
        let first = self.refused.is_none_or(|(_, first)| task.id() < first);
        if first {
            self.refused = Some((task.hand.lease, task.id()));
        }
    }

    fn is_over(&self) -> bool {
        !self.running && self.waiting.is_empty() && self.stopped_by.is_none() && self.skipped.is_empty()
    }
}

fn kind(task: &Task) -> &str {
    &task.hand.events[task.at as usize].event.kind
}

fn line_of(hand: &Hand, at: u32) -> Option<(LaneId, Arc<str>)> {
    let key = hand.events[at as usize].event.key.clone()?;
    Some((hand.lease.lane, key))
}

fn keep(task: &Task, outcome: Option<Outcome>) -> bool {
    match outcome {
        Some(outcome) => task.hand.record(task.at, outcome),
        None => task.hand.set_aside(task.at),
    }
}

/// What the store will make of the outcome, so that nothing starts which it is going to set aside.
fn next(task: &Task, outcome: &Outcome, policy: &Policy) -> Next {
    if task.hand.replayed {
        return Next::GoOn;
    }
    let exhausted = match policy.on_exhausted {
        OnExhausted::Hold => Next::Stop,
        OnExhausted::Dead | OnExhausted::Drop => Next::Skip,
    };
    match outcome {
        Outcome::Done => Next::GoOn,
        Outcome::Snooze { .. } => Next::Stop,
        Outcome::Dead { .. } => exhausted,
        Outcome::Retry { .. } => {
            let again = policy.retry.delay_after(task.hand.attempts + 1, task.id());
            if again.is_some() && !policy.is_at_most_once() { Next::Stop } else { exhausted }
        }
    }
}

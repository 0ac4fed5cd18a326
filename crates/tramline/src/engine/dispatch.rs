//! Which event runs next: one queue for all runners, and one line per key where order matters.

use crate::engine::hand::Hand;
use crate::engine::handler::Handlers;
use crate::model::id::{EventId, LaneId};
use crate::model::outcome::Outcome;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

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
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Task>,
    lines: HashMap<(LaneId, Arc<str>), Line>,
    /// How many of the ready events somebody has in view.
    viewed: usize,
    closed: bool,
}

/// The events of one key. A line exists while one of them runs or waits, and while a failure of one is not yet settled.
#[derive(Debug, Default)]
struct Line {
    running: bool,
    waiting: VecDeque<Task>,
    stop: Option<Stop>,
}

/// A failure of which the store does not know yet. Only the store can say whether the event runs again, so nothing that follows
/// it under the same epoch starts before that. Under another epoch the store has decided anew.
#[derive(Debug)]
struct Stop {
    epoch: i64,
    by: EventId,
    /// What the next event is told if it may go on: this one, and what this one was told.
    skipped: Vec<EventId>,
}

/// What the store made of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It runs again, or is held: what follows was taken back.
    Waits,
    /// It will not be seen again: what follows goes on. Also if the lease was lost, and with it what follows.
    GoesOn,
}

impl Dispatch {
    pub(crate) fn new(ordered: bool) -> Dispatch {
        Dispatch {
            ordered,
            state: Mutex::default(),
            idle: AtomicUsize::new(0),
            more: Notify::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Adds what one claim gave.
    pub(crate) fn add(&self, hands: &[Arc<Hand>]) {
        let mut tasks: Vec<Task> = Vec::with_capacity(hands.iter().map(|hand| hand.events.len()).sum());
        for hand in hands {
            let all = 0..hand.events.len() as u32;
            tasks.extend(all.map(|at| Task { hand: hand.clone(), at, skipped: Vec::new() }));
        }
        if self.ordered {
            // Events of one key may be spread over several slices of one chunk, and slices come in no order of their events.
            tasks.sort_by_key(Task::id);
        }
        self.change(|state| {
            for task in tasks {
                match self.line_of(&task) {
                    None => state.ready.push_back(task),
                    Some(key) => state.queue_up(key, task),
                }
            }
        });
    }

    /// Takes the next event, and more of its type if its handler takes several at once. False when there will be none any more.
    pub(crate) async fn next(&self, handlers: &Handlers, tasks: &mut Vec<Task>) -> bool {
        self.wait_for(|| self.take(handlers, tasks)).await
    }

    /// Waits until there is an event that nobody else has in view, for runners that need a place before they take it. False when there
    /// will be none any more.
    pub(crate) async fn view(&self) -> bool {
        self.wait_for(|| self.state().view()).await
    }

    /// Takes what was in view, if it is still there, and more of its type as [`Dispatch::next`] does. `None`: it is gone.
    pub(crate) fn take_viewed(&self, handlers: &Handlers, tasks: &mut Vec<Task>) -> Option<bool> {
        self.state().viewed -= 1;
        self.take(handlers, tasks)
    }

    /// Waits until nothing is given out any more. Cancel-safe.
    pub(crate) async fn closed(&self) {
        self.closing.cancelled().await;
    }

    async fn wait_for(&self, mut look: impl FnMut() -> Option<bool>) -> bool {
        loop {
            if let Some(found) = look() {
                return found;
            }
            let more = self.more.notified();
            tokio::pin!(more);
            // Registered before the second look: what is added after it wakes this runner.
            more.as_mut().enable();
            self.idle.fetch_add(1, Ordering::SeqCst);
            let found = look();
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

    /// An event has its outcome; `None` if it will get none. What was lost gets none. True if the hand has all its outcomes.
    pub(crate) fn record(&self, task: &mut Task, outcome: Option<Outcome>) -> bool {
        let Some(key) = self.line_of(task) else {
            let outcome = outcome.filter(|_| !task.hand.is_lost());
            return keep(task, outcome);
        };
        // Recorded while the state is locked: the settler takes all outcomes of a lane in one step under the same lock, so a
        // later event of a key is never settled without the earlier one.
        // Whoever loses a hand clears away its failures after that, and under the lock too.
        let mut state = self.state();
        let outcome = outcome.filter(|_| !task.hand.is_lost());
        let failed = outcome.as_ref().is_some_and(|outcome| !outcome.is_done() || task.hand.is_doubted());
        let finished = keep(task, outcome);
        // Nobody is woken: the runner that was busy with this event takes the next one.
        state.go_on(key, task, failed);
        finished
    }

    /// Runs `take` while no outcome can be recorded in an ordered subscription.
    pub(crate) fn locked<T>(&self, take: impl FnOnce() -> T) -> T {
        let _state = self.ordered.then(|| self.state());
        take()
    }

    /// The store knows of a failure, or never will. Gives the later events of its key if they must not run.
    pub(crate) fn confirm(&self, hand: &Hand, at: u32, verdict: Verdict) -> Vec<Task> {
        let key = if self.ordered { line_of(hand, at) } else { None };
        let Some(key) = key else { return Vec::new() };
        self.change(|state| state.confirm(key, (hand.lease.epoch, hand.id(at)), verdict))
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
        self.closing.cancel();
        self.more.notify_waiters();
        tasks
    }

    /// Changes what is ready, and wakes as many runners as have something to do now.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let before = state.ready.len();
        let value = change(&mut state);
        let added = state.ready.len() - before;
        drop(state);
        for _ in 0..added.min(self.idle.load(Ordering::SeqCst)) {
            self.more.notify_one();
        }
        value
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line_of(&self, task: &Task) -> Option<(LaneId, Arc<str>)> {
        if self.ordered { line_of(&task.hand, task.at) } else { None }
    }
}

impl State {
    /// `None`: nothing that nobody has in view.
    fn view(&mut self) -> Option<bool> {
        if self.closed {
            return Some(false);
        }
        let free = self.ready.len() > self.viewed;
        self.viewed += usize::from(free);
        free.then_some(true)
    }

    /// Puts an event at the end of its line; the first one is ready.
    fn queue_up(&mut self, key: (LaneId, Arc<str>), task: Task) {
        let line = self.lines.entry(key).or_default();
        line.waiting.push_back(task);
        self.ready.extend(line.next());
    }

    /// An event of a line has ended.
    fn go_on(&mut self, key: (LaneId, Arc<str>), ended: &mut Task, failed: bool) {
        let Entry::Occupied(mut entry) = self.lines.entry(key) else { return };
        let line = entry.get_mut();
        line.running = false;
        // What was replayed is outside the order.
        if failed && !ended.hand.replayed {
            let mut skipped = std::mem::take(&mut ended.skipped);
            skipped.push(ended.id());
            line.stop = Some(Stop { epoch: ended.hand.lease.epoch, by: ended.id(), skipped });
        }
        self.ready.extend(line.next());
        if line.is_over() {
            entry.remove();
        }
    }

    fn confirm(&mut self, key: (LaneId, Arc<str>), failure: (i64, EventId), verdict: Verdict) -> Vec<Task> {
        let Entry::Occupied(mut entry) = self.lines.entry(key) else { return Vec::new() };
        let line = entry.get_mut();
        let Some(mut stop) = line.stop.take_if(|stop| (stop.epoch, stop.by) == failure) else {
            return Vec::new();
        };
        let mut refused = VecDeque::new();
        match verdict {
            Verdict::Waits => {
                (refused, line.waiting) = line.waiting.drain(..).partition(|task| stop.holds(task));
            }
            Verdict::GoesOn => {
                if let Some(next) = line.waiting.iter_mut().find(|task| stop.holds(task)) {
                    next.skipped.append(&mut stop.skipped);
                }
            }
        }
        self.ready.extend(line.next());
        if line.is_over() {
            entry.remove();
        }
        refused.into()
    }
}

impl Line {
    /// The next event that may run, if none does.
    fn next(&mut self) -> Option<Task> {
        if self.running {
            return None;
        }
        let stop = self.stop.as_ref();
        let at = self.waiting.iter().position(|task| !stop.is_some_and(|stop| stop.holds(task)))?;
        self.running = true;
        self.waiting.remove(at)
    }

    fn is_over(&self) -> bool {
        !self.running && self.waiting.is_empty() && self.stop.is_none()
    }
}

impl Stop {
    fn holds(&self, task: &Task) -> bool {
        !task.hand.replayed && task.hand.lease.epoch == self.epoch && task.id() > self.by
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

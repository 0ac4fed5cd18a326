//! Runs handlers: long-lived tasks that take one event after the other from the shared queue.

use crate::engine::context::Context;
use crate::engine::dispatch::Task;
use crate::engine::handler::{Batch, BatchFn, Bound};
use crate::engine::hooks::Finished;
use crate::engine::pool::Place;
use crate::engine::run::Run;
use crate::engine::trace;
use crate::model::outcome::Outcome;
use futures_util::FutureExt;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{Instrument, Span};

/// Handlers that never wait would keep others from the thread; after so many events the runner lets them in.
const YIELD_EVERY: u32 = 32;
/// How long an event waits whose start could not be written into the journal.
const JOURNAL_PAUSE: Duration = Duration::from_secs(1);

/// Runs events until there will be none any more.
pub(crate) async fn run_events(run: Arc<Run>) {
    let mut tasks = Vec::new();
    let mut since_yield = 0;
    while let Some(_place) = next(&run, &mut tasks).await {
        tasks.retain_mut(|task| !run.pass_over_if_lost(task));
        match run.handlers.find(tasks.first().map_or("", |task| kind(task))) {
            Some(Bound::Batch { handle, .. }) if !tasks.is_empty() => {
                run_batch(&run, std::mem::take(&mut tasks), handle).await;
            }
            bound => {
                for task in tasks.drain(..) {
                    run_one(&run, task, bound).await;
                }
            }
        }
        since_yield += 1;
        if since_yield == YIELD_EVERY {
            since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Takes what runs next, with a place to run it in if the worker shares some. `None` when there will be nothing any more.
async fn next(run: &Run, tasks: &mut Vec<Task>) -> Option<Option<Place>> {
    let Some(seat) = &run.seat else {
        return run.dispatch.next(&run.handlers, tasks).await.then_some(None);
    };
    // Whoever waits for a place has nothing in hand: what it has in view goes back if the run ends first.
    while run.dispatch.view().await {
        let mut place = tokio::select! {
            biased;
            () = run.dispatch.closed() => return None,
            place = seat.place() => place,
        };
        match run.dispatch.take_viewed(&run.handlers, tasks) {
            Some(true) => {
                place.start(tasks.len());
                return Some(Some(place));
            }
            Some(false) => return None,
            // Another runner took it together with its own.
            None => {}
        }
    }
    None
}

async fn run_one(run: &Run, task: Task, bound: Option<&Bound>) {
    let cx = Context::new(&task);
    let Some(Bound::One(handle)) = bound else {
        let outcome = run.no_handler(&cx);
        return run.record(task, outcome);
    };
    if let Err(outcome) = mark_started(run, &[&cx]).await {
        return run.record(task, outcome);
    }
    run.hooks.started(&cx);
    let began = Instant::now();
    // Called inside of the guard: a handler may panic before it gives its future.
    let span = trace::handle(&cx);
    let handling = async { handle(cx.clone()).await }.instrument(span.clone());
    let outcome = guarded(run, handling).await.unwrap_or_else(|outcome| outcome);
    trace::handled(&span, [&outcome]);
    leave_trail(run, &task, &span);
    tell_finished(run, &cx, &outcome, began);
    drop((cx, span));
    run.record(task, outcome);
}

async fn run_batch(run: &Run, tasks: Vec<Task>, handle: &Arc<BatchFn>) {
    let contexts: Vec<Context> = tasks.iter().map(Context::new).collect();
    let outcomes = match mark_started(run, &contexts.iter().collect::<Vec<_>>()).await {
        Err(outcome) => vec![outcome; tasks.len()],
        Ok(()) => {
            contexts.iter().for_each(|cx| run.hooks.started(cx));
            let began = Instant::now();
            let batch = Batch { items: contexts.clone() };
            let span = trace::handle_batch(&contexts);
            let outcomes = guarded(run, async { handle(batch).await }.instrument(span.clone())).await;
            let outcomes = outcomes.unwrap_or_else(|outcome| vec![outcome; tasks.len()]);
            trace::handled(&span, &outcomes);
            tasks.iter().for_each(|task| leave_trail(run, task, &span));
            for (cx, outcome) in contexts.iter().zip(&outcomes) {
                tell_finished(run, cx, outcome, began);
            }
            outcomes
        }
    };
    for (task, outcome) in tasks.into_iter().zip(outcomes) {
        run.record(task, outcome);
    }
}

/// At most once: nothing runs before the journal knows that it has started.
async fn mark_started(run: &Run, contexts: &[&Context]) -> Result<(), Outcome> {
    let Some(journal) = &run.journal else { return Ok(()) };
    let ids = contexts.iter().map(|cx| cx.event().id).collect();
    journal.started(ids).await.map_err(|error| {
        tracing::error!(error = %error, "the journal cannot be written; nothing is run without it");
        Outcome::Snooze { delay: JOURNAL_PAUSE }
    })
}

/// Runs a handler's future; a panic or too long a run is a failure.
async fn guarded<T>(run: &Run, future: impl Future<Output = T>) -> Result<T, Outcome> {
    let caught = AssertUnwindSafe(future).catch_unwind();
    let ended = match run.subscription.policy.time_limit {
        None => Some(caught.await),
        Some(limit) => run.tram.clock().timeout(limit, caught).await,
    };
    match ended {
        Some(Ok(value)) => Ok(value),
        Some(Err(panic)) => Err(Outcome::retry(format!("the handler panicked: {}", text_of(&*panic)))),
        None => {
            let limit = run.subscription.policy.time_limit.unwrap_or_default();
            Err(Outcome::retry(format!("time limit: the handler ran for more than {limit:?}")))
        }
    }
}

/// The settlement of an event follows from its handling.
fn leave_trail(run: &Run, task: &Task, span: &Span) {
    if let Some(trail) = trace::trail(run.tram.traces(), span, &task.hand.events[task.at as usize].event) {
        task.hand.leave(task.at, trail);
    }
}

fn tell_finished(run: &Run, cx: &Context, outcome: &Outcome, began: Instant) {
    run.hooks.finished(cx, &Finished { outcome, took: began.elapsed(), queued: cx.queued() });
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

fn kind(task: &Task) -> &str {
    &task.hand.events[task.at as usize].event.kind
}

//! Handlers: plain async functions, and how their arguments and results are understood.

use crate::engine::context::{Context, missing_state};
use crate::model::event::StoredEvent;
use crate::model::outcome::Outcome;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

/// An argument of a handler, made from the event at hand.
pub trait Extract: Sized + Send {
    /// Makes it, or says what becomes of the event instead.
    fn extract(cx: &Context) -> Result<Self, Outcome>;
}

/// The payload, read as JSON. One that cannot be read makes the event dead.
#[derive(Clone, Debug)]
pub struct Json<T>(pub T);

/// The payload, read as Protocol Buffers. One that cannot be read makes the event dead.
#[derive(Clone, Debug)]
pub struct Proto<T>(pub T);

/// The payload as it is.
#[derive(Clone, Debug)]
pub struct Raw(pub Bytes);

/// What the worker was given with `.state(value)`.
#[derive(Debug)]
pub struct State<T>(pub Arc<T>);

impl<T: DeserializeOwned + Send> Extract for Json<T> {
    fn extract(cx: &Context) -> Result<Json<T>, Outcome> {
        serde_json::from_slice(&cx.event().payload).map(Json).map_err(|error| {
            Outcome::dead(format!("the payload is not the JSON that the handler expects: {error}"))
        })
    }
}

impl<T: prost::Message + Default> Extract for Proto<T> {
    fn extract(cx: &Context) -> Result<Proto<T>, Outcome> {
        T::decode(cx.event().payload.clone()).map(Proto).map_err(|error| {
            Outcome::dead(format!("the payload is not the message that the handler expects: {error}"))
        })
    }
}

impl Extract for Raw {
    fn extract(cx: &Context) -> Result<Raw, Outcome> {
        Ok(Raw(cx.event().payload.clone()))
    }
}

impl Extract for StoredEvent {
    fn extract(cx: &Context) -> Result<StoredEvent, Outcome> {
        Ok(cx.event().clone())
    }
}

impl Extract for Context {
    fn extract(cx: &Context) -> Result<Context, Outcome> {
        Ok(cx.clone())
    }
}

impl<T: Send + Sync + 'static> Extract for State<T> {
    fn extract(cx: &Context) -> Result<State<T>, Outcome> {
        cx.find_state().map(State).ok_or_else(|| Outcome::retry(missing_state::<T>()))
    }
}

impl<T> Deref for Json<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Deref for Proto<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Deref for State<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A result of a handler.
pub trait IntoOutcome {
    /// What it says of the event.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

/// An error is a failure: the retry policy decides what follows.
impl<T: IntoOutcome, E: Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => Outcome::retry(error.to_string()),
        }
    }
}

/// A function that handles one event: `async fn(..)` or a closure that gives a future, with up to four arguments that are
/// [`Extract`] and a result that is [`IntoOutcome`]. `Args` only tells the arities apart.
pub trait Handler<Args>: Send + Sync + 'static {
    /// Starts on the event.
    fn call(&self, cx: Context) -> BoxFuture<'static, Outcome>;
}

macro_rules! handler {
    ($($arg:ident $value:ident),*) => {
        impl<F, Fut, $($arg),*> Handler<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Fut + Send + Sync + 'static,
            Fut: Future + Send + 'static,
            Fut::Output: IntoOutcome,
            $($arg: Extract + 'static,)*
        {
            fn call(&self, cx: Context) -> BoxFuture<'static, Outcome> {
                $(
                    let $value = match $arg::extract(&cx) {
                        Ok(value) => value,
                        Err(outcome) => return Box::pin(std::future::ready(outcome)),
                    };
                )*
                drop(cx);
                let future = self($($value),*);
                Box::pin(async move { future.await.into_outcome() })
            }
        }
    };
}

handler!();
handler!(A a);
handler!(A a, B b);
handler!(A a, B b, C c);
handler!(A a, B b, C c, D d);

/// Events of one type that are handled together. In ordered subscriptions no two of them have the same key.
#[derive(Debug)]
pub struct Batch {
    /// One context per event.
    pub items: Vec<Context>,
}

/// What a batch handler says: one outcome for each event in order, or one for all.
pub trait IntoOutcomes {
    /// One outcome for each of `count` events.
    fn into_outcomes(self, count: usize) -> Vec<Outcome>;
}

impl IntoOutcomes for () {
    fn into_outcomes(self, count: usize) -> Vec<Outcome> {
        vec![Outcome::Done; count]
    }
}

/// Events without an answer are retried: a handler that forgets one must not lose it.
impl IntoOutcomes for Vec<Outcome> {
    fn into_outcomes(mut self, count: usize) -> Vec<Outcome> {
        self.resize(count, Outcome::retry("the batch handler gave no outcome for this event"));
        self
    }
}

impl<T: IntoOutcomes, E: Display> IntoOutcomes for Result<T, E> {
    fn into_outcomes(self, count: usize) -> Vec<Outcome> {
        match self {
            Ok(value) => value.into_outcomes(count),
            Err(error) => vec![Outcome::retry(error.to_string()); count],
        }
    }
}

pub(crate) type BatchFn = dyn Fn(Batch) -> BoxFuture<'static, Vec<Outcome>> + Send + Sync;
pub(crate) type OneFn = dyn Fn(Context) -> BoxFuture<'static, Outcome> + Send + Sync;

/// What runs events of one type.
#[derive(Clone)]
pub(crate) enum Bound {
    One(Arc<OneFn>),
    Batch { max: usize, handle: Arc<BatchFn> },
}

impl Bound {
    pub(crate) fn one<Args>(handler: impl Handler<Args>) -> Bound {
        Bound::One(Arc::new(move |cx| handler.call(cx)))
    }

    pub(crate) fn batch<F, Fut>(max: usize, handler: F) -> Bound
    where
        F: Fn(Batch) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcomes,
    {
        let handle = move |batch: Batch| -> BoxFuture<'static, Vec<Outcome>> {
            let count = batch.items.len();
            let future = handler(batch);
            Box::pin(async move { future.await.into_outcomes(count) })
        };
        Bound::Batch { max: max.max(1), handle: Arc::new(handle) }
    }

    /// How many events it takes at once.
    pub(crate) fn max(&self) -> usize {
        match self {
            Bound::One(_) => 1,
            Bound::Batch { max, .. } => *max,
        }
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "handler of up to {}", self.max())
    }
}

/// The handlers of a worker, by event type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<String, Bound>,
    any: Option<Bound>,
}

impl Handlers {
    pub(crate) fn put(&mut self, kind: impl Into<String>, bound: Bound) {
        self.by_kind.insert(kind.into(), bound);
    }

    pub(crate) fn put_any(&mut self, bound: Bound) {
        self.any = Some(bound);
    }

    pub(crate) fn find(&self, kind: &str) -> Option<&Bound> {
        self.by_kind.get(kind).or(self.any.as_ref())
    }

    /// The most events that one handler may take at once.
    pub(crate) fn largest_batch(&self) -> usize {
        self.by_kind.values().chain(&self.any).map(Bound::max).max().unwrap_or(1)
    }

    /// How many events of a type may be run together.
    pub(crate) fn most_at_once(&self, kind: &str) -> usize {
        self.find(kind).map_or(1, Bound::max)
    }
}

//! The place that a request has among those that are worked on, and the body of one, which holds no place while it is on its way.

use axum::body::{Body, Bytes, HttpBody};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a request whose body has come waits for a place. Long enough for a crowd to pass, too short to gather another one.
const PATIENCE: Duration = Duration::from_secs(5);

/// The place of a request. One that only waits may leave it.
#[derive(Clone)]
pub(crate) struct Slot(Arc<Inner>);

struct Inner {
    places: Arc<Semaphore>,
    taken: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Slot {
    /// A place, if one is free.
    pub(crate) fn take(places: &Arc<Semaphore>) -> Option<Slot> {
        let permit = places.clone().try_acquire_owned().ok()?;
        Some(Slot(Arc::new(Inner { places: places.clone(), taken: Mutex::new(Some(permit)) })))
    }

    pub(crate) fn leave(&self) {
        self.taken().take();
    }

    /// A place again, if one is free.
    fn take_now(&self) -> bool {
        let permit = self.0.places.clone().try_acquire_owned().ok();
        let is_taken = permit.is_some();
        *self.taken() = permit;
        is_taken
    }

    /// A place again, when one is free; false if there was none for too long.
    fn take_again(&self) -> BoxFuture<'static, bool> {
        let slot = self.clone();
        async move {
            let waiting = slot.0.places.clone().acquire_owned();
            let permit = tokio::time::timeout(PATIENCE, waiting).await.ok().and_then(Result::ok);
            let is_taken = permit.is_some();
            *slot.taken() = permit;
            is_taken
        }
        .boxed()
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body whose request leaves its place while it waits for bytes: those who send slowly must not keep out those who do not.
pub(crate) struct Coming {
    body: Body,
    slot: Slot,
    /// What has come, and waits for a place.
    come: Option<Come>,
    has_left: bool,
}

struct Come {
    frame: Option<Result<Frame<Bytes>, axum::Error>>,
    place: BoxFuture<'static, bool>,
}

/// There was no place for too long.
#[derive(Debug)]
struct NoPlace;

impl Coming {
    /// What has come already stays as it is.
    pub(crate) fn wrap(body: Body, slot: &Slot) -> Body {
        if body.is_end_stream() {
            return body;
        }
        Body::new(Coming { body, slot: slot.clone(), come: None, has_left: false })
    }
}

/// True if a body could not be read on because there was no place for its request.
pub(crate) fn lacks_place(error: &axum::Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source()).any(|error| error.is::<NoPlace>())
}

impl HttpBody for Coming {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.come.is_none() {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                if !self.has_left {
                    self.slot.leave();
                    self.has_left = true;
                }
                return Poll::Pending;
            };
            if !self.has_left || self.slot.take_now() {
                self.has_left = false;
                return Poll::Ready(frame);
            }
            let place = self.slot.take_again();
            self.come = Some(Come { frame, place });
        }
        let Some(come) = &mut self.come else { return Poll::Pending };
        let is_taken = ready!(come.place.poll_unpin(cx));
        let frame = come.frame.take();
        self.come = None;
        if !is_taken {
            return Poll::Ready(Some(Err(axum::Error::new(NoPlace))));
        }
        self.has_left = false;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.come.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.body)
    }
}

impl std::fmt::Display for NoPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("there is no place for the request")
    }
}

impl std::error::Error for NoPlace {}

//! Events on their way to a client: whoever leaves before they are written gives them back, uncounted.

use crate::http::app::{App, Shared};
use crate::http::json::json_response;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tramline::store::verbs::Claimed;
use tramline::{Lease, Subscription, SubscriptionId, Take};

/// Claimed events. Dropped before [`Given::answer`] has been sent, they are free again at once.
pub(crate) struct Given {
    claimed: Claimed,
    back: GiveBack,
}

impl Given {
    /// Takes events, and waits for them if there are none. The claim runs in a task of its own: neither a client that leaves in the
    /// middle of it nor one that is told that the store is too slow may leave events behind that nobody knows of. What the claim
    /// brings after that is given back.
    pub(crate) async fn take(
        app: &Shared,
        subscription: &Subscription,
        take: Take,
        wait: Duration,
    ) -> Answer<Given> {
        let gone = CancellationToken::new();
        let _left = gone.clone().drop_guard();
        let (tell, answer) = oneshot::channel();
        let task = claim(app.clone(), subscription.name.clone(), take, wait, gone);
        tokio::spawn(async move {
            // Nobody there: what is sent comes back, and is given back as it is dropped.
            drop(tell.send(task.await));
        });
        let limit = app.config.store_timeout() + wait;
        let answer = tokio::time::timeout(limit, answer).await.map_err(|_| {
            let detail = "the store did not answer in time";
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                detail,
                "try again; what is still claimed is given back",
            )
        })?;
        answer.map_err(|_| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the claim was abandoned", "try again")
        })?
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claimed.slices.is_empty()
    }

    /// The answer, as `write` writes it.
    pub(crate) fn answer(self, write: impl Fn(&Claimed) -> Answer<Vec<u8>>) -> Answer<Response> {
        let bytes = write(&self.claimed)?;
        let mut response = json_response(StatusCode::OK, Vec::new());
        response.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
        *response.body_mut() = Body::new(Sent { bytes: Some(bytes.into()), back: self.back });
        Ok(response)
    }
}

async fn claim(
    app: Shared,
    name: Arc<str>,
    take: Take,
    wait: Duration,
    gone: CancellationToken,
) -> Answer<Given> {
    let started = tokio::time::Instant::now();
    let give_up = async {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = app.draining.cancelled() => {}
            () = gone.cancelled() => {}
        }
    };
    let claimed = app.tram.take(&take, give_up).await?;
    let leases = claimed.slices.iter().map(|slice| slice.lease).collect();
    app.metrics.claimed(&name, &claimed, started.elapsed());
    Ok(Given { claimed, back: GiveBack { app: app.clone(), subscription: take.subscription, leases } })
}

/// Gives leases back when it is dropped, unless they were taken out.
struct GiveBack {
    app: Arc<App>,
    subscription: SubscriptionId,
    leases: Vec<Lease>,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        if leases.is_empty() {
            return;
        }
        let (app, subscription) = (self.app.clone(), self.subscription);
        tokio::spawn(async move {
            if let Err(error) = app.tram.release(subscription, leases).await {
                tracing::debug!(error = %error, "events could not be given back; they are free when their lease ends");
            }
        });
    }
}

/// A body that knows whether it was taken to be sent.
struct Sent {
    bytes: Option<Bytes>,
    back: GiveBack,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.back.leases.clear();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

//! Following a topic by server-sent events: what is stored, then what comes, until the client leaves or the server drains.

use crate::http::app::{App, Shared};
use crate::http::events::{Begin, READ};
use crate::http::json::EventOut;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tramline::{Follow, StoredEvent};

/// A comment this often keeps the way open, and shows who has left.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long to wait for a store that is away.
const AGAIN: Duration = Duration::from_secs(1);
/// About how much is sent at once.
const ENOUGH: usize = 64 << 10;

/// What is followed.
pub(crate) struct Followed {
    pub(crate) topic: String,
    pub(crate) begin: Begin,
    /// Only events of this key.
    pub(crate) key: Option<String>,
}

/// Starts to follow. `headers` say who does.
pub(crate) async fn follow(app: Shared, which: Followed, headers: &HeaderMap) -> Answer<Response> {
    let Followed { topic, begin, key } = which;
    let seat = app.followers.clone().try_acquire_owned().map_err(|_| {
        let detail = "too many clients follow topics";
        Problem::new(StatusCode::TOO_MANY_REQUESTS, detail, "try again later, or raise max_followers")
    })?;
    // An unknown topic is told now, while there is still a status to send.
    let (after, first) = match begin {
        Begin::Event(after) => {
            app.ask(app.tram.read_log(&topic, after, 1)).await?;
            (after, None)
        }
        Begin::Now => {
            let end = app.ask(app.tram.log_end(&topic)).await?;
            // Who is cut off before the first event comes back with this id, and misses nothing either.
            (end, Some(format!("id: {end}\n\n").into()))
        }
    };
    let follower = Follower { headers: headers.clone(), topic: topic.clone() };
    let events = app.tram.follow(topic, after);
    let following = Following { events, app, follower, key, first, _seat: seat };
    let stream = futures_util::stream::unfold(following, |mut following| async move {
        following.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), following))
    });
    let mut response = Body::from_stream(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Who follows, and what. A stream lasts longer than a token may.
struct Follower {
    headers: HeaderMap,
    topic: String,
}

impl Follower {
    /// False once the token was dropped, has expired, or may no longer read the topic.
    fn may_go_on(&self, app: &App) -> bool {
        let caller = app.access.known_caller(&self.headers).ok().flatten();
        caller.is_some_and(|caller| caller.topic(READ, &self.topic).is_ok())
    }
}

struct Following {
    app: Arc<App>,
    events: Follow,
    follower: Follower,
    key: Option<String>,
    /// What is sent before all events.
    first: Option<Bytes>,
    _seat: OwnedSemaphorePermit,
}

impl Following {
    /// What is sent next; `None` when the server drains, the topic is gone, or the client has to come back by itself. Whether it may
    /// go on is asked again before anything is sent, and so at least at every heartbeat.
    async fn next(&mut self) -> Option<Bytes> {
        self.come().await.filter(|_| self.follower.may_go_on(&self.app))
    }

    async fn come(&mut self) -> Option<Bytes> {
        if self.first.is_some() {
            return self.first.take();
        }
        loop {
            let event = tokio::select! {
                () = self.app.draining.cancelled() => return None,
                () = tokio::time::sleep(HEARTBEAT) => return Some(Bytes::from_static(b": still here\n\n")),
                event = self.events.next() => event,
            };
            match event {
                Ok(event) => {
                    let mut text = String::new();
                    self.write(&event, &mut text);
                    self.write_what_is_there(&mut text).await;
                    if !text.is_empty() {
                        return Some(text.into());
                    }
                }
                Err(error) if error.kind() == tramline::Kind::Unavailable => {
                    tracing::debug!(error = %error, "a follower waits for the store");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(_) => return None,
            }
        }
    }

    async fn write_what_is_there(&mut self, text: &mut String) {
        while text.len() < ENOUGH {
            match self.events.next_now().await {
                Ok(Some(event)) => self.write(&event, text),
                _ => return,
            }
        }
    }

    fn write(&self, event: &StoredEvent, text: &mut String) {
        if self.key.is_some() && event.key.as_deref() != self.key.as_deref() {
            return;
        }
        if let Ok(json) = serde_json::to_string(&EventOut::new(event)) {
            // A payload may hold line ends between its tokens, where any blank means the same.
            let line = json.replace(['\n', '\r'], " ");
            text.push_str(&format!("id: {}\ndata: {line}\n\n", event.id));
        }
    }
}

//! Handlers as plug-ins: objects that can be chosen at run time, by a configuration for example.
//!
//! Two are here, an HTTP forward and a shell command (see [`ShellCommand`]). Mail or chat are built in the same way.

use crate::engine::command::ShellCommand;
use crate::engine::context::Context;
use crate::engine::handler::Bound;
use crate::engine::trace;
use crate::error::{Error, Result};
use crate::model::event::{Headers, StoredEvent};
use crate::model::outcome::Outcome;
use crate::model::trace::context_of;
use crate::push::retry_after::retry_after;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// Handles events.
#[async_trait]
pub trait Plugin: Send + Sync + std::fmt::Debug {
    /// Handles one event. The future may be dropped at any time.
    async fn handle(&self, event: &StoredEvent, cx: &Context) -> Outcome;
}

impl Bound {
    pub(crate) fn plugin(plugin: Arc<dyn Plugin>) -> Bound {
        Bound::one(move |cx: Context| {
            let plugin = plugin.clone();
            async move { plugin.handle(cx.event(), &cx).await }
        })
    }
}

/// Posts the payload to a URL; the rest of the event is in headers `tramline-*`. 2xx is done; 429 and 503 with `Retry-After` are
/// snoozed for as long as they ask; everything else is a failure. Redirects are not followed.
///
/// It calls whatever address it is given; do not let strangers choose it.
#[derive(Clone, Debug)]
pub struct HttpForward {
    client: reqwest::Client,
    url: reqwest::Url,
}

impl HttpForward {
    /// Forwards to `url`, with at most `timeout` for each request.
    ///
    /// # Errors
    /// `Invalid` when the URL is not one.
    pub fn new(url: &str, timeout: Duration) -> Result<HttpForward> {
        let url = url.parse().map_err(|error| {
            Error::invalid(format!("{url:?} is not a URL"), "use http:// or https:// and a host")
                .because(error)
        })?;
        crate::tls::prepare();
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| {
                Error::unavailable("no HTTP client could be made", "check the TLS set-up").because(error)
            })?;
        Ok(HttpForward { client, url })
    }
}

#[async_trait]
impl Plugin for HttpForward {
    async fn handle(&self, event: &StoredEvent, cx: &Context) -> Outcome {
        let mut request = self.client.post(self.url.clone()).header("content-type", &*event.content_type);
        for (name, value) in metadata(event, cx) {
            request = request.header(format!("tramline-{}", name.replace('_', "-")), header_value(&value));
        }
        for (name, value) in carried(event, cx) {
            request = request.header(name, value);
        }
        match request.body(event.payload.clone()).send().await {
            Ok(response) => judge(response.status(), response.headers()),
            Err(error) => Outcome::retry(error.without_url().to_string()),
        }
    }
}

/// The trace context of the handler, or the event's own.
fn carried(event: &StoredEvent, cx: &Context) -> Headers {
    let context = trace::current(cx.tramline().traces());
    if context.is_empty() { context_of(&event.headers) } else { context }
}

fn judge(status: reqwest::StatusCode, headers: &reqwest::header::HeaderMap) -> Outcome {
    if status.is_success() {
        return Outcome::Done;
    }
    match (status.as_u16(), retry_after(headers)) {
        (429 | 503, Some(delay)) => Outcome::Snooze { delay },
        _ => Outcome::retry(format!("the receiver answered {status}")),
    }
}

/// Keys and headers may hold anything; what HTTP does not allow is percent-encoded.
fn header_value(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

#[async_trait]
impl Plugin for ShellCommand {
    async fn handle(&self, event: &StoredEvent, cx: &Context) -> Outcome {
        let ended = self.execute(&event.payload, &metadata(event, cx), cx.cancelled()).await;
        ended.unwrap_or_else(|| Outcome::retry("cancelled"))
    }
}

/// What is known of an event beside its payload: name and value.
fn metadata(event: &StoredEvent, cx: &Context) -> Vec<(String, String)> {
    let ids =
        |ids: &[crate::model::id::EventId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut all = vec![
        ("event_id".to_owned(), event.id.to_string()),
        ("topic".to_owned(), event.topic.to_string()),
        ("type".to_owned(), event.kind.to_string()),
        ("subscription".to_owned(), cx.subscription().to_owned()),
        ("attempt".to_owned(), cx.attempt().to_string()),
        ("emitted_at".to_owned(), event.emitted_at.0.to_string()),
        ("content_type".to_owned(), event.content_type.to_string()),
    ];
    all.extend(event.key.as_ref().map(|key| ("key".to_owned(), key.to_string())));
    all.extend(event.prev.map(|prev| ("prev".to_owned(), prev.to_string())));
    if !cx.skipped().is_empty() {
        all.push(("skipped".to_owned(), ids(cx.skipped())));
    }
    if cx.is_replayed() {
        all.push(("replayed".to_owned(), "true".to_owned()));
    }
    let word = |name: &str| {
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect::<String>()
    };
    all.extend(event.headers.iter().map(|(name, value)| (format!("header_{}", word(name)), value.clone())));
    all
}

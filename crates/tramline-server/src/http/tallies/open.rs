//! POST /v1/tallies: opens a tally.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::emit::{delay_of, text};
use crate::http::json::{Json, Object};
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::number::Number;
use crate::http::tallies::standing::ItemOut;
use crate::http::tallies::{FILL, access};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tramline::model::event::JSON;
use tramline::model::name;
use tramline::model::tally::new::MAX_USER_KEY;
use tramline::{Event, Headers, NewTally, Parent, Scope, TallyItem};
use utoipa::ToSchema;

/// A tally to open. Nothing is required.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenIn {
    /// Your own name for it: echoed, and to be found by. Need not be unique
    #[schema(min_length = 1, max_length = 255)]
    user_key: Option<String>,
    /// Anything worth keeping with it, up to 16 KiB
    metadata: Option<Value>,
    /// The topic to which it belongs: tokens that are limited to topics see it by this
    topic: Option<String>,
    /// It may grow after it is sealed, from inside its own unfinished items
    #[serde(default)]
    growing: bool,
    /// A plain counter without items
    #[serde(default)]
    estimated: bool,
    /// Unless it is complete by then, it expires this long after it is opened
    #[schema(minimum = 1)]
    expires_ms: Option<u64>,
    /// Emitted exactly once, when it is complete
    #[schema(value_type = Option<NewsIn>)]
    on_complete: Option<Object<NewsIn>>,
    /// Emitted exactly once, when the first item fails
    #[schema(value_type = Option<NewsIn>)]
    on_failure: Option<Object<NewsIn>>,
    /// Emitted exactly once, when it expires
    #[schema(value_type = Option<NewsIn>)]
    on_expiry: Option<Object<NewsIn>>,
    /// The item of another tally that it stands for
    #[schema(value_type = Option<ParentIn>)]
    parent: Option<Object<ParentIn>>,
}

/// An event that is emitted by itself, when it is time.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewsIn {
    pub(crate) topic: String,
    /// Any JSON up to 64 KiB; null unless set
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) payload: Option<Box<RawValue>>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) key: Option<String>,
    #[serde(default)]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub(crate) headers: Headers,
    /// Not before this long after it is stored
    pub(crate) delay_ms: Option<u64>,
    /// From 0 (first) to 9 (last); 5 unless set
    #[schema(maximum = 9)]
    pub(crate) priority: Option<u8>,
}

/// An item of another tally.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ParentIn {
    id: Number,
    /// One that was added before; left out, one is added now
    item: Option<u64>,
}

/// An open tally.
#[derive(Serialize, ToSchema)]
pub(crate) struct OpenedOut {
    tally: Number,
    /// The item of another tally that it stands for
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<ItemOut>,
    /// True if the idempotency key was known: this is the tally that was opened then
    repeated: bool,
}

/// Opens a tally. The events that it shall emit by itself need the scope `publish` in their topics.
#[utoipa::path(post, path = "/v1/tallies", tag = "tallies", request_body = OpenIn,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same tally, as long as it exists",
        nullable = false, min_length = 1, max_length = 255)),
    responses((status = 201, description = "Opened", body = OpenedOut),
        (status = 404, description = "There is no such parent"),
        (status = 409, description = "The idempotency key was used for another tally; the parent takes no items; or its item has ended, is an event, or has \
            another tally that stands for it")),
    security(("token" = ["publish"]), ("token" = ["manage"])))]
pub(crate) async fn open(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(FILL)?;
    let body = app.read(&headers, body).await?;
    let open: OpenIn = body::parse(&body)?;
    open.check_access(&app, &caller).await?;
    let tally = open.tally(text(&headers, "idempotency-key")?)?;
    let opened = app.ask(app.tram.tallies().open(tally)).await?;
    let parent = opened.parent.map(ItemOut::from);
    let told = OpenedOut { tally: Number(opened.id), parent, repeated: opened.repeated };
    Ok(Json(StatusCode::CREATED, told).into_response())
}

impl OpenIn {
    async fn check_access(&self, app: &App, caller: &Caller) -> Answer<()> {
        match &self.topic {
            Some(topic) => caller.topic(FILL, topic)?,
            None if caller.sees_all_topics() => {}
            None => {
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "the token is limited to some topics, and would not see a tally that belongs to none",
                    "name one of them as the `topic` of the tally",
                ));
            }
        }
        for Object(news) in [&self.on_complete, &self.on_failure, &self.on_expiry].into_iter().flatten() {
            caller.topic(&[Scope::Publish], &news.topic)?;
        }
        match &self.parent {
            Some(Object(parent)) => access::check(app, caller, FILL, parent.id.0).await,
            None => Ok(()),
        }
    }

    fn tally(self, idempotency_key: Option<&str>) -> Answer<NewTally> {
        let mut tally = NewTally::new();
        if let Some(key) = idempotency_key {
            tally = tally.idempotency_key(scoped(self.topic.as_deref(), key));
        }
        if let Some(topic) = self.topic {
            name::check("topic", &topic)?;
            tally = tally.topic(topic);
        }
        if let Some(key) = self.user_key {
            check_user_key(&key)?;
            tally = tally.user_key(key);
        }
        if let Some(metadata) = self.metadata {
            tally = tally.metadata(metadata);
        }
        if let Some(millis) = self.expires_ms {
            tally = tally.expires_in(delay_of(check_expiry(millis)?)?);
        }
        if let Some(Object(news)) = self.on_complete {
            tally = tally.on_complete(news.event()?);
        }
        if let Some(Object(news)) = self.on_failure {
            tally = tally.on_failure(news.event()?);
        }
        if let Some(Object(news)) = self.on_expiry {
            tally = tally.on_expiry(news.event()?);
        }
        if let Some(Object(parent)) = self.parent {
            tally = tally.parent(parent.parent());
        }
        if self.growing {
            tally = tally.growing();
        }
        if self.estimated {
            tally = tally.estimated();
        }
        Ok(tally)
    }
}

fn check_user_key(key: &str) -> Answer<()> {
    if (1..=MAX_USER_KEY).contains(&key.chars().count()) {
        return Ok(());
    }
    Err(Problem::invalid("the user key is empty or has more than 255 characters", "use another, or none"))
}

fn check_expiry(millis: u64) -> Answer<u64> {
    if millis > 0 {
        return Ok(millis);
    }
    Err(Problem::invalid("the tally would expire at once", "set expires_ms to at least 1, or leave it out"))
}

/// Tenants do not share idempotency keys: one belongs to the topic of its tally. What the library refuses anyway stays as it is.
fn scoped(topic: Option<&str>, key: &str) -> String {
    match topic {
        Some(topic) if (1..=255).contains(&key.chars().count()) => {
            let digest = Sha256::new().chain_update(topic).chain_update([0]).chain_update(key).finalize();
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        }
        _ => key.to_owned(),
    }
}

impl NewsIn {
    pub(crate) fn event(self) -> Answer<Event> {
        let payload = self.payload.map_or_else(|| "null".to_owned(), |payload| payload.get().to_owned());
        let mut event = Event::new(self.topic, payload).content_type(JSON);
        if let Some(kind) = self.kind {
            event = event.kind(kind);
        }
        if let Some(key) = self.key {
            event = event.key(key);
        }
        for (name, value) in self.headers {
            event = event.header(name, value);
        }
        if let Some(millis) = self.delay_ms {
            event = event.delay(delay_of(millis)?);
        }
        if let Some(priority) = self.priority {
            event = event.priority(priority);
        }
        Ok(event)
    }
}

impl ParentIn {
    fn parent(self) -> Parent {
        match self.item {
            Some(number) => Parent::Item(TallyItem { tally: self.id.0, number }),
            None => Parent::New(self.id.0),
        }
    }
}

//! Errors as clients see them: `application/problem+json`, mapped from the library's errors in one place.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use tramline::{Error, Kind};
use utoipa::ToSchema;

/// A result whose error is an answer.
pub(crate) type Answer<T> = Result<T, Problem>;

/// What went wrong, and what to do about it. Boxed, because most results hold none.
#[derive(Debug)]
pub(crate) struct Problem(Box<Told>);

/// A problem as it is told.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Told {
    /// A name for the kind of problem, as a URI
    #[serde(rename = "type")]
    kind: String,
    /// The kind of problem in words
    title: &'static str,
    /// The HTTP status
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16)]
    status: StatusCode,
    /// What happened
    detail: String,
    /// What to do about it
    remedy: String,
    /// Streams: the line at fault, from 1; nothing of its group is stored
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// Streams: how many events were stored before that group
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<u64>,
    /// What else a caller has to know
    #[serde(flatten)]
    #[schema(ignore)]
    more: Map<String, Value>,
    #[serde(skip)]
    retry_after: Option<u32>,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        let kind = format!("urn:tramline:problem:{}", title.to_ascii_lowercase().replace(' ', "-"));
        let (detail, remedy) = (detail.into(), remedy.into());
        let busy = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        {
            let retry_after = busy.then_some(1);
            Problem(Box::new(Told {
                kind,
                title,
                status,
                detail,
                remedy,
                line: None,
                stored: None,
                more: Map::new(),
                retry_after,
            }))
        }
    }

    /// Not even well-formed.
    pub(crate) fn malformed(detail: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail, remedy)
    }

    /// Well-formed, but it can never succeed.
    pub(crate) fn invalid(detail: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail, remedy)
    }

    /// Nothing has that name.
    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, detail, "check the spelling; lists show what there is")
    }

    /// No place for one more request.
    pub(crate) fn busy() -> Problem {
        let detail = "the server has too much to do";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail, "try again in a moment")
    }

    /// More than a limit allows.
    pub(crate) fn too_large(most: usize) -> Problem {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {most} bytes"),
            "send less at once, send it as application/x-ndjson, or store it elsewhere and emit a reference",
        )
    }

    /// In a stream: where it stopped, and how much is stored.
    pub(crate) fn at_line(mut self, line: u64, stored: u64) -> Problem {
        self.0.line = Some(line);
        self.0.stored = Some(stored);
        self
    }

    /// With fields of its own, beside those that every problem has.
    pub(crate) fn with(mut self, more: Map<String, Value>) -> Problem {
        self.0.more = more;
        self
    }

    /// The same under another status.
    pub(crate) fn with_status(self, status: StatusCode) -> Problem {
        Problem::new(status, self.0.detail, self.0.remedy)
    }

    /// The same with another remedy.
    pub(crate) fn with_remedy(self, remedy: &'static str) -> Problem {
        Problem::new(self.0.status, self.0.detail, remedy)
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    /// What happened.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let status = match error.kind() {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Conflict | Kind::Changed | Kind::LeaseLost => StatusCode::CONFLICT,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            tracing::warn!(error = %error, "the store did not answer a request");
        }
        Problem::new(status, error.message(), error.remedy())
    }
}

/// A problem in one line, beside its answer: for APIs whose clients expect plain text.
#[derive(Clone)]
pub(crate) struct InWords(pub(crate) String);

/// JSON that cannot be read: malformed, or not what was asked for.
impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Problem {
        if error.is_data() {
            return Problem::invalid(
                format!("the JSON does not fit: {}", in_words(error.to_string())),
                "compare it with /v1/openapi.json",
            );
        }
        Problem::malformed(format!("this is not JSON: {error}"), "send well-formed JSON in UTF-8")
    }
}

/// What a program in any language is told instead of how this one keeps numbers.
fn in_words(error: String) -> String {
    ["u8", "u16", "u32", "u64", "i64"].iter().fold(error, |error, kind| {
        error.replace(&format!("expected {kind} at"), "expected a whole number within its limits at")
    })
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = (self.0.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tramline\""));
        }
        response.extensions_mut().insert(InWords(format!("{}; {}", self.0.detail, self.0.remedy)));
        response
    }
}

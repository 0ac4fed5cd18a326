//! Answers that say no: plain text, as Routemaster's clients log it, and the statuses that they know.

use crate::http::problem::{InWords, Problem};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A problem in a few words. Everything else passes.
pub(super) async fn in_words(mut response: Response) -> Response {
    let Some(InWords(words)) = response.extensions_mut().remove::<InWords>() else { return response };
    let status = known(response.status());
    let retry_after = response.headers_mut().remove(header::RETRY_AFTER);
    let mut told = (status, words).into_response();
    if let Some(seconds) = retry_after {
        told.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    if status == StatusCode::UNAUTHORIZED {
        told.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
    }
    told
}

/// Routemaster tells no difference between what is malformed and what can never be.
fn known(status: StatusCode) -> StatusCode {
    match status {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT => StatusCode::BAD_REQUEST,
        status => status,
    }
}

/// The caller has a token of the wrong kind, or none.
pub(super) fn needs(token: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        format!("this endpoint requires authentication with {token}"),
        "send it as the user name of Basic authentication",
    )
}

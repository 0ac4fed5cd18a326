//! What became of each of many, and the one status that a response has.

use crate::http::json::Json;
use crate::http::problem::Problem;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

/// Why one of many was not taken.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl Refused {
    /// It is not even the name of an item.
    pub(super) fn no_item(id: &Value) -> Refused {
        Refused::malformed(format!("{} names nothing of this batch", shown(id)))
    }

    /// It is not even the name of a batch.
    pub(super) fn no_batch(id: &Value) -> Refused {
        Refused::malformed(format!("{} is not the id of an estimated batch, a UUID", shown(id)))
    }

    /// It is not a number to count the batch by.
    pub(super) fn no_count(by: &Value, batch: &Value) -> Refused {
        let (by, batch) = (shown(by), shown(batch));
        Refused::malformed(format!("`by` of the batch {batch} is {by}, and not a number from 1 to 2^40"))
    }

    fn malformed(detail: String) -> Refused {
        Refused { status: StatusCode::BAD_REQUEST, detail }
    }

    pub(super) fn unknown() -> Refused {
        Refused { status: StatusCode::NOT_FOUND, detail: "there is no such batch".to_owned() }
    }

    /// The batch was given up.
    pub(super) fn closed() -> Refused {
        let detail = "the batch was cancelled or has expired".to_owned();
        Refused { status: StatusCode::CONFLICT, detail }
    }
}

/// What somebody sent, as JSON and not all of it if it is long.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// The answer for all of them. One that is malformed makes it 400, so that nobody takes it for done; those that cannot be found
/// are told one by one, unless there is nothing else. Whatever the status is, the body says what became of the others.
pub(super) fn answer<T: Serialize>(refused: &[Option<Refused>], body: T) -> Response {
    let Some(worst) = worst(refused) else { return Json(StatusCode::OK, body).into_response() };
    let remedy = "what was not named here was taken; correct this one and send it again";
    let problem = Problem::new(worst.status, worst.detail.clone(), remedy);
    match serde_json::to_value(body) {
        Ok(Value::Object(fields)) => problem.with(fields).into_response(),
        _ => problem.with(Map::new()).into_response(),
    }
}

fn worst(refused: &[Option<Refused>]) -> Option<&Refused> {
    let named = || refused.iter().flatten();
    let malformed = named().find(|one| one.status == StatusCode::BAD_REQUEST);
    malformed.or_else(|| named().next().filter(|_| refused.iter().all(Option::is_some)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_malformed_name_decides_and_unknown_ones_only_when_they_are_all_there_is() {
        let status = |refused: &[Option<Refused>]| worst(refused).map(|one| one.status.as_u16());
        let (malformed, unknown) = (Some(Refused::no_item(&"x".into())), Some(Refused::unknown()));
        assert_eq!(status(&[]), None);
        assert_eq!(status(&[None, unknown.clone()]), None);
        assert_eq!(status(&[unknown.clone(), unknown.clone()]), Some(404));
        assert_eq!(status(&[None, unknown, malformed]), Some(400));
    }
}

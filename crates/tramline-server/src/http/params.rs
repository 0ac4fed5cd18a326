//! What comes in the path and the query.

use crate::http::json::parse_id;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tramline::EventId;
use tramline::model::name;
use utoipa::IntoParams;

/// How long a list is unless its caller says otherwise, and at most.
const LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;

/// The one name in a path, decoded.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Name> {
        let found = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = found.map_err(|error| unreadable(&error))?;
        Ok(Name(name))
    }
}

/// The two names in a path, decoded.
pub(crate) struct Names(pub(crate) String, pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Names {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Names> {
        let found = Path::from_request_parts(parts, state).await;
        let Path((first, second)) = found.map_err(|error| unreadable(&error))?;
        Ok(Names(first, second))
    }
}

fn unreadable(error: &PathRejection) -> Problem {
    Problem::malformed(error.body_text(), "write names in UTF-8, with %2F for each / inside")
}

impl Name {
    /// The name, if it can be one of a topic or subscription.
    pub(crate) fn checked(self, what: &str) -> Answer<String> {
        name::check(what, &self.0)?;
        Ok(self.0)
    }

    /// The id of an event.
    pub(crate) fn id(&self) -> Answer<EventId> {
        parse_id(&self.0).map(|id| id.0).ok_or_else(|| {
            Problem::malformed("an event's id is a decimal number", "send the id as emit gave it")
        })
    }
}

/// The query.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Params<T>> {
        let Query(query) = Query::<T>::from_request_parts(parts, state).await.map_err(|error| {
            Problem::invalid(error.body_text(), "compare the query with /v1/openapi.json")
        })?;
        Ok(Params(query))
    }
}

/// Which page of a list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// At most this many entries; 100 unless set, never more than 1,000
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
    /// Entries after this one: the `next` of the page before
    after: Option<String>,
}

/// How much of a list that has no second page.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Newest {
    /// At most this many entries; 100 unless set, never more than 1,000
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
}

impl Newest {
    pub(crate) fn limit(&self) -> u32 {
        bounded(self.limit)
    }
}

/// Which page of a list of events.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct IdPage {
    /// At most this many entries; 100 unless set, never more than 1,000
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
    /// Entries after this event: the `next` of the page before
    #[param(pattern = "^[0-9]{0,19}$")]
    after: Option<String>,
}

impl IdPage {
    pub(crate) fn limit(&self) -> u32 {
        bounded(self.limit)
    }

    /// After which event.
    pub(crate) fn after(&self) -> Answer<EventId> {
        after_id(self.after.as_deref())
    }
}

impl Page {
    pub(crate) fn limit(&self) -> u32 {
        bounded(self.limit)
    }

    /// After which name.
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// One page of a complete list that is sorted by name, and what is `next`.
    pub(crate) fn cut<T>(&self, mut all: Vec<T>, name: impl Fn(&T) -> &str) -> (Vec<T>, Option<String>) {
        if let Some(after) = &self.after {
            all.retain(|item| name(item) > after.as_str());
        }
        let more = all.len() > self.limit() as usize;
        all.truncate(self.limit() as usize);
        let next = all.last().filter(|_| more).map(|last| name(last).to_owned());
        (all, next)
    }
}

/// A limit within bounds.
pub(crate) fn bounded(limit: Option<u32>) -> u32 {
    limit.unwrap_or(LIMIT).clamp(1, MAX_LIMIT)
}

/// The event in `after`; from the start if there is none.
pub(crate) fn after_id(after: Option<&str>) -> Answer<EventId> {
    match after {
        None | Some("") => Ok(EventId(0)),
        Some(text) => parse_id(text).map(|id| id.0).ok_or_else(|| {
            Problem::invalid("`after` is not an event's id", "send the id as a decimal number")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap_or_overlap() {
        let all = || vec!["a", "b", "c", "d", "e"];
        let mut page = Page { limit: Some(2), after: None };
        let mut seen = Vec::new();
        loop {
            let (items, next) = page.cut(all(), |item| item);
            seen.extend(items);
            match next {
                Some(next) => page.after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, all());
        assert_eq!(bounded(Some(u32::MAX)), MAX_LIMIT);
    }
}

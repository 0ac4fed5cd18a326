//! The number of a tally, as it is written.

use crate::http::json::parse_id;
use crate::http::problem::{Answer, Problem};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use tramline::TallyId;
use utoipa::ToSchema;

/// The number of a tally as a decimal string, like the ids of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, pattern = "^[0-9]{1,19}$", example = "7")]
pub(crate) struct Number(pub(crate) TallyId);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        parse(&text).ok_or_else(|| serde::de::Error::custom("a tally is a decimal number in a string"))
    }
}

/// The number in a text.
pub(crate) fn parse(text: &str) -> Option<Number> {
    parse_id(text).map(|id| Number(TallyId(id.0.0)))
}

/// The tally in a path.
pub(crate) struct InPath(pub(crate) TallyId);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<InPath> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let number = path.ok().and_then(|Path(text)| parse(&text));
        number.map(|number| InPath(number.0)).ok_or_else(|| {
            Problem::malformed("a tally is a decimal number", "send the number as opening it gave it")
        })
    }
}

//! Unique events: what an emit says of it.

use crate::http::emit::{number, text};
use crate::http::problem::{Answer, Problem};
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tramline::{Duplicates, Unique};
use utoipa::ToSchema;

/// What makes an event unique: of one topic and unique key at most one event is pending.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = Unique)]
#[serde(deny_unknown_fields)]
pub(crate) struct UniqueIn {
    #[schema(min_length = 1, max_length = 512, pattern = "^[^\\u0000]*$")]
    key: String,
    /// Also for this long after it is emitted, even if it is done by then
    #[schema(maximum = 2678400000_u64)]
    for_ms: Option<u64>,
    /// What becomes of it if another one is pending: `keep` (it is not stored) or `replace` (the other one gives way where nobody has
    /// claimed it); `keep` unless set
    policy: Option<Duplicates>,
}

impl UniqueIn {
    /// From the headers of raw bytes.
    pub(crate) fn in_headers(headers: &HeaderMap) -> Answer<Option<UniqueIn>> {
        let Some(key) = text(headers, "tramline-unique")?.map(str::to_owned) else { return Ok(None) };
        let policy = match text(headers, "tramline-unique-policy")? {
            None => None,
            Some("keep") => Some(Duplicates::Keep),
            Some("replace") => Some(Duplicates::Replace),
            Some(_) => {
                return Err(Problem::invalid(
                    "the header tramline-unique-policy is no policy",
                    "use keep or replace",
                ));
            }
        };
        Ok(Some(UniqueIn { key, for_ms: number(headers, "tramline-unique-for-ms")?, policy }))
    }
}

impl From<UniqueIn> for Unique {
    fn from(unique: UniqueIn) -> Unique {
        let window = Duration::from_millis(unique.for_ms.unwrap_or(0));
        Unique::new(unique.key).within(window).duplicates(unique.policy.unwrap_or_default())
    }
}

/// What makes the events of a schedule unique.
#[derive(Serialize, ToSchema)]
pub(crate) struct UniqueOut<'a> {
    key: &'a str,
    for_ms: u64,
    policy: Duplicates,
}

impl<'a> From<&'a Unique> for UniqueOut<'a> {
    fn from(unique: &'a Unique) -> UniqueOut<'a> {
        let for_ms = u64::try_from(unique.window().as_millis()).unwrap_or(u64::MAX);
        UniqueOut { key: unique.key(), for_ms, policy: unique.policy() }
    }
}

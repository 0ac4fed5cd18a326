//! Which dead events are meant, how fast they come back, and why they failed.

use crate::http::json::{Id, Object, When};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tramline::model::name;
use tramline::store::verbs::Which;
use tramline::{Failure, Letters, Pace, Place};
use utoipa::{IntoParams, ToSchema};

/// How many ids or keys one request names at most.
pub(crate) const MOST: usize = 10_000;
/// The longest text that is looked for in errors.
const MAX_TEXT: usize = 1_000;

/// Which dead events: `ids`, or `all`, or those of which everything else that is set is true.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichIn {
    #[schema(max_items = 10000)]
    ids: Option<Vec<Id>>,
    #[serde(default)]
    all: bool,
    /// Those of this topic
    #[schema(value_type = Option<schema::Name>)]
    topic: Option<String>,
    /// Those of this type
    r#type: Option<String>,
    /// Those of this key
    key: Option<String>,
    /// Those whose last error has this in it
    #[schema(max_length = 1000)]
    error: Option<String>,
    /// Those whose last error begins with this
    #[schema(max_length = 1000)]
    error_prefix: Option<String>,
    /// Those that died at or after this time
    since: Option<When>,
    /// Those that died before this time
    until: Option<When>,
    /// Replay only: so many in each period, evenly; all at once unless set
    #[schema(value_type = Option<PaceIn>)]
    rate: Option<Object<PaceIn>>,
    /// The `next` of the call before, to go on where that one ended. Everything else has to be the same
    after: Option<String>,
    /// Take no more than about so many in this call
    #[schema(minimum = 1)]
    limit: Option<u64>,
}

/// So many events in each period.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaceIn {
    #[schema(minimum = 1, maximum = 1000000)]
    events: u32,
    #[schema(minimum = 1, maximum = 86400000)]
    per_ms: u64,
}

/// Which dead events: those of which everything that is set is true.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ThoseIn {
    /// Those of this topic
    #[param(value_type = Option<schema::Name>)]
    topic: Option<String>,
    /// Those of this type
    r#type: Option<String>,
    /// Those of this key
    key: Option<String>,
    /// Those whose last error has this in it
    #[param(max_length = 1000)]
    error: Option<String>,
    /// Those whose last error begins with this
    #[param(max_length = 1000)]
    error_prefix: Option<String>,
    /// Those that died at or after this time
    since: Option<When>,
    /// Those that died before this time
    until: Option<When>,
}

impl ThoseIn {
    pub(crate) fn letters(self) -> Answer<Letters> {
        let letters = Letters {
            topic: self.topic,
            kind: self.r#type,
            key: self.key,
            error: self.error,
            error_prefix: self.error_prefix,
            since: self.since.map(|time| time.0),
            until: self.until.map(|time| time.0),
        };
        let texts = [&letters.topic, &letters.kind, &letters.key, &letters.error, &letters.error_prefix];
        if texts.into_iter().flatten().any(|text| text.len() > MAX_TEXT) {
            return Err(Problem::invalid("what is looked for is too long", "use at most 1,000 bytes"));
        }
        if let Some(topic) = &letters.topic {
            name::check("topic", topic)?;
        }
        Ok(letters)
    }
}

impl WhichIn {
    /// How many are to be taken at most.
    pub(crate) fn limit(&self) -> Answer<Option<u64>> {
        if self.limit == Some(0) {
            return Err(Problem::invalid("`limit` is 0", "leave it out, or allow one at least"));
        }
        Ok(self.limit)
    }

    /// How fast, if that was said.
    pub(crate) fn rate(&self) -> Answer<Option<Pace>> {
        let rate = self.rate.as_ref();
        let rate =
            rate.map(|Object(rate)| Pace { events: rate.events, per: Duration::from_millis(rate.per_ms) });
        rate.iter().try_for_each(Pace::check)?;
        Ok(rate)
    }

    /// Where to go on, if that was said.
    pub(crate) fn place(&self) -> Answer<Option<Place>> {
        Ok(self.after.as_deref().map(str::parse).transpose()?)
    }

    pub(crate) fn which(self) -> Answer<Which> {
        let those = ThoseIn {
            topic: self.topic,
            r#type: self.r#type,
            key: self.key,
            error: self.error,
            error_prefix: self.error_prefix,
            since: self.since,
            until: self.until,
        };
        let letters = those.letters()?;
        let filtered = letters != Letters::default();
        match (self.ids, self.all, filtered) {
            (Some(ids), false, false) if ids.len() <= MOST => {
                Ok(Which::Ids(ids.into_iter().map(|id| id.0).collect()))
            }
            (Some(_), false, false) => Err(Problem::invalid("there are too many ids", "name at most 10,000")),
            (None, true, false) => Ok(Which::All),
            (None, false, true) => Ok(Which::Those(letters)),
            _ => Err(Problem::invalid(
                "it is not clear which events are meant",
                "set ids, or all, or some of topic, type, key, error, error_prefix, since and until",
            )),
        }
    }
}

/// An attempt that failed.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailureOut {
    /// Which attempt, from 1; a replay counts anew
    attempt: u32,
    at: When,
    /// Who ran it
    worker: String,
    error: String,
}

impl From<&Failure> for FailureOut {
    fn from(failure: &Failure) -> FailureOut {
        FailureOut {
            attempt: failure.attempt,
            at: When(failure.at),
            worker: failure.worker.clone(),
            error: failure.error.clone(),
        }
    }
}

//! Limits of a subscription over all workers, as they are written.

use crate::http::json::Object;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tramline::{Limits, Rate};
use utoipa::ToSchema;

/// What all workers of a subscription may do together. What is left out has no limit.
#[derive(Deserialize, ToSchema)]
#[schema(as = Limits)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsIn {
    /// How many events may be under way at once: claimed, and neither settled nor given back nor out of their lease
    #[schema(minimum = 1, maximum = 10000)]
    concurrency: Option<u32>,
    /// How many events of one key may be under way at once; not where there is an order
    #[schema(minimum = 1, maximum = 10000)]
    per_key_concurrency: Option<u32>,
    /// How many events may start in any period of this length
    #[schema(value_type = Option<RateIn>)]
    rate: Option<Object<RateIn>>,
}

/// So many events in so long.
#[derive(Deserialize, ToSchema)]
#[schema(as = Rate)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateIn {
    #[schema(minimum = 1, maximum = 1000000)]
    events: u32,
    #[schema(minimum = 100, maximum = 2678400000_u64)]
    per_ms: u64,
}

impl From<LimitsIn> for Limits {
    fn from(limits: LimitsIn) -> Limits {
        let rate = |Object(rate): Object<RateIn>| Rate::new(rate.events, Duration::from_millis(rate.per_ms));
        Limits {
            concurrency: limits.concurrency,
            per_key_concurrency: limits.per_key_concurrency,
            rate: limits.rate.map(rate),
        }
    }
}

/// The limits of a subscription that has some.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitsOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_key_concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<RateOut>,
}

/// So many events in so long.
#[derive(Serialize, ToSchema)]
pub(crate) struct RateOut {
    events: u32,
    per_ms: u64,
}

impl LimitsOut {
    /// `None` where there are none.
    pub(crate) fn of(limits: &Limits) -> Option<LimitsOut> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let rate = |rate: Rate| RateOut { events: rate.events, per_ms: millis(rate.per) };
        (!limits.is_none()).then(|| LimitsOut {
            concurrency: limits.concurrency,
            per_key_concurrency: limits.per_key_concurrency,
            rate: limits.rate.map(rate),
        })
    }
}

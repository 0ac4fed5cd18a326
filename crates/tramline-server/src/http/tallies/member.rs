//! Events as items of tallies: what an emit says of it.

use crate::http::app::App;
use crate::http::caller::Caller;
use crate::http::emit::{number, text};
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::number::{Number, parse};
use crate::http::tallies::{FILL, access};
use axum::http::HeaderMap;
use serde::Deserialize;
use tramline::{Event, TallyItem};
use utoipa::ToSchema;

/// The tally whose item an event is.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberIn {
    id: Number,
    /// Whose settling ends the item; may be left out if the topic has exactly one subscription
    subscription: Option<String>,
    /// The item from inside which the event is emitted, as the claim gave it: a growing tally takes it even after it was sealed
    within: Option<u64>,
}

impl MemberIn {
    /// From the headers of raw bytes.
    pub(crate) fn in_headers(headers: &HeaderMap) -> Answer<Option<MemberIn>> {
        let Some(id) = text(headers, "tramline-tally")? else { return Ok(None) };
        let id = parse(id).ok_or_else(|| {
            Problem::invalid("the header tramline-tally is not the number of a tally", "send digits only")
        })?;
        let subscription = text(headers, "tramline-tally-subscription")?.map(str::to_owned);
        let within = number(headers, "tramline-tally-within")?;
        Ok(Some(MemberIn { id, subscription, within }))
    }

    /// The event as an item.
    pub(crate) fn join(&self, event: Event) -> Event {
        let tally = self.id.0;
        let event = match &self.subscription {
            Some(subscription) => event.tally_of(tally, subscription),
            None => event.tally(tally),
        };
        match self.within {
            Some(number) => event.within(TallyItem { tally, number }),
            None => event,
        }
    }

    /// Checks that the caller may put items into the tally, and may know of the subscription.
    pub(crate) async fn check(&self, app: &App, caller: &Caller) -> Answer<()> {
        if let Some(name) = &self.subscription {
            caller.subscription(FILL, name)?;
        }
        access::check(app, caller, FILL, self.id.0).await
    }
}

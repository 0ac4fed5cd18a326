//! What subscriptions will never see although nobody dropped it by hand.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::json::{Id, List, When, ok};
use crate::http::params::{Name, Params, bounded};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tramline::store::verbs::ListDrops;
use tramline::{DropReason, DropRecord, Scope, SubscriptionId};
use utoipa::{IntoParams, ToSchema};

/// How many records the store keeps.
const KEPT: u32 = 10_000;

/// Which records.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DropsPage {
    /// Only those of this subscription
    #[param(value_type = Option<schema::Name>)]
    subscription: Option<String>,
    /// At most this many entries; 100 unless set, never more than 1,000
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
    /// Entries after this number, oldest first: 0, or the `next` of the page before. Without it, the newest come first
    #[param(pattern = "^[0-9]{0,19}$")]
    after: Option<String>,
}

/// Events that a subscription was to get and will never see, dropped within one minute.
#[derive(Serialize, ToSchema)]
pub(crate) struct DropOut {
    /// Its number, by which pages follow each other
    number: String,
    subscription: String,
    reason: DropReason,
    /// The lowest id among them
    first: Id,
    /// The highest id among them
    last: Id,
    /// How many they are; not all ids from the first to the last are among them
    events: u64,
    /// When the first of them was dropped
    at: When,
}

/// Records of what was dropped, as far as the token may see them: for 30 days, and at most 10,000.
#[utoipa::path(get, path = "/v1/drops", tag = "figures", params(DropsPage), responses((status = 200, body = List<DropOut>),
    (status = 404, description = "There is no such subscription")), security(("token" = ["manage"])))]
pub(crate) async fn drops(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<DropsPage>,
) -> Answer<Response> {
    caller.needs(&[Scope::Manage])?;
    let one = match page.subscription {
        Some(name) => Some(named(&app, &caller, &[Scope::Manage], Name(name)).await?.id),
        None => None,
    };
    let after = match page.after.as_deref() {
        None | Some("") => None,
        Some(text) => Some(text.parse().map_err(|_| {
            Problem::invalid("`after` is not the number of a record", "send the `next` of the page before")
        })?),
    };
    let all = app.ask(app.tram.subscriptions()).await?;
    let names: HashMap<SubscriptionId, &str> =
        all.iter().filter(|one| caller.sees(one)).map(|one| (one.id, &*one.name)).collect();
    let limit = bounded(page.limit);
    // To pass over the records of others, all have to be read.
    let read = if one.is_some() || names.len() == all.len() { limit + 1 } else { KEPT };
    let list = ListDrops { subscription: one, after, limit: read };
    let records = app.ask(app.tram.store().drops(list)).await?;
    let mut items: Vec<DropOut> = records.iter().filter_map(|record| told(record, &names)).collect();
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    // The newest come first only to be looked at: pages follow each other from the oldest on.
    let next = items.last().filter(|_| more && after.is_some()).map(|last| last.number.clone());
    Ok(ok(List { items, next }).into_response())
}

fn told(record: &DropRecord, names: &HashMap<SubscriptionId, &str>) -> Option<DropOut> {
    Some(DropOut {
        number: record.number.to_string(),
        subscription: (*names.get(&record.subscription)?).to_owned(),
        reason: record.reason,
        first: Id(record.first),
        last: Id(record.last),
        events: record.events,
        at: When(record.at),
    })
}

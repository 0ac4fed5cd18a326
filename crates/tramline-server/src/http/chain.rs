//! The events of a key, back and forth.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::events::READ;
use crate::http::json::{EventOut, Id, json_response};
use crate::http::life::{self, DeliveryOut};
use crate::http::params::{Name, Params, after_id, bounded};
use crate::http::problem::Answer;
use crate::http::schema;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tramline::Direction;
use utoipa::{IntoParams, ToSchema};

/// How many events are told with what every subscription makes of them.
const MOST_DELIVERED: u32 = 100;

/// Which events of a key.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfChain {
    /// The key
    key: String,
    /// From which end; `newest` unless set
    #[param(inline)]
    order: Option<Order>,
    /// Those after this event, in that order: an event of the key, or the `next` of the page before
    #[param(pattern = "^[0-9]{0,19}$")]
    after: Option<String>,
    /// At most this many; 100 unless set, never more than 1,000, or 100 with deliveries
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
    /// With what every subscription makes of each
    #[serde(default)]
    deliveries: bool,
}

/// From which end.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    Newest,
    Oldest,
}

/// Events of a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChainOut<'a> {
    items: Vec<LinkOut<'a>>,
    /// What to pass as `after` for more; null at the end. A page may be empty before the end
    next: Option<Id>,
}

/// An event of a key; `prev` names the one before it.
#[derive(Serialize, ToSchema)]
pub(crate) struct LinkOut<'a> {
    #[serde(flatten)]
    event: EventOut<'a>,
    /// Where it is in every subscription, if that was asked for
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<Vec<DeliveryOut>>,
}

/// The retained events of a key, each of which names its predecessor in `prev`, newest or oldest first.
#[utoipa::path(get, path = "/v1/topics/{topic}/chain", tag = "events", params(("topic" = schema::Name, Path), OfChain),
    responses((status = 200, body = ChainOut<'static>)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn chain(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    Params(of): Params<OfChain>,
) -> Answer<Response> {
    caller.topic(READ, &name.0)?;
    let topic = name.checked("topic")?;
    let direction = match of.order {
        None | Some(Order::Newest) => Direction::Newest,
        Some(Order::Oldest) => Direction::Oldest,
    };
    let after = Some(after_id(of.after.as_deref())?).filter(|after| after.0 > 0);
    let limit = bounded(of.limit).min(if of.deliveries { MOST_DELIVERED } else { u32::MAX });
    let page = app.ask(app.tram.key_events(&topic, &of.key, direction, after, limit)).await?;
    let visible = match of.deliveries {
        true => caller.visible(&app.ask(app.tram.subscriptions()).await?),
        false => Default::default(),
    };
    let mut deliveries = Vec::new();
    if of.deliveries {
        for event in &page.events {
            // What went out of retention a moment ago has none any more.
            let view = app.ask(app.tram.event(event.id)).await?;
            let all = view.into_iter().flat_map(|view| view.deliveries);
            deliveries.push(all.filter(|one| visible.contains(&one.subscription)).collect());
        }
    }
    let mut deliveries = life::told_of_each(&app, deliveries).await?.into_iter();
    let link = |event| LinkOut { event: EventOut::new(event), deliveries: deliveries.next() };
    let items = page.events.iter().map(link).collect();
    let answer = ChainOut { items, next: page.next.map(Id) };
    Ok(json_response(StatusCode::OK, serde_json::to_vec(&answer)?))
}

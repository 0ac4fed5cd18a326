//! POST /v1/tallies/ack: items of several tallies at once, each with an answer of its own.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{Object, ok};
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::ack::{self, CountOut};
use crate::http::tallies::items::{ItemsIn, checked};
use crate::http::tallies::number::Number;
use crate::http::tallies::standing::Standing;
use crate::http::tallies::{ACK, access};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use tramline::{Ack, AckCount, Ending, TallyId};
use utoipa::ToSchema;

/// How many acks one call takes.
const MAX_ACKS: usize = 1_000;

/// Items of several tallies that ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckManyIn {
    /// Up to 10,000 numbers and ranges together. A tally may come more than once
    #[schema(value_type = Vec<OneAckIn>, max_items = 1000)]
    acks: Vec<Object<OneAckIn>>,
}

/// Items of one tally that ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneAckIn {
    tally: Number,
    /// Numbers, and ranges with both ends: `[3, [10, 19]]`
    items: Vec<ItemsIn>,
    /// How they ended; `done` unless set
    #[serde(default)]
    outcome: OutcomeIn,
}

/// How items ended.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutcomeIn {
    #[default]
    Done,
    Failed,
}

/// For each ack, in the order of the request, what became of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct AckedManyOut {
    results: Vec<OneAckedOut>,
}

/// What became of the items of one ack.
#[derive(Serialize, ToSchema)]
pub(crate) struct OneAckedOut {
    status: AckStatus,
    #[serde(flatten)]
    standing: Standing,
    /// For each number or range, in the order of the request
    results: Vec<CountOut>,
}

/// Whether there is such a tally.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AckStatus {
    /// There is: the results say what became of each item.
    Acked,
    /// There is no such tally, or it has no items. The other acks count.
    NotFound,
}

/// Items of several tallies ended. Each ack has a result of its own: one that is wrong does not harm the others.
#[utoipa::path(post, path = "/v1/tallies/ack", tag = "tallies", request_body = AckManyIn,
    responses((status = 200, body = AckedManyOut)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn ack_many(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(ACK)?;
    let body = app.read(&headers, body).await?;
    let many: AckManyIn = body::parse(&body)?;
    if many.acks.len() > MAX_ACKS {
        return Err(Problem::invalid("there are too many acks", "send at most 1,000 at once"));
    }
    ack::check_entries(many.acks.iter().map(|Object(one)| one.items.len()).sum())?;
    let mut seen = Vec::new();
    let mut acks = Vec::new();
    for Object(one) in &many.acks {
        let items = checked(&one.items)?;
        seen.push(access::sees(&app, &caller, one.tally.0).await?);
        acks.extend(seen.ends_with(&[true]).then(|| one.ack(items)));
    }
    let acked = ack::write(&app, acks).await?;
    let mut completed: HashSet<TallyId> = acked.completed.iter().map(|one| one.id).collect();
    let mut counts = acked.results.into_iter();
    let mut results = Vec::new();
    for (Object(one), seen) in many.acks.iter().zip(seen) {
        let counts = if seen { counts.next() } else { None };
        results.push(match counts {
            Some(counts) => one.told(&app, completed.remove(&one.tally.0), counts).await,
            None => one.not_found(),
        });
    }
    Ok(ok(AckedManyOut { results }).into_response())
}

impl OneAckIn {
    fn ack(&self, items: Vec<tramline::Items>) -> Ack {
        let ending = match self.outcome {
            OutcomeIn::Done => Ending::Done,
            OutcomeIn::Failed => Ending::Failed,
        };
        Ack { tally: self.tally.0, items, ending }
    }

    async fn told(&self, app: &App, completed_now: bool, counts: Vec<AckCount>) -> OneAckedOut {
        let Ok(standing) = ack::stand(app, self.tally.0, completed_now, &counts).await else {
            return self.not_found();
        };
        let results = counts.into_iter().map(CountOut::from).collect();
        OneAckedOut { status: AckStatus::Acked, standing, results }
    }

    /// Nothing of it was acked.
    fn not_found(&self) -> OneAckedOut {
        let unknown = |items: &ItemsIn| AckCount { unknown: items.count(), ..AckCount::default() };
        OneAckedOut {
            status: AckStatus::NotFound,
            standing: Standing::unread(self.tally.0, false),
            results: self.items.iter().map(unknown).map(CountOut::from).collect(),
        }
    }
}

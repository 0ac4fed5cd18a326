//! How items ended: done or failed, of one tally or of several.

use crate::http::app::App;
use crate::http::json::ok;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::about::About;
use crate::http::tallies::items::{ItemsIn, MAX_ENTRIES, checked};
use crate::http::tallies::number::Number;
use crate::http::tallies::standing::Standing;
use crate::http::tallies::{ACK, access};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::store::verbs_tally::AckedItems;
use tramline::{Ack, AckCount, Ending, TallyId};
use utoipa::ToSchema;

/// Items that ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckIn {
    /// Numbers, and ranges with both ends: `[3, [10, 19]]`
    #[schema(max_items = 10000)]
    items: Vec<ItemsIn>,
}

/// What became of the items of one number or range.
#[derive(Clone, Copy, Serialize, ToSchema)]
pub(crate) struct CountOut {
    /// They were pending, and have ended now
    acked: u64,
    /// They had ended before; nothing was changed
    already: u64,
    /// There are no such items
    unknown: u64,
    /// The tally is cancelled or has expired; nothing was changed
    closed: u64,
}

impl From<AckCount> for CountOut {
    fn from(count: AckCount) -> CountOut {
        let AckCount { acked, already, unknown, closed } = count;
        CountOut { acked, already, unknown, closed }
    }
}

/// What became of items, and how far the tally is.
#[derive(Serialize, ToSchema)]
pub(crate) struct AckedOut {
    #[serde(flatten)]
    standing: Standing,
    /// For each number or range, in the order of the request
    results: Vec<CountOut>,
}

/// Items are done. Says for each number or range what became of it; repeating it changes nothing.
#[utoipa::path(post, path = "/v1/tallies/{tally}/ack", tag = "tallies", params(("tally" = Number, Path)), request_body = AckIn,
    responses((status = 200, body = AckedOut)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn ack(about: About) -> Answer<Response> {
    end(about, Ending::Done).await
}

/// Items have failed and will never be done. They count as finished.
#[utoipa::path(post, path = "/v1/tallies/{tally}/fail", tag = "tallies", params(("tally" = Number, Path)), request_body = AckIn,
    responses((status = 200, body = AckedOut)), security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn fail(about: About) -> Answer<Response> {
    end(about, Ending::Failed).await
}

async fn end(mut about: About, ending: Ending) -> Answer<Response> {
    let AckIn { items } = about.read(ACK).await?;
    let About { app, tally, .. } = about;
    check_entries(items.len())?;
    let acked = write(&app, vec![Ack { tally, items: checked(&items)?, ending }]).await?;
    let completed_now = !acked.completed.is_empty();
    let counts: Vec<AckCount> = acked.results.into_iter().flatten().collect();
    let standing = stand(&app, tally, completed_now, &counts).await?;
    Ok(ok(AckedOut { standing, results: counts.into_iter().map(CountOut::from).collect() }).into_response())
}

pub(crate) fn check_entries(count: usize) -> Answer<()> {
    if count <= MAX_ENTRIES {
        return Ok(());
    }
    Err(Problem::invalid(
        format!("there are {count} numbers and ranges"),
        format!("send at most {MAX_ENTRIES} at once, and ranges where numbers follow each other"),
    ))
}

/// Writes acks, and counts what ended.
pub(crate) async fn write(app: &App, acks: Vec<Ack>) -> Answer<AckedItems> {
    let endings: Vec<Ending> = acks.iter().map(|ack| ack.ending).collect();
    let acked = app.ask(app.tram.tallies().ack(acks)).await?;
    for (ending, counts) in endings.into_iter().zip(&acked.results) {
        let word = match ending {
            Ending::Done => "done",
            Ending::Failed => "failed",
        };
        app.metrics.tally_items.add(word, counts.iter().map(|count| count.acked).sum());
    }
    Ok(acked)
}

/// How far a tally is after an ack. One that is gone by then still counts as acked if something of it was.
pub(crate) async fn stand(
    app: &App,
    tally: TallyId,
    completed_now: bool,
    counts: &[AckCount],
) -> Answer<Standing> {
    match app.ask(app.tram.tallies().get(tally)).await {
        Ok(found) if found.estimated => Err(Problem::invalid(
            "the tally is estimated and has no items",
            "count it down: POST /v1/tallies/{tally}/count",
        )),
        Ok(found) => Ok(Standing::of(&found, completed_now)),
        Err(problem) if problem.status() == StatusCode::NOT_FOUND && !touched(counts) => {
            Err(access::unknown())
        }
        Err(_) => Ok(Standing::unread(tally, completed_now)),
    }
}

fn touched(counts: &[AckCount]) -> bool {
    counts.iter().any(|count| count.acked + count.already + count.closed > 0)
}

//! Items of exact batches are done: any number of them, of any batches, each taken or refused on its own.

use super::outcome::{Refused, answer};
use super::read;
use crate::http::app::{App, Shared};
use crate::http::caller::Caller;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::ack::write;
use crate::http::tallies::{ACK, access};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use tramline::model::tally::group::parse_item;
use tramline::{Ack, AckCount, Ending, TallyId, TallyItem};

/// How many items one call takes. Carlyle's own clients ack 100.
const MAX_ITEMS: usize = 100_000;

/// Items that are done.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AckIn {
    batch_item_ids: Vec<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AckOut {
    batch_completions: Vec<CompletionOut>,
    /// Items that were not simply done now: done before, or refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    results: Vec<ResultOut>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CompletionOut {
    batch_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_key: Option<String>,
}

#[derive(Serialize)]
struct ResultOut {
    id: Value,
    status: u16,
    result: String,
}

/// What became of one item.
enum Became {
    Acked,
    Already,
    Refused(Refused),
}

/// POST /items/ack
pub(super) async fn ack(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(ACK)?;
    let AckIn { batch_item_ids: ids } = read(&app, &headers, body).await?;
    if ids.len() > MAX_ITEMS {
        return Err(Problem::malformed("there are too many items", "ack at most 100,000 at a time"));
    }
    let (mut sorted, mut lost) = (Sorted::default(), Lost::default());
    for id in &ids {
        sorted.put(&app, &caller, id, &mut lost).await?;
    }
    let acked = write(&app, sorted.acks).await?;
    let (mut refused, mut results) = (Vec::new(), Vec::new());
    for (id, place) in ids.into_iter().zip(sorted.places) {
        let became = match place {
            Err(refused) => Became::Refused(refused),
            Ok((ack, at)) => lost.became(&app, sorted.batches[ack], &id, acked.results[ack][at]).await?,
        };
        results.extend(became.told(id));
        refused.push(became.refused());
    }
    let completion = |one: tramline::store::verbs_tally::CompletedTally| CompletionOut {
        batch_id: one.id.0,
        user_key: one.user_key,
    };
    let batch_completions = acked.completed.into_iter().map(completion).collect();
    Ok(answer(&refused, AckOut { batch_completions, results }))
}

/// Items by batch, and for each where it went.
#[derive(Default)]
struct Sorted {
    acks: Vec<Ack>,
    batches: Vec<TallyId>,
    by_batch: HashMap<TallyId, usize>,
    places: Vec<Result<(usize, usize), Refused>>,
}

impl Sorted {
    async fn put(&mut self, app: &App, caller: &Caller, id: &Value, lost: &mut Lost) -> Answer<()> {
        let place = match id.as_str().map(parse_item) {
            Some(Ok(item)) if access::sees(app, caller, item.tally).await? => Ok(self.add(item)),
            Some(Ok(_)) => Err(Refused::unknown()),
            _ => match id.as_str().and_then(batch_of) {
                Some(batch)
                    if !access::sees(app, caller, batch).await? || !lost.exists(app, batch).await? =>
                {
                    Err(Refused::unknown())
                }
                _ => Err(Refused::no_item(id)),
            },
        };
        self.places.push(place);
        Ok(())
    }

    fn add(&mut self, item: TallyItem) -> (usize, usize) {
        let at = *self.by_batch.entry(item.tally).or_insert_with(|| {
            self.batches.push(item.tally);
            self.acks.push(Ack { tally: item.tally, items: Vec::new(), ending: Ending::Done });
            self.acks.len() - 1
        });
        self.acks[at].items.push(item.number.into());
        (at, self.acks[at].items.len() - 1)
    }
}

/// The batch that a name speaks of, whether or not it has such a group: what an unknown batch had nobody knows.
fn batch_of(name: &str) -> Option<TallyId> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let uuid =
        |text: &str| text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match name.split(':').collect::<Vec<_>>()[..] {
        [batch, group, index] if digits(batch) && uuid(group) && digits(index) => {
            batch.parse().ok().map(TallyId)
        }
        _ => None,
    }
}

/// Batches of which an item was not found: either the item or all of the batch does not exist.
#[derive(Default)]
struct Lost {
    exist: HashMap<TallyId, bool>,
}

impl Lost {
    async fn became(&mut self, app: &App, batch: TallyId, id: &Value, count: AckCount) -> Answer<Became> {
        Ok(match count {
            AckCount { acked: 1.., .. } => Became::Acked,
            AckCount { already: 1.., .. } => Became::Already,
            AckCount { closed: 1.., .. } => Became::Refused(Refused::closed()),
            _ if self.exists(app, batch).await? => Became::Refused(Refused::no_item(id)),
            _ => Became::Refused(Refused::unknown()),
        })
    }

    async fn exists(&mut self, app: &App, batch: TallyId) -> Answer<bool> {
        if let Some(known) = self.exist.get(&batch) {
            return Ok(*known);
        }
        let exists = match app.ask(app.tram.tallies().get(batch)).await {
            Ok(found) => !found.estimated,
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => false,
            Err(problem) => return Err(problem),
        };
        self.exist.insert(batch, exists);
        Ok(exists)
    }
}

impl Became {
    fn told(&self, id: Value) -> Option<ResultOut> {
        match self {
            Became::Acked => None,
            Became::Already => Some(ResultOut { id, status: 200, result: "already".to_owned() }),
            Became::Refused(refused) => {
                Some(ResultOut { id, status: refused.status.as_u16(), result: refused.detail.clone() })
            }
        }
    }

    fn refused(self) -> Option<Refused> {
        match self {
            Became::Refused(refused) => Some(refused),
            _ => None,
        }
    }
}

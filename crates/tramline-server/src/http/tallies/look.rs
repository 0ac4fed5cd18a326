//! Looking: one tally, waiting for its end if need be, and lists of them.

use crate::http::app::{App, Shared};
use crate::http::caller::Caller;
use crate::http::json::{List, ok};
use crate::http::params::{Params, bounded};
use crate::http::place::Slot;
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::tallies::number::{InPath, Number, parse};
use crate::http::tallies::standing::{State as TallyState, TallyOut};
use crate::http::tallies::{SEE, access};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::time::Duration;
use tramline::store::verbs_tally::ListTallies;
use tramline::{Tally, TallyId};
use utoipa::IntoParams;

/// Nobody can mean to wait for longer.
const MAX_WAIT_MS: u64 = 24 * 3600 * 1000;
/// How many tallies are read at once, and how often, while looking for those that a caller may see.
const SCAN: u32 = 1_000;
const SCANS: usize = 32;

/// For how long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wait {
    /// Wait this long for its end; the server may answer earlier
    #[serde(default)]
    #[param(maximum = 86400000)]
    wait_ms: u64,
}

/// One tally with exact counts. With `wait_ms` it answers when the tally is complete, cancelled or expired, or after that time.
#[utoipa::path(get, path = "/v1/tallies/{tally}", tag = "tallies", params(("tally" = Number, Path), Wait),
    responses((status = 200, body = TallyOut)),
    security(("token" = ["publish"]), ("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn get(
    State(app): State<Shared>,
    caller: Caller,
    Extension(slot): Extension<Slot>,
    InPath(tally): InPath,
    Params(Wait { wait_ms }): Params<Wait>,
) -> Answer<Response> {
    access::check(&app, &caller, SEE, tally).await?;
    if wait_ms > MAX_WAIT_MS {
        return Err(Problem::invalid(
            "wait_ms is out of range",
            "use at most a day; the server may answer earlier",
        ));
    }
    // Who waits does no work, and must not take the place of those who do.
    let seat = if wait_ms > 0 { app.waiting.clone().try_acquire_owned().ok() } else { None };
    let found = match &seat {
        None => app.ask(app.tram.tallies().get(tally)).await,
        Some(_) => {
            slot.leave();
            wait(&app, tally, Duration::from_millis(wait_ms.min(app.config.max_wait_ms))).await
        }
    };
    drop(seat);
    Ok(ok(TallyOut::from(found?)).into_response())
}

async fn wait(app: &App, tally: TallyId, wait: Duration) -> Answer<Tally> {
    let give_up = async {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = app.draining.cancelled() => {}
        }
    };
    let waiting = app.tram.tallies().wait(tally, give_up);
    let found = tokio::time::timeout(app.config.store_timeout() + wait, waiting).await.map_err(|_| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the store did not answer in time", "try again")
    })?;
    Ok(found?)
}

/// Which tallies.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only those in one of these states, with commas: `open,sealed`
    state: Option<String>,
    /// Only those with this user key
    user_key: Option<String>,
    /// At most this many; 100 unless set, never more than 1,000
    #[param(value_type = Option<schema::Limit>)]
    limit: Option<u32>,
    /// Tallies after this one: the `next` of the page before
    after: Option<String>,
}

/// Tallies that the token may see, by number. A page of a token that is limited to some topics looks at a bounded number of
/// tallies: it may be short, even empty, and still have a `next`.
#[utoipa::path(get, path = "/v1/tallies", tag = "tallies", params(Which), responses((status = 200, body = List<TallyOut>)),
    security(("token" = ["publish"]), ("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Params(which): Params<Which>,
) -> Answer<Response> {
    caller.needs(SEE)?;
    let limit = bounded(which.limit) as usize;
    let list = ListTallies {
        states: which.states()?,
        after: which.after()?,
        user_key: which.user_key,
        limit: limit as u32,
        now: None,
    };
    let (found, next) = read(&app, &caller, list, limit).await?;
    let next = next.map(|last| last.to_string());
    Ok(ok(List { items: found.into_iter().map(TallyOut::from).collect(), next }).into_response())
}

impl Which {
    fn states(&self) -> Answer<Vec<tramline::TallyState>> {
        let Some(states) = &self.state else { return Ok(Vec::new()) };
        let state = |word: &str| -> Answer<tramline::TallyState> {
            let state = serde_json::from_value::<TallyState>(word.into()).map_err(|_| {
                Problem::invalid(
                    "`state` is not a state of tallies",
                    "use open, sealed, complete, cancelled or expired, with commas between several",
                )
            })?;
            Ok(state.into())
        };
        states.split(',').map(state).collect()
    }

    fn after(&self) -> Answer<TallyId> {
        match self.after.as_deref() {
            None | Some("") => Ok(TallyId(0)),
            Some(text) => parse(text).map(|number| number.0).ok_or_else(|| {
                Problem::invalid("`after` is not the number of a tally", "send the `next` of the page before")
            }),
        }
    }
}

/// One page of what the caller may see, and after which one the next page begins.
pub(crate) async fn read(
    app: &App,
    caller: &Caller,
    mut list: ListTallies,
    limit: usize,
) -> Answer<(Vec<Tally>, Option<TallyId>)> {
    let all = caller.sees_all_topics();
    let step = if all { limit as u32 } else { SCAN };
    let mut found = Vec::new();
    for _ in 0..SCANS {
        // One more than wanted tells whether there is a next page.
        let page = ListTallies { limit: step + 1, ..list.clone() };
        let page = app.ask(app.tram.tallies().list(page)).await?;
        let more = page.len() > step as usize;
        let last = page.len().min(step as usize);
        for (at, tally) in page.into_iter().take(last).enumerate() {
            list.after = tally.id;
            found.extend(access::sees_this(caller, &tally).then_some(tally));
            if found.len() == limit {
                let more = more || at + 1 < last;
                return Ok((found, more.then_some(list.after)));
            }
        }
        if !more {
            return Ok((found, None));
        }
    }
    Ok((found, Some(list.after)))
}

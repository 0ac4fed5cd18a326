//! Tallies in figures: for `/v1/stats` and for metrics.

use crate::http::app::App;
use crate::http::caller::Caller;
use crate::http::problem::Answer;
use crate::http::tallies::look;
use crate::http::tallies::standing::TallyOut;
use serde::Serialize;
use std::fmt::Write;
use tramline::store::verbs_tally::{ListTallies, TallyCounts};
use tramline::{TallyId, TallyState};
use utoipa::ToSchema;

/// How many tallies under way are shown.
const SHOWN: usize = 100;

/// The figures of tallies.
#[derive(Serialize, ToSchema)]
pub(crate) struct TallyStats {
    /// How many there are in each state; null for a token that may not see all
    counts: Option<CountsOut>,
    /// Up to 100 that are under way, oldest first, with their progress and rate
    under_way: Vec<TallyOut>,
}

/// How many tallies are in each state.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountsOut {
    open: u64,
    sealed: u64,
    complete: u64,
    cancelled: u64,
    expired: u64,
}

impl From<TallyCounts> for CountsOut {
    fn from(counts: TallyCounts) -> CountsOut {
        let TallyCounts { open, sealed, complete, cancelled, expired } = counts;
        CountsOut { open, sealed, complete, cancelled, expired }
    }
}

/// What a caller may see of all tallies.
pub(crate) async fn stats(app: &App, caller: &Caller) -> Answer<TallyStats> {
    let states = vec![TallyState::Open, TallyState::Sealed];
    let list = ListTallies { states, user_key: None, after: TallyId(0), limit: SHOWN as u32, now: None };
    let (under_way, _) = look::read(app, caller, list, SHOWN).await?;
    let under_way = under_way.into_iter().map(TallyOut::from).collect();
    Ok(TallyStats { counts: counts(app, caller).await?, under_way })
}

async fn counts(app: &App, caller: &Caller) -> Answer<Option<CountsOut>> {
    if !caller.sees_all_topics() {
        return Ok(None);
    }
    Ok(Some(app.ask(app.tram.tallies().counts()).await?.into()))
}

/// How many tallies there are by state, in the text format of Prometheus.
pub(crate) async fn metrics(app: &App, caller: &Caller) -> Answer<String> {
    let Some(counts) = counts(app, caller).await? else { return Ok(String::new()) };
    let mut text = String::from("# HELP tramline_tallies Tallies by state.\n# TYPE tramline_tallies gauge\n");
    for (state, count) in [
        ("open", counts.open),
        ("sealed", counts.sealed),
        ("complete", counts.complete),
        ("cancelled", counts.cancelled),
        ("expired", counts.expired),
    ] {
        let _ = writeln!(text, "tramline_tallies{{state=\"{state}\"}} {count}");
    }
    Ok(text)
}

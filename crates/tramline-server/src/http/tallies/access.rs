//! Whose tally it is: numbers can be guessed, so callers that are limited to some topics see only tallies that belong to those.

use crate::http::app::App;
use crate::http::caller::Caller;
use crate::http::problem::{Answer, Problem};
use axum::http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tramline::{Scope, Tally, TallyId};

/// How many tallies are remembered.
const REMEMBERED: usize = 100_000;

/// To which topics tallies belong. That never changes, and numbers are never reused.
#[derive(Default)]
pub(crate) struct Belongings {
    known: Mutex<HashMap<TallyId, Option<Arc<str>>>>,
}

impl Belongings {
    fn get(&self, tally: TallyId) -> Option<Option<Arc<str>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&tally).cloned()
    }

    fn remember(&self, tally: TallyId, topic: Option<Arc<str>>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(tally, topic);
    }
}

/// Checks a scope in a tally. One that the caller may not see answers like one that does not exist.
pub(crate) async fn check(app: &App, caller: &Caller, any: &[Scope], tally: TallyId) -> Answer<()> {
    caller.needs(any)?;
    if sees(app, caller, tally).await? { Ok(()) } else { Err(unknown()) }
}

/// True if the caller may see a tally. Where it may see all, nobody asks whether it exists.
pub(crate) async fn sees(app: &App, caller: &Caller, tally: TallyId) -> Answer<bool> {
    if caller.sees_all_topics() {
        return Ok(true);
    }
    let topic = match app.tallies.get(tally) {
        Some(topic) => topic,
        None => match app.ask(app.tram.tallies().get(tally)).await {
            Ok(found) => {
                let topic = found.topic.map(Arc::from);
                app.tallies.remember(tally, topic.clone());
                topic
            }
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => return Ok(false),
            Err(problem) => return Err(problem),
        },
    };
    Ok(topic.is_some_and(|topic| caller.sees_topic(&topic)))
}

/// True if the caller may see this tally.
pub(crate) fn sees_this(caller: &Caller, tally: &Tally) -> bool {
    caller.sees_all_topics() || tally.topic.as_deref().is_some_and(|topic| caller.sees_topic(topic))
}

/// Nobody has the number, or it is nobody's business. It is not named: both answers are the same.
pub(crate) fn unknown() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "there is no such tally",
        "check the number; tallies are removed some time after the last thing that happened to them",
    )
}

//! Tallies as every store writes them.

use crate::error::{Error, Result};
use crate::model::id::{ChunkId, SubscriptionId, TallyId};
use crate::model::kept;
use crate::model::mask::Mask;
use crate::model::tally::news::News;
use crate::model::tally::{Ending, NewTally, TallyItem, TallyState};
use crate::model::time::{Time, millis};
use crate::plan::tally::{TallyRow, Tells};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// The state of a row on its way out: for everybody but a sweep it does not exist.
pub(crate) const REMOVED: i16 = 5;
/// How long what belongs to a removed tally stays: until whoever was just acking it has ended.
pub(crate) const GRACE: Duration = Duration::from_secs(60);
/// The kind of note that the metadata are.
pub(crate) const METADATA: i16 = -1;
/// How often a sealed tally is counted anew.
pub(crate) const RECOUNT: Duration = Duration::from_secs(3600);
/// How many tallies a sweep counts anew: each may have many parts.
pub(crate) const RECOUNTS: i64 = 10;

/// Events of one chunk that have ended in a subscription.
pub(crate) struct Ended {
    pub(crate) subscription: SubscriptionId,
    pub(crate) chunk: ChunkId,
    pub(crate) mask: Mask,
    pub(crate) ending: Ending,
}

/// The row of a tally to open, still without a number.
pub(crate) fn new_row(tally: &NewTally, parent: Option<TallyItem>, now: Time) -> TallyRow {
    TallyRow {
        id: TallyId(0),
        state: TallyState::Open,
        growing: tally.growing,
        estimated: tally.estimated,
        tells: Tells::of(events(tally).map(|(news, _)| news)),
        user_key: tally.user_key.clone(),
        topic: tally.topic.clone(),
        parent,
        next_part: 0,
        total: 0,
        parts_left: 0,
        done: 0,
        failed: 0,
        created_at: now,
        sealed_at: None,
        ended_at: None,
        active_at: now,
        expires_at: tally.expires_in.map(|after| now.after(after)),
        ended_by: 0,
    }
}

/// What is kept beside the row, by kind.
pub(crate) fn notes(tally: &NewTally) -> Vec<(i16, String)> {
    let metadata = tally.metadata.as_ref().map(|metadata| (METADATA, metadata.to_string()));
    metadata.into_iter().chain(events(tally).map(|(news, text)| (news as i16, text))).collect()
}

fn events(tally: &NewTally) -> impl Iterator<Item = (News, String)> {
    let events = [&tally.on_complete, &tally.on_failure, &tally.on_expiry];
    News::EVENTS
        .into_iter()
        .zip(events)
        .filter_map(|(news, event)| Some((news, kept::write(event.as_ref()?))))
}

/// The metadata behind a note.
pub(crate) fn metadata(note: Option<String>) -> Option<Value> {
    note.and_then(|text| serde_json::from_str(&text).ok())
}

/// A digest over everything that makes a tally, so that another one under the same key is noticed.
pub(crate) fn hash(tally: &NewTally) -> Vec<u8> {
    let mut digest = Sha256::new();
    let mut field = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    };
    field(tally.user_key.as_deref().unwrap_or_default());
    field(tally.topic.as_deref().unwrap_or_default());
    field(&format!("{} {} {:?}", tally.growing, tally.estimated, tally.expires_in.map(millis)));
    field(&format!("{:?}", tally.parent));
    for (kind, text) in notes(tally) {
        field(&kind.to_string());
        field(&text);
    }
    if tally.user_key.as_deref() == Some("") {
        field("an empty user key, which is not the same as none");
    }
    digest.finalize().to_vec()
}

/// What was added together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    /// Plain items, known by a token if they are to be added only once.
    Items(Option<i64>),
    /// Events: no other tally can stand for one of these.
    Events,
}

impl Of {
    /// As it is stored: the token, and whether these are events.
    pub(crate) fn columns(self) -> (Option<i64>, bool) {
        match self {
            Of::Items(token) => (token, false),
            Of::Events => (None, true),
        }
    }
}

/// The key was used for another tally.
pub(crate) fn reused(key: &str) -> Error {
    Error::conflict(
        format!("the idempotency key {key:?} was used for another tally"),
        "use a new key for a new tally",
    )
}

/// The token was used for another addition.
pub(crate) fn added_otherwise() -> Error {
    Error::conflict("the key was used to add another number of items", "use a new key for another addition")
}

/// A stored number that stands for a state.
pub(crate) fn state(number: i16) -> Result<TallyState> {
    TallyState::from_i16(number).ok_or_else(|| unreadable("state", number))
}

/// A stored number that stands for news.
pub(crate) fn news(number: i16) -> Result<News> {
    News::from_i16(number).ok_or_else(|| unreadable("piece of news", number))
}

fn unreadable(what: &str, number: i16) -> Error {
    Error::invalid(format!("a tally has the unknown {what} {number}"), "run a newer version of the program")
}

//! Unique events: at most one of a key is pending.

use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::time::as_millis;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;

/// For how long an event can be unique beyond its own life.
pub const LONGEST_WINDOW: Duration = Duration::from_secs(31 * 24 * 3600);

/// What makes an event unique: of one topic and unique key at most one event is pending, that is, not yet done (or dead) in some
/// subscription of the topic. It has nothing to do with the key of the event.
///
/// ```
/// # use std::time::Duration;
/// # use tramline::{Event, Unique};
/// let once = Unique::new("report:42").within(Duration::from_secs(60));
/// let event = Event::json("reports", &serde_json::json!({"id": 42}))?.unique(once);
/// # Ok::<(), tramline::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    pub(crate) key: String,
    /// How long after it was emitted it is unique even if it is not pending.
    #[serde(rename = "for_ms", with = "as_millis", default)]
    pub(crate) window: Duration,
    #[serde(default)]
    pub(crate) policy: Duplicates,
}

/// What becomes of an event whose unique key another one has that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Duplicates {
    /// It is not stored; the receipt names the one that is there.
    #[default]
    Keep,
    /// It is stored, and the one that is there gives way where nobody has claimed it.
    Replace,
}

impl Unique {
    /// Unique by this key, in the topic of the event.
    pub fn new(key: impl Into<String>) -> Unique {
        Unique { key: key.into(), window: Duration::ZERO, policy: Duplicates::Keep }
    }

    /// Also for this long after it is emitted, even if it is done by then.
    #[must_use]
    pub fn within(mut self, window: Duration) -> Unique {
        self.window = window;
        self
    }

    /// What becomes of it if another one is pending.
    #[must_use]
    pub fn duplicates(mut self, policy: Duplicates) -> Unique {
        self.policy = policy;
        self
    }

    /// The pending one gives way to this one, unless somebody has claimed it.
    #[must_use]
    pub fn replacing(self) -> Unique {
        self.duplicates(Duplicates::Replace)
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How long it is unique after it was emitted even if it is not pending.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// What becomes of another one.
    pub fn policy(&self) -> Duplicates {
        self.policy
    }

    pub(crate) fn check_window(&self) -> Result<()> {
        if self.window <= LONGEST_WINDOW {
            return Ok(());
        }
        Err(Error::invalid("an event cannot be unique for so long", "use at most 31 days"))
    }
}

impl From<&str> for Unique {
    fn from(key: &str) -> Unique {
        Unique::new(key)
    }
}

impl From<String> for Unique {
    fn from(key: String) -> Unique {
        Unique::new(key)
    }
}

/// A receipt has to say which event is there; of two in one unit with the same key, or of one with parts, that cannot be said.
pub(crate) fn check_unit(unit: &[Event]) -> Result<()> {
    let mut known = HashSet::new();
    for (at, event) in unit.iter().enumerate() {
        let Some(unique) = &event.unique else { continue };
        if event.is_sub || unit.get(at + 1).is_some_and(|next| next.is_sub) {
            return Err(Error::invalid(
                "a main event and its sub-events cannot be unique",
                "emit the unique event alone",
            ));
        }
        if !known.insert((&event.topic, &unique.key)) {
            return Err(Error::invalid(
                format!("the unique key {:?} is used twice in one emit", unique.key),
                "emit the events one after the other, or one of them only",
            ));
        }
    }
    Ok(())
}

//! A tally to open.

use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::TallyId;
use crate::model::tally::TallyItem;
use crate::model::{kept, name};
use serde_json::Value;
use std::time::Duration;

/// The longest user key, in characters.
pub const MAX_USER_KEY: usize = 255;
/// The largest metadata, in bytes of JSON.
pub const MAX_METADATA: usize = 16 << 10;
const MAX_IDEMPOTENCY_KEY: usize = 255;

/// A tally to open.
///
/// ```
/// # use tramline::{Event, NewTally};
/// let import = NewTally::new().user_key("import-7").on_complete(Event::new("imports", "").kind("import.done"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewTally {
    pub(crate) user_key: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) metadata: Option<Value>,
    pub(crate) growing: bool,
    pub(crate) estimated: bool,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) on_complete: Option<Event>,
    pub(crate) on_failure: Option<Event>,
    pub(crate) on_expiry: Option<Event>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) parent: Option<Parent>,
}

/// Which item of another tally a new one stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// An item that was added before.
    Item(TallyItem),
    /// One that is added now.
    New(TallyId),
}

impl NewTally {
    /// A tally without anything special.
    pub fn new() -> NewTally {
        NewTally::default()
    }

    /// The caller's own name for it, of at most 255 characters: echoed, and to be found by. Need not be unique.
    #[must_use]
    pub fn user_key(mut self, key: impl Into<String>) -> NewTally {
        self.user_key = Some(key.into());
        self
    }

    /// The topic to which it belongs: who may see events of that topic may see the tally. Need not exist.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> NewTally {
        self.topic = Some(topic.into());
        self
    }

    /// Anything worth keeping with it, as JSON of at most 16 KiB.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> NewTally {
        self.metadata = Some(metadata);
        self
    }

    /// It may grow after it is sealed, from inside its own unfinished items.
    #[must_use]
    pub fn growing(mut self) -> NewTally {
        self.growing = true;
        self
    }

    /// A plain counter without items: complete when it is sealed and was counted down to zero or below. Counting the same thing
    /// twice is not noticed.
    #[must_use]
    pub fn estimated(mut self) -> NewTally {
        self.estimated = true;
        self
    }

    /// Unless it is complete by then, it expires this long after it is opened.
    #[must_use]
    pub fn expires_in(mut self, after: Duration) -> NewTally {
        self.expires_in = Some(after);
        self
    }

    /// Emitted exactly once, when it is complete, with the counts in its headers.
    #[must_use]
    pub fn on_complete(mut self, event: Event) -> NewTally {
        self.on_complete = Some(event);
        self
    }

    /// Emitted exactly once, when the first of its items fails.
    #[must_use]
    pub fn on_failure(mut self, event: Event) -> NewTally {
        self.on_failure = Some(event);
        self
    }

    /// Emitted exactly once, when it expires.
    #[must_use]
    pub fn on_expiry(mut self, event: Event) -> NewTally {
        self.on_expiry = Some(event);
        self
    }

    /// Opening again with the same key gives the same tally, as long as it exists.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> NewTally {
        self.idempotency_key = Some(key.into());
        self
    }

    /// It stands for an item of another tally: when it is complete, that item is done, or failed if one of its own items is. If it
    /// is cancelled, expires or is deleted before, that item fails.
    #[must_use]
    pub fn parent(mut self, parent: Parent) -> NewTally {
        self.parent = Some(parent);
        self
    }

    /// Checks everything that can be known before the store is asked.
    pub(crate) fn check(&self) -> Result<()> {
        // An empty one says nothing, but whoever sent it wants it back.
        check_text("user key", self.user_key.as_deref().filter(|key| !key.is_empty()), MAX_USER_KEY)?;
        self.topic.as_deref().map_or(Ok(()), |topic| name::check("topic", topic))?;
        check_text("idempotency key", self.idempotency_key.as_deref(), MAX_IDEMPOTENCY_KEY)?;
        let metadata = self.metadata.as_ref().map_or(0, |value| value.to_string().len());
        if metadata > MAX_METADATA {
            return Err(Error::new(
                Kind::TooLarge,
                format!("the metadata has {metadata} bytes; at most {MAX_METADATA} are allowed"),
                "keep it elsewhere and put a reference here",
            ));
        }
        if self.estimated && (self.growing || self.on_failure.is_some()) {
            return Err(Error::invalid(
                "an estimated tally has no items that could grow or fail",
                "leave out `growing` and the event on failure, or count exactly",
            ));
        }
        for event in [&self.on_complete, &self.on_failure, &self.on_expiry].into_iter().flatten() {
            kept::check(event)?;
        }
        Ok(())
    }
}

fn check_text(what: &str, text: Option<&str>, most: usize) -> Result<()> {
    let Some(text) = text else { return Ok(()) };
    if text.is_empty() || text.contains('\0') {
        return Err(Error::invalid(
            format!("the {what} is empty or holds a NUL character"),
            "leave it out or give it plain text",
        ));
    }
    let length = text.chars().count();
    if length <= most {
        return Ok(());
    }
    let message = format!("the {what} has {length} characters; at most {most} are allowed");
    Err(Error::invalid(message, "use a shorter one"))
}

//! What a handler says of one event.

use std::time::Duration;

/// The longest error text that is kept.
pub const MAX_ERROR: usize = 2048;

/// What a handler says of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done and never runs again.
    Done,
    /// It failed. The retry policy decides when and whether it runs again; `delay` overrides when.
    Retry {
        /// Wait this long instead of what the policy says.
        delay: Option<Duration>,
        /// What went wrong.
        error: String,
    },
    /// Not now: run it again after `delay`. Not counted as an attempt.
    Snooze {
        /// How long to wait.
        delay: Duration,
    },
    /// It can never succeed.
    Dead {
        /// Why.
        error: String,
    },
}

impl Outcome {
    /// Failed with `error`; the policy decides what follows.
    pub fn retry(error: impl Into<String>) -> Outcome {
        Outcome::Retry { delay: None, error: error.into() }
    }

    /// Can never succeed.
    pub fn dead(error: impl Into<String>) -> Outcome {
        Outcome::Dead { error: error.into() }
    }

    /// The word for it, in traces and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Retry { .. } => "retry",
            Outcome::Snooze { .. } => "snooze",
            Outcome::Dead { .. } => "dead",
        }
    }

    /// How long to wait, if the handler says so.
    pub fn delay(&self) -> Option<Duration> {
        match self {
            Outcome::Retry { delay, .. } => *delay,
            Outcome::Snooze { delay } => Some(*delay),
            Outcome::Done | Outcome::Dead { .. } => None,
        }
    }

    /// True for done.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }
}

/// An error text cut to what is kept, at a character boundary.
pub fn bounded(error: &str) -> String {
    cut(error.replace('\0', " "), MAX_ERROR)
}

/// A text of at most `most` bytes, and a mark where it was longer.
pub(crate) fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

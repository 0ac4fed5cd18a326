//! A line for each event: for people on standard error, where it does not mix with the output of commands, or as JSON on standard
//! output.

use super::super::print::{clean, paint};
use super::super::value::millis;
use super::event::Claimed;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tramline::Outcome;

/// What is said, and where.
#[derive(Clone, Copy)]
pub(super) struct Report {
    json: bool,
    quiet: bool,
    colour: bool,
}

impl Report {
    pub(super) fn new(json: bool, quiet: bool) -> Report {
        Report { json, quiet, colour: std::io::stderr().is_terminal() }
    }

    /// A command ended, and its outcome was taken or came too late.
    pub(super) fn ended(&self, event: &Claimed, outcome: &Outcome, took: Duration, taken: bool) {
        let (word, error) = match outcome {
            _ if !taken => ("lease_lost", None),
            Outcome::Done => ("done", None),
            Outcome::Snooze { .. } => ("snooze", None),
            Outcome::Retry { error, .. } => ("retry", Some(error.as_str())),
            Outcome::Dead { error } => ("dead", Some(error.as_str())),
        };
        self.say(event, word, error, Some(took));
    }

    /// A command was stopped before its end.
    pub(super) fn stopped(&self, event: &Claimed) {
        self.say(event, "stopped", None, None);
    }

    /// A reader that went away does not end the work: what runs is still settled.
    fn say(&self, event: &Claimed, word: &str, error: Option<&str>, took: Option<Duration>) {
        if self.quiet {
            return;
        }
        let took = took.map(millis);
        let _ = if self.json {
            let line = json!({"id": event.id, "outcome": word, "attempt": event.attempt, "error": error, "took_ms": took});
            writeln!(std::io::stdout().lock(), "{line}")
        } else {
            let line = self.line(event, word, error, took);
            writeln!(std::io::stderr().lock(), "{line}")
        };
    }

    fn line(&self, event: &Claimed, word: &str, error: Option<&str>, took: Option<u64>) -> String {
        let style = if word == "done" { "32" } else { "31" };
        let word = if self.colour { paint(word, style) } else { word.to_owned() };
        let took = took.map(|took| format!(" in {took} ms")).unwrap_or_default();
        let error = error.map(|error| format!(": {}", clean(error))).unwrap_or_default();
        format!("{} {word}{took}{error}", event.id)
    }
}

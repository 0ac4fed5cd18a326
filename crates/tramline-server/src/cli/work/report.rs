//! A line for each event: for people on standard error, where it does not mix with the output of commands, or as JSON on standard
//! output.

use super::super::print::{clean, paint};
use super::super::value::millis;
use super::event::Claimed;
use serde_json::{Value, json};
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

/// What becomes of an event that fails for the last time, as the subscription said when the worker started.
pub(super) struct Exhaustion {
    max_attempts: u64,
    /// At most once: the first failure is the last.
    once: bool,
    word: &'static str,
    /// An event without a key cannot hold one.
    held: bool,
}

impl Exhaustion {
    pub(super) fn of(subscription: &Value) -> Exhaustion {
        Exhaustion {
            // With 0 it is tried for ever.
            max_attempts: subscription["max_attempts"].as_u64().filter(|most| *most > 0).unwrap_or(u64::MAX),
            once: subscription["guarantee"] == "at_most_once",
            word: if subscription["on_exhausted"] == "drop" { "dropped" } else { "dead" },
            held: subscription["on_exhausted"] == "hold" && subscription["ordering"] == "key",
        }
    }

    /// What became of an event whose outcome was taken, or came too late; and why.
    pub(super) fn became<'a>(
        &self,
        event: &Claimed,
        outcome: &'a Outcome,
        taken: bool,
    ) -> (&'static str, Option<&'a str>) {
        let last = self.once || u64::from(event.attempt) >= self.max_attempts;
        match outcome {
            _ if !taken => ("lease_lost", None),
            Outcome::Done => ("done", None),
            Outcome::Snooze { .. } => ("snooze", None),
            Outcome::Retry { error, .. } if !last => ("retry", Some(error)),
            Outcome::Retry { error, .. } | Outcome::Dead { error } => {
                (if self.held && event.has_key() { "held" } else { self.word }, Some(error))
            }
        }
    }
}

impl Report {
    pub(super) fn new(json: bool, quiet: bool) -> Report {
        Report { json, quiet, colour: std::io::stderr().is_terminal() }
    }

    /// A command ended; what became of its event.
    pub(super) fn ended(&self, event: &Claimed, (word, error): (&str, Option<&str>), took: Duration) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn became(policy: Value, attempt: u32, outcome: &Outcome) -> &'static str {
        let event = json!({"id": "1", "lease": "l", "topic": "t", "key": "k", "attempt": attempt});
        let event = serde_json::from_str(&event.to_string()).unwrap();
        Exhaustion::of(&policy).became(&event, outcome, true).0
    }

    #[test]
    fn the_last_failure_is_told_as_what_it_makes_of_the_event() {
        let retry = Outcome::retry("no");
        for (policy, word) in [
            (json!({"max_attempts": 2}), "dead"),
            (json!({"max_attempts": 2, "on_exhausted": "drop"}), "dropped"),
            (json!({"max_attempts": 2, "on_exhausted": "hold", "ordering": "key"}), "held"),
            (json!({"max_attempts": 2, "on_exhausted": "hold", "ordering": "none"}), "dead"),
        ] {
            assert_eq!((became(policy.clone(), 1, &retry), became(policy, 2, &retry)), ("retry", word));
        }
        assert_eq!(became(json!({"max_attempts": 9, "guarantee": "at_most_once"}), 1, &retry), "dead");
        assert_eq!(became(json!({"max_attempts": 1}), 1, &Outcome::Done), "done");
    }

    /// They once were said to be dead while they waited for their next try.
    #[test]
    fn where_events_are_tried_for_ever_no_failure_is_the_last() {
        assert_eq!(became(json!({"max_attempts": 0}), 1_000, &Outcome::retry("no")), "retry");
    }
}

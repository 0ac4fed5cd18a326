//! What a check has found.

use crate::cli::clean;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// Good to know.
    Note,
    /// Work waits or will wait, or something grows.
    Warning,
    /// Events may be lost, or nothing runs.
    Serious,
}

impl Severity {
    /// The exit code of a command whose worst finding is this.
    pub(super) fn code(self) -> u8 {
        self as u8
    }

    fn as_str(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Serious => "serious",
        }
    }
}

/// Something that an operator should know, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Which check found it.
    pub(super) check: &'static str,
    pub(super) what: String,
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn new(
        severity: Severity,
        check: &'static str,
        what: impl AsRef<str>,
        remedy: impl Into<String>,
    ) -> Finding {
        // Names of sessions and reasons of rules are a stranger's.
        Finding { severity, check, what: clean(what.as_ref()), remedy: remedy.into() }
    }

    pub(super) fn note(check: &'static str, what: impl AsRef<str>, remedy: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, check, what, remedy)
    }

    pub(super) fn warning(check: &'static str, what: impl AsRef<str>, remedy: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, check, what, remedy)
    }

    pub(super) fn serious(check: &'static str, what: impl AsRef<str>, remedy: impl Into<String>) -> Finding {
        Finding::new(Severity::Serious, check, what, remedy)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}: {}\n  {}", self.severity.as_str(), self.check, self.what, self.remedy)
    }
}

/// The last line.
pub(super) fn summary(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    match (count(Severity::Warning), count(Severity::Serious)) {
        (0, 0) => "fine".to_owned(),
        (warnings, serious) => format!("warnings: {warnings}, serious: {serious}"),
    }
}

/// For how long, as people say it.
pub(super) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let rounded = match seconds {
        0..120 => seconds,
        120..7200 => seconds / 60 * 60,
        7200..172_800 => seconds / 3600 * 3600,
        _ => seconds / 86_400 * 86_400,
    };
    humantime::format_duration(Duration::from_secs(rounded)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_a_sentence_and_a_remedy() {
        let finding = Finding::warning("dead", "emails has\n3 dead events", "replay them");
        assert_eq!(finding.to_string(), "warning: dead: emails has\\n3 dead events\n  replay them");
        assert_eq!(summary(std::slice::from_ref(&finding)), "warnings: 1, serious: 0");
        assert_eq!(summary(&[Finding::note("a", "b", "c")]), "fine");
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        assert_eq!([Severity::Note, Severity::Warning, Severity::Serious].map(Severity::code), [0, 1, 2]);
        assert!(Severity::Serious > Severity::Warning && Severity::Warning > Severity::Note);
    }

    #[test]
    fn long_spans_are_told_roughly() {
        let told = [90, 3725, 100_000, 1_000_000].map(|seconds| span(Duration::from_secs(seconds)));
        assert_eq!(told, ["1m 30s", "1h 2m", "1day 3h", "11days"]);
    }
}

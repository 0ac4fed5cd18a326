//! What can go wrong with a command, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// Why a command failed, as scripts see it. 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The server refused, or something failed on the way.
    Failed = 1,
    /// Wrong usage. The command line parser uses the same code.
    Usage = 2,
    /// The server cannot be reached.
    Unreachable = 3,
    /// What was asked for does not exist.
    NotFound = 4,
    /// A tally was watched to its end, and items failed.
    ItemsFailed = 5,
    /// A tally was watched, and somebody gave it up.
    Cancelled = 6,
    /// A tally was watched until its time was over.
    Expired = 7,
}

/// The end of every command's `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the server cannot be reached, 4 not found";

/// A failed command: a sentence, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    pub(crate) remedy: Option<String>,
    /// The same request may succeed later; the server may say when.
    pub(crate) again: Option<Again>,
    /// Of many lines that were sent, the one that was refused, counted from 1.
    pub(crate) line: Option<u64>,
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// After a while.
    Soon,
    /// Not before this has passed.
    After(Duration),
}

impl Failure {
    /// A failure with an exit code.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), remedy: None, again: None, line: None }
    }

    /// The command line makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// With what to do about it.
    #[must_use]
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Failure {
        self.remedy = Some(remedy.into());
        self
    }

    /// The exit code of the process.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(to, "\n  {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Exit::Failed, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_as_a_sentence_and_a_remedy() {
        let failure = Failure::usage("there is no payload").remedy("give one");
        assert_eq!(failure.to_string(), "there is no payload\n  give one");
    }
}

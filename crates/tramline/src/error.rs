//! The one error type: a kind to branch on, a sentence, and a remedy for whoever has to act.

use std::fmt;

/// What a caller can branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The named thing does not exist.
    NotFound,
    /// It exists, but not in a state or shape that allows this.
    Conflict,
    /// Somebody else has changed it since it was read; nothing was changed. Read it again, and try again.
    Changed,
    /// The lease has ended or was taken over; nothing was changed.
    LeaseLost,
    /// The store cannot be reached or is too busy; nothing is known to have happened. Try again later, and blindly
    /// only what carries an idempotency key.
    Unavailable,
    /// The request can never succeed as it is.
    Invalid,
    /// More than a limit allows.
    TooLarge,
}

/// What went wrong, and what to do about it.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    remedy: &'static str,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`: what happened, and what to do.
    pub fn new(kind: Kind, message: impl Into<String>, remedy: &'static str) -> Error {
        Error { kind, message: message.into(), remedy, source: None }
    }

    /// The request can never succeed as it is.
    pub fn invalid(message: impl Into<String>, remedy: &'static str) -> Error {
        Error::new(Kind::Invalid, message, remedy)
    }

    /// The named thing does not exist.
    pub fn not_found(message: impl Into<String>, remedy: &'static str) -> Error {
        Error::new(Kind::NotFound, message, remedy)
    }

    /// It exists, but not in a state that allows this.
    pub fn conflict(message: impl Into<String>, remedy: &'static str) -> Error {
        Error::new(Kind::Conflict, message, remedy)
    }

    /// The store cannot answer now.
    pub fn unavailable(message: impl Into<String>, remedy: &'static str) -> Error {
        Error::new(Kind::Unavailable, message, remedy)
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.source = Some(Box::new(source));
        self
    }

    /// What to branch on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What happened, without its cause, which may tell more than a stranger should know.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What an operator or caller should do.
    pub fn remedy(&self) -> &'static str {
        self.remedy
    }

    /// A copy for each of several callers that failed together. The cause stays with the original.
    pub(crate) fn share(&self) -> Error {
        let message = match &self.source {
            Some(source) => format!("{} ({source})", self.message),
            None => self.message.clone(),
        };
        Error { kind: self.kind, message, remedy: self.remedy, source: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        if !self.remedy.is_empty() {
            write!(f, " ({})", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

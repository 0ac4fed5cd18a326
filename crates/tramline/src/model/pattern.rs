//! Patterns of names, matched segment by segment, so that tenants can be kept apart.

use crate::error::{Error, Result};
use crate::model::name;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A pattern: segments joined by `/`, where `*` stands for one segment and a final `**` for all that follow, or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

impl Pattern {
    /// True if a name is meant.
    pub fn matches(&self, name: &str) -> bool {
        let mut segments = name.split('/');
        for wanted in self.0.split('/') {
            match (wanted, segments.next()) {
                ("**", _) => return true,
                (_, None) => return false,
                ("*", Some(_)) => {}
                (wanted, Some(segment)) if wanted == segment => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pattern> {
        let bad = || {
            let shown: String = text.chars().take(40).collect();
            Error::invalid(
                format!("{shown:?} is not a valid pattern"),
                "use a name in which a segment may be *, and the last one **",
            )
        };
        let named = text.strip_suffix("**").map_or_else(|| text.to_owned(), |start| format!("{start}x"));
        let literal: Vec<&str> =
            named.split('/').map(|segment| if segment == "*" { "x" } else { segment }).collect();
        name::check("pattern", &literal.join("/")).map_err(|_| bad())?;
        // "a**" would read as if it matched a part of a segment.
        if text.ends_with("**") && text != "**" && !text.ends_with("/**") {
            return Err(bad());
        }
        Ok(Pattern(text.to_owned()))
    }
}

impl TryFrom<String> for Pattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Pattern> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(name)
    }

    #[test]
    fn a_star_is_one_segment_and_two_are_all_that_follow() {
        assert!(
            matches("orders", "orders") && !matches("orders", "orders/eu") && !matches("orders", "order")
        );
        assert!(
            matches("acme/*", "acme/mail") && !matches("acme/*", "acme") && !matches("acme/*", "acme/a/b")
        );
        assert!(
            matches("acme/**", "acme/a/b") && matches("acme/**", "acme") && !matches("acme/**", "acmes/a")
        );
        assert!(matches("*/mail", "acme/mail") && !matches("*/mail", "acme/sms"));
        assert!(matches("**", "a/b/c") && matches("*", "a") && !matches("*", "a/b"));
    }

    #[test]
    fn patterns_that_could_be_misread_are_refused() {
        for bad in ["", "/", "a*", "a/b*", "a**", "**/a", "a//b", "a/***", "a b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }
}

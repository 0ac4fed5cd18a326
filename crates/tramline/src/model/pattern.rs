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
    /// The pattern that means every name.
    pub fn all() -> Pattern {
        Pattern("**".to_owned())
    }

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

    /// True if every name that `other` means is meant by this one too.
    pub fn covers(&self, other: &Pattern) -> bool {
        // Every name has a first segment, so this one is as wide as it gets.
        if self.0 == "**" || self.0 == "*/**" {
            return true;
        }
        let (mut mine, mut theirs) = (self.0.split('/'), other.0.split('/'));
        loop {
            match (mine.next(), theirs.next()) {
                (Some("**"), _) | (None, None) => return true,
                (None, _) | (_, None) | (_, Some("**")) => return false,
                (Some("*"), Some(_)) => {}
                (Some(mine), Some(theirs)) if mine == theirs => {}
                _ => return false,
            }
        }
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

    /// All names and patterns of up to three segments from a small alphabet, against each other.
    #[test]
    fn a_pattern_covers_another_exactly_if_it_means_all_its_names() {
        let of = |words: &[&str], most: usize| {
            let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let mut last = all.clone();
            for _ in 1..most {
                last = last
                    .iter()
                    .flat_map(|name| words.iter().map(move |word| format!("{name}/{word}")))
                    .collect();
                all.extend(last.clone());
            }
            all
        };
        // A segment that no pattern names stands for all others, and one more level for all that are deeper.
        let names = of(&["a", "b", "other"], 4);
        let mut patterns = of(&["a", "b", "*"], 3);
        patterns.extend(of(&["a", "b", "*"], 2).iter().map(|start| format!("{start}/**")));
        patterns.push("**".to_owned());
        let patterns: Vec<Pattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
        for one in &patterns {
            for other in &patterns {
                let all = names.iter().all(|name| !other.matches(name) || one.matches(name));
                assert_eq!(one.covers(other), all, "{one} and {other}");
            }
        }
    }

    #[test]
    fn patterns_that_could_be_misread_are_refused() {
        for bad in ["", "/", "a*", "a/b*", "a**", "**/a", "a//b", "a/***", "a b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }
}

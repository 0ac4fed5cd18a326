//! Which names topics, subscriptions and types may have.

use crate::error::{Error, Result};

/// The longest name of a topic, subscription or event type, in bytes.
pub const MAX_NAME: usize = 200;

/// Checks a topic or subscription name: segments of letters, digits and `. _ : -`, joined by `/`.
pub fn check(what: &str, name: &str) -> Result<()> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME && name.split('/').all(is_segment);
    if fits { Ok(()) } else { Err(bad(what, name)) }
}

/// Checks an event type: as a name, but may be empty.
pub fn check_kind(kind: &str) -> Result<()> {
    if kind.is_empty() { Ok(()) } else { check("type", kind) }
}

fn is_segment(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

fn bad(what: &str, name: &str) -> Error {
    let shown: String = name.chars().take(40).collect();
    Error::invalid(
        format!("{shown:?} is not a valid {what} name"),
        "use 1 to 200 letters, digits or . _ : - in segments joined by /",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_segments_of_plain_characters() {
        for good in ["a", "orders", "acme/worker/send_mail", "v1.2:x-y"] {
            assert!(check("topic", good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a//b", "a b", "ü", "a\n", "*", &"x".repeat(201)] {
            assert!(check("topic", bad).is_err(), "{bad:?}");
        }
        assert!(check_kind("").is_ok());
    }
}

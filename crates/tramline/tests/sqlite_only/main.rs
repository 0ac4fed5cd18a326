//! What only SQLite has: the caller's own connection to the same file.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod bed;
#[path = "../support/mod.rs"]
mod support;
mod transactions;
#[path = "../server_only/words.rs"]
#[expect(dead_code, reason = "some words are only of use on servers")]
mod words;

//! What is special about PostgreSQL. What every store has to do is in the conformance suite.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod claims;
mod durable;
mod filters;
#[path = "../server_only/handlers.rs"]
mod handlers;
mod hints;
#[path = "../server_only/locks.rs"]
mod locks;
mod opening;
mod plain_sql;
mod plans;
mod rules;
#[path = "../server_only/silence.rs"]
mod silence;
mod snapshots;
#[path = "../support/mod.rs"]
mod support;
mod tails;
mod taken;
mod tallies;
#[path = "../server_only/transactions.rs"]
mod transactions;
#[path = "../server_only/way.rs"]
mod way;
#[path = "../server_only/words.rs"]
mod words;

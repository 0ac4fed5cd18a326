//! What is special about MySQL and MariaDB. What every store has to do is in the conformance suite.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod claims;
mod collisions;
mod crowd;
#[path = "../server_only/handlers.rs"]
mod handlers;
mod hints;
mod inbox;
mod limits;
#[path = "../server_only/locks.rs"]
mod locks;
mod opening;
mod own_server;
mod packets;
mod refusals;
mod round_trips;
mod rules;
#[path = "../server_only/silence.rs"]
mod silence;
#[path = "../support/mod.rs"]
mod support;
mod suspects;
mod tails;
mod tracked;
#[path = "../server_only/transactions.rs"]
mod transactions;
#[path = "../server_only/way.rs"]
mod way;
#[path = "../server_only/words.rs"]
mod words;

//! Routemaster's API through the real binary, on every store: publishers, and drains that are sent to.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod bus;
mod client;
mod delivery;
mod drain;
#[path = "../node/mod.rs"]
mod node;
#[path = "../stores/mod.rs"]
mod stores;

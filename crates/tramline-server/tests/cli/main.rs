//! The commands, against a real server: `emit`, `tail`, `work` and what operators do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod emit;
mod listen;
#[path = "../node/mod.rs"]
mod node;
mod operate;
mod push;
mod schedule;
mod server;
mod tally;
mod terminal;
mod work;

//! Workers: what runs, what happens to failures, and how a run ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod handlers;
mod hooks;
mod leases;
mod life;
mod limits;
mod members;
mod order;
mod policy;
mod pool;
mod rules;
mod shutdown;
mod standing;
#[path = "../support/mod.rs"]
mod support;
mod suspects;
mod transactions;

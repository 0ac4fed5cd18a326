//! Push subscriptions, from the emit to the receiver and back, on every store.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batches;
mod bed;
mod failures;
mod life;
mod order;
mod receiver;
mod secrets;
#[expect(dead_code, reason = "a file and a memory differ in nothing that is tested here")]
#[path = "../stores/mod.rs"]
mod stores;

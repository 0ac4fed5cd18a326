//! Carlyle's API through the real binary, on every store.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod client;
mod edges;
mod estimated;
mod exact;
#[path = "../node/mod.rs"]
mod node;
#[path = "../stores/mod.rs"]
mod stores;

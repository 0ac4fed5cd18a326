//! The network side of push, against real sockets on this machine.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod bed;
mod dialling;
mod proxy;
mod rate;
mod spellings;
mod tls;

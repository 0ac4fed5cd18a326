//! What only a store in Redis has to do: refuse servers that throw events away, survive restarts, stay small, and share one server.
//!
//! Every test has a server of its own, because it changes or ends it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed test says where; what is measured is printed"
)]

mod at_once;
mod bed;
mod between;
mod cleaning;
mod cluster;
mod crowd;
mod fail_over;
mod lanes;
mod lost_answers;
mod memory;
mod opening;
mod parts;
mod recount;
mod rights;
mod server;
mod spread;
mod spread_given_up;
mod stalls;
mod tls;
mod turns;
mod unpark;
mod warned;

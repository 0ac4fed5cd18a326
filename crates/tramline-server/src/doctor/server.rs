//! What is the same on every server: who keeps old rows, who waits, and whether there is room on the disk and for another node.

use super::finding::{Finding, Severity, span};
use crate::figures::bytes;
use std::time::Duration;
use tramline::store::examine::{Holder, Holds, LockWait};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
pub(super) const LITTLE_ROOM: u64 = 1_000_000_000;
pub(super) const NO_ROOM: u64 = 100_000_000;

/// What a kind of server says and does about transactions that stay open.
pub(super) struct Open {
    /// What follows.
    pub(super) so: &'static str,
    pub(super) idle: &'static str,
    pub(super) running: &'static str,
    pub(super) prepared: &'static str,
}

/// As long as a transaction is open, no row that was replaced since can be removed, and claims have to step over all of them.
pub(super) fn holder(holder: &Holder, open: &Open) -> Option<Finding> {
    let age = holder.age?;
    let (patience, how, remedy) = match holder.holds {
        Holds::Idle => (MINUTE, "is idle in a transaction", open.idle),
        Holds::Running => (5 * MINUTE, "has had a transaction open", open.running),
        Holds::Prepared => (5 * MINUTE, "has been prepared", open.prepared),
    };
    let severity = if age > HOUR { Severity::Serious } else { Severity::Warning };
    let what = format!("{} {how} for {}: {}", holder.who, span(age), open.so);
    (age > patience).then(|| Finding::new(severity, "horizon", what, remedy))
}

pub(super) fn wait(wait: &LockWait, who: &str, remedy: &str) -> Option<Finding> {
    let blockers: Vec<String> = wait.blocked_by.iter().map(ToString::to_string).collect();
    let what = format!(
        "{who} {} has waited for a lock for {}, behind {}",
        wait.process,
        span(wait.age),
        blockers.join(", ")
    );
    let severity = if wait.age > MINUTE { Severity::Serious } else { Severity::Warning };
    (wait.age > Duration::from_secs(5)).then(|| Finding::new(severity, "locks", what, remedy))
}

/// Whether the connections of another node fit beside those in use.
pub(super) fn connections(used: i64, node: i64, room: i64, remedy: &str) -> Option<Finding> {
    if node > room {
        let what =
            format!("a node may use {node} connections, but the server gives {room} to ordinary users");
        return Some(Finding::serious("connections", what, remedy));
    }
    let what = format!("{used} of {room} connections are in use; another node may need {node}");
    (used + node > room).then(|| Finding::warning("connections", what, remedy))
}

pub(super) fn disk(path: &str, free: u64) -> Option<Finding> {
    let what = format!("the disk of the server at {path} has {} left", bytes(free));
    let remedy = "free some space, or set store_limit_bytes so that the store makes room in time";
    match free {
        ..NO_ROOM => Some(Finding::serious("disk", what, remedy)),
        NO_ROOM..LITTLE_ROOM => Some(Finding::warning("disk", what, remedy)),
        _ => None,
    }
}

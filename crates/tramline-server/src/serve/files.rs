//! Room for sockets: a process may have few files open unless it asks for more.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Files beside the connections of clients: the store, what is pushed, logs.
const BESIDE: u64 = 1_024;

/// Raises the limit of open files to what so many connections need, as far as the system allows.
pub(crate) fn make_room(connections: usize) {
    let wanted = connections as u64 + BESIDE;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let allowed = limit.maximum.map_or(wanted, |most| most.min(wanted));
    limit.current = Some(allowed);
    if setrlimit(Resource::Nofile, limit).is_err() || allowed < wanted {
        tracing::warn!(
            max_connections = connections,
            open_files = allowed,
            "the limit of open files is too low for so many connections; raise it (ulimit -n, LimitNOFILE), or lower max_connections"
        );
    }
}

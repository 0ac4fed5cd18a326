//! What a server has to be, and the version of the store.

use super::Role;
use super::link::Link;
use super::nodes::{Node, nodes};
use super::session::{Session, number};
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// The oldest version that has all that the scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// The version of the layout that this program writes.
pub(super) const LAYOUT: i64 = 1;

/// Checks the servers, and warns of what they may lose.
pub(super) async fn check(link: &Link, cluster: bool) -> Result<()> {
    let nodes = nodes(link, cluster).await?;
    judge(&nodes, cluster)?;
    if nodes.is_empty() {
        tracing::warn!(
            "this user may not ask Redis for INFO: whether it is new enough, throws events away when it is full or keeps them when it stops \
             is not checked; allow INFO, or see to maxmemory-policy noeviction and appendonly yes"
        );
    }
    warn(&nodes);
    Ok(())
}

/// The same for a server that goes on with what another one began, or that was started anew. Work goes on with it, whatever it is.
pub(super) async fn check_again(link: &Link, cluster: bool) {
    match nodes(link, cluster).await {
        Ok(nodes) => {
            if let Err(error) = judge(&nodes, cluster) {
                tracing::warn!(error = %error, "Redis was started anew, or another server has taken over, and it is none to use");
            }
            warn(&nodes);
        }
        Err(error) => tracing::debug!(error = %error, "who has taken over does not say how it is set up"),
    }
}

fn warn(nodes: &[Node]) {
    for warning in warnings(nodes) {
        tracing::warn!("{warning}");
    }
}

/// What may be lost, where, and what to do about it. What holds for several nodes is said once.
fn warnings(nodes: &[Node]) -> Vec<String> {
    let mut where_it_is_so: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(loss) = loss(node) {
            where_it_is_so.entry(loss).or_default().push(node.name());
        }
    }
    where_it_is_so.into_iter().map(|(loss, names)| format!("{} {loss}", names.join(", "))).collect()
}

/// What a server may lose, by what it says, when it makes snapshots and how often it syncs its append-only file.
fn loss(node: &Node) -> Option<&'static str> {
    match (node.field("aof_enabled")?, node.save.as_deref(), node.appendfsync.as_deref()) {
        ("0", Some(""), _) => {
            Some("keeps nothing on its disk: everything is lost when it stops; set appendonly yes")
        }
        ("0", Some(_), _) => Some(
            "keeps no append-only file: what was emitted since its last snapshot is lost when it stops; set appendonly yes",
        ),
        ("0", None, _) => Some(
            "keeps no append-only file: what was emitted since its last snapshot, if it makes any, is lost when it stops; set \
             appendonly yes",
        ),
        ("1", _, Some("everysec")) => Some(
            "syncs its append-only file once a second: up to two seconds of acknowledged events may be lost on a power cut, or when it is \
             killed; where that cannot be borne, set appendfsync always",
        ),
        ("1", _, Some("no")) => Some(
            "leaves it to the system when its append-only file is synced: half a minute of acknowledged events may be lost on a power \
             cut; set appendfsync always, or everysec",
        ),
        _ => None,
    }
}

/// What a server has to be. What cannot be found out (a service may hide it) is not held against it. Replicas are judged like the primary whose
/// place they may take.
pub(super) fn judge(nodes: &[Node], cluster: bool) -> Result<()> {
    for node in nodes {
        if let Some(version) = node.field("redis_version")
            && parse(version).is_some_and(|numbers| numbers < OLDEST)
        {
            let what = format!("{} is too old: it is version {version}", node.name());
            return Err(Error::invalid(what, "use Redis 6.2 or newer"));
        }
        if let Some(policy) = node.field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
            return Err(Error::invalid(
                format!(
                    "{} may throw events away when it is full: its maxmemory-policy is {policy}",
                    node.name()
                ),
                "set maxmemory-policy noeviction there, or use a server that is not a cache",
            ));
        }
        if !cluster && node.field("cluster_enabled") == Some("1") {
            return Err(Error::invalid(
                "this Redis is a node of a Cluster",
                "write redis+cluster://, or name several of its nodes with commas",
            ));
        }
        if !cluster && node.is_replica() {
            return Err(Error::invalid("this Redis is a replica", "name the primary in the URL"));
        }
    }
    Ok(())
}

/// Marks a new store, and recognises one of a newer version.
pub(super) fn mark(session: &Session<'_>) -> Result<()> {
    let meta = session.key("meta");
    let layout = number(session.get(&meta, b"layout")?);
    if layout > LAYOUT {
        return Err(Error::conflict(
            format!("the store in Redis has layout {layout}, this program knows {LAYOUT}"),
            "run a newer version of the program",
        ));
    }
    let is_spread = session.get(&meta, b"spread")?.is_some();
    match session.role {
        Role::Whole if is_spread => {
            return Err(Error::conflict("the store in Redis is spread", "add spread=topics to its URL"));
        }
        Role::Home if layout > 0 && !is_spread => {
            return Err(Error::conflict(
                "the store in Redis is all in one slot",
                "leave spread=topics out of its URL, or give the new store a name of its own",
            ));
        }
        Role::Home => session.put(meta.clone(), "spread", b"topics".to_vec()),
        Role::Whole | Role::Site => {}
    }
    if layout == 0 {
        session.put(meta, "layout", LAYOUT.to_string().into_bytes());
    }
    Ok(())
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::nodes::fields;
    use super::*;

    fn node(info: &str) -> Node {
        Node { info: fields(info), ..Node::default() }
    }

    fn judged(info: &str, cluster: bool) -> bool {
        judge(&[node(info)], cluster).is_ok()
    }

    /// What is warned of, for an append-only file that is on or off.
    fn warned(aof: &str, save: Option<&str>, appendfsync: Option<&str>) -> Vec<String> {
        let (save, appendfsync) = (save.map(str::to_owned), appendfsync.map(str::to_owned));
        warnings(&[Node { save, appendfsync, ..node(&format!("aof_enabled:{aof}")) }])
    }

    #[test]
    fn what_a_server_may_lose_is_said_at_the_start() {
        assert_eq!(warned("1", Some(""), Some("always")), [""; 0]);
        assert_eq!(warned("1", None, None), [""; 0]);
        for (appendfsync, loses) in [("everysec", "up to two seconds"), ("no", "half a minute")] {
            let [warning] = &warned("1", Some("3600 1"), Some(appendfsync))[..] else { panic!("not one") };
            assert!(warning.contains(loses) && warning.contains("appendfsync always"), "{warning}");
        }
        let saves =
            [(Some("3600 1"), "since its last snapshot is lost"), (Some(""), "everything"), (None, "if it")];
        for (save, loses) in saves {
            let [warning] = &warned("0", save, Some("everysec"))[..] else { panic!("not one") };
            assert!(warning.contains(loses) && warning.contains("appendonly yes"), "{warning}");
        }
        assert_eq!(warnings(&[]), [""; 0]);
    }

    #[test]
    fn a_node_that_may_lose_something_is_named_be_it_a_replica() {
        let at = |address: &str, info: &str| Node { address: address.to_owned(), ..node(info) };
        let (off, replica) = ("aof_enabled:0", "aof_enabled:0\r\nrole:slave");
        let warnings = warnings(&[at("a:1", "aof_enabled:1"), at("b:2", off), at("c:3", replica)]);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with("Redis at b:2, the replica at c:3 keeps no"), "{warning}");
        let cache = at("d:4", "role:slave\r\nmaxmemory_policy:allkeys-lru");
        let error = judge(&[at("a:1", "role:master"), cache], true).unwrap_err();
        assert!(error.message().starts_with("the replica at d:4 "), "{error}");
    }

    #[test]
    fn a_server_that_may_lose_events_or_cannot_keep_them_is_refused() {
        let fine = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        assert!(judged(fine, false) && judged("", false));
        assert!(!judged(&fine.replace("7.0", "6.0"), false));
        assert!(!judged(&fine.replace("noeviction", "allkeys-lru"), true));
        assert!(!judged(&fine.replace("master", "slave"), false));
        let node = fine.replace("cluster_enabled:0", "cluster_enabled:1");
        assert!(judged(&node, true) && !judged(&node, false));
    }
}

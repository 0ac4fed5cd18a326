//! A Redis server, or the nodes of a Cluster: whether it keeps what it is given, and has room for more.

use super::finding::{Finding, Severity};
use crate::figures::bytes;
use tramline::store::examine::{RedisFigures, RedisNode};

/// How much of its memory a server may use before somebody should know, and before it is urgent, in percent.
const FULL: u64 = 75;
const TOO_FULL: u64 = 90;

pub(super) fn check(figures: &RedisFigures) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(refused(figures));
    findings.extend(sight(figures));
    for node in &figures.nodes {
        findings.extend(sync(node));
        findings.extend(persistence(node));
        findings.extend(disk(node));
        findings.extend(evicted(node));
        findings.extend(memory(node));
    }
    findings
}

fn refused(figures: &RedisFigures) -> Option<Finding> {
    let (what, remedy) = figures.refused.as_ref()?;
    Some(Finding::serious("server", format!("no store can be opened here: {what}"), remedy))
}

fn sight(figures: &RedisFigures) -> Option<Finding> {
    let what = "the server does not say how it is set up";
    let remedy = "to have that checked, give the user of the URL the right to INFO";
    figures.nodes.is_empty().then(|| Finding::note("sight", what, remedy))
}

/// What a power failure takes with it; while a sync is under way Redis keeps what comes in its own memory, so a kill takes that too. Where there is no file at all, that is another finding.
fn sync(node: &RedisNode) -> Option<Finding> {
    let (severity, loses) = match node.appendfsync.as_deref()? {
        "always" => return None,
        "everysec" => (Severity::Note, "a power failure, or a kill of it, may lose the last two seconds"),
        _ => (
            Severity::Warning,
            "a power failure loses what the system had not written yet, half a minute or so,",
        ),
    };
    let what = format!("{} does not wait for its disk: {loses} of what was acknowledged", name(node));
    let remedy = "where that cannot be borne, set appendfsync always";
    (field(node, "aof_enabled") == "1").then(|| Finding::new(severity, "sync", what, remedy))
}

fn persistence(node: &RedisNode) -> Option<Finding> {
    let what =
        format!("{} keeps no append-only file: a restart loses all since the last snapshot", name(node));
    let remedy = "set appendonly yes, in the server's configuration too";
    (field(node, "aof_enabled") == "0").then(|| Finding::serious("persistence", what, remedy))
}

fn disk(node: &RedisNode) -> Option<Finding> {
    let failed = |name: &str| matches!(field(node, name), "err");
    let remedy = "see the log of the server, and whether its disk is full";
    if failed("aof_last_write_status") {
        let what = format!("{} cannot write its append-only file", name(node));
        return Some(Finding::serious("disk", what, remedy));
    }
    let what = format!("{} could not rewrite its file or save a snapshot the last time", name(node));
    (failed("aof_last_bgrewrite_status") || failed("rdb_last_bgsave_status"))
        .then(|| Finding::warning("disk", what, remedy))
}

fn evicted(node: &RedisNode) -> Option<Finding> {
    let count = number(node, "evicted_keys").filter(|count| *count > 0)?;
    let what = format!("{} has thrown {count} keys away since it was started", name(node));
    let remedy = "set maxmemory-policy noeviction, in the server's configuration too; events may be lost";
    Some(Finding::serious("eviction", what, remedy))
}

/// A full server refuses emits; one without a limit is ended by the system when the machine is full.
fn memory(node: &RedisNode) -> Option<Finding> {
    let used = number(node, "used_memory")?;
    let limit = number(node, "maxmemory").filter(|limit| *limit > 0);
    let (room, of, remedy) = match limit {
        Some(limit) => {
            (limit, "its maxmemory", "raise maxmemory, shorten retention, or let workers catch up")
        }
        None => (
            number(node, "total_system_memory").filter(|total| *total > 0)?,
            "the machine's memory, and has no limit",
            "set maxmemory, so that a full server refuses emits and is not killed; shorten retention",
        ),
    };
    let percent = used.saturating_mul(100) / room;
    let what = format!("{} uses {}, {percent} % of {of}", name(node), bytes(used));
    match percent {
        ..FULL => None,
        FULL..TOO_FULL => Some(Finding::warning("memory", what, remedy)),
        _ => Some(Finding::serious("memory", what, remedy)),
    }
}

fn name(node: &RedisNode) -> String {
    match (node.address.as_str(), field(node, "role")) {
        ("", _) => "the server".to_owned(),
        (address, "slave") => format!("the replica {address}"),
        (address, _) => format!("the node {address}"),
    }
}

fn field<'a>(node: &'a RedisNode, name: &str) -> &'a str {
    node.info.get(name).map_or("", String::as_str)
}

fn number(node: &RedisNode, name: &str) -> Option<u64> {
    field(node, name).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(fields: &[(&str, &str)]) -> Vec<(&'static str, Severity)> {
        let healthy = [
            ("aof_enabled", "1"),
            ("aof_last_write_status", "ok"),
            ("evicted_keys", "0"),
            ("used_memory", "1000"),
            ("maxmemory", "0"),
            ("total_system_memory", "10000"),
        ];
        let info = healthy.iter().chain(fields).map(|(name, value)| (name.to_string(), value.to_string()));
        let (info, appendfsync) = (info.collect(), Some("always".into()));
        let nodes = vec![RedisNode { info, appendfsync, ..RedisNode::default() }];
        seen(&RedisFigures { nodes, ..RedisFigures::default() })
    }

    fn seen(figures: &RedisFigures) -> Vec<(&'static str, Severity)> {
        check(figures).into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_server_gives_no_findings() {
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn what_a_server_would_lose_is_judged() {
        assert_eq!(found(&[("aof_enabled", "0")]), [("persistence", Severity::Serious)]);
        assert_eq!(found(&[("evicted_keys", "3")]), [("eviction", Severity::Serious)]);
        assert_eq!(found(&[("aof_last_write_status", "err")]), [("disk", Severity::Serious)]);
        assert_eq!(found(&[("rdb_last_bgsave_status", "err")]), [("disk", Severity::Warning)]);
        let refused = Some(("too old".to_owned(), "use a newer one".to_owned()));
        let figures = RedisFigures { refused, ..RedisFigures::default() };
        assert_eq!(seen(&figures), [("server", Severity::Serious), ("sight", Severity::Note)]);
    }

    #[test]
    fn memory_is_measured_against_its_limit_or_the_machine() {
        assert_eq!(found(&[("used_memory", "7499")]), []);
        assert_eq!(found(&[("used_memory", "7500")]), [("memory", Severity::Warning)]);
        assert_eq!(found(&[("maxmemory", "1100")]), [("memory", Severity::Serious)]);
    }

    #[test]
    fn how_often_each_node_syncs_its_file_is_said() {
        let fields = [("aof_enabled", "1"), ("role", "slave")];
        let node = |address: &str, sync: &str| RedisNode {
            address: address.to_owned(),
            info: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            appendfsync: Some(sync.to_owned()),
        };
        let with = |nodes: &[RedisNode]| RedisFigures { nodes: nodes.to_vec(), ..RedisFigures::default() };
        assert_eq!(seen(&with(&[node("", "always")])), []);
        assert_eq!(seen(&with(&[node("", "everysec")])), [("sync", Severity::Note)]);
        let figures = with(&[node("a:1", "always"), node("b:2", "no")]);
        assert_eq!(seen(&figures), [("sync", Severity::Warning)]);
        assert!(check(&figures)[0].what.starts_with("the replica b:2 "));
    }
}

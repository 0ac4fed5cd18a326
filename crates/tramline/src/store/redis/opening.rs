//! What a server has to be, and the version of the store.

use super::link::{Link, text};
use super::session::{Session, number};
use crate::error::{Error, Result};
use redis::Value;
use std::collections::BTreeMap;

/// The oldest version that has all that the scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// The version of the layout that this program writes.
pub(super) const LAYOUT: i64 = 1;

/// A server, or a node of a Cluster, as it describes itself.
pub(super) struct Node {
    pub(super) address: String,
    pub(super) info: BTreeMap<String, String>,
}

impl Node {
    fn field(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }
}

/// Checks the servers, and warns of what they may lose.
pub(super) async fn check(link: &Link, cluster: bool) -> Result<()> {
    let nodes = nodes(link).await?;
    judge(&nodes, cluster)?;
    let (save, appendfsync) = (setting(link, "save").await, setting(link, "appendfsync").await);
    for warning in warnings(&nodes, save.as_deref(), appendfsync.as_deref()) {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// What may be lost, and what to do about it: by what the servers say, when they make snapshots and how often they sync their append-only
/// file, as far as this user may know.
fn warnings(nodes: &[Node], save: Option<&str>, appendfsync: Option<&str>) -> Vec<&'static str> {
    let has = |value: &str| nodes.iter().any(|node| node.field("aof_enabled") == Some(value));
    let unknown = nodes.is_empty().then_some(
        "this user may not ask Redis for INFO: whether it is new enough, throws events away when it is full or keeps them when it \
         stops is not checked; allow INFO, or see to maxmemory-policy noeviction and appendonly yes",
    );
    let file = has("0").then_some(match save {
        Some("") => "Redis keeps nothing on its disk: everything is lost when it stops; set appendonly yes",
        Some(_) => {
            "Redis keeps no append-only file: what was emitted since its last snapshot is lost when it stops; set appendonly yes"
        }
        None => {
            "Redis keeps no append-only file: what was emitted since its last snapshot, if it makes any, is lost when it stops; set \
             appendonly yes"
        }
    });
    let sync = match appendfsync.filter(|_| has("1")) {
        Some("everysec") => Some(
            "Redis syncs its append-only file once a second: up to two seconds of acknowledged events may be lost on a power cut, or when \
             it is killed; where that cannot be borne, set appendfsync always",
        ),
        Some("no") => Some(
            "Redis leaves it to the system when its append-only file is synced: half a minute of acknowledged events may be lost on a \
             power cut; set appendfsync always, or everysec",
        ),
        _ => None,
    };
    unknown.into_iter().chain(file).chain(sync).collect()
}

/// What a server has to be. What cannot be found out (a service may hide it) is not held against it.
pub(super) fn judge(nodes: &[Node], cluster: bool) -> Result<()> {
    for node in nodes {
        if let Some(version) = node.field("redis_version")
            && parse(version).is_some_and(|numbers| numbers < OLDEST)
        {
            return Err(Error::invalid(format!("Redis {version} is too old"), "use Redis 6.2 or newer"));
        }
        if let Some(policy) = node.field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
            return Err(Error::invalid(
                format!("Redis may throw events away when it is full: its maxmemory-policy is {policy}"),
                "set maxmemory-policy noeviction, or use a server that is not a cache",
            ));
        }
        if !cluster && node.field("cluster_enabled") == Some("1") {
            return Err(Error::invalid(
                "this Redis is a node of a Cluster",
                "write redis+cluster://, or name several of its nodes with commas",
            ));
        }
        if !cluster && node.field("role") == Some("slave") {
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
    if layout == 0 {
        session.put(meta, "layout", LAYOUT.to_string().into_bytes());
    }
    Ok(())
}

/// The server, or all nodes. Empty if it does not tell.
pub(super) async fn nodes(link: &Link) -> Result<Vec<Node>> {
    let answer = match link.send(&redis::cmd("INFO")).await {
        // A user without the right to ask may do all the rest.
        Err(error) if error.code() == Some("NOPERM") => return Ok(Vec::new()),
        answer => answer?,
    };
    let of_each = match answer {
        Value::Map(nodes) => nodes,
        one => vec![(Value::Nil, one)],
    };
    let node = |(address, info): (Value, Value)| Node {
        address: text(&address).unwrap_or_default(),
        info: fields(&text(&info).unwrap_or_default()),
    };
    Ok(of_each.into_iter().map(node).collect())
}

/// A setting, if this user may know; in a Cluster, of some node.
pub(super) async fn setting(link: &Link, name: &str) -> Option<String> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    let answer = link.send(&get).await.ok()?;
    let mut words = Vec::new();
    flatten(&answer, &mut words);
    let at = words.iter().position(|word| word == name)?;
    words.into_iter().nth(at + 1)
}

fn flatten(value: &Value, words: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, words)),
        Value::Map(pairs) => pairs.iter().for_each(|(name, item)| {
            flatten(name, words);
            flatten(item, words);
        }),
        one => words.extend(text(one)),
    }
}

fn fields(info: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    info.lines().filter_map(pair).collect()
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(info: &str) -> Node {
        Node { address: String::new(), info: fields(info) }
    }

    fn judged(info: &str, cluster: bool) -> bool {
        judge(&[node(info)], cluster).is_ok()
    }

    /// What is warned of, for an append-only file that is on or off.
    fn warned(aof: &str, save: Option<&str>, appendfsync: Option<&str>) -> Vec<&'static str> {
        warnings(&[node(&format!("aof_enabled:{aof}"))], save, appendfsync)
    }

    #[test]
    fn what_a_server_may_lose_is_said_at_the_start() {
        assert_eq!(warned("1", Some(""), Some("always")), [""; 0]);
        assert_eq!(warned("1", None, None), [""; 0]);
        for (appendfsync, loses) in [("everysec", "up to two seconds"), ("no", "half a minute")] {
            let [warning] = warned("1", Some("3600 1"), Some(appendfsync))[..] else { panic!("not one") };
            assert!(warning.contains(loses) && warning.contains("appendfsync always"), "{warning}");
        }
        let saves =
            [(Some("3600 1"), "since its last snapshot is lost"), (Some(""), "everything"), (None, "if it")];
        for (save, loses) in saves {
            let [warning] = warned("0", save, Some("everysec"))[..] else { panic!("not one") };
            assert!(warning.contains(loses) && warning.contains("appendonly yes"), "{warning}");
        }
        assert!(warnings(&[], None, None)[0].contains("INFO"));
    }

    #[test]
    fn one_node_that_keeps_nothing_is_enough() {
        let nodes = [node("aof_enabled:1"), node("aof_enabled:0")];
        assert_eq!(warnings(&nodes, Some(""), Some("no")).len(), 2);
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

//! What the servers say of themselves: one, or every node of a Cluster, with the replicas that may take over.

use super::link::{Link, text};
use redis::{Cmd, RedisResult, Value};
use std::collections::BTreeMap;

/// A server, or a node of a Cluster, as it describes itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// Where it is; empty if there is only one.
    pub(super) address: String,
    /// The fields of `INFO`, by name.
    pub(super) info: BTreeMap<String, String>,
    /// When it makes snapshots, and how often it syncs its append-only file, as far as this user may know.
    pub(super) save: Option<String>,
    pub(super) appendfsync: Option<String>,
}

impl Node {
    fn new(address: String, info: &Value) -> Node {
        Node { address, info: fields(&text(info).unwrap_or_default()), ..Node::default() }
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    pub(super) fn is_replica(&self) -> bool {
        self.field("role") == Some("slave")
    }

    /// What it is called, as the subject of a sentence.
    pub(super) fn name(&self) -> String {
        match (self.address.as_str(), self.is_replica()) {
            ("", _) => "Redis".to_owned(),
            (address, false) => format!("Redis at {address}"),
            (address, true) => format!("the replica at {address}"),
        }
    }
}

/// The server, or all nodes. Empty if this user may not ask.
pub(super) async fn nodes(link: &Link, cluster: bool) -> RedisResult<Vec<Node>> {
    let info = redis::cmd("INFO");
    let said = match ask(link, &info, cluster).await {
        // A user without the right to ask may do all the rest.
        Err(error) if error.code() == Some("NOPERM") => return Ok(Vec::new()),
        // One that does not answer keeps nobody from using the others; without the primaries nothing goes on anyway.
        Err(error) if cluster => {
            tracing::warn!(
                error = %error,
                "a node of the Redis Cluster does not answer: only its primaries are checked, and not when they sync their files"
            );
            let said = by_address(link.send(&info).await?, cluster);
            return Ok(said.into_iter().map(|(address, info)| Node::new(address, &info)).collect());
        }
        said => said?,
    };
    let (save, appendfsync) =
        (setting(link, "save", cluster).await, setting(link, "appendfsync", cluster).await);
    let node = |(address, info): (String, Value)| Node {
        save: save.get(&address).cloned(),
        appendfsync: appendfsync.get(&address).cloned(),
        ..Node::new(address, &info)
    };
    Ok(said.into_iter().map(node).collect())
}

async fn ask(link: &Link, command: &Cmd, cluster: bool) -> RedisResult<Vec<(String, Value)>> {
    let said = if cluster { link.send_to_all(command).await } else { link.send(command).await };
    Ok(by_address(said?, cluster))
}

fn by_address(said: Value, cluster: bool) -> Vec<(String, Value)> {
    match said {
        Value::Map(nodes) if cluster => {
            nodes.into_iter().map(|(address, said)| (text(&address).unwrap_or_default(), said)).collect()
        }
        one => vec![(String::new(), one)],
    }
}

/// A setting of each, as far as this user may know.
async fn setting(link: &Link, name: &str, cluster: bool) -> BTreeMap<String, String> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    let value = |(address, said): (String, Value)| {
        let mut words = Vec::new();
        flatten(&said, &mut words);
        let at = words.iter().position(|word| word == name)?;
        Some((address, words.into_iter().nth(at + 1)?))
    };
    ask(link, &get, cluster).await.unwrap_or_default().into_iter().filter_map(value).collect()
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

pub(super) fn fields(info: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    info.lines().filter_map(pair).collect()
}

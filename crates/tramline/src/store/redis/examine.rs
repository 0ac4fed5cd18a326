//! Figures of a server, for an operator to judge.

use super::link::{Command, Link, text};
use super::nodes::{Node, nodes};
use super::opening::{self, LAYOUT};
use super::options::RedisOptions;
use super::session::{hget, key};
use crate::error::Result;
use crate::store::examine::Schema;
use std::collections::BTreeMap;

/// A Redis server, or the nodes of a Cluster, and the store of one name there.
#[derive(Clone, Debug, Default)]
pub struct RedisFigures {
    /// The layout of the store.
    pub schema: Schema,
    /// Why no store can be opened on it, and what to do.
    pub refused: Option<(String, String)>,
    /// The server, or every node, with the replicas.
    pub nodes: Vec<RedisNode>,
}

/// What one server says of itself.
#[derive(Clone, Debug, Default)]
pub struct RedisNode {
    /// Where it is; empty if there is only one.
    pub address: String,
    /// The fields of `INFO`, by name.
    pub info: BTreeMap<String, String>,
    /// How often its append-only file is synced, as far as this user may know.
    pub appendfsync: Option<String>,
}

pub(super) async fn examine(options: RedisOptions) -> Result<RedisFigures> {
    let link = Link::open(&options).await?;
    let nodes = nodes(&link, options.cluster).await?;
    let refused = opening::judge(&nodes, options.cluster).err();
    let refused = refused.map(|error| (error.message().to_owned(), error.remedy().to_owned()));
    let schema = Schema { version: layout(&link, &options).await?, known: LAYOUT, missing: Vec::new() };
    let seen = |Node { address, info, appendfsync, .. }| RedisNode { address, info, appendfsync };
    Ok(RedisFigures { schema, refused, nodes: nodes.into_iter().map(seen).collect() })
}

async fn layout(link: &Link, options: &RedisOptions) -> Result<Option<i64>> {
    let command: Command = hget(&key(&options.name, "meta"), b"layout");
    let mut read = redis::Cmd::new();
    for word in &command {
        read.arg(word.as_slice());
    }
    let answer = link.send(&read).await?;
    Ok(text(&answer).and_then(|layout| layout.parse().ok()))
}

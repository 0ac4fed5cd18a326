//! Figures of a server, for an operator to judge.

use super::link::{Command, Link, text};
use super::opening::{self, LAYOUT, Node};
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
    /// How often the append-only file is synced, as far as this user may know.
    pub appendfsync: Option<String>,
    /// The server, or every node.
    pub nodes: Vec<RedisNode>,
}

/// What one server says of itself.
#[derive(Clone, Debug, Default)]
pub struct RedisNode {
    /// Where it is; empty if there is only one.
    pub address: String,
    /// The fields of `INFO`, by name.
    pub info: BTreeMap<String, String>,
}

pub(super) async fn examine(options: RedisOptions) -> Result<RedisFigures> {
    let link = Link::open(&options).await?;
    let nodes = opening::nodes(&link).await?;
    let refused = opening::judge(&nodes, options.cluster).err();
    let refused = refused.map(|error| (error.message().to_owned(), error.remedy().to_owned()));
    let schema = Schema { version: layout(&link, &options).await?, known: LAYOUT, missing: Vec::new() };
    let nodes = nodes.into_iter().map(|Node { address, info }| RedisNode { address, info }).collect();
    Ok(RedisFigures { schema, refused, appendfsync: opening::setting(&link, "appendfsync").await, nodes })
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

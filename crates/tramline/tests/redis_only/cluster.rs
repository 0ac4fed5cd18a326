//! A Cluster that is changed while it is used.

use crate::bed::{claim, done, emit, events, subscribe};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult};
use tramline::Incarnation;
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::RedisStore;

/// One node, asked directly.
struct Node {
    port: String,
    id: String,
    connection: MultiplexedConnection,
}

impl Node {
    async fn new(address: &str) -> Node {
        let client = redis::Client::open(format!("redis://{address}")).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let id = redis::cmd("CLUSTER").arg("MYID").query_async(&mut connection).await.unwrap();
        Node { port: address.rsplit(':').next().unwrap().to_owned(), id, connection }
    }

    async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.connection).await
    }
}

/// While the keys of the store are on two nodes, nothing is done rather than half of it; then everything goes on.
#[tokio::test]
async fn a_slot_that_moves_to_another_node_loses_nothing() {
    let url = std::env::var("TRAMLINE_TEST_REDIS_CLUSTER")
        .expect("TRAMLINE_TEST_REDIS_CLUSTER is not set: run ./test");
    let name = format!("moved_{:x}", Incarnation::random().0);
    let store = RedisStore::open(format!("{url}?name={name}").parse().unwrap()).await.unwrap();
    let id = subscribe(&store, Ordering::Key).await;
    emit(&store, events(200)).await.unwrap();

    let mut nodes = Vec::new();
    for address in url.trim_start_matches("redis://").split(',') {
        nodes.push(Node::new(address).await);
    }
    let slot: u32 = nodes[0].ask(&["CLUSTER", "KEYSLOT", &format!("{{{name}}}:x")]).await.unwrap();
    let slot = slot.to_string();
    let mut from = 0;
    for (at, node) in nodes.iter_mut().enumerate() {
        let keys: usize = node.ask(&["CLUSTER", "COUNTKEYSINSLOT", &slot]).await.unwrap();
        from = if keys > 0 { at } else { from };
    }
    let to = (from + 1) % nodes.len();
    let (source, target, port) = (nodes[from].id.clone(), nodes[to].id.clone(), nodes[to].port.clone());
    nodes[to].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await.unwrap();
    nodes[from].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await.unwrap();
    let keys: Vec<String> = nodes[from].ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).await.unwrap();
    let (first, rest) = keys.split_at(keys.len() / 2);
    let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    let part = |keys: &[String]| -> Vec<String> {
        migrate.iter().map(|word| (*word).to_owned()).chain(keys.iter().cloned()).collect()
    };
    let words = part(first);
    nodes[from].ask::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>()).await.unwrap();
    let refused = emit(&store, events(10)).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unavailable);

    let words = part(rest);
    nodes[from].ask::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>()).await.unwrap();
    for at in [to, from, (from + 2) % nodes.len()] {
        nodes[at].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await.unwrap();
    }
    emit(&store, events(100)).await.unwrap();
    let mut count = 0;
    loop {
        let claimed = claim(&store, id, 1000).await.unwrap();
        if claimed.slices.is_empty() {
            break;
        }
        count += claimed.slices.iter().map(|slice| slice.events.len()).sum::<usize>();
        done(&store, id, &claimed).await.unwrap();
    }
    assert_eq!(count, 300, "what was acknowledged, once each");
    assert_eq!(store.stats(id, None).await.unwrap().counts.pending(), 0);
}

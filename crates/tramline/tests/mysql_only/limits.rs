//! Limits of keys, where very many wait.

use crate::bed::{Private, event, ids};
use tramline::model::limits::Limits;
use tramline::model::subscription::{Policy, Start};
use tramline::store::Store;
use tramline::store::verbs::{Emit, Expected, PutSubscription};

/// The story: keys with room were looked for from key to key in one recursive statement. Both servers stop that after a thousand hops:
/// MySQL with an error, MariaDB as if there were no more.
#[tokio::test]
async fn one_claim_finds_all_of_thousands_of_keys_that_had_to_wait() {
    const KEYS: usize = 2500;
    let store = Private::open().await;
    let put = PutSubscription {
        name: "q".into(),
        topics: vec!["t".to_owned()],
        policy: Policy {
            limits: Limits {
                per_key_concurrency: Some(1),
                concurrency: Some(4 * KEYS as u32),
                ..Limits::default()
            },
            ..Policy::default()
        },
        start: Start::Beginning,
        expected: Expected::Anything,
        now: None,
    };
    let queue = store.store.put_subscription(put).await.unwrap().id;
    let unit = (0..2 * KEYS).map(|number| event(&format!("key {}", number / 2)));
    store.store.emit(Emit { units: vec![unit.collect()], now: None }).await.unwrap();
    let first = store.claim(queue, 10_000).await;
    assert_eq!(ids(&first).len(), KEYS, "one of each key, and the other one waits");
    store.settle_done(queue, &first).await;
    assert_eq!(ids(&store.claim(queue, 10_000).await).len(), KEYS);
    store.close().await;
}

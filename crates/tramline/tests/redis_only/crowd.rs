//! Many at once: steps that overtake each other begin anew, and all of them come to an end.

use crate::bed::{Server, claim, done, emit, events, subscribe};
use std::sync::Arc;
use tokio::task::JoinSet;
use tramline::model::subscription::Ordering;
use tramline::store::Store;

const PROCESSES: usize = 4;
const EMITS: usize = 20;
const EACH: usize = 10;

async fn a_crowd_emits_and_works(ordering: Ordering) {
    let server = Server::start();
    let first = server.open().await.unwrap();
    let id = subscribe(&first, ordering).await;
    let mut crowd = JoinSet::new();
    for _ in 0..PROCESSES {
        let store = Arc::new(server.open().await.unwrap());
        let emitter = store.clone();
        crowd.spawn(async move {
            for _ in 0..EMITS {
                emit(&emitter, events(EACH)).await.unwrap();
            }
            0
        });
        crowd.spawn(async move {
            let mut count = 0;
            for _ in 0..EMITS {
                let claimed = claim(&store, id, 50).await.unwrap();
                let settled = done(&store, id, &claimed).await.unwrap();
                count += settled.accepted.iter().flatten().filter(|accepted| **accepted).count();
            }
            count
        });
    }
    let mut settled = 0;
    while let Some(count) = crowd.join_next().await {
        settled += count.unwrap();
    }
    let counts = first.stats(id, None).await.unwrap().counts;
    assert_eq!(settled as u64 + counts.pending(), (PROCESSES * EMITS * EACH) as u64);
    assert_eq!(counts.leased, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_order() {
    a_crowd_emits_and_works(Ordering::None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_order() {
    a_crowd_emits_and_works(Ordering::Key).await;
}

//! Answers that are lost on their way: what was asked for may have been done.

use crate::bed::{Server, claim, done, emit, events, subscribe_to};
use crate::between::Between;
use std::sync::atomic::Ordering::SeqCst;
use tramline::Event;
use tramline::error::Kind;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::redis::RedisStore;
use tramline::store::verbs::Resend;

async fn opened(server: &Server) -> (RedisStore, Between) {
    let between = Between::start(server).await;
    let store = RedisStore::open(between.url.parse().unwrap()).await.unwrap();
    // After these it knows the topic, and how far the log goes.
    emit(&store, vec![Event::new("t", "first")]).await.unwrap();
    emit(&store, vec![Event::new("t", "second")]).await.unwrap();
    (store, between)
}

async fn count(store: &RedisStore) -> u64 {
    store.topic_totals().await.unwrap().iter().map(|(_, count)| count).sum()
}

#[tokio::test]
async fn an_emit_without_a_key_is_not_repeated_and_says_so() {
    let server = Server::start();
    let (store, between) = opened(&server).await;
    // It is one trip, and this its answer.
    between.lose.store(1, SeqCst);
    let error = emit(&store, vec![Event::new("t", "x")]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(count(&store).await, 3, "it was stored; only nobody could say so");
}

#[tokio::test]
async fn an_emit_with_an_idempotency_key_that_is_repeated_is_stored_once() {
    let server = Server::start();
    let (store, between) = opened(&server).await;
    let event = || vec![Event::new("t", "x").idempotency_key("k")];
    // It reads first, and writes then.
    between.lose.store(2, SeqCst);
    assert_eq!(emit(&store, event()).await.unwrap_err().kind(), Kind::Unavailable);
    let again = emit(&store, event()).await.unwrap();
    assert!(again.repeated);
    assert_eq!(count(&store).await, 3);
}

/// Its second part may have run when it is asked for again: it was done again all the same, and what must run once ran twice.
#[tokio::test]
async fn a_resend_of_which_a_later_part_may_be_written_is_not_repeated_and_says_so() {
    const EVENTS: u64 = 150;
    let server = Server::start();
    let (store, between) = opened(&server).await;
    for lost in 1..50 {
        let id = subscribe_to(&store, &format!("s{lost}"), "t", Ordering::None).await;
        let emitted = emit(&store, events(EVENTS as usize)).await.unwrap();
        let claimed = claim(&store, id, 1_000).await.unwrap();
        done(&store, id, &claimed).await.unwrap();
        let ids = emitted.events.iter().map(|event| event.id).collect();
        between.lose.store(lost, SeqCst);
        let resent = store.resend(Resend { subscription: id, ids, now: None }).await;
        between.lose.store(0, SeqCst);
        let ready = store.stats(id, None).await.unwrap().counts.ready;
        match resent {
            Ok(count) => assert_eq!((count, ready), (EVENTS, EVENTS)),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Unavailable);
                if ready == EVENTS {
                    return;
                }
            }
        }
        store.delete_subscription(&format!("s{lost}")).await.unwrap();
    }
    panic!("no answer of a later part was lost");
}

//! Answers that are lost on their way: what was asked for may have been done.

use crate::bed::{Server, emit};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tramline::Event;
use tramline::error::Kind;
use tramline::store::Store;
use tramline::store::redis::RedisStore;

/// Passes everything on, until it is told which of the next answers to lose: that connection ends instead.
struct Between {
    url: String,
    lose: Arc<AtomicUsize>,
}

impl Between {
    async fn start(server: &Server) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (lose, port) = (Arc::new(AtomicUsize::new(0)), server.port());
        tokio::spawn({
            let lose = lose.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::spawn(pass_on(client, server, lose.clone()));
                }
            }
        });
        Between { url, lose }
    }
}

async fn pass_on(client: TcpStream, server: TcpStream, lose: Arc<AtomicUsize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(|_| ()) };
    let answering = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            let counted = lose.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
            if read == 0 || counted == Ok(1) {
                return Ok::<(), std::io::Error>(());
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        _ = asking => {}
        _ = answering => {}
    }
}

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

//! How much the guard, the limits and the pool cost: this client beside a bare one. On demand:
//! `cargo test --release -p tramline --test push rate -- --ignored --nocapture`

use crate::bed::{local, request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tramline::push::Client;

const REQUESTS: usize = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures, and wants the machine to itself"]
async fn a_request_costs_at_most_twice_what_it_costs_a_bare_client() {
    let address = receiver().await;
    for concurrency in [1, 16, 64] {
        let (client, mut best) = (local(), [0.0f64; 2]);
        for _ in 0..3 {
            let each = REQUESTS / concurrency;
            best[0] = best[0].max(rate(concurrency, || bare(address, each)).await);
            best[1] = best[1].max(rate(concurrency, || ours(client.clone(), address, each)).await);
        }
        let [bare, ours] = best;
        eprintln!("{concurrency:>3} at a time: bare {bare:.0}/s, ours {ours:.0}/s, {:.2}", ours / bare);
        assert!(ours >= bare / 2.0);
    }
}

/// Requests per second of so many tasks.
async fn rate<F: Future<Output = ()> + Send + 'static>(tasks: usize, task: impl Fn() -> F) -> f64 {
    let start = Instant::now();
    let all: JoinSet<()> = (0..tasks).map(|_| task()).collect();
    all.join_all().await;
    (REQUESTS / tasks * tasks) as f64 / start.elapsed().as_secs_f64()
}

/// A connection of its own, and nothing else.
async fn bare(address: SocketAddr, requests: usize) {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..requests {
        let given = request("http://127.0.0.1/hook?a=b");
        let mut sent =
            http::Request::post("/hook?a=b").header("host", "127.0.0.1").body(Full::new(given.body)).unwrap();
        sent.headers_mut().extend(given.headers);
        let answer = sender.send_request(sent).await.unwrap();
        assert_eq!(answer.status(), 204);
        answer.into_body().collect().await.unwrap();
    }
}

async fn ours(client: Client, address: SocketAddr, requests: usize) {
    let url = format!("http://{address}/hook?a=b");
    for _ in 0..requests {
        assert_eq!(client.post(request(&url)).await.result.unwrap().status, 204);
    }
}

/// Answers as fast as it can.
async fn receiver() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                let mut request = Vec::with_capacity(4096);
                while stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
                    if request.ends_with(b"\r\n\r\n[1]") {
                        request.clear();
                        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                    }
                }
            });
        }
    });
    address
}

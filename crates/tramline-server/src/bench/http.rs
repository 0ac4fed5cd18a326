//! The server over HTTP, beside a bare endpoint that reads the same JSON and does nothing with it. Servers and clients share this
//! process and its processors.

use super::bare;
use super::row::{BoxError, rate};
use super::target::Target;
use super::{PAYLOAD, Samples, Size};
use crate::config::Config;
use crate::serve::Server;
use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1 as client;
use hyper_util::rt::TokioIo;
use reqwest::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How many connections are kept open.
const CONNECTIONS: usize = 64;
/// How many events a large request has.
const MANY: usize = 100;
/// How many connections claim and settle.
const WORKERS: usize = 16;

/// `http_bare`, `http_emit_single`, `http_emit_100` and `http_claim_settle_100`: requests per second for the bare endpoint,
/// events per second for the others.
pub(super) async fn measure(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    tramline::tls::prepare();
    let client = Client::builder().pool_max_idle_per_host(CONNECTIONS).build()?;
    let one = json!({ "payload": "x".repeat(PAYLOAD), "type": "bench" });
    let many = json!(vec![one.clone(); MANY]).to_string();
    let one = one.to_string();

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(bare::serve(listener));
    samples.add("http_bare", posts(address, "/emit", &one, size.singles).await?);
    serving.abort();

    let config = Config { listen: "127.0.0.1:0".into(), store: target.url().into(), ..Config::defaults()? };
    let server = Server::start(config).await?;
    let base = format!("http://{}/v1", server.address());
    let path = format!("/v1/topics/http-{round}/events");
    samples.add("http_emit_single", posts(server.address(), &path, &one, size.singles).await?);
    let requests = posts(server.address(), &path, &many, size.singles).await?;
    samples.add("http_emit_100", requests * MANY as f64);

    let name = format!("http-work-{round}");
    put_subscription(&client, &base, &name).await?;
    let events = (size.events / 2).next_multiple_of(MANY);
    fill(&client, &format!("{base}/topics/{name}/events"), &many, events / MANY).await?;
    let start = Instant::now();
    work(server.address(), &name, events).await?;
    samples.add("http_claim_settle_100", rate(events, start.elapsed()));
    client.delete(format!("{base}/subscriptions/{name}")).send().await?.error_for_status()?;
    server.stop().await;
    Ok(())
}

/// Requests per second of clients that each wait for their answer. They have a thread and a runtime of their own, as if they were another
/// process: whoever waits for a commit must not be in the way of those who ask.
async fn posts(address: SocketAddr, path: &str, body: &str, time: Duration) -> Result<f64, BoxError> {
    let (path, body) = (path.to_owned(), Bytes::from(body.to_owned()));
    let clients = move || -> Result<f64, BoxError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(post_all(address, path, body, time))
    };
    tokio::task::spawn_blocking(clients).await?
}

async fn post_all(address: SocketAddr, path: String, body: Bytes, time: Duration) -> Result<f64, BoxError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (path, body) = (path.clone(), body.clone());
        tasks.spawn(async move {
            let (mut line, mut sent) = (Line::open(address).await?, 0);
            while start.elapsed() < time {
                line.post(&path, body.clone()).await?;
                sent += 1;
            }
            Ok::<usize, BoxError>(sent)
        });
    }
    let mut sent = 0;
    while let Some(done) = tasks.join_next().await {
        sent += done??;
    }
    Ok(rate(sent, start.elapsed()))
}

async fn send(client: &Client, url: &str, body: Bytes) -> Result<Bytes, reqwest::Error> {
    let request = client.post(url).header("content-type", "application/json").body(body);
    request.send().await?.error_for_status()?.bytes().await
}

async fn put_subscription(client: &Client, base: &str, name: &str) -> Result<(), BoxError> {
    let wish = json!({ "topics": [name], "claim_size": MANY }).to_string();
    client.put(format!("{base}/subscriptions/{name}")).body(wish).send().await?.error_for_status()?;
    Ok(())
}

async fn fill(client: &Client, url: &str, body: &str, requests: usize) -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        let (client, url, body) = (client.clone(), url.to_owned(), Bytes::from(body.to_owned()));
        tasks.spawn(async move {
            for _ in (worker..requests).step_by(WORKERS) {
                send(&client, &url, body.clone()).await?;
            }
            Ok::<(), reqwest::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Claims and settles until so many events are done.
async fn work(address: SocketAddr, name: &str, events: usize) -> Result<(), BoxError> {
    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        let path = format!("/v1/subscriptions/{name}");
        tasks.spawn(async move {
            let mut line = Line::open(address).await?;
            let wish = json!({ "worker": format!("bench-{worker}"), "max_events": MANY }).to_string();
            let (claim, settle) = (format!("{path}/claim"), format!("{path}/settle"));
            let mut done = 0;
            loop {
                let (results, count) = outcomes(&line.post(&claim, wish.clone()).await?)?;
                if count == 0 {
                    return Ok::<usize, BoxError>(done);
                }
                line.post(&settle, results).await?;
                done += count;
            }
        });
    }
    let mut done = 0;
    while let Some(worker) = tasks.join_next().await {
        done += worker??;
    }
    if done == events { Ok(()) } else { Err(format!("{done} of {events} events were done").into()) }
}

/// What a worker answers to a claim, and for how many events.
fn outcomes(claimed: &[u8]) -> Result<(String, usize), BoxError> {
    #[derive(Deserialize)]
    struct Claims<'a> {
        #[serde(borrow)]
        events: Vec<Claimed<'a>>,
    }
    #[derive(Deserialize)]
    struct Claimed<'a> {
        id: &'a str,
        lease: &'a str,
    }
    #[derive(Serialize)]
    struct Results<'a> {
        results: Vec<Done<'a>>,
    }
    #[derive(Serialize)]
    struct Done<'a> {
        id: &'a str,
        lease: &'a str,
        outcome: &'static str,
    }
    let claims: Claims<'_> = serde_json::from_slice(claimed)?;
    let done = claims.events.iter().map(|event| Done { id: event.id, lease: event.lease, outcome: "done" });
    let results: Vec<Done<'_>> = done.collect();
    let count = results.len();
    Ok((serde_json::to_string(&Results { results })?, count))
}

/// A connection of one client, and nothing around it: what it costs the client is taken from the server.
struct Line(client::SendRequest<Full<Bytes>>);

impl Line {
    async fn open(address: SocketAddr) -> Result<Line, BoxError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Line(sender))
    }

    async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Bytes, BoxError> {
        let request = Request::post(path).header(HOST, "127.0.0.1").header(CONTENT_TYPE, "application/json");
        let answer = self.0.send_request(request.body(Full::new(body.into()))?).await?;
        match answer.status() {
            status if status.is_success() => Ok(answer.into_body().collect().await?.to_bytes()),
            status => Err(format!("the server answered {status}").into()),
        }
    }
}

//! Push, beside a bare client that sends the same requests. Receivers share this process and its processors.

use super::row::{BoxError, rate};
use super::target::Target;
use super::{PAYLOAD, Samples, Size};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as Bare;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tramline::push::{Client, Guard, Keyring, Settings};
use tramline::{Counts, Event, Policy, Push, Shutdown, Start, Tramline};

/// Requests that are under way at once.
const CONCURRENCY: u32 = 64;
/// Events in a large batch.
const MANY: u32 = 100;
/// Subscribers that are served at once, and every how-manieth of them hangs.
const SUBSCRIBERS: usize = 200;
const HANGS: usize = 10;
/// How often each of them gets an event.
const PACE: Duration = Duration::from_millis(200);
/// How long a subscriber that hangs is waited for.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// `push_100`, `push_1`: events per second in batches of 100 and one by one; `push_bare`: requests per second of a bare client;
/// `push_latency_p50_us`: from the emit to the receiver.
pub(super) async fn measure(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    let receiver = Receiver::start().await?;
    samples.add("push_bare", bare(&receiver, size.singles).await?);
    let few = size.events / 4;
    samples.add("push_1", deliver(target, &receiver, &format!("push-1-{round}"), 1, few).await?);
    samples.add(
        "push_100",
        deliver(target, &receiver, &format!("push-100-{round}"), MANY, size.events * 2).await?,
    );
    receiver.stop();
    samples.add("push_latency_p50_us", latency(target, round, size.handovers / 4).await?);
    Ok(())
}

/// `push_p99_us` and `push_p99_hanging_us`: from the emit to healthy receivers, when the others are healthy too and when they hang.
pub(super) async fn isolation(target: &Target, size: Size, samples: &mut Samples) -> Result<(), BoxError> {
    let receiver = Receiver::start().await?;
    let tram = Tramline::open(target.url()).await?;
    for n in 0..SUBSCRIBERS {
        let path = if n % HANGS == 0 { "x" } else { "timed" };
        subscribe(&tram, &subscriber(n), of_crowd(&receiver, path)).await?;
    }
    for round in 0..size.rounds {
        for (metric, hanging) in [("push_p99_us", false), ("push_p99_hanging_us", true)] {
            let others = if hanging { hang(&tram, &receiver, round).await? } else { Vec::new() };
            samples.add(metric, healthy_p99(target, &receiver, &others, size.idle).await?);
            for name in others {
                tram.delete_subscription(&name).await?;
            }
        }
    }
    for n in 0..SUBSCRIBERS {
        tram.delete_subscription(&subscriber(n)).await?;
    }
    tram.close().await;
    receiver.stop();
    Ok(())
}

/// A pusher that may reach this machine.
struct Node {
    tram: Tramline,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Node {
    async fn start(target: &Target) -> Result<Node, BoxError> {
        let tram = Tramline::open(target.url()).await?;
        let guard = Guard::new(vec!["127.0.0.0/8".parse()?]);
        let client =
            Client::new(Settings { guard, idle_per_host: CONCURRENCY as usize, ..Settings::default() });
        let shutdown = Shutdown::new().with_grace(GIVEN_UP * 2);
        let task = tokio::spawn(tram.pusher(client, Keyring::empty(), 1_024).run(shutdown.clone()));
        Ok(Node { tram, shutdown, task })
    }

    async fn stop(self) -> Result<(), BoxError> {
        self.shutdown.start();
        self.task.await?;
        self.tram.close().await;
        Ok(())
    }
}

/// Events per second from a backlog to a receiver.
async fn deliver(
    target: &Target,
    receiver: &Receiver,
    name: &str,
    max_events: u32,
    events: usize,
) -> Result<f64, BoxError> {
    let node = Node::start(target).await?;
    let push =
        Push { max_events, timeout: Duration::ZERO, concurrency: CONCURRENCY, ..Push::to(receiver.url("x")) };
    subscribe(&node.tram, name, push).await?;
    node.tram.pause(name, "bench", "", None).await?;
    for chunk in (0..events).step_by(1_000) {
        let batch: Vec<Event> = (chunk..events.min(chunk + 1_000)).map(|n| event(name, n as u64)).collect();
        node.tram.emit(batch).await?;
    }
    let (start, before) = (Instant::now(), receiver.requests());
    node.tram.resume(name, "bench", "").await?;
    let requests = events.div_ceil(max_events as usize);
    // Counting what is left costs the store time, so it is not asked before it can be nothing.
    while receiver.requests() < before + requests {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while node.tram.stats(name).await?.counts != Counts::default() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let figure = rate(events, start.elapsed());
    node.tram.delete_subscription(name).await?;
    node.stop().await?;
    Ok(figure)
}

/// The median of single events, each emitted when the one before has arrived. The receiver is a new one: what another one has still to
/// tell would be taken for the first event, and every event for the next.
async fn latency(target: &Target, round: usize, count: usize) -> Result<f64, BoxError> {
    let (node, receiver) = (Node::start(target).await?, Receiver::start().await?);
    let name = format!("push-latency-{round}");
    subscribe(&node.tram, &name, Push { timeout: Duration::ZERO, ..Push::to(receiver.url("x")) }).await?;
    let mut times = Vec::with_capacity(count);
    for n in 0..count + 10 {
        let start = Instant::now();
        let arrived = receiver.seen.arrived.notified();
        node.tram.emit(event(&name, n as u64)).await?;
        arrived.await;
        if n >= 10 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    node.tram.delete_subscription(&name).await?;
    node.stop().await?;
    receiver.stop();
    Ok(quantile(times, 0.5))
}

fn subscriber(n: usize) -> String {
    format!("isolation-{n}")
}

fn of_crowd(receiver: &Receiver, path: &str) -> Push {
    Push { timeout: Duration::ZERO, request_timeout: GIVEN_UP, ..Push::to(receiver.url(path)) }
}

/// New ones each time: what has failed before is left alone for a while.
async fn hang(tram: &Tramline, receiver: &Receiver, round: usize) -> Result<Vec<String>, BoxError> {
    let names: Vec<String> =
        (0..SUBSCRIBERS).step_by(HANGS).map(|n| format!("isolation-hang-{round}-{n}")).collect();
    for name in &names {
        subscribe(tram, name, of_crowd(receiver, "hang")).await?;
    }
    Ok(names)
}

/// Of those who are timed. If there are `others`, they have the places of those who are not.
async fn healthy_p99(
    target: &Target,
    receiver: &Receiver,
    others: &[String],
    time: Duration,
) -> Result<f64, BoxError> {
    let node = Node::start(target).await?;
    let topic = |n: usize| match others.get(n / HANGS) {
        Some(other) if n.is_multiple_of(HANGS) => other.clone(),
        _ => subscriber(n),
    };
    // One event each, so that all of them are being served when it begins.
    let before = receiver.requests();
    node.tram.emit((0..SUBSCRIBERS).map(|n| event(&topic(n), 0)).collect::<Vec<_>>()).await?;
    while receiver.requests() < before + SUBSCRIBERS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    receiver.take_times();
    let mut ticks = tokio::time::interval(PACE / 20);
    let start = Instant::now();
    let mut turn = 0;
    while start.elapsed() < time * 2 {
        ticks.tick().await;
        let now = receiver.started.elapsed().as_micros() as u64;
        let batch: Vec<Event> =
            (0..SUBSCRIBERS).filter(|n| n % 20 == turn % 20).map(|n| event(&topic(n), now)).collect();
        node.tram.emit(batch).await?;
        turn += 1;
    }
    node.stop().await?;
    Ok(quantile(receiver.take_times(), 0.99))
}

async fn subscribe(tram: &Tramline, name: &str, push: Push) -> Result<(), BoxError> {
    let policy = Policy { push: Some(push), retry: Push::retry(), ..Policy::default() };
    tram.put_subscription(name, &[name], policy, Start::Now).await?;
    Ok(())
}

/// An event whose payload begins with a number that its receiver can find.
fn event(topic: &str, number: u64) -> Event {
    let payload = format!("{{\"n\":{number},\"x\":\"{:x<1$}\"}}", "", PAYLOAD - 24);
    Event::new(topic, payload).content_type("application/json")
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// Requests per second of a client that does nothing else.
async fn bare(receiver: &Receiver, time: Duration) -> Result<f64, BoxError> {
    let client: Bare<HttpConnector, Full<Bytes>> = Bare::builder(TokioExecutor::new())
        .pool_max_idle_per_host(CONCURRENCY as usize)
        .build(HttpConnector::new());
    let body = Bytes::from(vec![b'x'; 300 + PAYLOAD]);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (client, body, url) = (client.clone(), body.clone(), receiver.url("x"));
        tasks.spawn(async move {
            let mut sent = 0;
            while start.elapsed() < time {
                let request = Request::post(&url).header(CONTENT_TYPE, "application/json");
                let request = request.body(Full::new(body.clone()))?;
                client.request(request).await?.into_body().collect().await?;
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

/// Takes everything; on `/hang` it never answers, on `/timed` it notes how long each event took.
struct Receiver {
    address: std::net::SocketAddr,
    started: Instant,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    arrived: Notify,
    requests: AtomicUsize,
    times: Mutex<Vec<f64>>,
}

impl Receiver {
    async fn start() -> Result<Receiver, BoxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, started, seen) = (listener.local_addr()?, Instant::now(), Arc::<Seen>::default());
        let seeing = seen.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let seen = seeing.clone();
                let service = service_fn(move |request| take(request, seen.clone(), started));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Receiver { address, started, seen, accepting })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::Relaxed)
    }

    fn take_times(&self) -> Vec<f64> {
        std::mem::take(&mut *self.seen.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stop(self) {
        self.accepting.abort();
    }
}

async fn take(
    request: Request<Incoming>,
    seen: Arc<Seen>,
    started: Instant,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    seen.requests.fetch_add(1, Ordering::Relaxed);
    match path.as_str() {
        "/hang" => std::future::pending::<()>().await,
        "/timed" => {
            let now = started.elapsed().as_micros() as f64;
            let times = numbers(&body).map(|emitted| now - emitted as f64);
            seen.times.lock().unwrap_or_else(PoisonError::into_inner).extend(times);
        }
        _ => seen.arrived.notify_one(),
    }
    let mut response = Response::new(Empty::new());
    *response.status_mut() = hyper::StatusCode::NO_CONTENT;
    Ok(response)
}

/// The numbers in the payloads of a batch.
fn numbers(body: &[u8]) -> impl Iterator<Item = u64> {
    let text = String::from_utf8_lossy(body).into_owned();
    let found: Vec<u64> =
        text.split("{\"n\":").skip(1).filter_map(|rest| rest.split(',').next()?.parse().ok()).collect();
    found.into_iter()
}

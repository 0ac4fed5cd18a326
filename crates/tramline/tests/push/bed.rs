//! Receivers that do as they are told, and names that lead where a test wants.

use async_trait::async_trait;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tramline::push::{Answer, Answered, Client, FailKind, Guard, Request, Resolve, Settings};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Listens, counts connections, and does with each what the test says.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    /// The requests as they came, heads and bodies.
    pub(crate) requests: mpsc::UnboundedReceiver<String>,
}

impl Receiver {
    /// Answers every request on a connection with the next of the answers; the last one is repeated.
    pub(crate) async fn answering(answers: &[&str]) -> Receiver {
        Receiver::at("127.0.0.1:0", answers).await
    }

    pub(crate) async fn at(address: &str, answers: &[&str]) -> Receiver {
        let answers: Arc<[String]> = answers.iter().map(ToString::to_string).collect();
        let listener = TcpListener::bind(address).await.unwrap();
        let (tell, requests) = mpsc::unbounded_channel();
        let accepted = Arc::new(AtomicUsize::new(0));
        let (address, count) = (listener.local_addr().unwrap(), accepted.clone());
        let next = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (answers, tell, next) = (answers.clone(), tell.clone(), next.clone());
                tokio::spawn(async move {
                    serve(stream, &tell, || {
                        let at = next.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
                        answers[at].clone()
                    })
                    .await
                });
            }
        });
        Receiver { address, accepted, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?a=b", self.address)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How many connections there were until now. Those that were opened before this one are accepted before it.
    pub(crate) async fn settled(&self) -> usize {
        let before = self.accepted();
        let _probe = TcpStream::connect(self.address).await.unwrap();
        while self.accepted() == before {
            tokio::task::yield_now().await;
        }
        self.accepted() - 1
    }
}

/// Reads requests and answers them, until an answer is empty or says that the connection ends.
async fn serve(mut stream: TcpStream, tell: &mpsc::UnboundedSender<String>, answer: impl Fn() -> String) {
    while let Some(request) = read_request(&mut stream).await {
        tell.send(request).ok();
        let answer = answer();
        if answer.is_empty()
            || stream.write_all(answer.as_bytes()).await.is_err()
            || answer.contains("connection: close")
        {
            return;
        }
        if answer.contains("content-length: 1000000") {
            drip(&mut stream).await;
        }
    }
}

/// A byte now and then, for ever.
async fn drip(stream: &mut TcpStream) {
    while stream.write_all(b".").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A head, and a body as long as it says.
pub(crate) async fn read_request(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let head = text.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = head {
            let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if text.len() >= end + 4 + length.unwrap_or(0) {
                return String::from_utf8(text).ok();
            }
        }
        if stream.read_buf(&mut text).await.ok()? == 0 {
            return None;
        }
    }
}

/// A name server that gives its answers one after the other; the last one is repeated.
#[derive(Debug, Default)]
pub(crate) struct Names {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Names {
    pub(crate) fn leading_to(answers: &[&[&str]]) -> Arc<Names> {
        let answers = answers.iter().map(|all| all.iter().map(|ip| ip.parse().unwrap()).collect());
        Arc::new(Names { answers: Mutex::new(answers.collect()), ..Names::default() })
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap();
        if answers.len() > 1 { Ok(answers.pop_front().unwrap()) } else { Ok(answers[0].clone()) }
    }
}

/// Settings that let these ranges through.
pub(crate) fn allowing(ranges: &[&str]) -> Settings {
    let guard = Guard::new(ranges.iter().map(|range| range.parse().unwrap()).collect());
    Settings { guard, ..Settings::default() }
}

/// A client that may reach this machine.
pub(crate) fn local() -> Client {
    Client::new(allowing(&["127.0.0.0/8"]))
}

pub(crate) fn request(url: &str) -> Request {
    Request {
        url: url.parse().unwrap(),
        headers: [(http::header::CONTENT_TYPE, "application/json".parse().unwrap())].into_iter().collect(),
        body: Bytes::from_static(b"[1]"),
        timeout: LONG,
    }
}

pub(crate) async fn post(client: &Client, url: &str) -> Answer {
    client.post(request(url)).await
}

/// What came back, or a failed test.
pub(crate) async fn answered(client: &Client, url: &str) -> Answered {
    post(client, url).await.result.unwrap()
}

/// Why nothing came back, or a failed test.
pub(crate) async fn failed(client: &Client, url: &str) -> (FailKind, String) {
    let failed = post(client, url).await.result.expect_err(url);
    (failed.kind, failed.text)
}

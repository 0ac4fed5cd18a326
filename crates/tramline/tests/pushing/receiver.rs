//! A receiver whose every answer the test decides.

use serde_json::Value;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Hands every request to the test, and answers what the test says.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Request>,
}

/// A request that waits for its answer.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
    answer: oneshot::Sender<String>,
}

impl Receiver {
    pub(crate) async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, tell.clone()));
            }
        });
        Receiver { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) async fn next(&mut self) -> Request {
        tokio::time::timeout(LONG, self.requests.recv()).await.expect("no request came").unwrap()
    }

    /// True if no request has come that nobody has seen.
    pub(crate) fn has_nothing(&mut self) -> bool {
        self.requests.try_recv().is_err()
    }
}

impl Request {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The payloads of the events, which are texts.
    pub(crate) fn payloads(&self) -> Vec<String> {
        let json = self.json();
        let events = json["events"].as_array().unwrap();
        events.iter().map(|event| event["payload"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let json = self.json();
        json["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) fn answer(self, status: u16) {
        self.answer_with(status, "", "");
    }

    /// `headers`: whole lines, each with its end.
    pub(crate) fn answer_with(self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} S\r\n{headers}content-length: {length}\r\n\r\n{body}");
        // Whoever sent it may be gone.
        let _ = self.answer.send(answer);
    }
}

async fn serve(mut stream: TcpStream, tell: mpsc::UnboundedSender<Request>) {
    while let Some((method, headers, body)) = read(&mut stream).await {
        let (answer, answered) = oneshot::channel();
        if tell.send(Request { method, headers, body, answer }).is_err() {
            return;
        }
        let Ok(answer) = answered.await else { return };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<(String, HashMap<String, String>, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let mut lines = head.lines();
            let method = lines.next()?.split(' ').next()?.to_owned();
            let headers: HashMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Some((method, headers, bytes[end + 4..end + 4 + length].to_vec()));
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

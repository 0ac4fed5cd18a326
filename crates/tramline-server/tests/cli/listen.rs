//! `listen`, and the library's client that pushes to it.

use crate::node::PROGRAM;
use crate::server::terminate;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};
use tramline::Time;
use tramline::push::{Answered, Client, Guard, Request, Secret, Settings, sign};

/// The command, running. Killed when it is dropped.
pub(crate) struct Listen {
    child: Child,
    pub(crate) url: String,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
    client: Client,
}

impl Listen {
    pub(crate) fn start(args: &[&str]) -> Listen {
        let mut command = Command::new(PROGRAM);
        command.args(["listen", "--listen", "127.0.0.1:0"]).args(args).env_remove("TRAMLINE_LISTEN_SECRET");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        let guard = Guard::new(vec!["127.0.0.1".parse().unwrap()]);
        let client = Client::new(Settings { guard, ..Settings::default() });
        Listen { child, url, out, err, client }
    }

    fn request(&self, headers: HeaderMap, body: &'static [u8]) -> Request {
        let url = format!("{}hook?a=b", self.url).parse().unwrap();
        Request { url, headers, body: Bytes::from_static(body), timeout: Duration::from_secs(60) }
    }

    async fn push(&self, headers: HeaderMap, body: &'static [u8]) -> u16 {
        self.client.post(self.request(headers, body)).await.result.unwrap().status
    }

    async fn ask(&self, headers: HeaderMap) -> Answered {
        self.client.options(self.request(headers, b"")).await.result.unwrap()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn json(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Waits for the end; gives the exit code and what it said of a failure.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.err.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Listen {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[expect(clippy::disallowed_methods, reason = "the command compares with the clock of this machine")]
fn signed(secret: &str, body: &[u8]) -> HeaderMap {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let secret = Secret::parse(secret).unwrap();
    sign(&[secret], "msg_1", Time(0).after(now), body).unwrap().into_iter().collect()
}

fn header(name: &'static str, value: &'static str) -> HeaderMap {
    [(HeaderName::from_static(name), HeaderValue::from_static(value))].into_iter().collect()
}

#[tokio::test]
async fn what_is_pushed_is_shown_with_its_signature_checked() {
    let (shared, pair) = (Secret::generate_hmac().unwrap(), Secret::generate_ed25519().unwrap());
    let other = Secret::generate_hmac().unwrap().reveal();
    let public = pair.public().unwrap();
    let mut listen = Listen::start(&["--json", "--secret", &shared.reveal(), "--secret", &public]);
    for (headers, verdict) in [
        (signed(&shared.reveal(), b"[1,2]"), "valid"),
        (signed(&pair.reveal(), b"[1,2]"), "valid"),
        (signed(&other, b"[1,2]"), "invalid"),
        (signed(&shared.reveal(), b"[1,3]"), "invalid"),
        (HeaderMap::new(), "none"),
    ] {
        assert_eq!(listen.push(headers, b"[1,2]").await, 204);
        let shown = listen.json();
        assert_eq!(shown["signature"], verdict, "{shown}");
        assert_eq!((shown["path"].as_str(), shown["status"].as_u64()), (Some("/hook?a=b"), Some(204)));
        assert_eq!(shown["events"], serde_json::json!([1, 2]));
    }
    terminate(&listen.child);
    assert_eq!(listen.ended(), (Some(0), String::new()));
}

#[tokio::test]
async fn people_get_lines() {
    let mut listen = Listen::start(&[]);
    assert_eq!(listen.push(header("webhook-signature", "v1,x"), b"{\"id\":\"7\"}").await, 204);
    let lines = [listen.line(), listen.line(), listen.line()];
    assert_eq!(
        lines,
        [
            "POST /hook?a=b -> 204; 1 event; signature: unchecked",
            "  webhook-signature: v1,x",
            "  {\"id\":\"7\"}"
        ]
    );
}

#[tokio::test]
async fn the_first_ones_fail_and_the_others_are_answered_as_asked() {
    let listen = Listen::start(&["--fail-first", "2", "--status", "202"]);
    for status in [503, 503, 202, 202] {
        assert_eq!(listen.push(HeaderMap::new(), b"[]").await, status);
    }
}

#[tokio::test]
async fn once_ends_with_the_verdict_on_the_signature() {
    let secret = Secret::generate_hmac().unwrap().reveal();
    let listen = Listen::start(&["--once", "--fail-first", "1", "--secret", &secret]);
    assert_eq!(listen.push(HeaderMap::new(), b"[]").await, 503);
    assert_eq!(listen.push(signed(&secret, b"[]"), b"[]").await, 204);
    assert_eq!(listen.ended().0, Some(0));
    for (headers, why) in [(signed(&secret, b"{}"), "no signature fits"), (HeaderMap::new(), "not signed")] {
        let listen = Listen::start(&["--once", "--secret", &secret]);
        assert_eq!(listen.push(headers, b"[]").await, 204);
        let (code, said) = listen.ended();
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn the_handshake_of_cloud_events_is_answered() {
    let mut listen = Listen::start(&["--json", "--fail-first", "1"]);
    let mut asked = header("webhook-request-origin", "events.example");
    asked.extend(header("webhook-request-rate", "120"));
    let answer = listen.ask(asked).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["webhook-allowed-origin"], "events.example");
    assert_eq!(answer.headers["webhook-allowed-rate"], "*");
    assert_eq!(listen.json()["method"], "OPTIONS");
}

/// A sender that is in the middle of a request when the command is told to stop gets its answer.
#[test]
fn a_request_that_is_under_way_is_finished_before_the_end() {
    let mut listen = Listen::start(&["--json"]);
    let address = listen.url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        .unwrap();
    let mut heard = [0; 25];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"HTTP/1.1 100 Continue\r\n\r\n");
    terminate(&listen.child);
    stream.write_all(b"[]").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
    assert_eq!(listen.json()["status"], 204);
    assert_eq!(listen.ended(), (Some(0), String::new()));
}

#[test]
fn a_wrong_secret_or_address_is_wrong_usage_and_not_repeated() {
    for (args, why) in [
        (["--secret", "whsec_dG9vc2hvcnQ="], "--secret: the secret has 8 bytes"),
        (["--listen", "nowhere"], "cannot listen on nowhere"),
        (["--status", "99"], "--status"),
    ] {
        let output = Command::new(PROGRAM).arg("listen").args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
        assert!(!said.contains("dG9vc2hvcnQ"), "{said}");
    }
}

//! Takes requests one by one, shows them, and decides the answers.

use super::Args;
use super::received::{Received, Signature};
use crate::cli::failure::{Exit, Failure};
use crate::cli::print::Printer;
use crate::cli::value;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tramline::push::Verifier;

/// The largest body that is taken.
const MAX_BODY: usize = 64 << 20;
/// For a body to arrive.
const BODY: Duration = Duration::from_secs(60);
const ORIGIN: &str = "webhook-request-origin";
const RATE: &str = "webhook-request-rate";

/// What requests are answered with, and how far that has come.
pub(super) struct Desk {
    verifier: Option<Verifier>,
    print: Printer,
    status: StatusCode,
    once: bool,
    progress: Mutex<Progress>,
    /// Set when no more requests are wanted.
    pub(super) ended: CancellationToken,
}

#[derive(Default)]
struct Progress {
    /// How many are still to fail.
    failures: u64,
    /// What came of the one request that was wanted.
    last: Option<Signature>,
}

type Reply = Response<Empty<Bytes>>;

impl Desk {
    pub(super) fn new(args: &Args, verifier: Option<Verifier>) -> Desk {
        Desk {
            verifier,
            print: Printer::new(args.json),
            status: StatusCode::from_u16(args.status).unwrap_or(StatusCode::NO_CONTENT),
            once: args.once,
            progress: Mutex::new(Progress { failures: args.fail_first, last: None }),
            ended: CancellationToken::new(),
        }
    }

    /// Takes one request. An error here ends its connection.
    pub(super) async fn take(&self, request: Request<Incoming>) -> Result<Reply, Failure> {
        let (head, body) = request.into_parts();
        if head.method == Method::OPTIONS && head.headers.contains_key(ORIGIN) {
            let reply = handshake(&head.headers);
            self.show(&Received::handshake(&head))?;
            return Ok(reply);
        }
        let Ok(body) = tokio::time::timeout(BODY, Limited::new(body, MAX_BODY).collect()).await else {
            return Ok(reply(StatusCode::REQUEST_TIMEOUT));
        };
        let Ok(body) = body.map(|body| body.to_bytes()) else {
            return Ok(reply(StatusCode::PAYLOAD_TOO_LARGE));
        };
        let signature = self.check(&head.headers, &body);
        let Some(status) = self.decide(signature) else { return Ok(reply(StatusCode::SERVICE_UNAVAILABLE)) };
        self.show(&Received::request(&head, &body, status, signature))?;
        Ok(reply(status))
    }

    fn check(&self, headers: &HeaderMap, body: &[u8]) -> Signature {
        if !headers.contains_key("webhook-signature") {
            return Signature::None;
        }
        match self.verifier.as_ref().map(|verifier| verifier.verify(headers, body, value::now())) {
            None => Signature::Unchecked,
            Some(Ok(())) => Signature::Valid,
            Some(Err(why)) => Signature::Invalid(why),
        }
    }

    /// The status of the next answer; `None` when the one request that was wanted has come already.
    fn decide(&self, signature: Signature) -> Option<StatusCode> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if self.once && progress.last.is_some() {
            return None;
        }
        if progress.failures > 0 {
            progress.failures -= 1;
            return Some(StatusCode::SERVICE_UNAVAILABLE);
        }
        progress.last = Some(signature);
        if self.once {
            // This answer still goes out: connections end after what they are at.
            self.ended.cancel();
        }
        Some(self.status)
    }

    fn show(&self, received: &Received) -> Result<(), Failure> {
        self.print.item(&received.json(), |_| received.text())
    }

    /// How the command ends: with `--once` and a secret, the one request has to be signed.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match progress.last {
            Some(Signature::Invalid(why)) if self.once => Err(Failure::new(Exit::Failed, why.to_string())),
            Some(Signature::None) if self.once && self.verifier.is_some() => {
                Err(Failure::new(Exit::Failed, "the request is not signed"))
            }
            _ => Ok(()),
        }
    }
}

/// Who asks whether he may post gets leave, as often as he likes: the handshake of CloudEvents webhooks.
fn handshake(asked: &HeaderMap) -> Reply {
    let mut reply = reply(StatusCode::OK);
    let headers = reply.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static("POST, OPTIONS"));
    if let Some(origin) = asked.get(ORIGIN) {
        headers.insert("webhook-allowed-origin", origin.clone());
    }
    if asked.contains_key(RATE) {
        headers.insert("webhook-allowed-rate", HeaderValue::from_static("*"));
    }
    reply
}

fn reply(status: StatusCode) -> Reply {
    let mut reply = Response::new(Empty::new());
    *reply.status_mut() = status;
    reply
}

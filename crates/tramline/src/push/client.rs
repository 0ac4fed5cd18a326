//! Sends requests to receivers and reads what they answer, within limits of time and size. Redirects are not followed: there is
//! nothing here that could.

use super::callback::has_credentials;
use super::dial::Dial;
use super::failed::{FailKind, Failed};
use super::guard::Guard;
use super::pool::Pool;
use super::proxy::Proxy;
use super::resolve::{Resolve, SystemResolver};
use super::retry_after::retry_after;
use super::tls;
use bytes::Bytes;
use http::header::{self, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use http::{Method, Uri};
use http_body_util::Full;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use url::Url;

const AGENT: HeaderValue = HeaderValue::from_static(concat!("tramline/", env!("CARGO_PKG_VERSION")));
/// What belongs to the connection and not to the request. A subscriber who could set them could make two requests of one.
const OF_THE_CONNECTION: [HeaderName; 10] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::EXPECT,
    header::TE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHORIZATION,
];

/// How a client works. `Settings::default()` and then what is to be different.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which addresses may be dialled.
    pub guard: Guard,
    /// Accept every certificate, also self-signed ones. The connections of a client are shared, so a program that wants both has
    /// two clients.
    pub insecure_tls: bool,
    /// Through which proxy; never taken from the environment.
    pub proxy: Option<Proxy>,
    /// For the look-up, the connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// How many connections to one receiver are kept open without a request.
    pub idle_per_host: usize,
    /// How long they are kept. Shorter than the five seconds after which some servers hang up: a request that is sent at just that
    /// moment is lost, and nobody can tell whether it was received.
    pub idle_timeout: Duration,
    /// How much of an answer's body is read. The rest is cut off, and the connection closed.
    pub max_answer: usize,
    /// Where addresses come from.
    pub resolver: Arc<dyn Resolve>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            guard: Guard::default(),
            insecure_tls: false,
            proxy: None,
            connect_timeout: Duration::from_secs(2),
            idle_per_host: 32,
            idle_timeout: Duration::from_secs(4),
            max_answer: 64 << 10,
            resolver: Arc::new(SystemResolver::default()),
        }
    }
}

/// Sends requests over connections that it keeps for a while. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Arc<Pool>,
    max_answer: usize,
}

/// What is to be sent, and where to.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where to. User and password in it are refused.
    pub url: Url,
    /// Beside those of the connection, which are set here: host, length and the like.
    pub headers: HeaderMap,
    /// As it is sent.
    pub body: Bytes,
    /// For everything from the look-up to the last byte of the answer.
    pub timeout: Duration,
}

/// What became of a request, and how long it took.
#[derive(Debug)]
pub struct Answer {
    /// From the call to the last byte of the answer, or to the failure.
    pub latency: Duration,
    /// The answer, if there was one.
    pub result: Result<Answered, Failed>,
}

/// An answer. Any status is one, also 301 and 500.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// When the receiver wants to be asked again; at most an hour.
    pub retry_after: Option<Duration>,
    /// The type of the body, if it says.
    pub content_type: Option<String>,
    /// All headers.
    pub headers: HeaderMap,
    /// The body, or its beginning.
    pub body: Bytes,
    /// The body was longer than what is read of one.
    pub cut: bool,
}

impl Client {
    /// A client without connections. It reads the root certificates of the machine, which takes some milliseconds.
    pub fn new(settings: Settings) -> Client {
        let dial = Dial {
            guard: settings.guard,
            resolver: settings.resolver,
            tls: tls::connector(settings.insecure_tls),
            proxy: settings.proxy,
            patience: settings.connect_timeout,
        };
        let pool = Pool::new(dial, settings.idle_per_host, settings.idle_timeout);
        Client { pool: Arc::new(pool), max_answer: settings.max_answer }
    }

    /// Posts. Dropping the future closes the connection; whether the receiver has seen the request is then unknown.
    pub async fn post(&self, request: Request) -> Answer {
        self.send(Method::POST, request).await
    }

    /// Asks whether it may post: the handshake of CloudEvents webhooks.
    pub async fn options(&self, request: Request) -> Answer {
        self.send(Method::OPTIONS, request).await
    }

    async fn send(&self, method: Method, request: Request) -> Answer {
        let (start, timeout) = (Instant::now(), request.timeout);
        let result = match tokio::time::timeout(timeout, self.exchange(method, request)).await {
            Ok(result) => result,
            Err(_) => Err(Failed::new(FailKind::Timeout, format!("no complete answer within {timeout:?}"))),
        };
        Answer { latency: start.elapsed(), result }
    }

    async fn exchange(&self, method: Method, request: Request) -> Result<Answered, Failed> {
        let (to, request) = self.prepare(method, request)?;
        let (head, body, cut) = self.pool.exchange(&to, request, self.max_answer).await?;
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(Answered {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            content_type: content_type.map(str::to_owned),
            headers: head.headers,
            body,
            cut,
        })
    }

    fn prepare(&self, method: Method, request: Request) -> Result<(Uri, http::Request<Full<Bytes>>), Failed> {
        let Request { url, mut headers, body, .. } = request;
        if has_credentials(&url) {
            return Err(Failed::new(FailKind::Invalid, "the URL has a user or a password in it"));
        }
        let unsendable = || Failed::new(FailKind::Invalid, "the URL cannot be sent to");
        let to = Uri::try_from(url.as_str()).map_err(|_| unsendable())?;
        for name in &OF_THE_CONNECTION {
            headers.remove(name);
        }
        headers.insert(header::HOST, host(&url).ok_or_else(unsendable)?);
        headers.entry(USER_AGENT).or_insert(AGENT);
        let mut sent = http::Request::new(Full::new(body));
        *sent.method_mut() = method;
        // A proxy that passes requests on itself wants to be told the whole address, and who asks.
        match self.pool.dial.proxy.as_ref().filter(|_| url.scheme() == "http") {
            Some(proxy) => {
                headers.extend(proxy.authorization.clone().map(|value| (PROXY_AUTHORIZATION, value)));
                *sent.uri_mut() = to.clone();
            }
            None => *sent.uri_mut() = to.path_and_query().cloned().map(Uri::from).ok_or_else(unsendable)?,
        }
        *sent.headers_mut() = headers;
        Ok((to, sent))
    }
}

/// What the receiver is called, with its port unless that is the usual one.
fn host(url: &Url) -> Option<HeaderValue> {
    let name = url.host_str()?;
    let host = url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    HeaderValue::try_from(host).ok()
}

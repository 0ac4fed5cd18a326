//! How connections are opened: look the name up, check every address, connect to one of those that were checked.
//!
//! There is one look-up per connection. Whoever answers it once with a public address and a second time with a private one
//! ("rebinding") gets no second time.

use super::guard::{Guard, Refused};
use super::proxy::Proxy;
use super::resolve::Resolve;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Uri;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower_service::Service;

/// How many addresses of a name are tried. All of them are checked.
const TRIED: usize = 8;
/// How long an address may take before the next one is tried beside it. The figure of RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// TCP, or TLS over it, as the HTTP client wants it.
pub(super) type Stream = TokioIo<Either<TcpStream, TlsStream<TcpStream>>>;

/// Opens connections.
pub(super) struct Dial {
    pub(super) guard: Guard,
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) tls: TlsConnector,
    pub(super) proxy: Option<Proxy>,
    /// For the look-up, the connection and the TLS handshake together.
    pub(super) patience: Duration,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// Without the address: a subscriber could find out the addresses of names that only this network knows.
    #[error("the receiver's address is {}, and must not be dialled", .0.what)]
    Refused(Refused),
    #[error("the name of the receiver was not found: {0}")]
    Resolve(io::Error),
    #[error("the receiver cannot be reached: {0}")]
    Connect(io::Error),
    #[error("no TLS with the receiver: {0}")]
    Tls(io::Error),
    #[error("the proxy did not connect: {0}")]
    Proxy(String),
    #[error("no connection to the receiver within {0:?}")]
    Timeout(Duration),
    #[error("the URL has no host")]
    NoHost,
}

impl Dial {
    /// Connects to where `to` is.
    pub(super) async fn dial(&self, to: &Uri) -> Result<Stream, DialError> {
        let opening = tokio::time::timeout(self.patience, self.open(to));
        opening.await.unwrap_or(Err(DialError::Timeout(self.patience)))
    }

    async fn open(&self, to: &Uri) -> Result<Stream, DialError> {
        let host = to.host().ok_or(DialError::NoHost)?;
        let tls = to.scheme_str() == Some("https");
        let port = to.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let stream = match &self.proxy {
            None => connect(&self.checked(host, port).await?).await?,
            Some(proxy) => self.through_proxy(proxy, to, host, tls).await?,
        };
        if !tls {
            return Ok(TokioIo::new(Either::Left(stream)));
        }
        let name = bare(host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| DialError::Tls(io::Error::other(error)))?;
        let stream = self.tls.connect(name, stream).await.map_err(DialError::Tls)?;
        Ok(TokioIo::new(Either::Right(stream)))
    }

    /// The addresses of a receiver, all of them allowed. One that is not condemns the name: it is a trick, or an error in the DNS
    /// that should be noticed always and not only now and then.
    async fn checked(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        let all = self.addresses(host, port).await?;
        all.iter().try_for_each(|address| self.check(host, address.ip()))?;
        Ok(all)
    }

    fn check(&self, host: &str, ip: IpAddr) -> Result<(), DialError> {
        self.guard.check(ip).map_err(|refused| {
            tracing::warn!(host, "a push was not sent: {refused}, which is not among the allowed ranges");
            DialError::Refused(refused)
        })
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
        let found = match literal(host) {
            Some(ip) => vec![ip],
            None => self.resolver.resolve(host).await.map_err(DialError::Resolve)?,
        };
        if found.is_empty() {
            return Err(DialError::Resolve(io::Error::other("it has no addresses")));
        }
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    /// The proxy looks names up; only an address that is written as one can be checked here.
    async fn through_proxy(
        &self,
        proxy: &Proxy,
        to: &Uri,
        host: &str,
        tls: bool,
    ) -> Result<TcpStream, DialError> {
        if let Some(ip) = literal(host) {
            self.check(host, ip)?;
        }
        // It is the operator's choice, so that the guard has no say.
        let addresses = self.addresses(&proxy.host, proxy.port).await?;
        let stream = connect(&addresses).await.map_err(|error| DialError::Proxy(error.to_string()))?;
        if !tls {
            return Ok(stream);
        }
        let mut tunnel = Tunnel::new(proxy.uri.clone(), Connected(Some(stream)));
        if let Some(authorization) = &proxy.authorization {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        match tunnel.call(to.clone()).await {
            Ok(stream) => Ok(stream.into_inner()),
            Err(error) => Err(DialError::Proxy(error.to_string())),
        }
    }
}

/// A connection to the proxy, for the one tunnel that asks for it.
struct Connected(Option<TcpStream>);

impl Service<Uri> for Connected {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = Ready<Result<TokioIo<TcpStream>, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().map(TokioIo::new).ok_or(DialError::NoHost))
    }
}

/// Connects to the first address that answers. The next one is tried when one fails, or beside one that hesitates.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let mut waiting = addresses.iter().take(TRIED);
    let mut attempts = FuturesUnordered::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match waiting.next() {
            Some(address) => attempts.push(TcpStream::connect(*address)),
            None if attempts.is_empty() => return Err(DialError::Connect(last)),
            None => {}
        }
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => {
                    // A request is written in one go; waiting for more to send would only delay it.
                    stream.set_nodelay(true).map_err(DialError::Connect)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            },
            () = tokio::time::sleep(HEAD_START), if waiting.len() > 0 => {}
        }
    }
}

/// The address that a host is, if it is one.
fn literal(host: &str) -> Option<IpAddr> {
    bare(host).parse().ok()
}

/// `[::1]` without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

//! Connections to receivers, kept open for a while between requests.
//!
//! A connection has no task of its own: whoever sends a request over it drives it, so that an answer wakes one task and not two.

use super::dial::{Dial, Stream};
use super::failed::{FailKind, Failed};
use bytes::{Bytes, BytesMut};
use http::uri::{Authority, Scheme};
use http::{Request, Uri, response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// The head of an answer may not be longer.
const MAX_HEAD: usize = 64 << 10;
/// How long saying goodbye may take.
const GOODBYE: Duration = Duration::from_millis(100);

/// Whom a connection is to.
type Host = (Scheme, Authority);

/// Opens connections, and keeps those without a request for the next one.
pub(super) struct Pool {
    pub(super) dial: Dial,
    per_host: usize,
    patience: Duration,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// For each host the one that was used last comes last.
    hosts: HashMap<Host, Vec<(Link, Instant)>>,
    /// Somebody looks after them.
    is_kept: bool,
}

/// What came over a connection: the head of an answer, its body or the beginning of it, and whether there was more.
pub(super) type Read = (response::Parts, Bytes, bool);

impl Pool {
    /// Keeps up to `per_host` connections to each host, for as long as `patience`.
    pub(super) fn new(dial: Dial, per_host: usize, patience: Duration) -> Pool {
        Pool { dial, per_host, patience, idle: Mutex::default() }
    }

    /// Sends a request to where `to` is, and reads at most `most` bytes of the body of its answer.
    pub(super) async fn exchange(
        self: &Arc<Pool>,
        to: &Uri,
        mut request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Read, Failed> {
        let (Some(scheme), Some(authority)) = (to.scheme(), to.authority()) else {
            return Err(Failed::new(FailKind::Invalid, "the URL has no host"));
        };
        let host = (scheme.clone(), authority.clone());
        loop {
            let (mut link, is_new) = match self.take(&host).await {
                Some(link) => (link, false),
                None => (self.open(to).await?, true),
            };
            match link.exchange(request, most).await {
                Ok(read) => {
                    if !read.2 {
                        self.keep(host, link);
                    }
                    return Ok(read);
                }
                // The receiver has hung up before anything of it was sent, as is its right after a while.
                Err((Some(unsent), _)) if !is_new => request = unsent,
                Err((_, error)) => return Err(Failed::of(&error)),
            }
        }
    }

    async fn open(&self, to: &Uri) -> Result<Link, Failed> {
        let stream = self.dial.dial(to).await.map_err(|error| Failed::of(&error))?;
        let shaken = Builder::new().max_buf_size(MAX_HEAD).handshake(stream).await;
        let (sender, connection) = shaken.map_err(|error| Failed::of(&error))?;
        Ok(Link { sender, connection })
    }

    /// The connection that was used last, if it is still good.
    async fn take(&self, host: &Host) -> Option<Link> {
        loop {
            let (mut link, since) = self.idle().hosts.get_mut(host)?.pop()?;
            if since.elapsed() < self.patience && link.is_free().await {
                return Some(link);
            }
        }
    }

    fn keep(self: &Arc<Pool>, host: Host, link: Link) {
        let mut idle = self.idle();
        let links = idle.hosts.entry(host).or_default();
        if links.len() >= self.per_host {
            return;
        }
        links.push((link, Instant::now()));
        if !idle.is_kept {
            idle.is_kept = true;
            tokio::spawn(look_after(Arc::downgrade(self), self.patience));
        }
    }

    /// Takes out the connections that nobody used for long, and says whether there are others.
    fn shed(&self) -> (Vec<Link>, bool) {
        let mut idle = self.idle();
        let mut shed = Vec::new();
        idle.hosts.retain(|_, links| {
            let good = links.partition_point(|(_, since)| since.elapsed() >= self.patience);
            shed.extend(links.drain(..good).map(|(link, _)| link));
            !links.is_empty()
        });
        idle.is_kept = !idle.hosts.is_empty();
        (shed, idle.is_kept)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// Closes connections that nobody used for long, until there are none.
async fn look_after(weak: Weak<Pool>, patience: Duration) {
    loop {
        tokio::time::sleep(patience).await;
        let Some(pool) = weak.upgrade() else { return };
        let (shed, more) = pool.shed();
        drop(pool);
        for link in shed {
            link.close().await;
        }
        if !more {
            return;
        }
    }
}

/// A connection.
struct Link {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<Stream, Full<Bytes>>,
}

impl Link {
    /// Sends a request, and reads the answer. If it fails before anything was sent, the request comes back.
    async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Read, (Option<Request<Full<Bytes>>>, hyper::Error)> {
        let sent = self.sender.try_send_request(request);
        let mut answer = pin!(async {
            let answer = sent.await.map_err(|mut error| (error.take_message(), error.into_error()))?;
            let (head, body) = answer.into_parts();
            let (body, cut) = read(body, most).await.map_err(|error| (None, error))?;
            Ok((head, body, cut))
        });
        let mut ended = false;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            // What goes wrong with it is told to the answer too.
            ended = ended || Pin::new(&mut self.connection).poll(cx).is_ready();
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// True if a request can be sent: the other end has neither hung up nor said something that nobody asked for.
    async fn is_free(&mut self) -> bool {
        let is_open = poll_fn(|cx| Poll::Ready(Pin::new(&mut self.connection).poll(cx).is_pending()));
        is_open.await && self.sender.is_ready()
    }

    async fn close(self) {
        drop(self.sender);
        // It may have been closed by the other end, which is as good.
        let _ = tokio::time::timeout(GOODBYE, self.connection).await;
    }
}

/// The body, or as much of it as is wanted; and whether there was more.
async fn read(mut body: Incoming, most: usize) -> Result<(Bytes, bool), hyper::Error> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let room = most - all.len();
        all.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return Ok((all.freeze(), true));
        }
    }
    Ok((all.freeze(), false))
}

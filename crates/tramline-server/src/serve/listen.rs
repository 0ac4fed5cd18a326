//! Connections: accepted up to a limit, each with its own time-outs, and ended in order.

use crate::http::app::Shared;
use crate::http::limits::MAX_HEAD;
use crate::serve::stall::Stall;
use crate::serve::tls::Tls;
use axum::Router;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// How long to wait when the system has no more sockets to give.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(100);
/// The answer to one connection too many.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 174\r\n\r\n\
    {\"type\":\"urn:tramline:problem:service-unavailable\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"detail\":\"too many connections\",\"remedy\":\"try again, and keep connections open\"}";

/// A server that listens.
pub(crate) struct Listening {
    accepting: JoinHandle<()>,
    connections: TaskTracker,
}

impl Listening {
    /// Accepts until the server drains.
    pub(crate) fn start(
        listener: TcpListener,
        app: Shared,
        router: Router,
        tls: Option<Arc<Tls>>,
    ) -> Listening {
        let connections = TaskTracker::new();
        let room = Arc::new(Semaphore::new(app.config.max_connections));
        let full = AtomicBool::new(false);
        let server = Server { app, router, tls, room, full, connections: connections.clone() };
        Listening { accepting: tokio::spawn(server.accept(listener)), connections }
    }

    /// Waits until all connections have ended, but not for longer than `patience`.
    pub(crate) async fn finish(self, patience: Duration) {
        if let Err(error) = self.accepting.await {
            tracing::error!(error = %error, "accepting connections ended badly");
        }
        self.connections.close();
        if tokio::time::timeout(patience, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "some requests did not finish in time");
        }
    }
}

struct Server {
    app: Shared,
    router: Router,
    tls: Option<Arc<Tls>>,
    room: Arc<Semaphore>,
    /// Some were turned away, and hardly any have left since.
    full: AtomicBool,
    connections: TaskTracker,
}

impl Server {
    async fn accept(self, listener: TcpListener) {
        let reloading = self.tls.clone().map(|tls| tokio::spawn(async move { tls.keep_current().await }));
        loop {
            let accepted = tokio::select! {
                () = self.app.draining.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => self.take(stream),
                Err(error) => {
                    // The others go on; when some of them end, there are sockets again.
                    tracing::warn!(error = %error, "a connection was not accepted");
                    tokio::time::sleep(OUT_OF_SOCKETS).await;
                }
            }
        }
        if let Some(reloading) = reloading {
            reloading.abort();
        }
    }

    fn take(&self, stream: TcpStream) {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            self.app.metrics.refused.add("connections", 1);
            if !self.full.swap(true, Ordering::Relaxed) {
                let most = self.app.config.max_connections;
                tracing::warn!(max_connections = most, "all connections are taken; others are turned away");
            }
            if self.tls.is_none() {
                // A new socket has room for so little: nobody waits.
                let _ = stream.try_write(FULL);
            }
            return;
        };
        // Not as soon as one has left, or there would be a line in the log for each that comes and goes.
        if self.room.available_permits() > self.app.config.max_connections / 10 {
            self.full.store(false, Ordering::Relaxed);
        }
        let _ = stream.set_nodelay(true);
        let (app, router) = (self.app.clone(), self.router.clone());
        let patience = Duration::from_millis(app.config.write_timeout_ms);
        match self.tls.clone() {
            None => self.connections.spawn(serve(Stall::new(stream, patience), app, router, permit)),
            Some(tls) => self.connections.spawn(async move {
                let shaken = tokio::time::timeout(
                    Duration::from_millis(app.config.header_timeout_ms),
                    tls.accept(Stall::new(stream, patience)),
                );
                match shaken.await {
                    Ok(Ok(stream)) => serve(stream, app, router, permit).await,
                    Ok(Err(error)) => tracing::debug!(error = %error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            }),
        };
    }
}

/// Serves one connection until it ends.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    app: Shared,
    router: Router,
    _permit: OwnedSemaphorePermit,
) {
    app.metrics.connections.fetch_add(1, Ordering::Relaxed);
    // The time for headers also counts while a connection is idle, so it ends idle ones too.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(app.config.header_timeout_ms))
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    // Among futures of which each is looked at only when it was woken: the connection is woken often, and the token is shared by all.
    let mut draining = FuturesUnordered::from_iter([app.draining.cancelled()]);
    let ended = tokio::select! {
        biased;
        ended = &mut connection => ended,
        Some(()) = draining.next() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended early");
    }
    app.metrics.connections.fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_one_connection_too_many_is_well_formed() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["status"], 503);
    }
}

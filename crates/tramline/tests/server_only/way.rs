//! A way to a server on which nothing passes when it is shut; and nothing is closed either.

use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// So many bytes and no more has the request with which drivers ask whether a server is there.
const PING: usize = 5;

/// With this drivers try out a connection.
pub(crate) fn is_ping(request: &[u8]) -> bool {
    request.len() <= PING
}

/// Which requests are meant, by their first bytes.
type Such = fn(&[u8]) -> bool;

#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) port: u16,
    is_open: watch::Sender<bool>,
    lost: watch::Sender<()>,
    swallows: Arc<OnceLock<Such>>,
    holds: watch::Sender<usize>,
}

impl Way {
    pub(crate) async fn to(server: String) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Way {
            port: listener.local_addr().unwrap().port(),
            is_open: watch::Sender::new(true),
            lost: watch::Sender::new(()),
            swallows: Arc::default(),
            holds: watch::Sender::new(0),
        };
        let running = way.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(running.clone().carry(client, server));
            }
        });
        way
    }

    pub(crate) fn shut(&self) {
        self.is_open.send_replace(false);
    }

    /// Returns when everything has passed that was held.
    pub(crate) async fn open(&self) {
        self.is_open.send_replace(true);
        self.holds.subscribe().wait_for(|holds| *holds == 0).await.unwrap();
    }

    /// Nothing will ever pass on the connections that there are. Others may be made.
    pub(crate) fn lose(&self) {
        self.lost.send_replace(());
    }

    /// From now on a connection is lost as soon as a driver sends such a request.
    pub(crate) fn swallow(&self, such: Such) {
        self.swallows.set(such).unwrap();
    }

    /// Returns when so many connections wait for the way to open, be it with a request or because they are new.
    pub(crate) async fn holds(&self, count: usize) {
        self.holds.subscribe().wait_for(|holds| *holds >= count).await.unwrap();
    }

    async fn carry(self, client: TcpStream, server: TcpStream) {
        let mut lost = self.lost.subscribe();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::select! {
            () = self.requests(&mut from_client, &mut to_server) => {}
            () = self.answers(&mut from_server, &mut to_client) => {}
            _ = lost.changed() => {
                // The server goes on without it: what was left open there would keep others waiting.
                drop((from_server, to_server));
                std::future::pending().await
            }
        }
    }

    async fn requests(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
        let mut held = (!*self.is_open.borrow()).then(|| Held::on(self));
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                read = from.read_buf(&mut waiting) => {
                    if matches!(read, Ok(0) | Err(_)) {
                        return;
                    }
                    if self.swallows.get().is_some_and(|such| such(&waiting)) {
                        return std::future::pending().await;
                    }
                    if held.is_none() && waiting.len() > PING && !*self.is_open.borrow() {
                        held = Some(Held::on(self));
                    }
                }
                () = self.opened(), if held.is_some() || !waiting.is_empty() => {
                    held = None;
                    if to.write_all(&waiting).await.is_err() {
                        return;
                    }
                    waiting.clear();
                }
            }
        }
    }

    async fn answers(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            self.opened().await;
            if to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }

    async fn opened(&self) {
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
    }
}

/// A connection on which something waits for the way to open.
struct Held<'w>(&'w Way);

impl Held<'_> {
    fn on(way: &Way) -> Held<'_> {
        way.holds.send_modify(|holds| *holds += 1);
        Held(way)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.holds.send_modify(|holds| *holds -= 1);
    }
}

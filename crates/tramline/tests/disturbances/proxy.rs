//! A TCP proxy that can drop, stall and reset what passes through it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// What the proxy does to its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes everything on.
    Pass,
    /// Passes nothing on, and closes nothing.
    Stall,
}

/// A proxy in front of a server.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: watch::Sender<Mode>,
    /// Grows when all connections are to be cut.
    cut: watch::Sender<Cut>,
    /// A request that will be passed on, and whose answer will not: was it done or not?
    cut_answer: Arc<Mutex<Option<CutAnswer>>>,
}

/// Which request it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// The one after so many others.
    After(u64),
    /// The next one that says COMMIT.
    Commit,
}

struct CutAnswer {
    request: Request,
    done: oneshot::Sender<()>,
}

#[derive(Clone, Copy, Default)]
struct Cut {
    number: u64,
    reset: bool,
}

impl Proxy {
    /// Starts one in front of `server` (host:port).
    pub(crate) async fn start(server: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy {
            port: listener.local_addr().unwrap().port(),
            mode: watch::Sender::new(Mode::Pass),
            cut: watch::Sender::default(),
            cut_answer: Arc::default(),
        };
        let running = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A server that restarts refuses connections; so does the proxy then.
                if let Ok(server) = TcpStream::connect(&server).await {
                    tokio::spawn(running.clone().carry(client, server));
                }
            }
        });
        proxy
    }

    /// Closes all connections, politely or with a reset.
    pub(crate) fn cut(&self, reset: bool) {
        self.cut.send_modify(|cut| *cut = Cut { number: cut.number + 1, reset });
    }

    /// Lets a request through, and cuts its connection before the answer. Returns when that is done.
    pub(crate) async fn cut_answer(&self, request: Request) {
        let (done, cut) = oneshot::channel();
        *self.cut_answer.lock().unwrap() = Some(CutAnswer { request, done });
        cut.await.unwrap();
    }

    /// True if the answer to these bytes is to be cut.
    fn takes_the_answer(&self, bytes: &[u8]) -> bool {
        let mut cut = self.cut_answer.lock().unwrap();
        match cut.as_mut().map(|cut| &mut cut.request) {
            None => return false,
            Some(Request::After(0)) => {}
            Some(Request::After(others)) => {
                *others -= 1;
                return false;
            }
            Some(Request::Commit) if bytes.windows(6).any(|word| word == b"COMMIT") => {}
            Some(Request::Commit) => return false,
        }
        cut.take().is_some_and(|cut| cut.done.send(()).is_ok())
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    async fn carry(self, client: TcpStream, server: TcpStream) {
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let mut cut = self.cut.subscribe();
        cut.mark_unchanged();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let cutting = AtomicBool::new(false);
        let reset = tokio::select! {
            () = self.requests(&mut from_client, &mut to_server, &cutting) => false,
            () = self.answers(&mut from_server, &mut to_client, &cutting) => cutting.load(Ordering::SeqCst),
            _ = cut.changed() => cut.borrow().reset,
        };
        if reset {
            // Closing with bytes unsent and no patience makes the kernel send a reset.
            to_client.as_ref().set_zero_linger().unwrap();
            to_server.as_ref().set_zero_linger().unwrap();
        }
    }

    async fn requests(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, cutting: &AtomicBool) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read) = from.read(&mut buffer).await {
            if read == 0 {
                return;
            }
            self.wait_until_passing().await;
            if self.takes_the_answer(&buffer[..read]) {
                cutting.store(true, Ordering::SeqCst);
            }
            if to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }

    async fn answers(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, cutting: &AtomicBool) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read) = from.read(&mut buffer).await {
            if read == 0 || cutting.load(Ordering::SeqCst) {
                return; // the server has done it, and the client will never know
            }
            self.wait_until_passing().await;
            if to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }

    async fn wait_until_passing(&self) {
        let mut mode = self.mode.subscribe();
        mode.wait_for(|mode| *mode == Mode::Pass).await.unwrap();
    }
}

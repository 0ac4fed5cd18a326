//! Something between a store and its server: it loses answers, leads to another server or falls silent when it is told to.

use crate::bed::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes everything on, until it is told which of the next answers to lose: that connection ends instead.
pub(crate) struct Between {
    pub(crate) url: String,
    pub(crate) lose: Arc<AtomicUsize>,
    port: Arc<AtomicU16>,
    silence: watch::Sender<()>,
}

impl Between {
    pub(crate) async fn start(server: &Server) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (lose, port) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU16::new(server.port())));
        let (silence, listen) = watch::channel(());
        let between = Between { url, lose: lose.clone(), port: port.clone(), silence };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Where nobody listens, the connection ends at once.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port.load(SeqCst))).await {
                    let mut silence = listen.clone();
                    silence.mark_unchanged();
                    tokio::spawn(pass_on(client, server, lose.clone(), silence));
                }
            }
        });
        between
    }

    /// New connections go to another server, as when a name leads elsewhere. Those that are open stay as they are.
    pub(crate) fn lead_to(&self, server: &Server) {
        self.port.store(server.port(), SeqCst);
    }

    /// Nothing passes on the connections that are open, and nobody is told: as when the power fails, or a wire is cut.
    pub(crate) fn fall_silent(&self) {
        self.silence.send_replace(());
    }
}

async fn pass_on(
    client: TcpStream,
    server: TcpStream,
    lose: Arc<AtomicUsize>,
    mut silence: watch::Receiver<()>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(|_| ()) };
    let answering = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            let counted = lose.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
            if read == 0 || counted == Ok(1) {
                return Ok::<(), std::io::Error>(());
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        _ = asking => {}
        _ = answering => {}
        Ok(()) = silence.changed() => std::future::pending().await,
    }
}

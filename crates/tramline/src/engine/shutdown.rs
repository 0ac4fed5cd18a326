//! How a worker is asked to stop.

use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long running handlers may take to finish: a little less than the 30 s after which most platforms kill a process.
const GRACE: Duration = Duration::from_secs(28);

/// A switch that stops workers. Clones share it; each may have its own grace.
#[derive(Clone, Debug)]
pub struct Shutdown {
    token: CancellationToken,
    grace: Duration,
}

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown::new()
    }
}

impl Shutdown {
    /// A switch that nobody has turned yet.
    pub fn new() -> Shutdown {
        Shutdown { token: CancellationToken::new(), grace: GRACE }
    }

    /// The same switch; running handlers get this long to finish (28 s unless set).
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Shutdown {
        self.grace = grace;
        self
    }

    /// Turns the switch: workers stop claiming, finish what runs and give the rest back.
    pub fn start(&self) {
        self.token.cancel();
    }

    /// Turns the switch when `signal` is done, for example `tokio::signal::ctrl_c()`. Needs a Tokio runtime.
    pub fn when<F: Future + Send + 'static>(signal: F) -> Shutdown {
        let shutdown = Shutdown::new();
        let token = shutdown.token.clone();
        tokio::spawn(async move {
            signal.await;
            token.cancel();
        });
        shutdown
    }

    /// True once it was turned.
    pub fn is_started(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until it is turned. Cancel-safe.
    pub async fn started(&self) {
        self.token.cancelled().await;
    }

    pub(crate) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }
}

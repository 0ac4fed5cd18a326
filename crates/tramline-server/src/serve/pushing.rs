//! What sends the events of push subscriptions, while the server runs.

use crate::bench::BoxError;
use crate::config::Switch;
use crate::http::app::Shared;
use std::time::Duration;
use tokio::task::JoinHandle;
use tramline::Shutdown;
use tramline::push::{Client, Settings};

/// A pusher that runs.
pub(super) struct Pushing {
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Pushing {
    /// Starts it, unless this node is not to send.
    pub(super) fn start(app: &Shared) -> Result<Option<Pushing>, BoxError> {
        let config = &app.config;
        if config.push == Switch::Off {
            return Ok(None);
        }
        let settings = Settings {
            guard: config.guard()?,
            insecure_tls: config.push_insecure_tls == Switch::On,
            proxy: config.push_proxy.as_deref().map(str::parse).transpose()?,
            ..Settings::default()
        };
        let metrics = app.metrics.clone();
        let pusher = app
            .tram
            .pusher(Client::new(settings), app.keyring.clone(), config.push_requests)
            .watch(move |of, attempt| metrics.push_seconds.observe(&of.name, attempt.latency));
        let shutdown = Shutdown::new().with_grace(Duration::from_millis(config.drain_ms));
        let task = tokio::spawn(pusher.run(shutdown.clone()));
        Ok(Some(Pushing { shutdown, task }))
    }

    /// Lets requests that are under way finish, within the grace.
    pub(super) async fn stop(self) {
        self.shutdown.start();
        // It ends by itself; if it panicked, that was said where it happened.
        let _ = self.task.await;
    }
}

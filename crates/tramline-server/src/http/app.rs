//! What all handlers share.

use crate::compat::routemaster::Owners;
use crate::config::Config;
use crate::http::access::{self, Access};
use crate::http::body::{self, Bodies};
use crate::http::emit::longest_line;
use crate::http::metrics::Metrics;
use crate::http::ndjson::GROUP_BYTES;
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::access::Belongings;
use crate::http::workers::Workers;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use futures_util::FutureExt;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tramline::push::Keyring;
use tramline::{Subscription, Tramline};

/// How long a looked-up subscription is good for. A stale one is noticed by its number, which is never reused.
const FRESH: Duration = Duration::from_secs(1);
/// How many subscriptions are remembered.
const REMEMBERED: usize = 10_000;

/// What all handlers share.
pub(crate) struct App {
    pub(crate) tram: Tramline,
    pub(crate) config: Config,
    pub(crate) access: Access,
    pub(crate) workers: Workers,
    pub(crate) tallies: Belongings,
    /// Who owns the topics of Routemaster's clients.
    pub(crate) owners: Owners,
    /// What secrets are encrypted with.
    pub(crate) keyring: Keyring,
    /// One change of a subscription at a time; see [`crate::http::change`].
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when the server is asked to stop: who waits, answers; who follows, ends.
    pub(crate) draining: CancellationToken,
    /// The limits of request bodies, and room for those that are being read.
    pub(crate) bodies: Bodies,
    /// Room for requests, for claims that wait, and for followers.
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) waiting: Arc<Semaphore>,
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) started: Instant,
    known: Mutex<HashMap<String, (Arc<Subscription>, Instant)>>,
}

/// The state of the router.
pub(crate) type Shared = Arc<App>;

impl App {
    pub(crate) fn new(tram: Tramline, config: Config, access: Access, metrics: Arc<Metrics>) -> Shared {
        // It was read when the settings were checked.
        let keyring = config.keyring().unwrap_or_default();
        // A stream keeps that much of itself before it stores it.
        let largest_group = GROUP_BYTES + longest_line(config.max_payload);
        Arc::new(App {
            keyring,
            changing: tokio::sync::Mutex::default(),
            tram,
            access,
            workers: Workers::default(),
            tallies: Belongings::default(),
            owners: Owners::default(),
            metrics,
            draining: CancellationToken::new(),
            bodies: Bodies::new(
                config.max_body,
                config.max_buffered.max(largest_group),
                config.body_timeout(),
            ),
            requests: Arc::new(Semaphore::new(config.max_requests)),
            waiting: Arc::new(Semaphore::new(config.max_waiting)),
            followers: Arc::new(Semaphore::new(config.max_followers)),
            started: Instant::now(),
            known: Mutex::default(),
            config,
        })
    }

    /// Tells the other nodes what this one knows, and learns from them, until it is dropped.
    pub(crate) async fn keep_current(&self) {
        loop {
            tokio::time::sleep(access::EVERY).await;
            self.access.keep_current().await;
            self.workers.tell(&self.tram).await;
        }
    }

    /// The body of a request, within the limits of size and time.
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Body) -> Answer<Bytes> {
        body::read(headers, body, &self.bodies).await
    }

    /// Asks the store, but not for ever.
    pub(crate) fn ask<T>(
        &self,
        call: impl Future<Output = tramline::Result<T>>,
    ) -> impl Future<Output = Answer<T>> {
        // Not an `async fn`, which would have room for the call twice: before it is timed and after.
        tokio::time::timeout(self.config.store_timeout(), call).map(|answer| match answer {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(too_slow()),
        })
    }

    /// A subscription by name, looked up at most once a second.
    pub(crate) async fn subscription(&self, name: &str) -> Answer<Arc<Subscription>> {
        if let Some((known, at)) = self.known().get(name)
            && at.elapsed() < FRESH
        {
            return Ok(known.clone());
        }
        let found = Arc::new(self.ask(self.tram.subscription(name)).await?);
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(name.to_owned(), (found.clone(), Instant::now()));
        Ok(found)
    }

    /// A subscription has changed or is gone.
    pub(crate) fn forget(&self, name: &str) {
        self.known().remove(name);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Arc<Subscription>, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_slow() -> Problem {
    tracing::warn!("the store did not answer a request in time");
    Problem::new(
        axum::http::StatusCode::SERVICE_UNAVAILABLE,
        "the store did not answer in time; it is not known whether anything was stored",
        "try again; emits are safe to repeat with an Idempotency-Key",
    )
}

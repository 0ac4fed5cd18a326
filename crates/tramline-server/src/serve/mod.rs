//! `tramline serve`: opens the store, listens, and stops without losing anything.
//!
//! - [`listen`]: connections; [`files`]: room for them; [`stall`]: clients that do not read; [`tls`]: certificates
//! - [`pushing`]: what sends to callbacks; [`reseal`]: secrets under a new key

mod files;
mod listen;
mod pushing;
pub(crate) mod reseal;
mod stall;
mod tls;

use crate::bench::BoxError;
use crate::compat::routemaster::statsd;
use crate::config::{Config, Switch, without_password};
use crate::http::access::Access;
use crate::http::app::{App, Shared};
use crate::http::metrics::Metrics;
use crate::http::routes;
use crate::http::timed::Timed;
use listen::Listening;
use pushing::Pushing;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tramline::{Housekeeping, Options, OtelTraces, Tramline};

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn run(config: Config) -> Result<(), BoxError> {
    files::make_room(config.max_connections);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let server = Server::start(config).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping: no new connections, running requests finish");
    server.stop().await;
    tracing::info!("stopped");
    Ok(())
}

/// A server that runs.
pub(crate) struct Server {
    app: Shared,
    address: SocketAddr,
    listening: Listening,
    keeping: JoinHandle<()>,
    reporting: Option<JoinHandle<()>>,
    pushing: Option<Pushing>,
    _housekeeping: Housekeeping,
}

impl Server {
    /// Opens the store and listens.
    pub(crate) async fn start(config: Config) -> Result<Server, BoxError> {
        let tls = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => Some(tls::Tls::open(cert, key)?),
            _ => None,
        };
        let metrics = Arc::new(Metrics::default());
        let tram = open(&config, metrics.clone()).await?;
        let listener = TcpListener::bind(&config.listen).await.map_err(|error| {
            format!("cannot listen on {}: {error} (choose another --listen)", config.listen)
        })?;
        let address = listener.local_addr()?;
        let access =
            Access::open(tram.store().clone(), config.root_token.as_deref(), address.ip().is_loopback())
                .await?;
        check_exposure(address, &access, tls.is_some())?;
        let app = App::new(tram.clone(), config, access, metrics);
        // Before anybody is served: a node that has answered does not give up when the store goes away.
        reseal::reseal(&app).await.map_err(|problem| problem.detail().to_owned())?;
        let keeping = tokio::spawn({
            let app = app.clone();
            async move { app.keep_current().await }
        });
        let reporting = statsd::start(&app);
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(store = without_password(&app.config.store), "listening on {scheme}://{address}");
        if let Some(file) = &app.config.address_file {
            write_address(file, address)?;
        }
        let listening = Listening::start(listener, app.clone(), routes::router(app.clone()), tls);
        let pushing = Pushing::start(&app)?;
        Ok(Server {
            app,
            address,
            listening,
            keeping,
            reporting,
            pushing,
            _housekeeping: tram.housekeeping(),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets running requests finish, and closes the store.
    pub(crate) async fn stop(self) {
        self.app.draining.cancel();
        let grace = Duration::from_millis(self.app.config.drain_ms);
        let pushing = async {
            if let Some(pushing) = self.pushing {
                pushing.stop().await;
            }
        };
        tokio::join!(self.listening.finish(grace), pushing);
        self.keeping.abort();
        if let Some(reporting) = self.reporting {
            // It has reported for the last time when draining began.
            reporting.abort();
        }
        self.app.access.write_uses().await;
        self.app.workers.tell(&self.app.tram).await;
        self.app.tram.close().await;
    }
}

/// Whoever finds the file finds all of it.
fn write_address(file: &Path, address: SocketAddr) -> std::io::Result<()> {
    let mut draft = file.as_os_str().to_owned();
    draft.push(".new");
    std::fs::write(&draft, address.to_string())?;
    std::fs::rename(&draft, file)
}

async fn open(config: &Config, metrics: Arc<Metrics>) -> Result<Tramline, BoxError> {
    let mut options = Options::new(&config.store)
        .keep_tallies(
            Duration::from_millis(config.keep_open_tallies_ms),
            Duration::from_millis(config.keep_sealed_tallies_ms),
        )
        .traces(Arc::new(OtelTraces::new()))
        .watch_store(move |store| Arc::new(Timed::new(store, metrics.clone())));
    if let Some(bytes) = config.store_limit_bytes {
        options = options.store_limit(bytes).shed_pull(config.shed_pull == Switch::On);
    }
    if let Some(url) = &config.store_listen_url {
        options = options.listen_url(url);
    }
    if let Some(url) = &config.wake {
        options = options.wake_url(url);
    }
    Ok(Tramline::with(options).await?)
}

/// Nobody serves the world without tokens by accident.
fn check_exposure(address: SocketAddr, access: &Access, tls: bool) -> Result<(), BoxError> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    if access.is_empty() {
        return Err(format!(
            "refusing to listen on {address} without tokens: everybody who reaches it could do everything. \
             Set TRAMLINE_ROOT_TOKEN to a long random text, or listen on 127.0.0.1 and create a token first"
        )
        .into());
    }
    if !tls {
        tracing::warn!(
            "listening on {address} without TLS: tokens can be read on the way; set tls_cert and tls_key"
        );
    }
    Ok(())
}

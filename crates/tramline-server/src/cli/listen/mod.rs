//! `tramline listen`: a receiver for development. It shows what is pushed to it and checks the signatures.
//!
//! - `desk`: takes a request, decides the answer
//! - `received`: a request as it is shown

mod desk;
mod received;

use super::failure::Failure;
use crate::http::limits::MAX_HEAD;
use desk::Desk;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use tramline::push::{Key, Verifier};

pub(crate) const EXAMPLES: &str = "  tramline listen
  tramline listen --listen 127.0.0.1:9000 --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
  tramline listen --fail-first 3 --json | jq .events
  tramline listen --once --secret whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4= && echo signed";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7071")]
    listen: String,
    /// What signatures are checked with, whsec_.. or whpk_..; may be repeated
    #[arg(long = "secret", value_name = "SECRET", env = "TRAMLINE_LISTEN_SECRET", hide_env_values = true)]
    #[arg(value_delimiter = ',')]
    secrets: Vec<String>,
    /// The status that requests are answered with
    #[arg(long, value_name = "CODE", default_value_t = 204, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// Answer the first N requests with 503
    #[arg(long, value_name = "N", default_value_t = 0)]
    fail_first: u64,
    /// End after one request, not counting those of --fail-first; a failure if its signature is not valid
    #[arg(long)]
    once: bool,
    /// Print JSON, one object per request
    #[arg(long)]
    json: bool,
}

const CONNECTIONS: usize = 256;
/// For the head of a request, and between requests.
const HEAD: Duration = Duration::from_secs(60);
/// For running requests, when told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait when the system has no more sockets to give.
const OUT_OF_SOCKETS: Duration = Duration::from_millis(100);

/// `tramline listen`.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let desk = Arc::new(Desk::new(&args, verifier(&args.secrets)?));
    let listener = TcpListener::bind(&args.listen).await.map_err(|error| {
        Failure::usage(format!("cannot listen on {}: {error}", args.listen)).remedy("choose another --listen")
    })?;
    eprintln!("listening on http://{}/", listener.local_addr()?);
    let connections = TaskTracker::new();
    tokio::select! {
        () = accept(listener, &desk, &connections) => {}
        () = desk.ended.cancelled() => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    desk.ended.cancel();
    connections.close();
    tokio::time::timeout(GRACE, connections.wait()).await.ok();
    desk.verdict()
}

/// `None` without secrets: there is nothing to check with.
fn verifier(secrets: &[String]) -> Result<Option<Verifier>, Failure> {
    let keys: Result<Vec<Key>, _> = secrets.iter().map(|secret| secret.parse()).collect();
    // The error does not repeat the secret, as the one of the command line parser would.
    let keys = keys
        .map_err(|error| Failure::usage(format!("--secret: {}", error.message())).remedy(error.remedy()))?;
    Ok((!keys.is_empty()).then(|| Verifier::new(keys)))
}

async fn accept(listener: TcpListener, desk: &Arc<Desk>, connections: &TaskTracker) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(permit) = room.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let desk = desk.clone();
                connections.spawn(async move {
                    serve(stream, desk).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(OUT_OF_SOCKETS).await,
        }
    }
}

/// Serves one connection until it ends.
async fn serve(stream: TcpStream, desk: Arc<Desk>) {
    let answering = service_fn(|request| desk.take(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), answering);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = desk.ended.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended early");
    }
}

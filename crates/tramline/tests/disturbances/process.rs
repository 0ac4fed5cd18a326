//! What the processes know when they start: this same program plays all the parts.

use std::time::Duration;
use tramline::Tramline;

/// Set in processes that the test starts: which part they play.
pub(crate) const ROLE: &str = "TRAMLINE_DISTURBED_ROLE";
pub(crate) const WORKER: &str = "worker";
pub(crate) const EMITTER: &str = "emitter";

/// Where their database is, perhaps behind a proxy.
pub(crate) const URL: &str = "TRAMLINE_DISTURBED_URL";
pub(crate) const RECORDER: &str = "TRAMLINE_DISTURBED_RECORDER";
/// The journal of a worker, which the next one in its place takes over.
pub(crate) const JOURNAL: &str = "TRAMLINE_DISTURBED_JOURNAL";
/// The first number that an emitter may use.
pub(crate) const FIRST: &str = "TRAMLINE_DISTURBED_FIRST";

/// Opens the database, which may be out of reach at this very moment.
pub(crate) async fn open() -> Tramline {
    let url = std::env::var(URL).unwrap();
    loop {
        match Tramline::open(&url).await {
            Ok(tram) => return tram,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

//! Settings, resolved: what the server works with.
//!
//! - [`settings`]: where they come from: flags, environment and a TOML file, in this order of precedence
//! - [`print`]: the resolved ones as such a file; [`masked`]: URLs without their secrets

mod masked;
mod print;
mod settings;

pub(crate) use masked::without_password;
pub(crate) use settings::Args;

use crate::bench::BoxError;
use serde::{Deserialize, Serialize};
use settings::{ROOT_TOKEN, Settings};
use std::path::PathBuf;
use std::time::Duration;
use tramline::push::{Cidr, Guard, Keyring};

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Whether something is served, or allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Switch {
    /// It is.
    #[default]
    On,
    /// It is not.
    Off,
}

/// Every setting, resolved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Config {
    pub(crate) listen: String,
    pub(crate) store: String,
    pub(crate) store_listen_url: Option<String>,
    pub(crate) wake: Option<String>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) root_token: Option<String>,
    pub(crate) secret_key: Option<String>,
    pub(crate) address_file: Option<PathBuf>,
    pub(crate) max_payload: usize,
    pub(crate) max_body: usize,
    pub(crate) max_buffered: usize,
    pub(crate) max_connections: usize,
    pub(crate) max_requests: usize,
    pub(crate) max_waiting: usize,
    pub(crate) max_followers: usize,
    pub(crate) max_wait_ms: u64,
    pub(crate) header_timeout_ms: u64,
    pub(crate) body_timeout_ms: u64,
    pub(crate) write_timeout_ms: u64,
    pub(crate) store_timeout_ms: u64,
    pub(crate) drain_ms: u64,
    pub(crate) keep_open_tallies_ms: u64,
    pub(crate) keep_sealed_tallies_ms: u64,
    pub(crate) push: Switch,
    pub(crate) push_allow: Vec<String>,
    pub(crate) push_insecure_tls: Switch,
    pub(crate) push_proxy: Option<String>,
    pub(crate) push_requests: usize,
    pub(crate) store_limit_bytes: Option<u64>,
    pub(crate) shed_pull: Switch,
    pub(crate) carlyle: Switch,
    pub(crate) routemaster: Switch,
    pub(crate) routemaster_max_data: usize,
    pub(crate) routemaster_scaling_threshold: u64,
    pub(crate) routemaster_scaling_deadline_ms: u64,
    pub(crate) statsd: Option<String>,
    pub(crate) statsd_prefix: String,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) otlp_sample: f64,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

/// The shortest root token that is taken for a secret.
const SHORTEST_SECRET: usize = 8;
/// A tally must not be gone before its caller has looked at it.
const SHORTEST_KEEPING_MS: u64 = 60_000;
/// A hundred years.
const LONGEST_KEEPING_MS: u64 = 100 * 366 * 24 * 3600 * 1000;

/// An empty store takes a few megabytes already.
const SMALLEST_STORE: u64 = 16 << 20;

impl Config {
    /// Every setting as it is when nobody says anything.
    pub(crate) fn defaults() -> Result<Config, BoxError> {
        Settings::default().resolve()
    }

    pub(crate) fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.store_timeout_ms)
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }

    /// The keys for secrets at rest: those that are set, else one made of the root token, else none.
    pub(crate) fn keyring(&self) -> Result<Keyring, BoxError> {
        let derived = self.root_token.as_deref().map(Keyring::derived).unwrap_or_default();
        match &self.secret_key {
            Some(keys) => Ok(Keyring::parse(keys)?.or(&derived)),
            None => Ok(derived),
        }
    }

    /// Which addresses push may reach.
    pub(crate) fn guard(&self) -> Result<Guard, BoxError> {
        let ranges = self.push_allow.iter().map(|range| range.parse::<Cidr>());
        let ranges =
            ranges.collect::<Result<_, _>>().map_err(|error| format!("push_allow is wrong: {error}"))?;
        Ok(Guard::new(ranges))
    }

    fn check_statsd(&self) -> Result<(), BoxError> {
        let port =
            |target: &String| target.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if self.statsd.as_ref().is_some_and(|target| !port(target)) {
            return Err("statsd has no port: write it like localhost:8125".into());
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if self.statsd_prefix.is_empty() || !self.statsd_prefix.bytes().all(plain) {
            return Err("statsd_prefix is not a name: use letters, digits and . _ -".into());
        }
        Ok(())
    }

    fn check_otlp(&self) -> Result<(), BoxError> {
        let http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if self.otlp_endpoint.as_ref().is_some_and(|url| !http(url)) {
            return Err("otlp_endpoint is not a URL: write it like http://localhost:4318".into());
        }
        if !(0.0..=1.0).contains(&self.otlp_sample) {
            return Err("otlp_sample is out of range: use 0 (nothing) to 1 (everything)".into());
        }
        Ok(())
    }

    fn check(&self) -> Result<(), BoxError> {
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("TLS needs both a certificate and a key: set tls_cert and tls_key, or neither".into());
        }
        if self.root_token.as_ref().is_some_and(|token| token.len() < SHORTEST_SECRET) {
            return Err(
                format!("{ROOT_TOKEN} is too short: use at least {SHORTEST_SECRET} characters").into()
            );
        }
        let most = tramline::model::event::MAX_PAYLOAD;
        if self.max_payload == 0 || self.max_payload > most {
            return Err(format!("max_payload is out of range: use 1 to {most} bytes").into());
        }
        if self.max_body == 0 || self.max_buffered == 0 {
            return Err("a size is out of range: use at least 1 byte".into());
        }
        let counts = [
            self.max_connections,
            self.max_requests,
            self.max_waiting,
            self.max_followers,
            self.push_requests,
        ];
        if counts.iter().any(|count| !(1..=1_000_000).contains(count)) {
            return Err("a limit is out of range: use 1 to 1,000,000".into());
        }
        self.keyring()?;
        self.guard()?;
        self.check_statsd()?;
        self.check_otlp()?;
        let kept = [self.keep_open_tallies_ms, self.keep_sealed_tallies_ms];
        if kept.iter().any(|millis| !(SHORTEST_KEEPING_MS..=LONGEST_KEEPING_MS).contains(millis)) {
            return Err(
                "tallies are kept for too short or too long: use one minute to a hundred years".into()
            );
        }
        if self.store_limit_bytes.is_some_and(|bytes| bytes < SMALLEST_STORE) {
            return Err("store_limit_bytes is out of range: use at least 16777216 bytes (16 MiB)".into());
        }
        Ok(())
    }
}

//! Where settings come from: flags, environment and a TOML file, in this order of precedence.

use super::{Config, LogFormat, Switch};
use crate::bench::BoxError;
use serde::Deserialize;
use std::path::PathBuf;

/// What `serve` and `config` take.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A TOML file with settings; `tramline config` prints one
    #[arg(long, env = "TRAMLINE_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// The environment variable with the root token.
pub(super) const ROOT_TOKEN: &str = "TRAMLINE_ROOT_TOKEN";
/// The environment variable with the keys for secrets at rest.
pub(super) const SECRET_KEY: &str = "TRAMLINE_SECRET_KEY";
/// Where everybody else looks for the collector of traces.
const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// What a flag, the environment or a file may set. Nothing is required.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// Address and port to listen on
    #[arg(long, env = "TRAMLINE_LISTEN")]
    listen: Option<String>,
    /// The store, such as sqlite://app.db, postgres://user@host/db, mysql://user@host/db or redis://host
    #[arg(long, env = "TRAMLINE_STORE")]
    store: Option<String>,
    /// PostgreSQL behind a pooler: where to LISTEN, past the pooler
    #[arg(long, env = "TRAMLINE_STORE_LISTEN_URL")]
    store_listen_url: Option<String>,
    /// What carries wake-ups between nodes, whatever the store: nats://host:4222, redis://host:6379, postgres://host/db, or in-process for a
    /// single node; chosen by the store unless set
    #[arg(long, env = "TRAMLINE_WAKE")]
    wake: Option<String>,
    /// Certificate chain for TLS, in PEM; read again when it changes
    #[arg(long, env = "TRAMLINE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key for TLS, in PEM
    #[arg(long, env = "TRAMLINE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// A token that may do everything; by the environment or a file only, because others can see flags
    #[arg(skip)]
    root_token: Option<String>,
    /// The key under which secrets are encrypted at rest: the base64 of 32 bytes; several with commas while one is replaced, the
    /// new one first. By the environment or a file only. Made of the root token unless set
    #[arg(skip)]
    secret_key: Option<String>,
    /// Write the address that is listened on to this file, once it is
    #[arg(long, env = "TRAMLINE_ADDRESS_FILE")]
    address_file: Option<PathBuf>,
    /// The largest payload of one event, in bytes
    #[arg(long, env = "TRAMLINE_MAX_PAYLOAD")]
    max_payload: Option<usize>,
    /// The largest request body, in bytes, after decompression; streams have no end
    #[arg(long, env = "TRAMLINE_MAX_BODY")]
    max_body: Option<usize>,
    /// How many bytes of request bodies are held at the same time while the rest of them comes, not counting the first 64 KiB of each
    #[arg(long, env = "TRAMLINE_MAX_BUFFERED")]
    max_buffered: Option<usize>,
    /// How many connections are open at most
    #[arg(long, env = "TRAMLINE_MAX_CONNECTIONS")]
    max_connections: Option<usize>,
    /// How many requests are worked on at the same time, not counting those that wait, follow or are still coming
    #[arg(long, env = "TRAMLINE_MAX_REQUESTS")]
    max_requests: Option<usize>,
    /// How many claims wait for events at the same time; others are answered at once, with 503 if there is nothing
    #[arg(long, env = "TRAMLINE_MAX_WAITING")]
    max_waiting: Option<usize>,
    /// How many clients follow topics at the same time
    #[arg(long, env = "TRAMLINE_MAX_FOLLOWERS")]
    max_followers: Option<usize>,
    /// How long a claim waits for events at most, in milliseconds
    #[arg(long, env = "TRAMLINE_MAX_WAIT_MS")]
    max_wait_ms: Option<u64>,
    /// How long a client may take to send the headers of a request, and stay idle between two
    #[arg(long, env = "TRAMLINE_HEADER_TIMEOUT_MS")]
    header_timeout_ms: Option<u64>,
    /// How long a client may pause while it sends a body; one that is not a stream also has to come in this time, and a second for each 16 KiB
    #[arg(long, env = "TRAMLINE_BODY_TIMEOUT_MS")]
    body_timeout_ms: Option<u64>,
    /// How long a client may pause while it reads an answer
    #[arg(long, env = "TRAMLINE_WRITE_TIMEOUT_MS")]
    write_timeout_ms: Option<u64>,
    /// How long the store may take for one request
    #[arg(long, env = "TRAMLINE_STORE_TIMEOUT_MS")]
    store_timeout_ms: Option<u64>,
    /// How long running requests may take to finish after SIGTERM
    #[arg(long, env = "TRAMLINE_DRAIN_MS")]
    drain_ms: Option<u64>,
    /// How long an open tally is kept to which nothing happens, in milliseconds
    #[arg(long, env = "TRAMLINE_KEEP_OPEN_TALLIES_MS")]
    keep_open_tallies_ms: Option<u64>,
    /// How long a tally is kept that was sealed or has ended and to which nothing happens, in milliseconds
    #[arg(long, env = "TRAMLINE_KEEP_SEALED_TALLIES_MS")]
    keep_sealed_tallies_ms: Option<u64>,
    /// Whether this node sends the events of push subscriptions
    #[arg(long, env = "TRAMLINE_PUSH", value_enum)]
    push: Option<Switch>,
    /// Addresses that push may reach although they are private, such as 10.1.0.0/16; repeat it or use commas
    #[arg(long, env = "TRAMLINE_PUSH_ALLOW", value_delimiter = ',')]
    push_allow: Option<Vec<String>>,
    /// Send also to receivers whose certificate nobody has signed; for development
    #[arg(long, env = "TRAMLINE_PUSH_INSECURE_TLS", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    push_insecure_tls: Option<Switch>,
    /// A proxy through which everything is pushed, such as http://proxy:3128
    #[arg(long, env = "TRAMLINE_PUSH_PROXY")]
    push_proxy: Option<String>,
    /// How many requests push has under way at most, over all subscriptions
    #[arg(long, env = "TRAMLINE_PUSH_REQUESTS")]
    push_requests: Option<usize>,
    /// How much the store may hold, in bytes; close to it, what it can do without goes, oldest first
    #[arg(long, env = "TRAMLINE_STORE_LIMIT_BYTES")]
    store_limit_bytes: Option<u64>,
    /// Whether a full store may drop the oldest work of pull subscriptions too
    #[arg(long, env = "TRAMLINE_SHED_PULL", value_enum)]
    shed_pull: Option<Switch>,
    /// Serve Carlyle's API too, under /api/v1/batch
    #[arg(long, env = "TRAMLINE_CARLYLE", value_enum)]
    carlyle: Option<Switch>,
    /// Serve Routemaster's API too: /topics, /subscription, /subscribers, /api_tokens, /pulse, /health
    #[arg(long, env = "TRAMLINE_ROUTEMASTER", value_enum)]
    routemaster: Option<Switch>,
    /// The largest data of an event of Routemaster's, in bytes as MessagePack
    #[arg(long, env = "TRAMLINE_ROUTEMASTER_MAX_DATA")]
    routemaster_max_data: Option<usize>,
    /// With more batches than this due soon, /pulse/scaling answers late
    #[arg(long, env = "TRAMLINE_ROUTEMASTER_SCALING_THRESHOLD")]
    routemaster_scaling_threshold: Option<u64>,
    /// How soon that is, in milliseconds
    #[arg(long, env = "TRAMLINE_ROUTEMASTER_SCALING_DEADLINE_MS")]
    routemaster_scaling_deadline_ms: Option<u64>,
    /// Send Routemaster's metrics to this statsd server, such as localhost:8125
    #[arg(long, env = "TRAMLINE_STATSD")]
    statsd: Option<String>,
    /// What the names of these metrics begin with
    #[arg(long, env = "TRAMLINE_STATSD_PREFIX")]
    statsd_prefix: Option<String>,
    /// Send traces to this collector, by OTLP over HTTP, such as http://localhost:4318; OTEL_EXPORTER_OTLP_ENDPOINT unless set
    #[arg(long, env = "TRAMLINE_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// The share of the traces that begin here which is recorded, from 0 to 1
    #[arg(long, env = "TRAMLINE_OTLP_SAMPLE")]
    otlp_sample: Option<f64>,
    /// What to log, such as info or warn,tramline=debug
    #[arg(long, env = "TRAMLINE_LOG")]
    log: Option<String>,
    /// How to log
    #[arg(long, env = "TRAMLINE_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
}

const WEEK_MS: u64 = 7 * 24 * 3600 * 1000;

impl Args {
    /// Reads the file, if one is named, and resolves everything.
    pub(crate) fn resolve(self) -> Result<Config, BoxError> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None => Settings::default(),
        };
        let mut settings = self.settings;
        let said = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        settings.root_token = said(ROOT_TOKEN);
        settings.secret_key = said(SECRET_KEY);
        settings.otlp_endpoint = settings.otlp_endpoint.or_else(|| said(OTLP_ENDPOINT));
        settings.or(file).resolve()
    }
}

fn read(path: &PathBuf) -> Result<Settings, BoxError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the settings file {shown} cannot be read: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("the settings file {shown} is wrong: {error}").into())
}

impl Settings {
    /// These settings, and where they say nothing, those.
    fn or(self, other: Settings) -> Settings {
        Settings {
            listen: self.listen.or(other.listen),
            store: self.store.or(other.store),
            store_listen_url: self.store_listen_url.or(other.store_listen_url),
            wake: self.wake.or(other.wake),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            root_token: self.root_token.or(other.root_token),
            secret_key: self.secret_key.or(other.secret_key),
            address_file: self.address_file.or(other.address_file),
            max_payload: self.max_payload.or(other.max_payload),
            max_body: self.max_body.or(other.max_body),
            max_buffered: self.max_buffered.or(other.max_buffered),
            max_connections: self.max_connections.or(other.max_connections),
            max_requests: self.max_requests.or(other.max_requests),
            max_waiting: self.max_waiting.or(other.max_waiting),
            max_followers: self.max_followers.or(other.max_followers),
            max_wait_ms: self.max_wait_ms.or(other.max_wait_ms),
            header_timeout_ms: self.header_timeout_ms.or(other.header_timeout_ms),
            body_timeout_ms: self.body_timeout_ms.or(other.body_timeout_ms),
            write_timeout_ms: self.write_timeout_ms.or(other.write_timeout_ms),
            store_timeout_ms: self.store_timeout_ms.or(other.store_timeout_ms),
            drain_ms: self.drain_ms.or(other.drain_ms),
            keep_open_tallies_ms: self.keep_open_tallies_ms.or(other.keep_open_tallies_ms),
            keep_sealed_tallies_ms: self.keep_sealed_tallies_ms.or(other.keep_sealed_tallies_ms),
            push: self.push.or(other.push),
            push_allow: self.push_allow.or(other.push_allow),
            push_insecure_tls: self.push_insecure_tls.or(other.push_insecure_tls),
            push_proxy: self.push_proxy.or(other.push_proxy),
            push_requests: self.push_requests.or(other.push_requests),
            store_limit_bytes: self.store_limit_bytes.or(other.store_limit_bytes),
            shed_pull: self.shed_pull.or(other.shed_pull),
            carlyle: self.carlyle.or(other.carlyle),
            routemaster: self.routemaster.or(other.routemaster),
            routemaster_max_data: self.routemaster_max_data.or(other.routemaster_max_data),
            routemaster_scaling_threshold: self
                .routemaster_scaling_threshold
                .or(other.routemaster_scaling_threshold),
            routemaster_scaling_deadline_ms: self
                .routemaster_scaling_deadline_ms
                .or(other.routemaster_scaling_deadline_ms),
            statsd: self.statsd.or(other.statsd),
            statsd_prefix: self.statsd_prefix.or(other.statsd_prefix),
            otlp_endpoint: self.otlp_endpoint.or(other.otlp_endpoint),
            otlp_sample: self.otlp_sample.or(other.otlp_sample),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
        }
    }

    pub(super) fn resolve(self) -> Result<Config, BoxError> {
        let config = Config {
            listen: self.listen.unwrap_or_else(|| "127.0.0.1:7070".into()),
            store: self.store.unwrap_or_else(|| "sqlite://tramline.db".into()),
            store_listen_url: self.store_listen_url,
            wake: self.wake,
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            root_token: self.root_token,
            secret_key: self.secret_key,
            address_file: self.address_file,
            max_payload: self.max_payload.unwrap_or(1 << 20),
            max_body: self.max_body.unwrap_or(10 << 20),
            max_buffered: self.max_buffered.unwrap_or(256 << 20),
            max_connections: self.max_connections.unwrap_or(20_000),
            max_requests: self.max_requests.unwrap_or(1_024),
            max_waiting: self.max_waiting.unwrap_or(2_048),
            max_followers: self.max_followers.unwrap_or(256),
            max_wait_ms: self.max_wait_ms.unwrap_or(60_000),
            header_timeout_ms: self.header_timeout_ms.unwrap_or(30_000),
            body_timeout_ms: self.body_timeout_ms.unwrap_or(30_000),
            write_timeout_ms: self.write_timeout_ms.unwrap_or(30_000),
            store_timeout_ms: self.store_timeout_ms.unwrap_or(30_000),
            drain_ms: self.drain_ms.unwrap_or(28_000),
            keep_open_tallies_ms: self.keep_open_tallies_ms.unwrap_or(WEEK_MS),
            keep_sealed_tallies_ms: self.keep_sealed_tallies_ms.unwrap_or(WEEK_MS),
            push: self.push.unwrap_or_default(),
            push_allow: self.push_allow.unwrap_or_default(),
            push_insecure_tls: self.push_insecure_tls.unwrap_or(Switch::Off),
            push_proxy: self.push_proxy,
            push_requests: self.push_requests.unwrap_or(1_024),
            store_limit_bytes: self.store_limit_bytes,
            shed_pull: self.shed_pull.unwrap_or(Switch::Off),
            carlyle: self.carlyle.unwrap_or_default(),
            routemaster: self.routemaster.unwrap_or_default(),
            routemaster_max_data: self.routemaster_max_data.unwrap_or(64),
            routemaster_scaling_threshold: self.routemaster_scaling_threshold.unwrap_or(100),
            routemaster_scaling_deadline_ms: self.routemaster_scaling_deadline_ms.unwrap_or(1_000),
            statsd: self.statsd,
            statsd_prefix: self.statsd_prefix.unwrap_or_else(|| "routemaster".into()),
            otlp_endpoint: self.otlp_endpoint,
            otlp_sample: self.otlp_sample.unwrap_or(1.0),
            log: self.log.unwrap_or_else(|| "info".into()),
            log_format: self.log_format.unwrap_or_default(),
        };
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_errors() {
        assert!(settings("listne = 'x'").unwrap_err().to_string().contains("unknown field"));
        for bad in [
            "tls_cert = 'x'",
            "max_payload = 0",
            "max_requests = 0",
            "max_buffered = 0",
            "root_token = 'short'",
            "secret_key = 'short'",
            "push_allow = ['10.0.0.0/33']",
            "push_requests = 0",
            "statsd = 'localhost'",
            "statsd_prefix = 'a b'",
            "otlp_endpoint = 'localhost:4318'",
            "otlp_sample = 1.1",
            "keep_open_tallies_ms = 1",
            "store_limit_bytes = 1000",
        ] {
            assert!(settings(bad).unwrap().resolve().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_apis_of_others_can_be_switched_off() {
        let all = Config::defaults().unwrap();
        assert_eq!((all.carlyle, all.routemaster), (Switch::On, Switch::On));
        let none = settings("carlyle = 'off'\nroutemaster = 'off'").unwrap().resolve().unwrap();
        assert_eq!((none.carlyle, none.routemaster), (Switch::Off, Switch::Off));
    }

    #[test]
    fn a_flag_comes_before_the_file() {
        let flags = Settings { listen: Some("a:1".into()), ..Settings::default() };
        let file = settings("listen = 'b:2'\nstore = 'sqlite://x'").unwrap();
        let config = flags.or(file).resolve().unwrap();
        assert_eq!((&*config.listen, &*config.store), ("a:1", "sqlite://x"));
    }
}

//! Settings: flags, environment and a TOML file, in this order of precedence, and what they resolve to.

use crate::bench::BoxError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// What a flag, the environment or a file may set. Nothing is required.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// Address and port to listen on
    #[arg(long, env = "TRAMLINE_LISTEN")]
    listen: Option<String>,
    /// The store, such as sqlite://app.db or postgres://user@host/db
    #[arg(long, env = "TRAMLINE_STORE")]
    store: Option<String>,
    /// PostgreSQL behind a pooler: where to LISTEN, past the pooler
    #[arg(long, env = "TRAMLINE_STORE_LISTEN_URL")]
    store_listen_url: Option<String>,
    /// Certificate chain for TLS, in PEM; read again when it changes
    #[arg(long, env = "TRAMLINE_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key for TLS, in PEM
    #[arg(long, env = "TRAMLINE_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// A token that may do everything; by the environment or a file only, because others can see flags
    #[arg(skip)]
    root_token: Option<String>,
    /// Write the address that is listened on to this file, once it is
    #[arg(long, env = "TRAMLINE_ADDRESS_FILE")]
    address_file: Option<PathBuf>,
    /// The largest payload of one event, in bytes
    #[arg(long, env = "TRAMLINE_MAX_PAYLOAD")]
    max_payload: Option<usize>,
    /// The largest request body, in bytes, after decompression; streams have no end
    #[arg(long, env = "TRAMLINE_MAX_BODY")]
    max_body: Option<usize>,
    /// How many connections are open at most
    #[arg(long, env = "TRAMLINE_MAX_CONNECTIONS")]
    max_connections: Option<usize>,
    /// How many requests are worked on at the same time, not counting those that wait or follow
    #[arg(long, env = "TRAMLINE_MAX_REQUESTS")]
    max_requests: Option<usize>,
    /// How many claims wait for events at the same time
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
    /// How long a client may pause while it sends a body
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
    /// Serve Carlyle's API too, under /api/v1/batch
    #[arg(long, env = "TRAMLINE_CARLYLE", value_enum)]
    carlyle: Option<Switch>,
    /// What to log, such as info or warn,tramline=debug
    #[arg(long, env = "TRAMLINE_LOG")]
    log: Option<String>,
    /// How to log
    #[arg(long, env = "TRAMLINE_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
}

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

/// Whether something is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Switch {
    /// It is.
    #[default]
    On,
    /// It is not: its paths do not exist.
    Off,
}

/// What `serve` and `config` take.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A TOML file with settings; `tramline config` prints one
    #[arg(long, env = "TRAMLINE_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// Every setting, resolved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Config {
    pub(crate) listen: String,
    pub(crate) store: String,
    pub(crate) store_listen_url: Option<String>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) root_token: Option<String>,
    pub(crate) address_file: Option<PathBuf>,
    pub(crate) max_payload: usize,
    pub(crate) max_body: usize,
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
    pub(crate) carlyle: Switch,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

/// The environment variable with the root token.
const ROOT_TOKEN: &str = "TRAMLINE_ROOT_TOKEN";
/// The shortest root token that is taken for a secret.
const SHORTEST_SECRET: usize = 8;

const WEEK_MS: u64 = 7 * 24 * 3600 * 1000;
/// A tally must not be gone before its caller has looked at it.
const SHORTEST_KEEPING_MS: u64 = 60_000;
/// A hundred years.
const LONGEST_KEEPING_MS: u64 = 100 * 366 * 24 * 3600 * 1000;

impl Args {
    /// Reads the file, if one is named, and resolves everything.
    pub(crate) fn resolve(self) -> Result<Config, BoxError> {
        let file = match &self.config {
            Some(path) => read(path)?,
            None => Settings::default(),
        };
        let mut settings = self.settings;
        settings.root_token = std::env::var(ROOT_TOKEN).ok().filter(|token| !token.is_empty());
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
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            root_token: self.root_token.or(other.root_token),
            address_file: self.address_file.or(other.address_file),
            max_payload: self.max_payload.or(other.max_payload),
            max_body: self.max_body.or(other.max_body),
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
            carlyle: self.carlyle.or(other.carlyle),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
        }
    }

    fn resolve(self) -> Result<Config, BoxError> {
        let config = Config {
            listen: self.listen.unwrap_or_else(|| "127.0.0.1:7070".into()),
            store: self.store.unwrap_or_else(|| "sqlite://tramline.db".into()),
            store_listen_url: self.store_listen_url,
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            root_token: self.root_token,
            address_file: self.address_file,
            max_payload: self.max_payload.unwrap_or(1 << 20),
            max_body: self.max_body.unwrap_or(10 << 20),
            max_connections: self.max_connections.unwrap_or(4_096),
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
            carlyle: self.carlyle.unwrap_or_default(),
            log: self.log.unwrap_or_else(|| "info".into()),
            log_format: self.log_format.unwrap_or_default(),
        };
        config.check()?;
        Ok(config)
    }
}

impl Config {
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
        let counts =
            [self.max_body, self.max_connections, self.max_requests, self.max_waiting, self.max_followers];
        if counts.contains(&0) || counts[1..].iter().any(|count| *count > 1_000_000) {
            return Err("a limit is out of range: use 1 to 1,000,000".into());
        }
        let keeping = SHORTEST_KEEPING_MS..=LONGEST_KEEPING_MS;
        if [self.keep_open_tallies_ms, self.keep_sealed_tallies_ms]
            .iter()
            .any(|millis| !keeping.contains(millis))
        {
            return Err(
                "tallies are kept for too short or too long: use one minute to a hundred years".into()
            );
        }
        Ok(())
    }

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

    /// The resolved settings as a TOML file with comments. Secrets are left out.
    pub(crate) fn render(&self) -> Result<String, BoxError> {
        use clap::CommandFactory;
        let values = toml::Table::try_from(self)?;
        let command = Described::command();
        let about = |name: &str| {
            let found = command.get_arguments().find(|argument| argument.get_id() == name);
            found.and_then(|argument| argument.get_help()).map(ToString::to_string)
        };
        let mut text =
            String::from("# Tramline's settings. Flags and environment variables come before this file.\n");
        for name in FIELDS {
            let about = about(name)
                .unwrap_or_else(|| format!("A token that may do everything; better set {ROOT_TOKEN}"));
            text.push_str(&format!("\n# {about}\n"));
            match values.get(*name) {
                Some(_) if *name == "root_token" => text.push_str("# root_token = \"(set, not shown)\"\n"),
                Some(value) => text.push_str(&format!("{name} = {}\n", shown(name, value))),
                None => text.push_str(&format!("# {name} =\n")),
            }
        }
        Ok(text)
    }
}

/// A value as TOML, without the password that a URL may hold.
fn shown(name: &str, value: &toml::Value) -> String {
    match value.as_str() {
        Some(url) if name.starts_with("store") => toml::Value::from(without_password(url)).to_string(),
        _ => value.to_string(),
    }
}

/// A URL with its password replaced.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end]
        .rsplit_once('@')
        .and_then(|(user, host)| user.split_once(':').map(|(user, _)| (user, host)))
    {
        Some((user, host)) => format!("{scheme}://{user}:***@{host}{}", &rest[end..]),
        None => url.to_owned(),
    }
}

/// The settings in the order in which they are printed.
const FIELDS: &[&str] = &[
    "listen",
    "store",
    "store_listen_url",
    "tls_cert",
    "tls_key",
    "root_token",
    "address_file",
    "max_payload",
    "max_body",
    "max_connections",
    "max_requests",
    "max_waiting",
    "max_followers",
    "max_wait_ms",
    "header_timeout_ms",
    "body_timeout_ms",
    "write_timeout_ms",
    "store_timeout_ms",
    "drain_ms",
    "keep_open_tallies_ms",
    "keep_sealed_tallies_ms",
    "carlyle",
    "log",
    "log_format",
];

/// For the help texts of the flags, which are the comments of the file.
#[derive(clap::Parser)]
struct Described {
    #[command(flatten)]
    _settings: Settings,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn what_config_prints_is_a_file_that_gives_the_same_settings() {
        let config = settings("max_body = 5\nlog_format = 'json'").unwrap().resolve().unwrap();
        let printed = config.render().unwrap();
        assert_eq!(settings(&printed).unwrap().resolve().unwrap(), config);
        assert!(printed.contains("# The largest request body"), "{printed}");
    }

    #[test]
    fn every_setting_is_printed() {
        let all = Config {
            store_listen_url: Some("x".into()),
            tls_cert: Some("x".into()),
            tls_key: Some("x".into()),
            root_token: Some("long enough".into()),
            address_file: Some("x".into()),
            ..Settings::default().resolve().unwrap()
        };
        let names: Vec<String> = toml::Table::try_from(&all).unwrap().keys().cloned().collect();
        let mut printed: Vec<&str> = FIELDS.to_vec();
        printed.sort_unstable();
        assert_eq!(names, printed);
        assert!(!all.render().unwrap().contains("long enough"));
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_errors() {
        assert!(settings("listne = 'x'").unwrap_err().to_string().contains("unknown field"));
        for bad in [
            "tls_cert = 'x'",
            "max_payload = 0",
            "max_requests = 0",
            "root_token = 'short'",
            "keep_open_tallies_ms = 1",
        ] {
            assert!(settings(bad).unwrap().resolve().is_err(), "{bad}");
        }
    }

    #[test]
    fn carlyle_can_be_switched_off() {
        assert_eq!(Config::defaults().unwrap().carlyle, Switch::On);
        assert_eq!(settings("carlyle = 'off'").unwrap().resolve().unwrap().carlyle, Switch::Off);
    }

    #[test]
    fn a_flag_comes_before_the_file() {
        let flags = Settings { listen: Some("a:1".into()), ..Settings::default() };
        let file = settings("listen = 'b:2'\nstore = 'sqlite://x'").unwrap();
        let config = flags.or(file).resolve().unwrap();
        assert_eq!((&*config.listen, &*config.store), ("a:1", "sqlite://x"));
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("postgres://u:p@h:1/d?x=a@b"), "postgres://u:***@h:1/d?x=a@b");
        assert_eq!(without_password("sqlite://a.db"), "sqlite://a.db");
    }
}

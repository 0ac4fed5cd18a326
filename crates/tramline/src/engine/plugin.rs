//! Handlers as plug-ins: objects that can be chosen at run time, by a configuration for example.
//!
//! Two are here, an HTTP forward and a shell command. Mail or chat are built in the same way.

use crate::engine::context::Context;
use crate::engine::handler::Bound;
use crate::error::{Error, Result};
use crate::model::event::StoredEvent;
use crate::model::outcome::Outcome;
use async_trait::async_trait;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Handles events.
#[async_trait]
pub trait Plugin: Send + Sync + std::fmt::Debug {
    /// Handles one event. The future may be dropped at any time.
    async fn handle(&self, event: &StoredEvent, cx: &Context) -> Outcome;
}

impl Bound {
    pub(crate) fn plugin(plugin: Arc<dyn Plugin>) -> Bound {
        Bound::one(move |cx: Context| {
            let plugin = plugin.clone();
            async move { plugin.handle(cx.event(), &cx).await }
        })
    }
}

/// Posts the payload to a URL; the rest of the event is in headers `tramline-*`. 2xx is done; 429 and 503 with `Retry-After` are
/// snoozed for as long as they ask; everything else is a failure. Redirects are not followed.
///
/// It calls whatever address it is given; do not let strangers choose it.
#[derive(Clone, Debug)]
pub struct HttpForward {
    client: reqwest::Client,
    url: reqwest::Url,
}

/// No server is obeyed for longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

impl HttpForward {
    /// Forwards to `url`, with at most `timeout` for each request.
    ///
    /// # Errors
    /// `Invalid` when the URL is not one.
    pub fn new(url: &str, timeout: Duration) -> Result<HttpForward> {
        let url = url.parse().map_err(|error| {
            Error::invalid(format!("{url:?} is not a URL"), "use http:// or https:// and a host")
                .because(error)
        })?;
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| {
                Error::unavailable("no HTTP client could be made", "check the TLS set-up").because(error)
            })?;
        Ok(HttpForward { client, url })
    }
}

#[async_trait]
impl Plugin for HttpForward {
    async fn handle(&self, event: &StoredEvent, cx: &Context) -> Outcome {
        let mut request = self.client.post(self.url.clone()).header("content-type", &*event.content_type);
        for (name, value) in metadata(event, cx) {
            request = request.header(format!("tramline-{}", name.replace('_', "-")), header_value(&value));
        }
        match request.body(event.payload.clone()).send().await {
            Ok(response) => judge(response.status(), response.headers()),
            Err(error) => Outcome::retry(error.without_url().to_string()),
        }
    }
}

fn judge(status: reqwest::StatusCode, headers: &reqwest::header::HeaderMap) -> Outcome {
    if status.is_success() {
        return Outcome::Done;
    }
    let asked = headers.get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    match (status.as_u16(), asked.map(Duration::from_secs)) {
        (429 | 503, Some(delay)) => Outcome::Snooze { delay: delay.min(LONGEST_WAIT) },
        _ => Outcome::retry(format!("the receiver answered {status}")),
    }
}

/// Keys and headers may hold anything; what HTTP does not allow is percent-encoded.
fn header_value(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

/// Runs a command for each event: payload on standard input, the rest in variables `TRAMLINE_*`. Exit code 0 is done, 75 (the
/// customary "temporary failure") is tried later without counting, everything else is a failure whose text is the last line of
/// standard error. The command is killed when the event is cancelled or takes too long.
#[derive(Clone, Debug)]
pub struct ShellCommand {
    program: String,
    arguments: Vec<String>,
    later: Duration,
}

/// How much of a command's output is kept; the rest is read and forgotten, so that the command is not blocked.
const MAX_OUTPUT: usize = 64 << 10;
const TEMPORARY_FAILURE: i32 = 75;

impl ShellCommand {
    /// Runs a program with arguments; no shell reads them.
    pub fn new<A: Into<String>>(
        program: impl Into<String>,
        arguments: impl IntoIterator<Item = A>,
    ) -> ShellCommand {
        ShellCommand {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            later: Duration::from_secs(60),
        }
    }

    /// How long exit code 75 makes the event wait (60 s unless set).
    #[must_use]
    pub fn later(mut self, delay: Duration) -> ShellCommand {
        self.later = delay;
        self
    }

    async fn run(&self, event: &StoredEvent, cx: &Context) -> std::io::Result<Outcome> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        for (name, value) in metadata(event, cx) {
            command.env(format!("TRAMLINE_{}", name.to_uppercase()), value);
        }
        let mut child = command.spawn()?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A command may end without reading; that is its own decision.
                let _ = stdin.write_all(&event.payload).await;
            }
        };
        tokio::select! {
            ((), output, status) = async { tokio::join!(feed, read_bounded(stderr), child.wait()) } => {
                Ok(self.judge(status?, &output))
            }
            () = cx.cancelled() => {
                kill(&mut child).await;
                Ok(Outcome::retry("cancelled"))
            }
        }
    }

    fn judge(&self, status: std::process::ExitStatus, output: &[u8]) -> Outcome {
        if status.success() {
            return Outcome::Done;
        }
        if status.code() == Some(TEMPORARY_FAILURE) {
            return Outcome::Snooze { delay: self.later };
        }
        let output = String::from_utf8_lossy(output);
        match output.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => Outcome::retry(format!("{status}: {}", line.trim())),
            None => Outcome::retry(status.to_string()),
        }
    }
}

#[async_trait]
impl Plugin for ShellCommand {
    async fn handle(&self, event: &StoredEvent, cx: &Context) -> Outcome {
        match self.run(event, cx).await {
            Ok(outcome) => outcome,
            Err(error) => Outcome::retry(format!("{} could not be run: {error}", self.program)),
        }
    }
}

async fn kill(child: &mut Child) {
    if let Err(error) = child.kill().await {
        tracing::warn!(error = %error, "a command could not be killed");
    }
}

/// Reads all, and keeps the end.
async fn read_bounded(from: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let Some(mut from) = from else { return Vec::new() };
    let mut kept = Vec::new();
    let mut part = vec![0; 8 << 10];
    while let Ok(count @ 1..) = from.read(&mut part).await {
        kept.extend_from_slice(&part[..count]);
        if kept.len() > MAX_OUTPUT {
            kept.drain(..kept.len() - MAX_OUTPUT);
        }
    }
    kept
}

/// What is known of an event beside its payload: name and value.
fn metadata(event: &StoredEvent, cx: &Context) -> Vec<(String, String)> {
    let ids =
        |ids: &[crate::model::id::EventId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut all = vec![
        ("id".to_owned(), event.id.to_string()),
        ("topic".to_owned(), event.topic.to_string()),
        ("type".to_owned(), event.kind.to_string()),
        ("subscription".to_owned(), cx.subscription().to_owned()),
        ("attempt".to_owned(), cx.attempt().to_string()),
        ("emitted_at".to_owned(), event.emitted_at.0.to_string()),
        ("content_type".to_owned(), event.content_type.to_string()),
    ];
    all.extend(event.key.as_ref().map(|key| ("key".to_owned(), key.to_string())));
    all.extend(event.prev.map(|prev| ("prev".to_owned(), prev.to_string())));
    if !cx.skipped().is_empty() {
        all.push(("skipped".to_owned(), ids(cx.skipped())));
    }
    if cx.is_replayed() {
        all.push(("replayed".to_owned(), "true".to_owned()));
    }
    let word = |name: &str| {
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect::<String>()
    };
    all.extend(event.headers.iter().map(|(name, value)| (format!("header_{}", word(name)), value.clone())));
    all
}

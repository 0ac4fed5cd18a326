//! `tramline work`: a command for each event of a subscription.
//!
//! - `event`: an event as it is claimed, and what its command is told
//! - `hand`: which leases are held, and for how long; pure
//! - `pool`: takes events, and stops in good order; `row`: runs those that follow each other
//! - `settle`, `keep`: write outcomes back, and make leases last while commands run
//! - `report`: a line for each event

mod event;
mod hand;
mod keep;
mod pool;
mod report;
mod row;
mod settle;

use super::Cx;
use super::client::Client;
use super::failure::{Exit, Failure};
use super::value;
use pool::{Pool, Setup};
use report::{Exhaustion, Report};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tramline::{Output, ShellCommand};

pub(crate) const EXAMPLES: &str = r#"  tramline work emails --exec './send-mail'
  tramline work invoices --topic orders --concurrency 8 --exec 'jq -r .id | xargs ./invoice'
  tramline work orders --drain --exec 'echo "$TRAMLINE_KEY: $(cat)"'

The command is run by `sh -c`. It gets the payload on standard input, and in its environment TRAMLINE_EVENT_ID, TRAMLINE_TOPIC,
TRAMLINE_TYPE, TRAMLINE_KEY, TRAMLINE_PREV, TRAMLINE_ATTEMPT, TRAMLINE_CRASHES, TRAMLINE_SUBSCRIPTION, TRAMLINE_EMITTED_AT,
TRAMLINE_CONTENT_TYPE, TRAMLINE_HEADER_*, TRAMLINE_SKIPPED and TRAMLINE_REPLAYED. Exit code 0 is done, 75 is later (see --later),
everything else is a failure, and the last line of standard error its text.

The first Ctrl-C or SIGTERM stops in good order (see --grace), the second at once."#;

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The subscription; it is created if it does not exist
    name: String,
    /// The command for each event
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// If the subscription is created: its topics, instead of the one of the same name; may be repeated
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// If the subscription is created: run the events of one key one after the other
    #[arg(long)]
    ordered: bool,
    /// How many commands run at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// How long an event is ours; extended while its command runs. As the subscription says unless set
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    lease: Option<Duration>,
    /// How long running commands may take to finish when told to stop
    #[arg(long, value_name = "DURATION", default_value = "28s", value_parser = value::duration)]
    grace: Duration,
    /// How long exit code 75 makes an event wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = value::duration)]
    later: Duration,
    /// Stop when there is nothing more to do at the moment
    #[arg(long)]
    drain: bool,
    /// Do not say what became of each event
    #[arg(long, short)]
    quiet: bool,
    /// What to call this worker, instead of its host and process
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
}

/// Over HTTP, where nothing else is said.
const LEASE: Duration = Duration::from_secs(60);
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// `tramline work`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let subscription = find_or_create(&cx.client, &args).await?;
    let stated = |field: &str| subscription[field].as_u64().map(Duration::from_millis);
    let setup = Setup {
        concurrency: usize::from(args.concurrency),
        ordered: subscription["ordering"] == "key",
        consumed: subscription["guarantee"] == "at_most_once",
        time_limit: stated("time_limit_ms"),
        exhaustion: Exhaustion::of(&subscription),
        lease: args.lease.or(stated("lease_ms")).unwrap_or(LEASE).max(SHORTEST_LEASE),
        grace: args.grace,
        drain: args.drain,
        worker: args.worker.unwrap_or_else(whoami),
        subscription: args.name,
    };
    let output = if cx.print.json() { Output::Aside } else { Output::Shown };
    let command = ShellCommand::new("sh", ["-c", &args.exec]).later(args.later).output(output);
    let report = Report::new(cx.print.json(), args.quiet);
    let pool = Arc::new(Pool::new(cx.client, setup, command, report));
    let signals = tokio::spawn(listen(pool.stopping.clone(), pool.killing.clone())?);
    let result = pool::run(&pool).await;
    signals.abort();
    result
}

/// The subscription as the server knows it.
async fn find_or_create(client: &Client, args: &Args) -> Result<Value, Failure> {
    let path = ["v1", "subscriptions", &args.name];
    match client.get(&path, &[]).await {
        Err(failure) if failure.exit == Exit::NotFound => {}
        found => return found,
    }
    let topics = if args.topics.is_empty() { std::slice::from_ref(&args.name) } else { &args.topics };
    let ordering = if args.ordered { "key" } else { "none" };
    client.put(&path, &json!({"topics": topics, "kind": "pull", "ordering": ordering})).await?;
    client.get(&path, &[]).await
}

/// The first signal asks to stop, the second does not ask.
fn listen(
    stopping: CancellationToken,
    killing: CancellationToken,
) -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        for token in [stopping, killing] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            token.cancel();
        }
    })
}

/// This host and process.
fn whoami() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

//! The commands that talk to a server over its HTTP API, and `listen`, to which a server talks.
//!
//! - `client`, `failure`, `outage`: requests, what can go wrong with them, and patience
//! - `print`: tables, plain lines and JSON
//! - `emit`, `bulk`: events in; `tail`, `sse`: events out
//! - `work`: a command for each event
//! - `listen`: a receiver of pushes, for development
//! - `push`: subscriptions whose events are sent to a callback
//! - `list`, `key`, `stats`, `drops`: what there is, and what is gone
//! - `control`, `limit`, `dead`, `parked`, `token`: what an operator does
//! - `tally`: fan-outs that are tracked to completion; `schedule`: what is emitted at certain times
//! - `value`: times, durations and pairs on the command line

mod bulk;
mod client;
mod control;
mod dead;
mod drops;
mod emit;
mod failure;
mod key;
mod lenient;
mod limit;
mod list;
mod listen;
mod outage;
mod parked;
mod print;
mod push;
mod schedule;
mod sse;
mod stats;
mod tail;
mod tally;
mod token;
mod value;
mod work;

pub(crate) use failure::EXIT_CODES;
pub(crate) use print::{clean, wants_colours};

use clap::{CommandFactory, Subcommand};
use client::Connection;
use failure::Failure;
use print::Printer;
use std::error::Error;
use std::process::ExitCode;

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Emit an event, or many
    #[command(after_help = help(emit::EXAMPLES))]
    Emit(Client<emit::Args>),
    /// Show the events of a topic, and follow those that come
    #[command(after_help = help(tail::EXAMPLES))]
    Tail(Client<tail::Args>),
    /// Run a command for each event of a subscription
    #[command(after_help = help(work::EXAMPLES))]
    Work(Client<work::Args>),
    /// Show the topics, or one of them
    #[command(after_help = help(list::TOPICS))]
    Topics(Client<list::Named>),
    /// Show the subscriptions with their counts, or one of them
    #[command(after_help = help(list::SUBSCRIPTIONS))]
    Subscriptions(Client<list::Named>),
    /// Show how much there is to do
    #[command(after_help = help(stats::EXAMPLES))]
    Stats(Client<stats::Args>),
    /// Show the workers that are alive
    #[command(after_help = help(list::WORKERS))]
    Workers(Client<list::Nothing>),
    /// Show an event and what became of it in each subscription
    #[command(after_help = help(list::EVENT))]
    Event(Client<list::Event>),
    /// Show the retained events of a key, back or forth
    #[command(after_help = help(key::EXAMPLES))]
    Key(Client<key::Args>),
    /// Pause a subscription, or all whose names match: their events wait
    #[command(after_help = help(control::PAUSE))]
    Pause(Client<control::Set>),
    /// Remove the pause of a subscription or pattern
    #[command(after_help = help(control::RESUME))]
    Resume(Client<control::Remove>),
    /// Block a subscription, or all whose names match, as an administrator
    #[command(after_help = help(control::BLOCK))]
    Block(Client<control::Set>),
    /// Remove the block of a subscription or pattern
    #[command(after_help = help(control::UNBLOCK))]
    Unblock(Client<control::Remove>),
    /// Show the rules for all subscriptions whose names match
    #[command(after_help = help(control::RULES))]
    Rules(Client<list::Nothing>),
    /// Show who paused, resumed, blocked and unblocked a subscription, and why
    #[command(after_help = help(control::AUDIT))]
    Audit(Client<control::Audit>),
    /// Limit what all workers of a subscription do together
    #[command(after_help = help(limit::EXAMPLES))]
    Limit(Client<limit::Args>),
    /// List, replay or drop the dead events of a subscription
    #[command(after_help = help(dead::EXAMPLES))]
    Dead(Client<dead::Args>),
    /// List or release the parked keys of a subscription
    #[command(after_help = help(parked::EXAMPLES))]
    Parked(Client<parked::Args>),
    /// Show what was dropped because the store was full, or newer events stand for it
    #[command(after_help = help(drops::EXAMPLES))]
    Drops(Client<drops::Args>),
    /// Open, fill, ack and watch tallies: fan-outs that are tracked to completion
    #[command(after_help = help(tally::EXAMPLES))]
    Tally(Client<tally::Args>),
    /// Send events to a callback: create, list, enable, look at what was tried
    #[command(after_help = help(push::EXAMPLES))]
    Push(Client<push::Args>),
    /// Put, list, pause and run schedules: what is emitted at certain times
    #[command(after_help = help(schedule::EXAMPLES))]
    Schedule(Client<schedule::Args>),
    /// Receive pushes, show them and check their signatures; for development
    #[command(after_help = help(listen::EXAMPLES))]
    Listen(listen::Args),
    /// Create, list or drop tokens
    #[command(after_help = help(token::EXAMPLES))]
    Token(Client<token::Args>),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  tramline completions bash > /etc/bash_completion.d/tramline")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// A command and the server that it is for.
#[derive(clap::Args)]
pub(crate) struct Client<A: clap::Args> {
    #[command(flatten)]
    args: A,
    #[command(flatten)]
    connection: Connection,
}

/// What a command works with.
struct Cx {
    client: client::Client,
    print: Printer,
}

fn help(examples: &str) -> String {
    format!("Examples:\n{examples}\n\n{EXIT_CODES}")
}

/// Runs a command to its end.
pub(crate) async fn run(command: Command) -> Result<(), Box<dyn Error + Send + Sync>> {
    Ok(dispatch(command).await?)
}

/// The exit code for an error of any command.
pub(crate) fn exit_code(error: &(dyn Error + Send + Sync + 'static)) -> ExitCode {
    error.downcast_ref().map_or(ExitCode::FAILURE, Failure::code)
}

async fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Emit(it) => emit::run(cx(&it)?, it.args).await,
        Command::Tail(it) => tail::run(cx(&it)?, it.args).await,
        Command::Work(it) => work::run(cx(&it)?, it.args).await,
        Command::Topics(it) => list::topics(cx(&it)?, it.args).await,
        Command::Subscriptions(it) => list::subscriptions(cx(&it)?, it.args).await,
        Command::Stats(it) => stats::run(cx(&it)?, it.args).await,
        Command::Workers(it) => list::workers(cx(&it)?).await,
        Command::Event(it) => list::event(cx(&it)?, it.args).await,
        Command::Key(it) => key::run(cx(&it)?, it.args).await,
        Command::Pause(it) => control::set(cx(&it)?, "pause", it.args).await,
        Command::Resume(it) => control::remove(cx(&it)?, "pause", it.args).await,
        Command::Block(it) => control::set(cx(&it)?, "block", it.args).await,
        Command::Unblock(it) => control::remove(cx(&it)?, "block", it.args).await,
        Command::Rules(it) => control::list(cx(&it)?).await,
        Command::Audit(it) => control::audit(cx(&it)?, it.args).await,
        Command::Limit(it) => limit::run(cx(&it)?, it.args).await,
        Command::Dead(it) => dead::run(cx(&it)?, it.args).await,
        Command::Parked(it) => parked::run(cx(&it)?, it.args).await,
        Command::Drops(it) => drops::run(cx(&it)?, it.args).await,
        Command::Tally(it) => tally::run(cx(&it)?, it.args).await,
        Command::Push(it) => push::run(cx(&it)?, it.args).await,
        Command::Schedule(it) => schedule::run(cx(&it)?, it.args).await,
        Command::Listen(args) => listen::run(args).await,
        Command::Token(it) => token::run(cx(&it)?, it.args).await,
        Command::Completions { shell } => completions(shell),
    }
}

fn cx<A: clap::Args>(command: &Client<A>) -> Result<Cx, Failure> {
    Ok(Cx { client: command.connection.client()?, print: Printer::new(command.connection.json) })
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::Cli::command(), "tramline", &mut script);
    Printer::new(false).text(&String::from_utf8_lossy(&script))
}

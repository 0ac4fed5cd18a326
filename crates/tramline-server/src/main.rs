//! `tramline`: the command line. Every command is a module; this file only parses and dispatches.

mod bench;
mod cli;
mod migrate;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

/// Ordered events, work queues and worker pools on the database you already run.
#[derive(Parser)]
#[command(name = "tramline", version, arg_required_else_help = true, after_help = cli::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure this machine and store, beside a queue of one row per job on the same server.
    Bench(bench::Args),
    /// Bring the tables of a store up to date, or print the SQL that does it.
    Migrate(migrate::Args),
    #[command(flatten)]
    Client(Box<cli::Command>),
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let queries = bench::QueryCounter::default();
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter))
        .with(queries.clone().with_filter(queries.clone()))
        .init();
    let command = Cli::parse().command;
    // On a thread of the runtime's pool: from the main thread every await would be a hop between threads.
    let running = tokio::spawn(async move {
        match command {
            Command::Bench(args) => bench::run(args, queries).await,
            Command::Migrate(args) => migrate::run(args).await,
            Command::Client(command) => cli::run(*command).await,
        }
    });
    match running.await {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => fail(&error.to_string(), cli::exit_code(&*error)),
        Err(error) => fail(&error.to_string(), ExitCode::FAILURE),
    }
}

fn fail(error: &str, code: ExitCode) -> ExitCode {
    eprintln!("tramline: {error}");
    code
}

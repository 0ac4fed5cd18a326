//! `tramline`: the command line. Every command is a module; this file only parses and dispatches.

mod backup;
mod bench;
mod cli;
mod compat;
mod config;
mod doctor;
mod figures;
mod http;
mod logs;
mod migrate;
mod serve;
mod traces;

use clap::{Parser, Subcommand};
use config::LogFormat;
use std::io::Write;
use std::process::ExitCode;
use traces::Tracing;

/// Ordered events, work queues and worker pools on the database you already run.
#[derive(Parser)]
#[command(name = "tramline", version, arg_required_else_help = true, after_help = cli::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const SERVE: &str = "Examples:
  tramline serve
  tramline serve --config tramline.toml
  tramline serve --listen 0.0.0.0:7070 --store postgres://tramline@db/app --tls-cert cert.pem --tls-key key.pem";

#[derive(Subcommand)]
enum Command {
    /// Serve the HTTP API.
    #[command(after_help = SERVE)]
    Serve(config::Args),
    /// Print the settings that `serve` would use, as a TOML file with comments.
    #[command(after_help = "Example:\n  tramline config --store postgres://tramline@db/app > tramline.toml")]
    Config(config::Args),
    /// Measure this machine and store, beside a queue of one row per job on the same server.
    #[command(after_help = bench::EXAMPLES)]
    Bench(bench::Args),
    /// Bring the tables of a store up to date, or print the SQL that does it.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::Args),
    /// Copy a SQLite store to a new file, while it is in use.
    #[command(after_help = backup::EXAMPLES)]
    Backup(backup::Args),
    /// Look at a store for problems, and say what to do; changes nothing.
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Args),
    #[command(flatten)]
    Client(Box<cli::Command>),
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = Cli::parse().command;
    // On a thread of the runtime's pool: from the main thread every await would be a hop between threads.
    match tokio::spawn(run(command)).await {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => fail(&error.to_string(), cli::exit_code(&*error)),
        Err(error) => fail(&error.to_string(), ExitCode::FAILURE),
    }
}

async fn run(command: Command) -> Result<ExitCode, bench::BoxError> {
    let queries = bench::QueryCounter::default();
    if let Command::Serve(args) = command {
        let config = args.resolve()?;
        let tracing = Tracing::start(config.otlp_endpoint.as_deref(), config.otlp_sample)?;
        logs::start(&config.log, config.log_format, &queries, tracing.as_ref());
        let served = serve::run(config).await;
        if let Some(tracing) = tracing {
            tracing.stop().await;
        }
        return served.map(|()| ExitCode::SUCCESS);
    }
    let (level, tracing) = match &command {
        Command::Bench(args) => {
            (bench::LOG_LEVEL, Tracing::start(args.otlp_endpoint.as_deref(), args.otlp_sample)?)
        }
        _ => ("warn", None),
    };
    logs::start(level, LogFormat::Text, &queries, tracing.as_ref());
    match command {
        Command::Serve(_) => {}
        Command::Config(args) => {
            let text = args.resolve()?.render()?;
            std::io::stdout().write_all(text.as_bytes())?;
        }
        Command::Bench(args) => bench::run(args, queries).await?,
        Command::Migrate(args) => migrate::run(args).await?,
        Command::Backup(args) => backup::run(args).await?,
        Command::Doctor(args) => return doctor::run(args).await,
        Command::Client(command) => cli::run(*command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fail(error: &str, code: ExitCode) -> ExitCode {
    eprintln!("tramline: {error}");
    code
}

//! `tramline migrate`: tables, now or as SQL for somebody else to run.

use crate::bench::BoxError;
use std::io::Write;

pub(crate) const EXAMPLES: &str = "Examples:
  tramline migrate --store postgres://tramline@db/app
  tramline migrate --store postgres://tramline@db/app --print | psql app";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store, such as sqlite://app.db, postgres://user@host/db, mysql://user@host/db or redis://host
    #[arg(long, env = "TRAMLINE_STORE", default_value = "sqlite://tramline.db")]
    store: String,
    /// Print the SQL of all migrations and change nothing
    #[arg(long)]
    print: bool,
}

/// Opening a store brings it up to date.
pub(crate) async fn run(args: Args) -> Result<(), BoxError> {
    let mut out = std::io::stdout();
    if args.print {
        out.write_all(tramline::store::migrations(&args.store)?.as_bytes())?;
        return Ok(());
    }
    tramline::store::open(&args.store).await?.close().await;
    writeln!(out, "up to date")?;
    Ok(())
}

//! `tramline backup`: a copy of a SQLite store that is in use.

use crate::bench::BoxError;
use crate::figures::bytes;
use std::io::Write;
use std::path::PathBuf;
use tokio::time::Instant;

pub(crate) const EXAMPLES: &str = "Examples:
  tramline backup --store sqlite://tramline.db /backups/tramline-$(date +%F).db

Exit codes: 0 done, 1 refused or failed, 2 wrong usage";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store: sqlite://path
    #[arg(long, env = "TRAMLINE_STORE", default_value = "sqlite://tramline.db")]
    store: String,
    /// Where to put the copy; nothing is overwritten
    file: PathBuf,
}

/// The copy has its name when this returns without an error.
pub(crate) async fn run(args: Args) -> Result<(), BoxError> {
    let start = Instant::now();
    let copied = tramline::store::backup(&args.store, &args.file).await?;
    let (size, time) = (bytes(copied.bytes), start.elapsed().as_secs_f64());
    writeln!(
        std::io::stdout(),
        "{}: {size} in {time:.1} s, version {}, checked",
        args.file.display(),
        copied.version
    )?;
    Ok(())
}

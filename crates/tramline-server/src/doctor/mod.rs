//! `tramline doctor`: looks at a store for problems, and says of each what to do. It changes nothing.
//!
//! - `finding`: what was found, and how bad it is
//! - `schema`, `sqlite`, `postgres`, `mysql` (with `server`), `redis`, `queue`: checks, each a function from figures to findings
//! - `survey`: the figures of topics and subscriptions, read from the store

mod finding;
mod mysql;
mod postgres;
mod queue;
mod redis;
mod schema;
mod server;
mod sqlite;
mod survey;

use crate::bench::BoxError;
use finding::{Finding, Severity, summary};
use std::io::Write;
use std::process::ExitCode;
use tramline::store::examine::{self, Figures};

pub(crate) const EXAMPLES: &str = "Examples:
  tramline doctor --store sqlite://tramline.db
  tramline doctor --store postgres://tramline@db/app --json

Exit codes: 0 fine, 1 warnings, 2 something serious, or the store cannot be looked at";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store, such as sqlite://app.db, postgres://user@host/db, mysql://user@host/db or redis://host
    #[arg(long, env = "TRAMLINE_STORE", default_value = "sqlite://tramline.db")]
    store: String,
    /// One JSON object per finding and line
    #[arg(long)]
    json: bool,
}

/// The exit code says how bad it is; a store that cannot be looked at is as bad as can be.
pub(crate) async fn run(args: Args) -> Result<ExitCode, BoxError> {
    let findings = match examined(&args.store).await {
        Ok(findings) => findings,
        Err(error) => vec![unopened(&error)],
    };
    print(&findings, args.json)?;
    Ok(ExitCode::from(findings.iter().map(|finding| finding.severity).max().map_or(0, Severity::code)))
}

fn unopened(error: &tramline::Error) -> Finding {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
    Finding::serious("store", format!("{}{cause}", error.message()), error.remedy())
}

async fn examined(url: &str) -> tramline::Result<Vec<Finding>> {
    let figures = examine::examine(url).await?;
    let mut findings = schema::check(figures.schema());
    match &figures {
        Figures::Sqlite(figures) => findings.extend(sqlite::check(figures)),
        Figures::Postgres(figures) => findings.extend(postgres::check(figures)),
        Figures::Mysql(figures) => findings.extend(mysql::check(figures)),
        Figures::Redis(figures) => findings.extend(redis::check(figures)),
    }
    // A store that is not up to date would be changed by opening it; one that lacks a table, or is refused, cannot be asked.
    let refused = match &figures {
        Figures::Mysql(figures) => figures.refused.is_some(),
        Figures::Redis(figures) => figures.refused.is_some(),
        Figures::Sqlite(_) | Figures::Postgres(_) => false,
    };
    if figures.schema().is_current() && figures.schema().missing.is_empty() && !refused {
        let store = examine::open_to_look(url).await?;
        if !matches!(figures, Figures::Sqlite(_)) {
            findings.extend(survey::skew(&*store).await?);
        }
        findings.extend(queue::check(&survey::queues(&*store).await?));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

fn print(findings: &[Finding], json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for finding in findings {
        match json {
            true => writeln!(out, "{}", serde_json::to_string(finding)?)?,
            false => writeln!(out, "{finding}")?,
        }
    }
    if json { Ok(()) } else { writeln!(out, "{}", summary(findings)) }
}

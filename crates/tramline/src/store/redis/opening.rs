//! What a server has to be, and the version of the store.

use super::link::{Link, text};
use super::session::{Session, number};
use crate::error::{Error, Result};

/// The oldest version that has all that the scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// The version of the layout that this program writes.
const LAYOUT: i64 = 1;

/// Checks the server. What cannot be found out (a service may hide it) is not held against it.
pub(super) async fn check(link: &Link) -> Result<()> {
    let info = ask(link, &["INFO", "server"]).await.unwrap_or_default();
    if let Some(version) = field(&info, "redis_version:")
        && let Some(numbers) = parse(version)
        && numbers < OLDEST
    {
        return Err(Error::invalid(format!("Redis {version} is too old"), "use Redis 6.2 or newer"));
    }
    let memory = ask(link, &["INFO", "memory"]).await.unwrap_or_default();
    if let Some(policy) = field(&memory, "maxmemory_policy:").filter(|policy| *policy != "noeviction") {
        return Err(Error::invalid(
            format!("Redis may throw events away when it is full: its maxmemory-policy is {policy}"),
            "set maxmemory-policy noeviction, or use a server that is not a cache",
        ));
    }
    let persistence = ask(link, &["INFO", "persistence"]).await.unwrap_or_default();
    if field(&persistence, "aof_enabled:") == Some("0") {
        tracing::warn!(
            "Redis keeps no append-only file: what was emitted since its last snapshot is lost when it stops; set appendonly yes"
        );
    }
    Ok(())
}

/// Marks a new store, and recognises one of a newer version.
pub(super) fn mark(session: &Session<'_>) -> Result<()> {
    let meta = session.key("meta");
    let layout = number(session.get(&meta, b"layout")?);
    if layout > LAYOUT {
        return Err(Error::conflict(
            format!("the store in Redis has layout {layout}, this program knows {LAYOUT}"),
            "run a newer version of the program",
        ));
    }
    if layout == 0 {
        session.put(meta, "layout", LAYOUT.to_string().into_bytes());
    }
    Ok(())
}

async fn ask(link: &Link, words: &[&str]) -> Result<String> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let answer = link.send(&command, true).await?;
    Ok(match &answer {
        // A Cluster answers for each of its nodes; they are set up alike.
        redis::Value::Map(nodes) => nodes.first().and_then(|(_, value)| text(value)),
        one => text(one),
    }
    .or_else(|| verbatim(answer))
    .unwrap_or_default())
}

fn verbatim(value: redis::Value) -> Option<String> {
    match value {
        redis::Value::VerbatimString { text, .. } => Some(text),
        redis::Value::Map(nodes) => nodes.into_iter().next().and_then(|(_, value)| verbatim(value)),
        _ => None,
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

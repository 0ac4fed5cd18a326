//! How to reach a Redis server or Cluster, read from a URL.

use crate::error::{Error, Result};
use std::str::FromStr;
use std::time::Duration;
use url::Url;

/// What a store is called unless it is told.
const NAME: &str = "tramline";
/// How long a name may be: the channel of the wake-ups is called after it.
const LONGEST: usize = 50;
/// How long an answer may take unless it is told, and what it can be told.
const ANSWER_MS: u64 = 5_000;
const ANSWERS_MS: std::ops::RangeInclusive<u64> = 50..=60_000;
/// The port of Redis unless one is named.
const PORT: u16 = 6379;

/// Where the server is and how it is used.
///
/// Read from a URL such as `redis://user:password@host:6379/0`; `rediss://` speaks TLS. Several hosts
/// (`redis://a:6379,b:6379,c:6379`), or the scheme `redis+cluster://` (`rediss+cluster://`) with one, mean a Cluster. These parameters are
/// Tramline's own, and there are no others:
///
/// - `name`: what all keys of the store begin with, in braces; `tramline` unless set. Stores of different names know nothing of each other
/// - `spread`: `topics` gives each topic a slot of its own, so that a Cluster carries a store with all of its nodes; see
///   [`SpreadStore`](super::SpreadStore) for what that costs. It is said once, when a store is new, and then always
/// - `answer_ms`: how long an answer may take before the server is taken for lost and a new connection is made; 5,000 unless set.
///   Connecting may take half of that, and a call fails after twice that at the latest
#[derive(Clone)]
pub struct RedisOptions {
    /// One URL per host, as the driver reads them.
    pub(super) nodes: Vec<String>,
    pub(super) cluster: bool,
    pub(super) name: String,
    pub(super) answer: Duration,
    pub(super) spread: bool,
}

impl RedisOptions {
    /// True if each topic has a slot of its own.
    pub(crate) fn is_spread(&self) -> bool {
        self.spread
    }

    /// One URL for each server that was named.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(String::as_str)
    }
}

/// Without the password.
impl std::fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (nodes, cluster) = (self.nodes.len(), self.cluster);
        f.debug_struct("RedisOptions")
            .field("name", &self.name)
            .field("spread", &self.spread)
            .field("nodes", &nodes)
            .field("cluster", &cluster)
            .finish()
    }
}

/// True if a URL names a Redis server.
pub(crate) fn is_redis(url: &str) -> bool {
    ["redis://", "rediss://", "redis+cluster://", "rediss+cluster://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

impl FromStr for RedisOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<RedisOptions> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("the URL cannot be read"))?;
        if !is_redis(text) {
            return Err(bad("the URL is not one of Redis"));
        }
        let (plain, is_cluster) = match scheme.split_once('+') {
            Some((plain, _)) => (plain, true),
            None => (scheme, false),
        };
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let hosts: Vec<&str> = hosts.split(',').collect();
        let cluster = is_cluster || hosts.len() > 1;
        if cluster && !matches!(path, "" | "/" | "/0") {
            return Err(bad("a Cluster has no databases but 0"));
        }
        let node = |host: &str| -> Result<String> {
            let url = Url::parse(&format!("{plain}://{user}{host}{path}"))
                .map_err(|error| bad("the URL cannot be read").because(error))?;
            let bare = url.host_str().is_none_or(str::is_empty) || url.port() == Some(0);
            let number = path.trim_matches('/');
            if bare || url.fragment().is_some() || !(number.is_empty() || number.parse::<u16>().is_ok()) {
                return Err(bad("the URL names no host and port, or no database by its number"));
            }
            let port = url.port().unwrap_or(PORT);
            Ok(format!("{plain}://{user}{}:{port}{path}", url.host_str().unwrap_or_default()))
        };
        let nodes = hosts.into_iter().map(node).collect::<Result<_>>()?;
        let (name, answer, spread) = parameters(query)?;
        Ok(RedisOptions { nodes, cluster, name, answer, spread })
    }
}

fn parameters(query: &str) -> Result<(String, Duration, bool)> {
    let (mut name, mut answer, mut spread) = (NAME.to_owned(), ANSWER_MS, false);
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "name" => name = checked_name(value.into_owned())?,
            "answer_ms" => answer = checked_answer(&value)?,
            "spread" if value == "topics" => spread = true,
            "spread" => {
                return Err(Error::invalid(
                    format!("a store in Redis cannot be spread over {value:?}"),
                    "write spread=topics, or leave it out: then all of the store is in one slot",
                ));
            }
            _ => {
                return Err(Error::invalid(
                    format!("the URL has the unknown parameter {key:?}"),
                    "there are name, answer_ms and spread",
                ));
            }
        }
    }
    Ok((name, Duration::from_millis(answer), spread))
}

fn checked_name(name: String) -> Result<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(fine) {
        return Err(Error::invalid(
            format!("a store in Redis cannot be called {name:?}"),
            "use up to 50 letters, digits, and the characters _ - .",
        ));
    }
    Ok(name)
}

fn checked_answer(text: &str) -> Result<u64> {
    let answer = text.parse().ok().filter(|answer| ANSWERS_MS.contains(answer));
    answer.ok_or_else(|| {
        let what = format!("an answer of Redis cannot be waited for {text:?} milliseconds");
        Error::invalid(what, "use 50 to 60000")
    })
}

fn bad(what: &str) -> Error {
    Error::invalid(what, "write it like redis://user:password@host:6379/0?name=tramline")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<RedisOptions> {
        url.parse()
    }

    #[test]
    fn one_host_is_a_server_and_several_are_a_cluster() {
        let one = read("redis://u:p@host/3?name=a.b").unwrap();
        assert_eq!((&one.nodes[..], one.cluster), (&["redis://u:p@host:6379/3".to_owned()][..], false));
        assert_eq!(one.name, "a.b");
        let three = read("rediss://a:1,b:2,c/").unwrap();
        assert_eq!(three.nodes, ["rediss://a:1/", "rediss://b:2/", "rediss://c:6379/"]);
        assert!(three.cluster && three.name == "tramline" && three.answer == Duration::from_secs(5));
        assert!(read("redis+cluster://a:1").unwrap().cluster);
        assert_eq!(read("redis://a?answer_ms=200").unwrap().answer, Duration::from_millis(200));
        assert!(read("redis://a,b?spread=topics").unwrap().spread && !three.spread);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let addresses =
            ["redis://", "http://a", "redis://a/x", "redis://a,b/1", "redis://a:0", "redis://a#x"];
        let parameters =
            ["redis://a?name={}", "redis://a?nme=x", "redis://a?answer_ms=1", "redis://a?spread=keys"];
        for url in addresses.into_iter().chain(parameters) {
            assert!(read(url).is_err(), "{url}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert!(!format!("{:?}", read("redis://u:secret@host").unwrap()).contains("secret"));
    }
}

//! Where hints travel, as a URL.

use crate::error::{Error, Result};
use crate::store::redis::RedisOptions;
use crate::wake::in_process::InProcess;
use crate::wake::relay::Relay;
use crate::wake::{Wake, postgres};
use std::sync::Arc;

/// The channel, where nobody names another one.
const CHANNEL: &str = "tramline.wake";

/// Opens the way that a URL names: `nats://..`, `redis://..`, `rediss://..`, `postgres://..` or `in-process`. A Cluster of Redis is named as for a
/// store: several hosts with commas, or `redis+cluster://..`. With `?channel=name` hints have a channel of their own, else `channel` if the
/// store has one. Needs a Tokio runtime.
///
/// # Errors
/// `Invalid` for a URL that names none of them, or of which a part would be passed over.
pub fn open(url: &str, channel: Option<&str>) -> Result<Arc<dyn Wake>> {
    let (plain, named) = take_channel(url)?;
    let channel = named.as_deref().or(channel).unwrap_or(CHANNEL);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    if channel.is_empty() || channel.len() > 63 || !channel.chars().all(is_plain) {
        return Err(Error::invalid(
            "the channel of the wake-ups has no name that every way can carry",
            "use 1 to 63 letters, digits and . _ - :",
        ));
    }
    if plain == "in-process" {
        return Ok(Arc::new(InProcess::new()));
    }
    let (scheme, rest) = plain.split_once("://").unwrap_or_default();
    if plain.contains('#') {
        return Err(Error::invalid(
            "the URL of the wake-ups has a # in it",
            "write %23 for a # in a password",
        ));
    }
    // Those of PostgreSQL go to its driver; what a store in Redis is called says nothing here.
    if plain.contains('?') && !scheme.starts_with("postgres") {
        return Err(Error::invalid(
            "the URL of the wake-ups has a parameter that nobody knows",
            "there is channel, and what the driver of PostgreSQL takes",
        ));
    }
    Ok(match if rest.is_empty() { "" } else { scheme } {
        "nats" | "tls" => Arc::new(Relay::nats(&plain, channel)?),
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster" => {
            Arc::new(Relay::redis(plain.parse::<RedisOptions>()?.nodes(), channel)?)
        }
        "postgres" | "postgresql" => {
            postgres::check(&plain)?;
            Arc::new(Relay::postgres(&plain, channel)?)
        }
        _ => {
            return Err(Error::invalid(
                "the URL of the wake-ups names no way for them",
                "use nats://host:4222, redis://host:6379, postgres://host/db or in-process",
            ));
        }
    })
}

/// A URL without its `channel`, and that.
fn take_channel(url: &str) -> Result<(String, Option<String>)> {
    let Some((plain, query)) = url.split_once('?') else { return Ok((url.to_owned(), None)) };
    let (named, others): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|parameter| parameter.starts_with("channel="));
    if named.len() > 1 {
        return Err(Error::invalid("the URL of the wake-ups names two channels", "name one"));
    }
    let named = named.first().and_then(|parameter| parameter.strip_prefix("channel="));
    let rest = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    Ok((format!("{plain}{rest}"), named.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_channel_in_the_url_is_taken_out_of_it() {
        let taken = |url| take_channel(url).unwrap();
        assert_eq!(taken("nats://h"), ("nats://h".to_owned(), None));
        assert_eq!(taken("nats://h?channel=a.b"), ("nats://h".to_owned(), Some("a.b".to_owned())));
        let (url, channel) = taken("postgres://h/d?sslmode=require&channel=a");
        assert_eq!((&*url, channel.as_deref()), ("postgres://h/d?sslmode=require", Some("a")));
    }

    #[tokio::test]
    async fn what_names_no_way_is_refused_with_a_remedy() {
        for bad in [
            "",
            "mysql://h",
            "nats",
            "nats://h?channel=",
            "nats://h?channel=a%20b%20>",
            "nats://h?channel=a..b",
            "nats://h?channel=.a",
            "nats://h?chanel=a",
            "nats://h?channel=a&channel=b",
            "nats:///",
            "nats://a,",
            "nats://h:nonsense",
            "nats://h:0",
            "nats://h/subject",
            "nats://a,ws://b",
            "nats://u:p@a,v:q@b",
            "nats://p#w@h",
            "redis://",
            "redis:///1",
            "redis://a,b/1",
            "redis://a,,b",
            "redis://h?name=a",
            "redis://h:nonsense",
            "redis://h:65536",
            "redis://h:0",
            "redis://h#x",
            "postgres://",
            "postgres:///d",
            "postgres://a,b/d",
            "postgres://h:nonsense/d",
            "postgres://h:65536/d",
            "postgres://h:0/d",
            "postgres://h/d?schema=a",
            "postgres://h/d?sslmode=nonsense",
            "postgres://h/d#x",
        ] {
            let Err(error) = open(bad, None) else { panic!("{bad} is taken") };
            assert!(error.kind() == Kind::Invalid && !error.remedy().is_empty(), "{bad}: {error}");
        }
        let servers = ["nats://a:1,nats://b:2", "nats://u:secret@a,b", "redis://:secret@h:1", "rediss://h"];
        let databases = [
            "postgres://u:secret@h/d",
            "postgresql://h/d?sslmode=require&options[geqo]=off",
            "postgres:///d?host=/run/postgresql",
        ];
        let clusters = ["redis://:secret@a:1,b:2,c", "redis+cluster://h", "rediss+cluster://a,b?channel=x"];
        for good in ["in-process"].into_iter().chain(servers).chain(databases).chain(clusters) {
            let wake = open(good, None).unwrap();
            assert!(!format!("{wake:?}").contains("secret"));
        }
    }
}

//! How to reach a PostgreSQL database, read from a URL.

use crate::error::{Error, Result};
use crate::store::driver::answer_timeout;
use sqlx::postgres::PgConnectOptions;
use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;
use url::Url;

/// How many connections a store keeps at most, unless it is told.
const CONNECTIONS: u32 = 10;
/// Leaves room for the longest name behind the schema's: the channel on which workers are woken has at most 63 bytes.
const LONGEST_SCHEMA: usize = 40;

/// Where the database is and how it is used.
///
/// Read from a URL such as `postgres://user@host/db?schema=queue&pooled=true`. These parameters are Tramline's own; all
/// others go to the driver (`sslmode`, `application_name`, ..):
///
/// - `schema`: where the tables are; the first one of the search path unless set
/// - `pooled`: `true` behind PgBouncer in transaction mode: no prepared statements that outlive a transaction
/// - `listen_url`: where to listen for wake-ups if not here; needed with `pooled`, because a pooler loses `LISTEN`
/// - `max_connections`: how many connections the store keeps at most, 10 unless set
/// - `answer_timeout`: after how many seconds without an answer a connection is given up, 30 unless set
///
/// What is acknowledged is on disk, even where the default of the server, the database or the role is `synchronous_commit = off`. Only the URL
/// itself can ask for less: `options=-c%20synchronous_commit%3Doff`, for data that a crash of the server may take along.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub(super) connect: PgConnectOptions,
    pub(super) schema: Option<String>,
    pub(super) pooled: bool,
    pub(super) max_connections: u32,
    pub(super) answer: Duration,
    url: String,
    listen_url: Option<String>,
}

impl PostgresOptions {
    /// All migrations as SQL, for tables in the schema that the URL names, or wherever the search path leads.
    pub fn migrations(&self) -> String {
        super::migrate::sql(self.schema.as_deref())
    }

    /// Where to listen for wake-ups: `None` when nothing but a pooler is known.
    pub fn listen_url(&self) -> Option<&str> {
        self.listen_url.as_deref().or_else(|| (!self.pooled).then_some(self.url.as_str()))
    }
}

impl FromStr for PostgresOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<PostgresOptions> {
        let mut url = Url::parse(text).map_err(|error| bad("the URL cannot be read").because(error))?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(bad("the URL is not one of PostgreSQL"));
        }
        let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = url.query_pairs().collect();
        let own =
            |name: &str| pairs.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.to_string());
        let schema = own("schema").map(check_schema).transpose()?;
        let pooled = own("pooled").map_or(Ok(false), |word| {
            word.parse()
                .map_err(|_| Error::invalid(format!("pooled={word} means nothing"), "use true or false"))
        })?;
        let max_connections = own("max_connections").map_or(Ok(CONNECTIONS), |number| {
            let parsed = number.parse().ok().filter(|n| (2..=1000).contains(n));
            parsed.ok_or_else(|| {
                Error::invalid(format!("max_connections={number} is out of range"), "use 2 to 1000")
            })
        })?;
        let answer = answer_timeout(own("answer_timeout").as_deref())?;
        let listen_url = own("listen_url");
        let own_names = ["schema", "pooled", "listen_url", "max_connections", "answer_timeout"];
        let rest: Vec<(String, String)> = pairs
            .into_iter()
            .filter(|(name, _)| !own_names.contains(&&**name))
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        url.set_query(None);
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
        let connect = PgConnectOptions::from_str(url.as_str())
            .map_err(|error| bad("the URL cannot be read").because(error))?;
        Ok(PostgresOptions { connect, schema, pooled, max_connections, answer, url: url.into(), listen_url })
    }
}

fn bad(what: &str) -> Error {
    Error::invalid(what, "write it like postgres://user:password@host:5432/database?schema=tramline")
}

/// The name goes into SQL as it is, so only plain ones are allowed.
fn check_schema(name: String) -> Result<String> {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if first
        && plain
        && name.len() <= LONGEST_SCHEMA
        && !name.contains("tramline_")
        && !name.starts_with("pg_")
    {
        return Ok(name);
    }
    Err(Error::invalid(
        format!("{:?} cannot be used as a schema name", name.chars().take(60).collect::<String>()),
        "use 1 to 40 small letters, digits and _, not beginning with a digit or pg_, and without tramline_",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parameters_are_taken_off_the_url() {
        let url = "postgres://u:p@h:1/d?schema=queue&sslmode=disable&pooled=true&max_connections=7&answer_timeout=9";
        let options: PostgresOptions = url.parse().unwrap();
        assert_eq!(options.schema.as_deref(), Some("queue"));
        assert!(options.pooled);
        assert_eq!((options.max_connections, options.answer), (7, Duration::from_secs(9)));
        assert_eq!(options.url, "postgres://u:p@h:1/d?sslmode=disable");
        assert_eq!(options.listen_url(), None);
    }

    #[test]
    fn wake_ups_come_from_the_same_place_unless_it_is_a_pooler() {
        let direct: PostgresOptions = "postgres://h/d".parse().unwrap();
        assert_eq!(direct.listen_url(), Some("postgres://h/d"));
        let own: PostgresOptions =
            "postgres://h/d?pooled=true&listen_url=postgres%3A%2F%2Fdirect%2Fd".parse().unwrap();
        assert_eq!(own.listen_url(), Some("postgres://direct/d"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_remedy() {
        let long = format!("schema={}", "x".repeat(41));
        let bad = ["schema=a.b", "schema=", "schema=A", "schema=1a", "schema=a\"b", "schema=pg_x", &long];
        for query in bad.into_iter().chain([
            "pooled=yes",
            "max_connections=0",
            "max_connections=x",
            "answer_timeout=0",
        ]) {
            let error = format!("postgres://h/d?{query}").parse::<PostgresOptions>().unwrap_err();
            assert!(!error.remedy().is_empty(), "{query}");
        }
        assert!("mysql://h/d".parse::<PostgresOptions>().is_err());
        assert!("nonsense".parse::<PostgresOptions>().is_err());
    }
}

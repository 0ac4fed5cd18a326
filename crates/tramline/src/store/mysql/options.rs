//! How to reach a MySQL or MariaDB database, read from a URL.

use crate::error::{Error, Result};
use crate::store::driver::answer_timeout;
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;
use std::str::FromStr;
use std::time::Duration;
use url::Url;

/// How many connections a store keeps at most, unless it is told.
const CONNECTIONS: u32 = 10;

/// Where the database is and how it is used.
///
/// Read from a URL such as `mysql://user:password@host:3306/database`; `mariadb://` means the same. These parameters are Tramline's
/// own; all others go to the driver (`ssl-mode`, `ssl-ca`, `socket`, ..):
///
/// - `max_connections`: how many connections the store keeps at most, 10 unless set
/// - `answer_timeout`: after how many seconds without an answer a connection is given up, 30 unless set
#[derive(Clone, Debug)]
pub struct MysqlOptions {
    pub(super) connect: MySqlConnectOptions,
    pub(super) max_connections: u32,
    pub(super) answer: Duration,
}

impl FromStr for MysqlOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<MysqlOptions> {
        let plain = text.strip_prefix("mariadb://").map(|rest| format!("mysql://{rest}"));
        let url = Url::parse(plain.as_deref().unwrap_or(text))
            .map_err(|error| bad("the URL cannot be read").because(error))?;
        if url.scheme() != "mysql" {
            return Err(bad("the URL is not one of MySQL or MariaDB"));
        }
        if url.path().trim_matches('/').is_empty() {
            return Err(bad("the URL names no database"));
        }
        let own = |wanted: &str| {
            url.query_pairs().filter(|(name, _)| name == wanted).last().map(|(_, value)| value)
        };
        let max_connections = own("max_connections").map_or(Ok(CONNECTIONS), |number| {
            let parsed = number.parse().ok().filter(|n| (2..=1000).contains(n));
            parsed.ok_or_else(|| {
                Error::invalid(format!("max_connections={number} is out of range"), "use 2 to 1000")
            })
        })?;
        let answer = answer_timeout(own("answer_timeout").as_deref())?;
        let connect = MySqlConnectOptions::from_url(&url)
            .map_err(|error| bad("the URL cannot be read").because(error))?
            // Statements have payloads in them, which belong into no log.
            .disable_statement_logging();
        Ok(MysqlOptions { connect, max_connections, answer })
    }
}

fn bad(what: &str) -> Error {
    Error::invalid(what, "write it like mysql://user:password@host:3306/database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_of_the_database_are_known() {
        for scheme in ["mysql", "mariadb"] {
            let url = format!("{scheme}://u:p@h:1/d?max_connections=7&answer_timeout=9&ssl-mode=DISABLED");
            let options: MysqlOptions = url.parse().unwrap();
            assert_eq!((options.max_connections, options.answer), (7, Duration::from_secs(9)));
            assert_eq!(options.connect.get_database(), Some("d"));
            assert_eq!(options.connect.get_host(), "h");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_remedy() {
        let bad = ["mysql://h", "mysql://h/", "postgres://h/d", "nonsense", "mysql://h/d?max_connections=1"];
        for url in bad.into_iter().chain(["mysql://h/d?ssl-mode=perhaps", "mysql://h/d?answer_timeout=0"]) {
            let error = url.parse::<MysqlOptions>().unwrap_err();
            assert!(!error.remedy().is_empty(), "{url}");
        }
    }
}

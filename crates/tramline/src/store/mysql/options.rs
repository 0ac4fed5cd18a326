//! How to reach a MySQL or MariaDB database, read from a URL.

use crate::error::{Error, Result};
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;
use std::str::FromStr;
use url::Url;

/// How many connections a store keeps at most, unless it is told.
const CONNECTIONS: u32 = 10;

/// Where the database is and how it is used.
///
/// Read from a URL such as `mysql://user:password@host:3306/database`; `mariadb://` means the same. This parameter is Tramline's own;
/// all others go to the driver (`ssl-mode`, `ssl-ca`, `socket`, ..):
///
/// - `max_connections`: how many connections the store keeps at most, 10 unless set
#[derive(Clone, Debug)]
pub struct MysqlOptions {
    pub(super) connect: MySqlConnectOptions,
    pub(super) max_connections: u32,
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
        let number = url.query_pairs().filter(|(name, _)| name == "max_connections").last();
        let max_connections = number.map_or(Ok(CONNECTIONS), |(_, number)| {
            let parsed = number.parse().ok().filter(|n| (2..=1000).contains(n));
            parsed.ok_or_else(|| {
                Error::invalid(format!("max_connections={number} is out of range"), "use 2 to 1000")
            })
        })?;
        let connect = MySqlConnectOptions::from_url(&url)
            .map_err(|error| bad("the URL cannot be read").because(error))?
            // Statements have payloads in them, which belong into no log.
            .disable_statement_logging();
        Ok(MysqlOptions { connect, max_connections })
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
            let url = format!("{scheme}://u:p@h:1/d?max_connections=7&ssl-mode=DISABLED");
            let options: MysqlOptions = url.parse().unwrap();
            assert_eq!(options.max_connections, 7);
            assert_eq!(options.connect.get_database(), Some("d"));
            assert_eq!(options.connect.get_host(), "h");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_remedy() {
        let bad = ["mysql://h", "mysql://h/", "postgres://h/d", "nonsense", "mysql://h/d?max_connections=1"];
        for url in bad.into_iter().chain(["mysql://h/d?ssl-mode=perhaps"]) {
            let error = url.parse::<MysqlOptions>().unwrap_err();
            assert!(!error.remedy().is_empty(), "{url}");
        }
    }
}

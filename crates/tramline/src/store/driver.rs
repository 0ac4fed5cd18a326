//! What the errors of the SQL driver mean.

use crate::error::{Error, Kind};
use sqlx::mysql::MySqlDatabaseError;

/// The number of an error of MySQL or MariaDB, if it is one.
pub(crate) fn mysql_number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Error {
        let state = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        let number = mysql_number(&error);
        let (kind, remedy) = match (&state[..state.len().min(2)], number, &error) {
            (_, _, sqlx::Error::PoolTimedOut) => (
                Kind::Unavailable,
                "no connection was free or could be made in time; check that the server runs, else raise max_connections",
            ),
            ("", ..) => {
                (Kind::Unavailable, "check that the server runs and can be reached; work goes on by itself")
            }
            ("22", ..) | (_, Some(1264 | 1366 | 1406), _) => {
                (Kind::Invalid, "the database cannot store this value; see the cause")
            }
            ("28" | "3D", ..) | (_, Some(1044 | 1045 | 1049), _) => {
                (Kind::Unavailable, "check user, password and database in the URL")
            }
            ("3F" | "42", ..) => (
                Kind::Unavailable,
                "check the user's rights, and that the schema was migrated by this version",
            ),
            ("40", ..) => (Kind::Unavailable, "another transaction was in the way; try again"),
            ("53", ..) | (_, Some(1021 | 1037 | 1040 | 1041 | 1114), _) => {
                (Kind::Unavailable, "the server is out of space, memory or connections; give it more")
            }
            ("55", ..) | (_, Some(1205), _) => {
                (Kind::Unavailable, "another transaction holds a lock; try again when it has ended")
            }
            (_, Some(1290 | 1836), _) => {
                (Kind::Unavailable, "the server only reads; let the URL name the primary")
            }
            (_, Some(1153), _) => (Kind::TooLarge, "raise max_allowed_packet of the server, or send less"),
            _ => (Kind::Unavailable, "try again; if it stays, see the server's log"),
        };
        let server = match (number, error.as_database_error()) {
            (Some(_), _) => "MySQL failed",
            (None, Some(_)) => "PostgreSQL failed",
            (None, None) => "the database failed",
        };
        Error::new(kind, server, remedy).because(error)
    }
}

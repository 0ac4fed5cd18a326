//! What the errors of the SQL driver mean, and how long its servers may take to answer.

use crate::error::{Error, Kind, Result};
use sqlx::Connection;
use sqlx::mysql::MySqlDatabaseError;
use std::io;
use std::time::Duration;

/// How long a server may take to answer, unless it is told.
const ANSWER: Duration = Duration::from_secs(30);
/// How long it may take to answer what costs it nothing.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// Reads `answer_timeout` of a URL, in seconds.
pub(crate) fn answer_timeout(seconds: Option<&str>) -> Result<Duration> {
    let Some(seconds) = seconds else { return Ok(ANSWER) };
    let parsed = seconds.parse().ok().filter(|n| (1..=3600).contains(n)).map(Duration::from_secs);
    parsed.ok_or_else(|| {
        Error::invalid(format!("answer_timeout={seconds} is out of range"), "use 1 to 3600 seconds")
    })
}

/// What a server answers; if it does not in time, the error of a connection that is lost. A machine that vanishes says nothing, and the
/// driver would wait until the system gives the connection up, which takes a quarter of an hour, or for ever.
pub(crate) async fn answered<T>(limit: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(silence().into()),
    }
}

/// The same of a single request.
pub(crate) async fn asked<T>(limit: Duration, request: impl Future<Output = sqlx::Result<T>>) -> Result<T> {
    answered(limit, async { Ok(request.await?) }).await
}

/// Waits until a pool is closed, which is when all its connections are back. One that a server stopped answering on its way back is not waited for: the
/// driver tries it out a second time, without a limit, after [`pinged`] has.
pub(crate) async fn closed(limit: Duration, closing: impl Future<Output = ()>) {
    if tokio::time::timeout(limit + SIGN_OF_LIFE, closing).await.is_err() {
        tracing::debug!("some connections did not come back in time");
    }
}

/// Whether a server is still there.
pub(crate) async fn pinged(conn: &mut impl Connection) -> sqlx::Result<bool> {
    match tokio::time::timeout(SIGN_OF_LIFE, conn.ping()).await {
        Ok(answer) => answer.map(|()| true),
        Err(_) => Err(silence()),
    }
}

fn silence() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"))
}

/// True if a server did not answer in time. Nothing more may be asked on that connection.
pub(crate) fn is_silence(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    matches!(source, Some(sqlx::Error::Io(error)) if error.kind() == io::ErrorKind::TimedOut)
}

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

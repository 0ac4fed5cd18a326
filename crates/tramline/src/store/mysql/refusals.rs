//! Servers that will not do any more. Each new connection is checked like the first one, because another server may be behind the
//! same address by then, or the same one with other settings.

use super::server::Server;
use crate::error::{Error, Result};
use sqlx::MySqlConnection;
use std::sync::Arc;
use tokio::sync::watch;

/// Tells those who wait for a connection why there is none. The pool would try again and again until their time is over, and then say
/// only that it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Refused(watch::Sender<Option<Arc<Error>>>);

impl Refused {
    /// Refuses a new connection to a server on which events could be lost or run out of order, or that cannot write.
    pub(super) async fn unless_it_will_do(&self, conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let into = |error: &Error| sqlx::Error::Configuration(error.share().into());
        // One that cannot even answer may be about to start: the pool tries again.
        let server = Server::read(conn).await.map_err(|error| into(&error))?;
        server.check().map_err(|error| {
            let told = into(&error);
            self.0.send_replace(Some(Arc::new(error)));
            told
        })
    }

    /// What `connection` gives, unless a server is refused meanwhile.
    pub(super) async fn or<T>(&self, connection: impl Future<Output = Result<T>>) -> Result<T> {
        let mut refused = self.0.subscribe();
        tokio::select! {
            biased;
            connection = connection => connection,
            Ok(()) = refused.changed() => {
                let error = refused.borrow().as_ref().map(|error| error.share());
                Err(error.unwrap_or_else(|| Error::unavailable("the server was refused", "try again")))
            }
        }
    }
}

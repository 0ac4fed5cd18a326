//! Hints between processes on PostgreSQL: LISTEN and NOTIFY, each on a connection of its own.
//!
//! NOTIFY takes a lock that all notifying commits share, so it never runs inside an emit. It follows the commit, and while
//! one is under way the next ones gather into one. A process in which nobody listens needs no connection for that.

use crate::engine::backoff::delay;
use crate::model::id::{Incarnation, SubscriptionId};
use crate::wake::outbox::Outbox;
use crate::wake::{Listener, Wake};
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The least time between two NOTIFYs of a process while hints keep coming: a busy emitter sends 200 a second and not
/// thousands. A lone hint goes at once.
const PAUSE: Duration = Duration::from_millis(5);
/// How many ids one NOTIFY carries; its payload may have 8,000 bytes.
const IDS: usize = 350;

/// Hints over one channel of a PostgreSQL database.
#[derive(Debug)]
pub struct Channel {
    outbox: Arc<Outbox>,
    tasks: [JoinHandle<()>; 2],
}

impl Channel {
    /// Connects in the background, and again whenever the connection is lost; until then hints stay in this process. `url` must
    /// lead to the server itself, not to a pooler that shares connections; `channel` is the one of the store. Needs a Tokio runtime.
    pub fn new(url: &str, channel: &str) -> Channel {
        let outbox = Arc::new(Outbox::default());
        let channel = channel.to_owned();
        let me = Incarnation::random();
        let listen = tokio::spawn(listen(url.to_owned(), channel.clone(), me, outbox.clone()));
        let send = tokio::spawn(send(url.to_owned(), channel, me, outbox.clone()));
        Channel { outbox, tasks: [listen, send] }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Wake for Channel {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.outbox.notify(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.outbox.bells.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.outbox.bells.listen_to_all()
    }
}

/// Rings the bells of this process for what the others send.
async fn listen(url: String, channel: String, me: Incarnation, outbox: Arc<Outbox>) {
    let mut failures = 0;
    outbox.bells.audience().somebody().await;
    loop {
        if let Err(error) = hear(&url, &channel, me, &outbox, &mut failures).await {
            failures += 1;
            if failures == 1 {
                tracing::warn!(error = %error, "the wake-up connection is lost; polling every second until it is back");
            }
            tokio::time::sleep(delay(failures)).await;
        }
    }
}

async fn hear(
    url: &str,
    channel: &str,
    me: Incarnation,
    outbox: &Outbox,
    failures: &mut u32,
) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect(url).await?;
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    *failures = 0;
    // What was sent before this moment was not heard.
    outbox.bells.ring_all();
    while let Some(notification) = listener.try_recv().await? {
        let (from, ids) = read(notification.payload());
        if from != Some(me) {
            outbox.bells.ring(&ids);
        }
    }
    Ok(())
}

/// Sends what has gathered, one NOTIFY at a time.
async fn send(url: String, channel: String, me: Incarnation, outbox: Arc<Outbox>) {
    let mut connection: Option<PgConnection> = None;
    let mut failures = 0;
    loop {
        let ids = outbox.take().await;
        match tell(&url, &channel, me, &ids, &mut connection).await {
            Ok(()) => {
                failures = 0;
                if outbox.is_filled() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // A lost hint is repaired by the slow poll of whoever waits; trying again is for the hints to come.
            Err(error) => {
                tracing::debug!(error = %error, "a wake-up could not be sent");
                connection = None;
                failures += 1;
                tokio::time::sleep(delay(failures)).await;
            }
        }
    }
}

async fn tell(
    url: &str,
    channel: &str,
    me: Incarnation,
    ids: &BTreeSet<SubscriptionId>,
    connection: &mut Option<PgConnection>,
) -> Result<(), sqlx::Error> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let mut fresh = PgConnection::connect(url).await?;
            // A hint may be lost with the server; waiting for the disk would only make it late.
            fresh.execute("SET synchronous_commit = off").await?;
            connection.insert(fresh)
        }
    };
    for payload in write(me, ids) {
        sqlx::query("SELECT pg_notify($1, $2)").bind(channel).bind(payload).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Who sends, and the subscriptions: `5f3a 1,2,9`.
fn hint(me: Incarnation, ids: &[SubscriptionId]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    format!("{:x} {}", me.0, ids.join(","))
}

/// As many hints as are needed for all subscriptions.
fn write(me: Incarnation, ids: &BTreeSet<SubscriptionId>) -> Vec<String> {
    let ids: Vec<SubscriptionId> = ids.iter().copied().collect();
    match ids.is_empty() {
        true => vec![hint(me, &[])],
        false => ids.chunks(IDS).map(|ids| hint(me, ids)).collect(),
    }
}

fn read(payload: &str) -> (Option<Incarnation>, Vec<SubscriptionId>) {
    let (from, ids) = payload.split_once(' ').unwrap_or(("", payload));
    let ids = ids.split(',').filter_map(|id| id.parse().ok()).map(SubscriptionId).collect();
    (i64::from_str_radix(from, 16).ok().map(Incarnation), ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_back_as_it_was_written_and_fits_into_a_notify() {
        let ids: BTreeSet<SubscriptionId> = (0..1_000).map(|n| SubscriptionId(i64::MAX - n)).collect();
        let me = Incarnation(77);
        let mut back = BTreeSet::new();
        for payload in write(me, &ids) {
            assert!(payload.len() < 8_000);
            let (from, ids) = read(&payload);
            assert_eq!(from, Some(me));
            back.extend(ids);
        }
        assert_eq!(back, ids);
        assert_eq!(read(&write(me, &BTreeSet::new())[0]), (Some(me), vec![]));
    }
}

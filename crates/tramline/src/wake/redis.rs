//! Hints between processes on Redis: one channel of each store, on a connection of its own. In a Cluster every node passes on what was
//! published on any.

use crate::engine::backoff::delay;
use crate::model::id::{Incarnation, SubscriptionId};
use crate::store::redis::RedisStore;
use crate::wake::outbox::Outbox;
use crate::wake::{Listener, Wake};
use futures_util::StreamExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The least time between two messages of a process while hints keep coming. A lone hint goes at once.
const PAUSE: Duration = Duration::from_millis(5);

/// Hints over the channel of a store in Redis.
#[derive(Debug)]
pub struct Subscriber {
    outbox: Arc<Outbox>,
    tasks: [JoinHandle<()>; 2],
}

impl Subscriber {
    /// Subscribes in the background, and again whenever the connection is lost. Needs a Tokio runtime.
    pub fn new(store: Arc<RedisStore>) -> Subscriber {
        let outbox = Arc::new(Outbox::default());
        let me = Incarnation::random();
        let listen = tokio::spawn(listen(store.clone(), me, outbox.clone()));
        let send = tokio::spawn(send(store, me, outbox.clone()));
        Subscriber { outbox, tasks: [listen, send] }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Wake for Subscriber {
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
async fn listen(store: Arc<RedisStore>, me: Incarnation, outbox: Arc<Outbox>) {
    let mut failures = 0;
    outbox.bells.audience().somebody().await;
    loop {
        if let Err(error) = hear(&store, me, &outbox, &mut failures).await {
            tracing::debug!(error = %error, "the wake-up connection is lost");
        }
        failures += 1;
        if failures == 1 {
            tracing::warn!("the wake-up connection is lost; polling every second until it is back");
        }
        tokio::time::sleep(delay(failures)).await;
    }
}

async fn hear(
    store: &RedisStore,
    me: Incarnation,
    outbox: &Outbox,
    failures: &mut u32,
) -> Result<(), redis::RedisError> {
    let mut subscriber = store.subscriber(*failures as usize).await?;
    *failures = 0;
    // What was sent before this moment was not heard.
    outbox.bells.ring_all();
    let mut messages = subscriber.on_message();
    while let Some(message) = messages.next().await {
        let (from, ids) = read(&String::from_utf8_lossy(message.get_payload_bytes()));
        if from != Some(me) {
            outbox.bells.ring(&ids);
        }
    }
    Ok(())
}

/// Sends what has gathered, one message at a time. A lost hint is repaired by the slow poll of whoever waits.
async fn send(store: Arc<RedisStore>, me: Incarnation, outbox: Arc<Outbox>) {
    loop {
        let ids = outbox.take().await;
        if let Err(error) = store.publish(&text(me, &ids)).await {
            tracing::debug!(error = %error, "a wake-up could not be sent");
        }
        if outbox.is_filled() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Who sends it, and which subscriptions have work.
fn text(me: Incarnation, ids: &BTreeSet<SubscriptionId>) -> String {
    ids.iter().fold(me.to_string(), |text, id| format!("{text} {id}"))
}

fn read(text: &str) -> (Option<Incarnation>, Vec<SubscriptionId>) {
    let mut numbers = text.split(' ').filter_map(|word| word.parse().ok());
    (numbers.next().map(Incarnation), numbers.map(SubscriptionId).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let ids = BTreeSet::from([SubscriptionId(-3), SubscriptionId(7)]);
        let (from, read) = read(&text(Incarnation(5), &ids));
        assert_eq!((from, read), (Some(Incarnation(5)), vec![SubscriptionId(-3), SubscriptionId(7)]));
    }
}

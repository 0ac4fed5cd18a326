//! The emitter process: numbered events to a few keys, never far ahead of the workers.

use crate::process::{FIRST, RECORDER, open};
use crate::recorder::{Line, Note};
use crate::scenario::TOPIC;
use std::time::Duration;
use tramline::model::id::EventId;
use tramline::{Event, Receipt, Tramline};

const KEYS: u64 = 7;

/// Runs until the recorder has heard enough, or it is killed.
pub(crate) async fn main() {
    let tram = open().await;
    let mut line = Line::open(&std::env::var(RECORDER).unwrap()).await;
    let mut number: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    loop {
        let batch: Vec<u64> = (number..number + 1 + number % 5).collect();
        number += batch.len() as u64;
        if !line.tell(&Note::Sent(batch.clone())).await {
            return;
        }
        if let Some(receipt) = emit(&tram, &batch).await {
            let ids = receipt.ids().into_iter().map(|EventId(id)| id);
            line.tell(&Note::Acknowledged(batch.into_iter().zip(ids).collect())).await;
        }
    }
}

/// An error leaves open whether the events are stored. Who has an idempotency key repeats until it is known; who has none must not
/// repeat, and never knows.
async fn emit(tram: &Tramline, batch: &[u64]) -> Option<Receipt> {
    let keyed = batch[0].is_multiple_of(3);
    let events: Vec<Event> = batch
        .iter()
        .map(|number| {
            let event = Event::json(TOPIC, number).unwrap().key(format!("key:{}", number % KEYS));
            if keyed { event.idempotency_key(format!("batch:{}", batch[0])) } else { event }
        })
        .collect();
    loop {
        match tram.emit(events.clone()).await {
            Ok(receipt) => return Some(receipt),
            Err(_) if keyed => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(_) => return None,
        }
    }
}

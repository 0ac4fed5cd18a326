//! Writes outcomes back. What ends while a request is under way goes into the next one.

use super::super::value::millis;
use super::event::Claimed;
use super::pool::Pool;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tramline::Outcome;
use tramline::model::outcome::bounded;

/// The most that goes into one request.
const MOST: usize = 1000;
const ANSWER: Duration = Duration::from_secs(30);

/// Where outcomes go.
pub(super) type To = mpsc::Sender<Ended>;

/// A command has ended.
pub(super) struct Ended {
    event: Claimed,
    outcome: Outcome,
    took: Duration,
    settled: oneshot::Sender<bool>,
}

/// Has an outcome written back. True when it was taken.
pub(super) async fn hand_over(to: &To, event: Claimed, outcome: Outcome, took: Duration) -> bool {
    let (settled, answer) = oneshot::channel();
    let sent = to.send(Ended { event, outcome, took, settled }).await;
    sent.is_ok() && answer.await.unwrap_or(false)
}

/// Writes outcomes back until nobody has any more.
pub(super) async fn run(pool: Arc<Pool>, mut from: mpsc::Receiver<Ended>) {
    let mut batch = Vec::new();
    while from.recv_many(&mut batch, MOST).await > 0 {
        let taken = write(&pool, &batch).await;
        for (ended, taken) in batch.drain(..).zip(taken) {
            let became = pool.setup.exhaustion.became(&ended.event, &ended.outcome, taken);
            pool.report.ended(&ended.event, became, ended.took);
            pool.ended(&ended.event.lease, taken).await;
            let _ = ended.settled.send(taken);
        }
    }
}

/// For each outcome, whether it was taken. Repeating it after a lost answer is harmless, so it is repeated as long as a lease may
/// still be ours.
async fn write(pool: &Pool, batch: &[Ended]) -> Vec<bool> {
    let body = json!({"results": batch.iter().map(result).collect::<Vec<_>>()});
    let mut outage = pool.outage.clone();
    loop {
        let failure = match pool.ask::<Value>("settle", &body, ANSWER).await {
            Ok(answer) => {
                outage.over();
                return batch.iter().map(|ended| is_settled(&answer, &ended.event.id)).collect();
            }
            Err(failure) => failure,
        };
        let ours =
            |ended: &Ended| pool.hand().until(&ended.event.lease).is_some_and(|it| it > Instant::now());
        let hopeless = pool.killing.is_cancelled() || !batch.iter().any(ours);
        let waited = if hopeless { Err(failure) } else { outage.wait(failure).await };
        if let Err(failure) = waited {
            eprintln!("tramline: outcomes could not be written back: {failure}");
            return vec![false; batch.len()];
        }
    }
}

fn result(ended: &Ended) -> Value {
    let mut result = outcome(ended);
    if let Some(traceparent) = ended.event.traceparent() {
        result["traceparent"] = traceparent.into();
    }
    result
}

fn outcome(ended: &Ended) -> Value {
    let (id, lease) = (&ended.event.id, &ended.event.lease);
    match &ended.outcome {
        Outcome::Done => json!({"id": id, "lease": lease, "outcome": "done"}),
        Outcome::Snooze { delay } => {
            json!({"id": id, "lease": lease, "outcome": "snooze", "delay_ms": millis(*delay)})
        }
        Outcome::Retry { error, .. } => {
            json!({"id": id, "lease": lease, "outcome": "retry", "error": bounded(error)})
        }
        Outcome::Dead { error } => {
            json!({"id": id, "lease": lease, "outcome": "dead", "error": bounded(error)})
        }
    }
}

fn is_settled(answer: &Value, id: &str) -> bool {
    let results = answer["results"].as_array().into_iter().flatten();
    results.into_iter().any(|result| result["id"] == id && result["status"] == "settled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_names_is_settled() {
        let answer =
            json!({"results": [{"id": "1", "status": "settled"}, {"id": "2", "status": "lease_lost"}]});
        assert_eq!(["1", "2", "3"].map(|id| is_settled(&answer, id)), [true, false, false]);
    }
}

//! Makes leases last while commands run.

use super::super::value::millis;
use super::pool::Pool;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Extends all leases at a third of their time, so that two extensions may fail. Runs until it is dropped.
pub(super) async fn run(pool: Arc<Pool>) {
    let third = pool.setup.lease / 3;
    loop {
        tokio::time::sleep(third).await;
        let leases = pool.hand().leases();
        if leases.is_empty() {
            continue;
        }
        let asked_at = Instant::now();
        let body = json!({"leases": leases, "lease_ms": millis(pool.setup.lease)});
        match pool.ask::<Value>("extend", &body, third).await {
            Ok(answer) => note(&pool, &leases, &answer, asked_at),
            // At most once a claim is final: nobody else runs the event, so its command may end in peace.
            Err(_) if pool.setup.consumed => {}
            Err(failure) => {
                let lost = pool.hand().expire(Instant::now());
                if lost > 0 {
                    eprintln!("tramline: {lost} leases ran out, their commands are stopped: {failure}");
                }
            }
        }
    }
}

/// What the server says of each lease. One that a transaction has at the moment is neither extended nor lost.
fn note(pool: &Pool, leases: &[String], answer: &Value, asked_at: Instant) {
    let mut hand = pool.hand();
    for lease in leases {
        match status(answer, lease) {
            "extended" => hand.extended(lease, asked_at, pool.setup.lease),
            "lease_lost" if !pool.setup.consumed => hand.lost(lease),
            _ => {}
        }
    }
    if !pool.setup.consumed {
        hand.expire(Instant::now());
    }
}

fn status<'a>(answer: &'a Value, lease: &str) -> &'a str {
    let mut results = answer["results"].as_array().into_iter().flatten();
    let result = results.find(|result| result["lease"] == lease);
    result.and_then(|result| result["status"].as_str()).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_says_of_a_lease_counts() {
        let answer = json!({"results": [{"lease": "a", "status": "lease_lost"}, {"lease": "b", "status": "extended"}]});
        assert_eq!(
            ["a", "b", "c"].map(|lease| status(&answer, lease)),
            ["lease_lost", "extended", "unknown"]
        );
    }
}

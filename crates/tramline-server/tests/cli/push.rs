//! Push, with the server, the commands and a receiver as a newcomer would start them.

use crate::listen::Listen;
use crate::node::until;
use crate::server::Server;
use serde_json::{Value, json};

fn push(server: &Server, name: &str) -> Value {
    server.json(&["subscriptions", name])
}

#[test]
fn events_are_pushed_in_batches_signed_and_counted() {
    let server = Server::start_pushing();
    let receiver = Listen::start(&["--json"]);
    server.ok(&[
        "push",
        "put",
        "billing",
        &receiver.url,
        "--topic",
        "orders",
        "--max-events",
        "3",
        "--timeout",
        "30s",
    ]);
    let secret = server.json(&["push", "secret", "billing"])["secret"].as_str().unwrap().to_owned();
    drop(receiver);
    // The same subscription, now to a receiver that knows the secret.
    let mut receiver = Listen::start(&["--json", "--secret", &secret]);
    server.ok(&["push", "put", "billing", &receiver.url, "--topic", "orders"]);
    server.feed(&["emit", "orders", "--ndjson", "-"], "{\"payload\":1}\n{\"payload\":2}\n{\"payload\":3}\n");
    let pushed = receiver.json();
    assert_eq!(
        (&pushed["signature"], &pushed["events"].as_array().map(Vec::len)),
        (&json!("valid"), &Some(3)),
        "{pushed}"
    );
    let told = until(|| Some(push(&server, "billing")).filter(|told| told["delivery"]["events_sent"] == 3));
    assert_eq!((&told["max_events"], &told["delivery"]["state"]), (&json!(3), &json!("active")));
    let attempts = server.ok(&["push", "attempts", "billing"]);
    assert!(attempts.contains("delivered") && attempts.contains("204"), "{attempts}");
    let list = server.ok(&["push", "list"]);
    assert!(list.contains("billing") && list.contains(&receiver.url), "{list}");
    let metrics = server.metrics();
    assert!(metrics.contains("tramline_push_events_sent_total{subscription=\"billing\"} 3"), "{metrics}");
}

#[test]
fn a_receiver_that_fails_is_tried_again_and_a_disabled_one_waits() {
    let server = Server::start_pushing();
    let mut receiver = Listen::start(&["--json", "--fail-first", "1"]);
    let backoff = json!({"kind": "constant", "delay_ms": 10});
    let policy = json!({"topics": ["t"], "kind": "push", "callback": receiver.url, "timeout_ms": 0, "backoff": backoff});
    server.subscribe("s", policy);
    server.ok(&["emit", "t", "1"]);
    assert_ne!(receiver.json()["status"], 204);
    assert_eq!(receiver.json()["status"], 204);
    until(|| (push(&server, "s")["delivery"]["requests_failed"] == 1).then_some(()));
    server.ok(&["push", "disable", "s", "--reason", "lunch"]);
    server.ok(&["emit", "t", "2"]);
    let told = push(&server, "s");
    assert_eq!(
        (&told["delivery"]["state"], &told["delivery"]["disabled_because"]),
        (&json!("disabled"), &json!("lunch"))
    );
    assert_eq!(server.count("s", "ready"), 1);
    server.ok(&["push", "enable", "s"]);
    assert_eq!(receiver.json()["events"][0]["payload"], 2);
    until(|| (push(&server, "s")["delivery"]["events_sent"] == 2).then_some(()));
    let count = server.json(&["push", "replay", "s", "--since", "2026-01-01T00:00:00Z"]);
    assert_eq!(count["count"], 2);
    let again = receiver.json();
    assert_eq!(again["events"][0]["replayed"], true);
}

#[test]
fn a_private_address_is_refused_unless_it_is_allowed_and_wrong_usage_is_told() {
    let server = Server::start();
    let receiver = Listen::start(&["--json"]);
    server.ok(&["push", "put", "s", &receiver.url, "--topic", "t", "--timeout", "0s"]);
    server.ok(&["emit", "t", "1"]);
    until(|| (push(&server, "s")["delivery"]["requests_failed"] == 1).then_some(()));
    let attempts = server.ok(&["push", "attempts", "s"]);
    assert!(attempts.contains("failed") && attempts.contains("must not be dialled"), "{attempts}");
    let said = server.run(&["push", "put", "s", "ftp://a.example/", "--topic", "t"]);
    assert!(said.code != Some(0) && said.err.contains("http"), "{said:?}");
    let said = server.run(&["push", "put", "s", &receiver.url, "--topic", "t", "--filter", "{"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    let said = server.run(&["push", "secret", "s"]);
    assert!(said.err.contains("TRAMLINE_SECRET_KEY"), "{said:?}");
}

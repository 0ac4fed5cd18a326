//! Events in, by `emit`, and out, by `tail`.

use crate::node::until;
use crate::server::{Said, Server};
use serde_json::{Value, json};

/// The events of a topic, as `tail` shows them.
fn tail(server: &Server, topic: &str, count: usize) -> Vec<Value> {
    let out = server.ok(&["tail", topic, "--count", &count.to_string(), "--json"]);
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_event_comes_out_as_it_went_in() {
    let server = Server::start();
    let payload = r#"{"z":1.10,"a":[null]}"#;
    let about = ["--key", "order:42", "--type", "order.paid", "--header", "trace=7", "--priority", "2"];
    let id = server.ok(&[&["emit", "orders", payload][..], &about].concat());
    let out = server.ok(&["tail", "orders", "--count", "1", "--json"]);
    assert!(out.contains(payload), "to the letter: {out}");
    let event: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(event["id"], id.trim());
    assert_eq!((&event["key"], &event["type"]), (&json!("order:42"), &json!("order.paid")));
    assert_eq!(event["headers"], json!({"trace": "7"}));
}

#[test]
fn what_is_not_json_is_sent_as_text() {
    let server = Server::start();
    server.ok(&["emit", "notes", "hello, world", "--key", "k"]);
    server.feed(&["emit", "notes", "--content-type", "text/csv"], "1,2\n");
    let events = tail(&server, "notes", 2);
    assert_eq!((&events[0]["content_type"], &events[0]["key"]), (&json!("text/plain"), &json!("k")));
    assert_eq!(
        (&events[1]["content_type"], &events[1]["payload_base64"]),
        (&json!("text/csv"), &json!("MSwyCg=="))
    );
    let out = server.ok(&["tail", "notes", "--count", "1"]);
    assert!(out.trim().ends_with("\tk\thello, world"), "{out}");
}

#[test]
fn a_unique_event_is_stored_once() {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t"]}));
    let id = server.ok(&["emit", "t", "1", "--unique", "u"]);
    assert_eq!(server.ok(&["emit", "t", "2", "--unique", "u"]), id);
    assert_eq!(server.ok(&["emit", "t", "not json", "--unique", "u", "--unique-for", "1h"]), id);
    let replaced = ["emit", "t", "3", "--unique", "u", "--unique-policy", "replace"];
    assert_ne!(server.ok(&replaced), id);
    assert_eq!(server.count("s", "ready"), 1);
    assert_eq!(server.run(&["emit", "t", "4", "--unique-for", "1h"]).code, Some(2));
    assert_eq!(server.run(&["emit", "t", "4", "--unique", "u", "--unique-policy", "drop"]).code, Some(2));
}

#[test]
fn a_payload_is_read_from_standard_input() {
    let server = Server::start();
    assert_eq!(server.feed(&["emit", "t", "-"], "[1]\n").code, Some(0));
    assert_eq!(server.feed(&["emit", "t"], "[2]").code, Some(0));
    let payloads: Vec<Value> = tail(&server, "t", 2).iter().map(|event| event["payload"].clone()).collect();
    assert_eq!(payloads, [json!([1]), json!([2])]);
}

#[test]
fn a_name_may_have_slashes() {
    let server = Server::start();
    server.ok(&["emit", "acme/worker/mail", "1"]);
    assert_eq!(server.json(&["topics"])["name"], "acme/worker/mail");
    assert_eq!(tail(&server, "acme/worker/mail", 1)[0]["topic"], "acme/worker/mail");
}

#[test]
fn the_same_idempotency_key_stores_one_event() {
    let server = Server::start();
    let emit = || server.ok(&["emit", "t", "1", "--idempotency-key", "once"]);
    assert_eq!(emit(), emit());
    let other = server.run(&["emit", "t", "2", "--idempotency-key", "once"]);
    assert_eq!(other.code, Some(1), "{other:?}");
}

#[test]
fn a_delayed_event_waits() {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t"]}));
    server.ok(&["emit", "t", "1", "--delay", "1h"]);
    server.ok(&["emit", "t", "1", "--at", "2100-01-01T00:00:00Z"]);
    server.ok(&["emit", "t", "text", "--delay", "1h"]);
    assert_eq!((server.count("s", "delayed"), server.count("s", "ready")), (3, 0));
}

#[test]
fn lines_are_emitted_in_bulk() {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t"]}));
    let lines: String = (0..2500).map(|n| format!("{{\"payload\":{n},\"key\":\"k\"}}\n")).collect();
    server.file_with("events", &lines);
    assert_eq!(server.ok(&["emit", "t", "--ndjson", "events"]), "2500\n");
    assert_eq!(server.count("s", "ready"), 2500);
    let last = tail(&server, "t", 2500).pop().unwrap();
    assert_eq!((&last["payload"], &last["key"]), (&json!(2499), &json!("k")));
}

#[test]
fn bare_lines_are_payloads() {
    let server = Server::start();
    let said = server.feed(&["emit", "t", "--ndjson", "--bare", "--type", "x", "--json"], "1\n\n[2]\n");
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 2), "{said:?}");
    let events = tail(&server, "t", 2);
    assert_eq!((&events[1]["payload"], &events[1]["type"]), (&json!([2]), &json!("x")));
}

#[test]
fn a_bad_line_is_named_with_where_to_go_on() {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t"]}));
    let mut lines = vec!["{\"payload\":1}"; 1500];
    lines[1400] = "{\"no payload\":1}";
    let file = server.file_with("events", &lines.join("\n"));
    let file = file.to_str().unwrap();
    let said = server.run(&["emit", "t", "--ndjson", file]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("line 1401: "), "{said:?}");
    let from = said.err.trim().rsplit(' ').next().unwrap().to_owned();
    std::fs::write(file, lines.join("\n").replace("no payload", "payload")).unwrap();
    server.ok(&["emit", "t", "--ndjson", file, "--from-line", &from]);
    assert_eq!(server.count("s", "ready"), 1500, "each line once");
}

#[test]
fn tail_goes_on_after_an_event_and_follows_one_key() {
    let server = Server::start();
    let ids: Vec<String> = ["a", "b", "a"]
        .iter()
        .map(|key| server.ok(&["emit", "t", "1", "--key", key]).trim().to_owned())
        .collect();
    let out = server.ok(&["tail", "t", "--key", "a", "--after", &ids[0], "--count", "1"]);
    assert!(out.starts_with(&ids[2]), "{out}");
}

#[test]
fn tail_from_now_shows_only_what_comes() {
    let server = Server::start();
    server.ok(&["emit", "t", "1"]);
    let tail = server.command(&["tail", "t", "--from-now", "--count", "2", "--json"]).spawn().unwrap();
    // The place at which it begins is fixed from here on.
    until(|| server.metrics().contains("verb=\"log_end\"} 1").then_some(()));
    server.ok(&["emit", "t", "2"]);
    server.ok(&["emit", "t", "3"]);
    let said = Said::from(tail.wait_with_output().unwrap());
    let events = said.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(events.map(|event| event["payload"].clone()).collect::<Vec<_>>(), [json!(2), json!(3)]);
}

//! A command for each event.

use crate::server::{Said, Server, read, terminate};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Emits payloads of one key, in order.
fn emit(server: &Server, payloads: &[&str]) {
    for payload in payloads {
        server.ok(&["emit", "t", payload, "--key", "k", "--type", "made", "--header", "trace-id=abc"]);
    }
}

fn work(server: &Server, script: &str, more: &[&str]) -> Said {
    server.run(&[&["work", "t", "--drain", "--exec", script][..], more].concat())
}

#[test]
fn every_event_runs_the_command_once() {
    let server = Server::start();
    for payload in ["1", "2", "3"] {
        server.ok(&["emit", "t", payload]);
    }
    let said = work(&server, "echo $(cat)", &["--concurrency", "4"]);
    let mut out: Vec<&str> = said.out.split_whitespace().collect();
    out.sort_unstable();
    assert_eq!((said.code, out), (Some(0), vec!["1", "2", "3"]), "{}", said.err);
    assert_eq!(work(&server, "cat", &[]).out, "", "nothing is left");
    assert_eq!(server.json(&["subscriptions"])["topics"], json!(["t"]));
}

#[test]
fn a_subscription_that_is_created_has_the_topics_that_are_said() {
    let server = Server::start();
    for topic in ["orders", "returns", "others"] {
        server.ok(&["emit", topic, "1"]);
    }
    let topics = ["--topic", "orders", "--topic", "returns"];
    let said = work(&server, "echo $TRAMLINE_TOPIC", &topics);
    let mut out: Vec<&str> = said.out.lines().collect();
    out.sort_unstable();
    assert_eq!((said.code, out), (Some(0), vec!["orders", "returns"]), "{}", said.err);
    assert_eq!(server.json(&["subscriptions", "t"])["topics"], json!(["orders", "returns"]));
}

#[test]
fn a_command_is_told_about_its_event() {
    let server = Server::start();
    emit(&server, &["1", "2"]);
    let script = r#"echo "$TRAMLINE_TOPIC $TRAMLINE_TYPE $TRAMLINE_KEY $TRAMLINE_ATTEMPT $TRAMLINE_SUBSCRIPTION \
        $TRAMLINE_HEADER_TRACE_ID ${TRAMLINE_PREV:+prev}" | tr -s ' '"#;
    let said = work(&server, script, &[]);
    assert_eq!(said.out, "t made k 1 t abc \nt made k 1 t abc prev\n", "{}", said.err);
}

#[test]
fn a_payload_that_is_not_json_is_given_as_it_was_sent() {
    let server = Server::start();
    server.feed(&["emit", "t", "-"], "two\nlines");
    assert_eq!(work(&server, "cat", &[]).out, "two\nlines");
}

#[test]
fn a_failure_keeps_the_last_line_of_standard_error() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1}));
    emit(&server, &["1"]);
    let said = work(&server, "echo first >&2; echo 'disk full' >&2; exit 3", &["--json"]);
    let line: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&line["outcome"], &line["error"]), (&json!("dead"), &json!("exit status: 3: disk full")));
    assert_eq!(said.err, "first\ndisk full\n", "it is shown as well");
    assert_eq!(server.json(&["dead", "list", "t"])["error"], "exit status: 3: disk full");
}

#[test]
fn a_command_that_takes_too_long_has_failed() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1, "time_limit_ms": 100}));
    emit(&server, &["1"]);
    work(&server, "sleep 1000; true", &[]);
    assert_eq!(server.json(&["dead", "list", "t"])["error"], "killed: it took longer than 100ms");
}

#[test]
fn at_most_once_a_failure_is_final() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "guarantee": "at_most_once"}));
    emit(&server, &["1", "2"]);
    let said = work(&server, "n=$(cat); echo $n; [ $n = 1 ]", &[]);
    assert_eq!(said.out, "1\n2\n", "{}", said.err);
    assert_eq!((server.count("t", "dead"), server.count("t", "ready")), (1, 0));
}

#[test]
fn exit_code_75_is_later_and_not_counted() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1}));
    emit(&server, &["1"]);
    assert_eq!(work(&server, "exit 75", &["--later", "1h"]).code, Some(0));
    assert_eq!((server.count("t", "delayed"), server.count("t", "dead")), (1, 0));
}

#[test]
fn a_command_need_not_read_its_input() {
    let server = Server::start();
    server.feed(&["emit", "t", "-"], &"x".repeat(900_000));
    assert_eq!(work(&server, "exit 0", &[]).code, Some(0));
    assert_eq!(
        server.json(&["subscriptions", "t"])["counts"],
        json!({"ready": 0, "delayed": 0, "leased": 0, "parked": 0, "dead": 0})
    );
}

#[test]
fn a_failure_stops_only_what_follows_of_its_key() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "ordering": "key"}));
    emit(&server, &["1", "2", "3"]);
    server.ok(&["emit", "t", "4", "--key", "other"]);
    let said = work(&server, "n=$(cat); echo $n; [ $n != 2 ]", &["--concurrency", "8"]);
    let mut ran: Vec<&str> = said.out.split_whitespace().collect();
    ran.sort_unstable();
    assert_eq!(ran, ["1", "2", "4"], "{}", said.err);
    assert_eq!((server.count("t", "leased"), server.count("t", "ready")), (0, 0));
}

#[test]
fn events_of_a_key_run_one_after_the_other() {
    let server = Server::start();
    server.ok(&["emit", "t", "0", "--key", "k"]);
    let lines: String = (1..=40).map(|n| format!("{{\"payload\":{n},\"key\":\"k\"}}\n")).collect();
    server.feed(&["emit", "t", "--ndjson"], &lines);
    let said = work(
        &server,
        "mkdir running || exit 1; cat; echo; rmdir running",
        &["--ordered", "--concurrency", "8"],
    );
    let ran: Vec<u32> = said.out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ran, (0..=40).collect::<Vec<_>>(), "{}", said.err);
}

#[test]
fn a_worker_that_is_told_to_stop_lets_its_command_finish() {
    let server = Server::start();
    emit(&server, &["1", "2"]);
    let (started, go_on) = (server.pipe("started"), server.pipe("go_on"));
    let script = "echo x > started; cat go_on > /dev/null";
    let worker = server.command(&["work", "t", "--exec", script, "--grace", "1h"]).spawn().unwrap();
    read(&started);
    terminate(&worker);
    // A whole process and its request later the worker has long heard of it, and the command still runs.
    assert!(server.count("t", "leased") > 0);
    std::fs::write(go_on, "x").unwrap();
    let said = Said::from(worker.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(
        (server.count("t", "ready"), server.count("t", "leased")),
        (1, 0),
        "one is done, one was not begun"
    );
}

#[test]
fn a_command_that_does_not_finish_in_time_is_killed_and_its_event_given_back() {
    let server = Server::start();
    emit(&server, &["1"]);
    let started = server.pipe("started");
    let script = "echo x > started; sleep 1000; true";
    let worker = server.command(&["work", "t", "--exec", script, "--grace", "10ms"]).spawn().unwrap();
    read(&started);
    terminate(&worker);
    let said = Said::from(worker.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!((server.count("t", "ready"), server.count("t", "leased")), (1, 0));
    let event = server.json(&["event", &said.err[..said.err.find(' ').unwrap()]]);
    assert_eq!(event["deliveries"][0]["attempt"], 1, "uncounted");
}

/// A worker that has begun the first of three events of a key, all of which it has claimed.
fn at_most_once_in_hand(server: &Server, script: &str, grace: &str) -> std::process::Child {
    let policy = json!({"topics": ["t"], "ordering": "key", "guarantee": "at_most_once", "claim_size": 8});
    server.subscribe("t", policy);
    emit(server, &["1", "2", "3"]);
    let started = server.pipe("started");
    let script = format!("cat > begun; echo x > started; {script}");
    let work = ["work", "t", "--exec", &script, "--concurrency", "8", "--grace", grace];
    let worker = server.command(&work).spawn().unwrap();
    read(&started);
    assert_eq!(server.count("t", "leased"), 3);
    worker
}

/// They were kept until their leases ran out, and then called interrupted, although nothing had begun.
#[test]
fn at_most_once_what_was_not_begun_is_given_back_when_the_worker_stops() {
    let server = Server::start();
    let go_on = server.pipe("go_on");
    let worker = at_most_once_in_hand(&server, "cat go_on > /dev/null", "1h");
    terminate(&worker);
    // As above: by the time of an answer the worker has heard of it.
    assert_eq!(server.count("t", "leased"), 3);
    std::fs::write(go_on, "x").unwrap();
    let said = Said::from(worker.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(["ready", "leased", "dead"].map(|count| server.count("t", count)), [2, 0, 0]);
    assert_eq!(work(&server, "cat", &[]).out, "23");
}

#[test]
fn at_most_once_a_killed_command_is_not_begun_again() {
    let server = Server::start();
    let worker = at_most_once_in_hand(&server, "sleep 1000; true", "10ms");
    terminate(&worker);
    let said = Said::from(worker.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(["ready", "leased", "dead"].map(|count| server.count("t", count)), [2, 0, 1]);
    assert_eq!(server.json(&["dead", "list", "t"])["error"], "killed: its worker was stopped");
    assert_eq!(work(&server, "cat", &[]).out, "23");
}

#[test]
fn at_most_once_what_follows_a_failure_still_runs() {
    let server = Server::start();
    server.subscribe(
        "t",
        json!({"topics": ["t"], "ordering": "key", "guarantee": "at_most_once", "claim_size": 8}),
    );
    emit(&server, &["1", "2", "3"]);
    let said = work(&server, "n=$(cat); echo $n; [ $n != 1 ]", &["--concurrency", "8"]);
    assert_eq!(said.out, "1\n2\n3\n", "{}", said.err);
    assert_eq!(["ready", "leased", "dead"].map(|count| server.count("t", count)), [0, 0, 1]);
}

#[test]
fn an_idle_worker_does_not_wait_for_its_claim_to_end() {
    let server = Server::start();
    emit(&server, &["1"]);
    let ran = server.pipe("ran");
    let worker = server.command(&["work", "t", "--exec", "echo x > ran", "--grace", "1h"]).spawn().unwrap();
    read(&ran);
    let told = Instant::now();
    terminate(&worker);
    let said = Said::from(worker.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(told.elapsed() < Duration::from_secs(10), "a claim waits for twenty");
}

#[test]
fn a_lease_is_extended_while_the_command_runs() {
    for guarantee in ["at_least_once", "at_most_once"] {
        let server = Server::start();
        server.subscribe("t", json!({"topics": ["t"], "guarantee": guarantee}));
        extends(&server);
    }
}

fn extends(server: &Server) {
    emit(server, &["1"]);
    // The command itself waits until something changes about its event.
    let look = format!("{} event $TRAMLINE_EVENT_ID --json", crate::node::PROGRAM);
    let script =
        format!(r#"a=$({look}); b="$a"; while [ "$a" = "$b" ]; do b=$({look}); done; echo "$a"; echo "$b""#);
    let said = work(server, &script, &["--lease", "3s"]);
    let seen: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (before, after) = (&seen[0]["deliveries"][0], &seen[1]["deliveries"][0]);
    assert_eq!((&before["status"], &after["status"]), (&json!("leased"), &json!("leased")));
    assert!(before["due_at"].as_str() < after["due_at"].as_str(), "{said:?}");
}

#[test]
fn a_command_whose_lease_is_lost_is_killed() {
    let server = Server::start();
    emit(&server, &["1"]);
    let started = server.pipe("started");
    let script = "echo x > started; sleep 1000; true";
    let worker =
        server.command(&["work", "t", "--exec", script, "--lease", "1s", "--grace", "1h"]).spawn().unwrap();
    read(&started);
    server.unsubscribe("t");
    let said = Said::from(worker.wait_with_output().unwrap());
    assert_eq!(said.code, Some(4), "the subscription is gone: {said:?}");
    assert!(said.err.contains(" stopped"), "{said:?}");
}

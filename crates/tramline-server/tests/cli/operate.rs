//! What operators do, and how commands fail.

use crate::server::Server;
use serde_json::json;
use std::io::{BufRead, BufReader};

const FAIL: [&str; 5] = ["work", "t", "--drain", "--exec", "exit 1"];
const WORK: [&str; 5] = ["work", "t", "--drain", "--exec", "cat; echo"];

#[test]
fn a_paused_or_blocked_subscription_runs_nothing() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"]}));
    server.ok(&["emit", "t", "1"]);
    let rule = server.json(&["pause", "t", "--reason", "moving", "--for", "1h"]);
    assert_eq!((&rule["kind"], &rule["reason"]), (&json!("pause"), &json!("moving")));
    assert!(rule["until"].is_string(), "{rule}");
    assert_eq!(server.ok(&["block", "t", "--json"]).lines().count(), 2, "both rules hold");
    assert_eq!(server.ok(&WORK), "");
    assert_eq!(server.json(&["resume", "t"])["kind"], "block");
    assert_eq!(server.ok(&WORK), "");
    assert_eq!(server.ok(&["unblock", "t"]), "");
    assert_eq!(server.ok(&WORK), "1\n");
    let record = server.ok(&["audit", "t"]);
    let actions: Vec<&str> = record.lines().map(|line| line.split('\t').nth(2).unwrap()).collect();
    assert_eq!(actions, ["unblock", "resume", "block", "pause"]);
    assert!(server.ok(&["audit", "t", "--limit", "1"]).contains("unblock"));
}

/// A payload that no number type holds made `tail` wait for ever, and one hid a whole list.
#[test]
fn what_a_value_cannot_hold_is_shown_all_the_same() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1}));
    for payload in ["1e400", "\"\\ud800\"", &format!("{}{}", "[".repeat(200), "]".repeat(200)), "\"ok\""] {
        server.ok(&["emit", "t", payload]);
    }
    assert_eq!(server.ok(&["tail", "t", "--count", "4"]).lines().count(), 4);
    server.run(&FAIL);
    assert_eq!(server.ok(&["dead", "list", "t"]).lines().count(), 4);
}

#[test]
fn a_pattern_stops_all_that_match_also_later_ones() {
    let server = Server::start();
    server.subscribe("acme%2Ft", json!({"topics": ["t"]}));
    let rule = server.json(&["pause", "acme/*", "--reason", "moving", "--for", "1h"]);
    assert_eq!((&rule["pattern"], &rule["subscriptions"]), (&json!("acme/*"), &json!(1)));
    server.subscribe("acme%2Flater", json!({"topics": ["t"]}));
    let shown = server.json(&["subscriptions", "acme/later"]);
    assert_eq!(
        (&shown["rules"][0]["kind"], &shown["rules"][0]["pattern"]),
        (&json!("pause"), &json!("acme/*"))
    );
    let until = rule["until"].as_str().unwrap();
    let stopped = format!("\tpause acme/* until {until}: moving");
    for shown in
        [server.ok(&["subscriptions", "acme/t"]), server.ok(&["stats"]).lines().last().unwrap().to_owned()]
    {
        assert!(shown.trim_end().ends_with(&stopped), "{shown}");
    }
    assert_eq!(server.json(&["rules"])["subscriptions"], 2);
    assert_eq!(server.run(&["unblock", "acme/*"]).code, Some(4), "that is not what it is");
    server.ok(&["resume", "acme/*", "--reason", "moved"]);
    assert_eq!(server.ok(&["rules"]), "");
    assert_eq!(server.run(&["resume", "acme/*"]).code, Some(4));
    assert_eq!(server.run(&["pause", "acme*"]).code, Some(1), "not a pattern");
}

#[test]
fn counts_are_shown_again_and_again() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"]}));
    let mut watching = server.command(&["stats", "--watch", "--every", "1ms"]).spawn().unwrap();
    let mut rounds = BufReader::new(watching.stdout.take().unwrap()).lines();
    assert!(rounds.next().unwrap().unwrap().starts_with("t\t0\t"));
    server.ok(&["emit", "t", "1"]);
    assert!(rounds.any(|round| round.unwrap().starts_with("t\t1\t")), "until it is interrupted");
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn the_program_says_which_version_it_is() {
    let server = Server::start();
    assert_eq!(server.ok(&["--version"]), format!("tramline {}\n", env!("CARGO_PKG_VERSION")));
}

/// Whoever may not let a program change tables has somebody run this.
#[test]
fn migrations_are_printed_and_nothing_is_changed() {
    let server = Server::start();
    let store = format!("sqlite://{}", server.file("new.db").display());
    let sql = server.ok(&["migrate", "--store", &store, "--print"]);
    assert!(sql.contains("CREATE TABLE tramline_chunk"), "{sql}");
    assert!(!server.file("new.db").exists());
    let by_hand = rusqlite::Connection::open(server.file("new.db")).unwrap();
    by_hand.execute_batch(&sql).unwrap();
    drop(by_hand);
    assert_eq!(server.ok(&["migrate", "--store", &store]), "up to date\n");
}

#[test]
fn dead_events_are_chosen_by_what_they_are_and_replayed_at_a_rate() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1}));
    for kind in ["a", "a", "b"] {
        server.ok(&["emit", "t", "1", "--type", kind, "--key", kind]);
    }
    server.ok(&FAIL);
    let listed = server.json(&["dead", "list", "t", "--type", "b", "--since", "2001-01-01T00:00:00Z"]);
    assert_eq!((&listed["type"], &listed["key"]), (&json!("b"), &json!("b")));
    assert_eq!(server.ok(&["dead", "list", "t", "--error", "nothing like it"]), "");
    assert_eq!(server.ok(&["dead", "drop", "t", "--type", "b", "--error", "nothing like it"]), "0\n");
    assert_eq!(server.ok(&["dead", "drop", "t", "--type", "b", "--key", "b"]), "1\n");
    assert_eq!(server.ok(&["dead", "replay", "t", "--topic", "t", "--rate", "1/1h"]), "2\n");
    assert_eq!((server.count("t", "ready"), server.count("t", "delayed")), (1, 1));
    assert_eq!(server.run(&["dead", "replay", "t", "--all", "--type", "b"]).code, Some(2));
    assert_eq!(server.run(&["dead", "replay", "t", "--all", "--rate", "fast"]).code, Some(2));
}

#[test]
fn the_life_of_an_event_and_the_chain_of_its_key_are_shown() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1}));
    let emit = |n: &str| server.ok(&["emit", "t", n, "--key", "k"]).trim().to_owned();
    let ids: Vec<String> = ["1", "2", "3"].map(emit).into();
    server.ok(&FAIL);
    let event = server.ok(&["event", &ids[0]]);
    assert!(event.contains("\nt\tdead\t1\t"), "{event}");
    let failure = event.lines().last().unwrap();
    assert!(failure.starts_with("t\t1\t20"), "which attempt, and when: {failure}");
    let first = |said: String| -> Vec<String> {
        said.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    assert_eq!(first(server.ok(&["key", "t", "k", "--oldest"])), ids);
    assert_eq!(first(server.ok(&["key", "t", "k", "--after", &ids[2]])), [ids[1].clone(), ids[0].clone()]);
    let newest = server.run(&["key", "t", "k", "--limit", "1", "--deliveries"]);
    assert!(newest.out.contains("\tt=dead") && newest.err.contains("--after"), "{newest:?}");
    assert_eq!(server.run(&["key", "nothing", "k"]).code, Some(4));
}

#[test]
fn dead_events_are_listed_replayed_and_dropped() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "max_attempts": 1}));
    let ids: Vec<String> =
        (0..3).map(|n| server.ok(&["emit", "t", &n.to_string()]).trim().to_owned()).collect();
    server.ok(&FAIL);
    let listed = server.ok(&["dead", "list", "t"]);
    assert_eq!(listed.lines().map(|line| line.split('\t').next().unwrap()).collect::<Vec<_>>(), ids);
    let page = server.run(&["dead", "list", "t", "--limit", "1", "--json"]);
    assert!(page.err.contains("--after"), "{page:?}");
    assert_eq!(server.ok(&["dead", "replay", "t", &ids[1]]), "1\n");
    assert_eq!(server.ok(&WORK), "1\n");
    assert_eq!(server.json(&["dead", "drop", "t", "--all"])["count"], 2);
    assert_eq!(server.ok(&["dead", "list", "t"]), "");
    assert_eq!(server.run(&["dead", "drop", "t"]).code, Some(2), "which ones?");
}

#[test]
fn what_gave_way_to_a_newer_event_is_shown() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"], "compact": true}));
    let ids: Vec<String> =
        (0..3).map(|n| server.ok(&["emit", "t", &n.to_string(), "--key", "k"]).trim().to_owned()).collect();
    assert_eq!(server.ok(&["drops"]), "");
    assert_eq!(server.ok(&WORK), "2\n");
    let dropped = server.json(&["drops", "t"]);
    assert_eq!((&dropped["reason"], &dropped["events"]), (&json!("compacted"), &json!(2)));
    assert_eq!((&dropped["first"], &dropped["last"]), (&json!(ids[0]), &json!(ids[1])));
    assert_eq!(server.run(&["drops", "none"]).code, Some(4));
}

#[test]
fn parked_keys_are_listed_and_released() {
    let server = Server::start();
    let policy = json!({"topics": ["t"], "ordering": "key", "max_attempts": 1, "on_exhausted": "hold"});
    server.subscribe("t", policy);
    let id = server.ok(&["emit", "t", "1", "--key", "k"]);
    server.ok(&["emit", "t", "2", "--key", "k"]);
    server.ok(&FAIL);
    assert_eq!(server.ok(&WORK), "", "the second waits for the first");
    let parked = server.json(&["parked", "list", "t"]);
    assert_eq!((&parked["key"], &parked["blocked_by"]), (&json!("k"), &json!(id.trim())));
    server.ok(&["parked", "release", "t", "k"]);
    assert!(server.ok(&WORK).ends_with("2\n"));
}

#[test]
fn stats_and_lists_show_what_there_is() {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t"]}));
    let id = server.ok(&["emit", "t", "1"]);
    assert!(server.ok(&["topics"]).starts_with("t\t32\t"));
    assert!(server.ok(&["subscriptions"]).starts_with("s\tt\tpull\t1\t0\t0\t0\t0\t"));
    assert!(server.ok(&["stats"]).starts_with("s\t1\t0\t0\t0\t0\t"));
    assert!(server.json(&["stats"]).is_object());
    server.ok(&["workers"]);
    assert!(server.ok(&["event", id.trim()]).contains("\ns\tready\t1\t0\t"));
}

#[test]
fn limits_are_set_shown_and_taken_away() {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t", "u"], "max_attempts": 7}));
    let set = ["limit", "s", "--concurrency", "3", "--per-key", "1", "--rate", "100/1m"];
    assert_eq!(server.ok(&set), "s: 3 at once, 1 per key, 100 in 1m\n");
    assert!(server.ok(&["subscriptions"]).contains("\t3 at once, 1 per key, 100 in 1m\t"));
    let subscription = server.json(&["limit", "s", "--rate", "5/1s"]);
    assert_eq!(subscription["limits"], json!({"rate": {"events": 5, "per_ms": 1000}}));
    assert_eq!((&subscription["max_attempts"], &subscription["topics"]), (&json!(7), &json!(["t", "u"])));
    assert_eq!(server.ok(&["limit", "s", "--none"]), "s: no limits\n");
    assert_eq!(server.run(&["limit", "s"]).code, Some(2));
    assert_eq!(server.run(&["limit", "s", "--concurrency", "0"]).code, Some(1));
    assert_eq!(server.run(&["limit", "nobody", "--none"]).code, Some(4));
}

#[test]
fn tokens_are_created_listed_and_dropped() {
    let server = Server::start_with(Some("root-secret-of-this-test"));
    let create = ["token", "create", "shop", "--scope", "publish", "--topic", "orders"];
    let token = server.ok(&create).trim().to_owned();
    assert!(!server.ok(&["token", "list"]).contains(&token), "it is shown once");
    assert_eq!(server.json(&["token", "list"])["scopes"], json!(["publish"]));
    server.ok(&["emit", "orders", "1", "--token", &token]);
    let other = server.run(&["emit", "other", "1", "--token", &token]);
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(!other.err.contains(&token));
    server.ok(&["token", "drop", "shop"]);
    assert_eq!(server.run(&["emit", "orders", "1", "--token", &token]).code, Some(1));
}

#[test]
fn exit_codes_tell_failures_apart() {
    let server = Server::start();
    assert_eq!(server.run(&["subscriptions", "nobody"]).code, Some(4));
    assert_eq!(server.run(&["tail", "nothing"]).code, Some(4));
    assert_eq!(server.run(&["emit", "t", "1", "--delay", "soon"]).code, Some(2));
    assert_eq!(server.run(&["topics", "--server", "nonsense"]).code, Some(2));
    let nobody = server.run(&["topics", "--server", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, Some(3));
    assert!(nobody.err.contains("TRAMLINE_SERVER"), "with a remedy: {nobody:?}");
}

#[test]
fn help_has_examples_and_exit_codes_but_no_secrets() {
    let server = Server::start_with(Some("root-secret-of-this-test"));
    let all = server.ok(&["--help"]);
    let commands = commands(&all).into_iter().filter(|it| !OWN.contains(it));
    for command in commands {
        let help = server.ok(&[command, "--help"]);
        let nested = self::commands(&help).into_iter().filter(|it| *it != "help");
        let nested = nested.map(|verb| server.ok(&[command, verb, "--help"]));
        for help in nested.chain([help.clone()]) {
            assert!(help.contains("Examples:\n  tramline ") && help.contains("Exit codes:"), "{help}");
            assert!(!help.contains("root-secret"), "{help}");
        }
    }
}

#[test]
fn commands_that_talk_to_no_server_have_examples_too() {
    let server = Server::start();
    for command in OWN.into_iter().filter(|it| *it != "help") {
        let help = server.ok(&[command, "--help"]);
        assert!(help.contains("Example") && help.contains(&format!("\n  tramline {command} ")), "{help}");
    }
}

#[test]
fn commands_that_run_may_take_28_seconds_to_finish() {
    let help = Server::start().ok(&["work", "--help"]);
    assert!(help.contains("[default: 28s]"), "{help}");
}

/// Commands that do not talk to a server.
const OWN: [&str; 6] = ["serve", "config", "bench", "migrate", "completions", "help"];

/// The commands that a help lists.
fn commands(help: &str) -> Vec<&str> {
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_command_quietly() {
    let server = Server::start();
    let script = format!("{} completions bash | head -n 1", crate::node::PROGRAM);
    let output =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(server.file("")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
}

//! `tramline tally`, and events as items on the command line.

use crate::server::Server;
use serde_json::json;

fn open(server: &Server, args: &[&str]) -> String {
    server.ok(&[&["tally", "open"], args].concat()).trim().to_owned()
}

/// A tally that has items and is sealed.
fn sealed(server: &Server, count: &str) -> String {
    let id = open(server, &[]);
    server.ok(&["tally", "add", &id, count]);
    server.ok(&["tally", "seal", &id]);
    id
}

#[test]
fn a_tally_is_opened_filled_sealed_acked_and_watched() {
    let server = Server::start();
    let id =
        open(&server, &["--user-key", "import-7", "--metadata", r#"{"rows": 10}"#, "--on-complete", "done"]);
    assert_eq!(server.ok(&["tally", "add", &id, "10"]), "0-9\n");
    assert_eq!(server.ok(&["tally", "seal", &id, "--expected", "10"]), "sealed: 0 of 10 done\n");
    assert_eq!(server.ok(&["tally", "ack", &id, "0-7", "8"]), "sealed: 9 of 10 done\n");
    let last = server.json(&["tally", "ack", &id, "9"]);
    assert_eq!((&last["completed_now"], &last["results"][0]["acked"]), (&json!(true), &json!(1)));
    assert_eq!(server.ok(&["tally", "watch", &id]), "complete: 10 of 10 done\n");
    let seen = server.json(&["tally", "get", &id]);
    assert_eq!((&seen["user_key"], &seen["metadata"]["rows"]), (&json!("import-7"), &json!(10)));
    assert!(server.ok(&["tally", "get", &id]).contains("state: complete\n"));
    let event = server.ok(&["tail", "done", "--count", "1", "--json"]);
    assert!(event.contains("\"tramline-tally-total\":\"10\""), "{event}");
}

#[test]
fn watching_ends_with_a_code_that_says_how_the_tally_ended() {
    let server = Server::start();
    let complete = sealed(&server, "2");
    let watching = server.command(&["tally", "watch", &complete, "--every", "10ms"]).spawn().unwrap();
    server.ok(&["tally", "ack", &complete, "0-1"]);
    assert_eq!(watching.wait_with_output().unwrap().status.code(), Some(0));
    let failed = sealed(&server, "2");
    server.ok(&["tally", "ack", &failed, "0"]);
    assert!(server.ok(&["tally", "fail", &failed, "1"]).contains("1 failed, by this call"));
    let said = server.run(&["tally", "watch", &failed]);
    assert_eq!((said.code, said.err.contains("1 of 2 items failed")), (Some(5), true), "{said:?}");
    let cancelled = sealed(&server, "2");
    server.ok(&["tally", "cancel", &cancelled]);
    assert_eq!(server.run(&["tally", "watch", &cancelled]).code, Some(6));
    server.ok(&["tally", "delete", &cancelled]);
    assert_eq!(server.run(&["tally", "watch", &cancelled]).code, Some(4));
}

#[test]
fn watching_in_json_shows_each_change_once() {
    let server = Server::start();
    let id = sealed(&server, "1");
    server.ok(&["tally", "ack", &id, "0"]);
    let said = server.ok(&["tally", "watch", &id, "--json"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("\"state\":\"complete\""), "{said}");
}

#[test]
fn items_are_read_from_standard_input() {
    let server = Server::start();
    let id = sealed(&server, "100");
    let said = server.feed(&["tally", "ack", &id, "-"], "0-49\n50 51\n");
    assert_eq!((said.code, &*said.out), (Some(0), "sealed: 52 of 100 done\n"));
    assert_eq!(server.feed(&["tally", "ack", &id, "-"], "\n").code, Some(2));
}

#[test]
fn items_that_do_not_exist_are_a_failure_but_the_others_count() {
    let server = Server::start();
    let id = sealed(&server, "3");
    let said = server.run(&["tally", "ack", &id, "0", "7"]);
    assert_eq!((said.code, said.out.contains("1 of 3 done")), (Some(1), true), "{said:?}");
    assert!(said.err.contains("1 of the items"), "{said:?}");
    assert_eq!(server.run(&["tally", "ack", "999999", "0"]).code, Some(4));
    assert_eq!(server.run(&["tally", "ack", &id, "three"]).code, Some(2));
    assert_eq!(server.run(&["tally", "seal", &id, "--expected", "3"]).code, Some(0), "it is sealed already");
    assert_eq!(
        server.run(&["tally", "seal", &id, "--expected", "9"]).code,
        Some(1),
        "but not with that number"
    );
    assert_eq!(server.run(&["tally", "add", &id, "1"]).code, Some(1));
}

#[test]
fn tallies_are_listed_by_state_and_user_key() {
    let server = Server::start();
    let (one, two) = (open(&server, &["--user-key", "a"]), open(&server, &["--user-key", "b"]));
    server.ok(&["tally", "seal", &two]);
    assert!(
        server.ok(&["tally", "list", "--state", "open,sealed"]).starts_with(&format!("{one}\topen\t0\t0\t"))
    );
    assert_eq!(server.json(&["tally", "list", "--user-key", "b"])["tally"], json!(two));
    let page = server.run(&["tally", "list", "--limit", "1"]);
    assert!(page.err.contains(&format!("--after {one}")), "{page:?}");
}

#[test]
fn what_can_be_no_tally_is_wrong_usage() {
    let server = Server::start();
    for verb in ["get", "seal", "watch", "cancel", "delete"] {
        for bad in ["abc", "7x", "", "99999999999999999999"] {
            assert_eq!(server.run(&["tally", verb, bad]).code, Some(2), "{verb} {bad:?}");
        }
        assert_eq!(server.run(&["tally", verb, "999"]).code, Some(4), "{verb}");
    }
    for bad in [
        &["list", "--state", "bogus"][..],
        &["list", "--state", "open,bogus"],
        &["list", "--state", ""],
        &["list", "--after", "x"],
        &["add", "abc", "1"],
        &["ack", "abc", "1"],
        &["ack", "1", "9-3"],
        &["count", "abc", "1"],
        &["open", "--parent", "x"],
    ] {
        let said = server.run(&[&["tally"], bad].concat());
        assert_eq!(said.code, Some(2), "{bad:?}: {}", said.err);
    }
    assert_eq!(server.run(&["emit", "t", "1", "--tally", "abc"]).code, Some(2));
}

#[test]
fn the_same_key_opens_one_tally_and_adds_once() {
    let server = Server::start();
    let key = ["--idempotency-key", "k"];
    let id = open(&server, &key);
    assert_eq!(open(&server, &key), id);
    for _ in 0..2 {
        assert_eq!(server.ok(&[&["tally", "add", &id, "5"][..], &key].concat()), "0-4\n");
    }
}

#[test]
fn estimated_tallies_are_counted_up_and_down() {
    let server = Server::start();
    let id = open(&server, &["--estimated"]);
    server.ok(&["tally", "count", &id, "2"]);
    server.ok(&["tally", "seal", &id]);
    assert!(server.ok(&["tally", "count", &id, "-2"]).contains("by this call"));
}

/// Each event is an item; the first one's command emits one more from inside it, after the tally was sealed.
#[test]
fn events_are_items_and_commands_can_emit_more_from_inside() {
    let server = Server::start();
    server.subscribe("t", json!({"topics": ["t"]}));
    let id = open(&server, &["--growing"]);
    server.ok(&["emit", "t", "1", "--tally", &id]);
    server.ok(&["emit", "t", "plain text", "--tally", &id, "--tally-subscription", "t"]);
    let lines = server.file_with("lines", "{\"row\": 1}\n{\"row\": 2}\n");
    server.ok(&["emit", "t", "--ndjson", lines.to_str().unwrap(), "--bare", "--tally", &id]);
    server.ok(&["tally", "seal", &id, "--expected", "4"]);
    let program = env!("CARGO_BIN_EXE_tramline");
    let more = format!(
        "read payload; [ \"$payload\" != 1 ] || {program} emit t '\"more\"' --tally $TRAMLINE_TALLY --within $TRAMLINE_TALLY_ITEM"
    );
    server.ok(&["work", "t", "--drain", "--quiet", "--exec", &more]);
    assert_eq!(server.ok(&["tally", "watch", &id]), "complete: 5 of 5 done\n");
}

#[test]
fn a_tally_stands_for_an_item_of_another() {
    let server = Server::start();
    let parent = open(&server, &[]);
    let child = open(&server, &["--parent", &parent]);
    server.ok(&["tally", "seal", &parent]);
    server.ok(&["tally", "seal", &child]);
    assert_eq!(server.ok(&["tally", "watch", &parent]), "complete: 1 of 1 done\n");
    assert_eq!(server.run(&["tally", "open", "--parent", "x:y"]).code, Some(2));
}

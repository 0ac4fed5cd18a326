//! `tramline schedule`.

use crate::server::Server;
use serde_json::json;

const PUT: [&str; 6] = ["schedule", "put", "acme/nightly", "reports", r#"{"n": 1.50}"#, "--key=k"];

fn put<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&PUT[..], more].concat()
}

#[test]
fn a_schedule_is_put_shown_steered_and_deleted() {
    let server = Server::start();
    let line = server.ok(&put(&["--cron", "30 3 * * mon-fri", "--zone", "Europe/Vienna", "--missed", "all"]));
    assert!(line.starts_with("acme/nightly\t30 3 * * mon-fri\tEurope/Vienna\treports\tall\t20"), "{line}");
    let shown = server.json(&["schedule", "get", "acme/nightly"]);
    assert_eq!((&shown["payload"], &shown["key"]), (&json!({"n": 1.50}), &json!("k")));
    assert!(server.ok(&["schedule", "get", "acme/nightly"]).contains("\nzone: Europe/Vienna\n"));
    assert!(server.ok(&["schedule", "pause", "acme/nightly"]).contains("\tpaused\t"));
    let id = server.ok(&["schedule", "run", "acme/nightly"]);
    assert!(server.ok(&["event", id.trim()]).contains("\"tramline-schedule\":\"acme/nightly\""));
    assert_eq!(server.json(&["schedule", "resume", "acme/nightly"])["last_event"], id.trim());
    assert_eq!(server.ok(&["schedule", "list", "--json"]).lines().count(), 1);
    server.ok(&["schedule", "delete", "acme/nightly"]);
    assert_eq!(server.ok(&["schedule", "list"]), "");
    assert_eq!(server.run(&["schedule", "get", "acme/nightly"]).code, Some(4));
}

#[test]
fn what_makes_its_events_unique_is_put_and_shown() {
    let server = Server::start();
    let unique =
        ["--every", "1h", "--unique", "report:7", "--unique-for", "1h", "--unique-policy", "replace"];
    let stored = server.json(&put(&unique));
    assert_eq!(stored["unique"], json!({"key": "report:7", "for_ms": 3_600_000, "policy": "replace"}));
    let shown = server.ok(&["schedule", "get", "acme/nightly"]);
    assert!(shown.contains("\nunique: ") && shown.contains("report:7"), "{shown}");
    assert_eq!(server.run(&put(&["--every", "1h", "--unique-for", "1h"])).code, Some(2));
}

#[test]
fn an_interval_runs_on_a_real_server() {
    let server = Server::start();
    let line = server.ok(&put(&["--every", "1s", "--header", "h=v"]));
    assert!(line.contains("\tevery 1s\t"), "{line}");
    // Follows the topic until two runs have come.
    server.ok(&["schedule", "run", "acme/nightly"]);
    let events = server.ok(&["tail", "reports", "--count", "3", "--json"]);
    assert_eq!(events.lines().count(), 3, "{events}");
    assert!(
        events.lines().all(|line| line.contains("tramline-scheduled-at") && line.contains("\"h\":\"v\""))
    );
}

#[test]
fn what_cannot_be_is_refused_before_or_by_the_server() {
    let server = Server::start();
    for usage in [
        &[][..],
        &["--cron", "@daily", "--every", "1s"],
        &["--every", "1s", "--zone", "UTC"],
        &["--every", "soon"],
    ] {
        assert_eq!(server.run(&put(usage)).code, Some(2), "{usage:?}");
    }
    let refused = server.run(&put(&["--cron", "61 * * * *"]));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("minute"), "{refused:?}");
    let text = server.run(&["schedule", "put", "n", "t", "plain text", "--every", "1s"]);
    assert!(text.err.contains("not JSON"), "{text:?}");
}

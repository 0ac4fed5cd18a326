//! `tramline backup` beside a busy server, and what runs again after a restore.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Launch, Node, PROGRAM, until_true};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// Events of one request: stored together or not at all.
const TOGETHER: u64 = 5;

fn backup(directory: &Path, store: &str, file: &str) -> Output {
    Command::new(PROGRAM).args(["backup", "--store", store, file]).current_dir(directory).output().unwrap()
}

/// Copies the store of a node to `copy.db` beside it.
async fn copy(node: &Node) {
    let directory = node.directory.path().to_owned();
    let made = tokio::task::spawn_blocking(move || backup(&directory, "sqlite://tramline.db", "copy.db"));
    let made = made.await.unwrap();
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(said.starts_with("copy.db: ") && said.contains(" in ") && said.ends_with("checked\n"), "{said}");
}

/// Whoever could not read the store could read every payload in a backup of it.
#[cfg(unix)]
#[tokio::test]
async fn a_copy_is_as_closed_to_others_as_the_store() {
    use std::os::unix::fs::PermissionsExt;
    let node = Launch::default().start();
    emit(&node).await;
    let mode = |file: &str| node.directory.path().join(file);
    std::fs::set_permissions(mode("tramline.db"), PermissionsExt::from_mode(0o600)).unwrap();
    copy(&node).await;
    assert_eq!(std::fs::metadata(mode("copy.db")).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A node of its own on the copy.
fn restored(node: &Node) -> Node {
    let directory = TempDir::new().unwrap();
    std::fs::copy(node.directory.path().join("copy.db"), directory.path().join("tramline.db")).unwrap();
    Launch::default().start_in(directory)
}

/// Emits; gives the ids that were acknowledged.
async fn emit(node: &Node) -> Vec<u64> {
    let events: Vec<Value> = (0..TOGETHER).map(|n| json!({"payload": n, "key": "k"})).collect();
    let receipt = node.post("/v1/topics/t/events", json!(events)).await;
    receipt["events"].as_array().unwrap().iter().map(|event| number(&event["id"])).collect()
}

fn number(id: &Value) -> u64 {
    id.as_str().unwrap().parse().unwrap()
}

async fn claim(node: &Node, subscription: &str, request: Value) -> Vec<Value> {
    let claimed = node.post(&format!("/v1/subscriptions/{subscription}/claim"), request).await;
    claimed["events"].as_array().unwrap().clone()
}

async fn settle(node: &Node, subscription: &str, events: &[Value]) {
    let result = |event: &Value| json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
    let results: Vec<Value> = events.iter().map(result).collect();
    node.post(&format!("/v1/subscriptions/{subscription}/settle"), json!({"results": results})).await;
}

/// All ids that a node retains.
async fn stored(node: &Node) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    loop {
        let after = all.last().copied().unwrap_or(0);
        let page = node.get(&format!("/v1/topics/t/events?limit=1000&after={after}")).await;
        let items = page["items"].as_array().unwrap();
        all.extend(items.iter().map(|event| number(&event["id"])));
        if items.is_empty() {
            return all;
        }
    }
}

async fn count(node: &Node, subscription: &str, status: &str) -> u64 {
    node.get(&format!("/v1/subscriptions/{subscription}")).await["counts"][status].as_u64().unwrap()
}

/// Emits and works until told to stop; gives what was settled.
async fn load(node: &Node, stop: &AtomicBool) -> u64 {
    let mut settled = 0;
    while !stop.load(Ordering::Relaxed) {
        emit(node).await;
        let events = claim(node, "worked", json!({"max_events": 3})).await;
        settle(node, "worked", &events).await;
        settled += events.len() as u64;
    }
    settled
}

#[tokio::test]
async fn a_copy_of_a_busy_store_has_all_that_was_acknowledged_before_and_nothing_by_halves() {
    let node = Node::start(&[]);
    for name in ["idle", "worked"] {
        node.put(&format!("/v1/subscriptions/{name}"), json!({"topics": ["t"], "ordering": "key"})).await;
    }
    let mut acknowledged = BTreeSet::new();
    for _ in 0..200 {
        acknowledged.extend(emit(&node).await);
    }
    let stop = AtomicBool::new(false);
    let work = async {
        until_true(async || count(&node, "idle", "ready").await > 1000).await;
        let before = stored(&node).await;
        copy(&node).await;
        stop.store(true, Ordering::Relaxed);
        before
    };
    let (before, one, two) = tokio::join!(work, load(&node, &stop), load(&node, &stop));
    acknowledged.extend(before);
    assert!(one + two > 0, "there was a load");
    let copy = restored(&node);
    let there = stored(&copy).await;
    assert!(there.is_superset(&acknowledged), "{} of {}", there.len(), acknowledged.len());
    assert!(there.is_subset(&stored(&node).await), "nothing that never was");
    assert_eq!(there.len() as u64 % TOGETHER, 0, "requests are in it whole");
    assert_eq!(count(&copy, "idle", "ready").await, there.len() as u64, "events and work agree");
    let after = emit(&copy).await;
    assert!(after[0] > *there.last().unwrap(), "numbers go on behind those in the copy");
}

#[tokio::test]
async fn after_a_restore_runs_again_only_what_the_guarantee_allows() {
    let node = Node::start(&[]);
    let policies = [
        ("once", json!({"topics": ["t"], "guarantee": "at_most_once", "claim_size": 10})),
        ("long", json!({"topics": ["t"], "lease_ms": 3_600_000})),
        ("short", json!({"topics": ["t"], "lease_ms": 1000})),
    ];
    for (name, policy) in &policies {
        node.put(&format!("/v1/subscriptions/{name}"), policy.clone()).await;
    }
    emit(&node).await;
    let mut taken = Vec::new();
    for (name, _) in &policies {
        let events = claim(&node, name, json!({"max_events": 3})).await;
        settle(&node, name, &events[..1]).await;
        taken.push(events);
    }
    copy(&node).await;
    let late = claim(&node, "once", json!({"max_events": 1})).await;
    drop(node.post("/v1/topics/t/events", json!({"payload": "later"})).await);
    let copy = restored(&node);
    drop(node);
    let ids = |events: &[Value]| events.iter().map(|event| number(&event["id"])).collect::<BTreeSet<u64>>();
    // At most once: what was consumed stays so, settled or not. What was consumed after the copy, it cannot know: an operator does.
    assert!(claim(&copy, "once", json!({"max_events": 100})).await.is_empty(), "{late:?} would run twice");
    let rule = copy.get("/v1/subscriptions/once").await["rules"][0].clone();
    assert_eq!((&rule["kind"], &rule["by"]), (&json!("block"), &json!("tramline")));
    assert!(rule["reason"].as_str().unwrap().contains("unblock"), "{rule}");
    copy.post("/v1/subscriptions/once/unblock", json!({})).await;
    let rest = ids(&claim(&copy, "once", json!({"max_events": 100})).await);
    assert_eq!(rest.len(), 2);
    assert!(rest.is_disjoint(&ids(&taken[0])), "consumed twice");
    // At least once: what was leased is nobody's until the lease ends, what was settled is done.
    assert_eq!(count(&copy, "long", "leased").await, 2);
    let rest = ids(&claim(&copy, "long", json!({"max_events": 100})).await);
    assert!(rest.len() == 2 && rest.is_disjoint(&ids(&taken[1])), "{rest:?}");
    let mut got = BTreeSet::new();
    until_true(async || {
        let events = claim(&copy, "short", json!({"max_events": 100, "wait_ms": 200})).await;
        settle(&copy, "short", &events).await;
        got.extend(ids(&events));
        got.len() == 4
    })
    .await;
    assert!(got.is_superset(&ids(&taken[2][1..])), "leases that end give their events back");
    assert!(!got.contains(&number(&taken[2][0]["id"])), "what was done stays done");
}

#[tokio::test]
async fn after_a_restore_schedules_that_make_up_for_missed_runs_rest_until_they_are_resumed() {
    let node = Node::start(&[]);
    for missed in ["skip", "one", "all"] {
        let schedule = json!({"every_ms": 3_600_000, "topic": "t", "missed": missed});
        node.put(&format!("/v1/schedules/{missed}"), schedule).await;
    }
    copy(&node).await;
    let copy = restored(&node);
    let paused = async |name: &str| copy.get(&format!("/v1/schedules/{name}")).await["paused"].clone();
    assert_eq!([paused("skip").await, paused("one").await, paused("all").await], [false, true, true]);
    copy.post("/v1/schedules/one/resume", json!({})).await;
    assert_eq!(paused("one").await, false);
    assert_eq!(node.get("/v1/schedules/all").await["paused"], false, "the store itself goes on");
}

#[test]
fn what_cannot_be_copied_is_told_with_a_remedy() {
    let directory = TempDir::new().unwrap();
    let cases = [
        ("postgres://u@db/app", "pg_dump"),
        ("mysql://u@db/app", "mysqldump"),
        ("redis://db", "append-only file"),
        ("sqlite::memory:", "use a store in a file"),
        ("sqlite://missing.db", "a store that exists"),
        ("nonsense://x", "use sqlite://path"),
    ];
    for (store, remedy) in cases {
        let refused = backup(directory.path(), store, "copy.db");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(remedy), "{store}: {said}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

//! `tramline doctor` on real stores: what it finds, what it changes (nothing), and its exit codes.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod own_redis;
mod stores;

use node::{Node, PROGRAM};
use own_redis::OwnRedis;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use std::process::Command;
use stores::Place;
use tramline::store::examine::{Figures, Holder, Holds, examine};
use tramline::store::verbs::Sweep;

/// The exit code and the findings.
fn doctor(store: &str) -> (i32, Vec<Value>) {
    let output = Command::new(PROGRAM).args(["doctor", "--json", "--store", store]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let findings = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), findings)
}

/// What one check found: the severity and the sentence.
fn of(findings: &[Value], check: &str) -> Vec<(String, String)> {
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let found = findings.iter().filter(|finding| finding["check"] == check);
    found
        .map(|finding| {
            assert!(!text(finding, "remedy").is_empty(), "{finding}");
            (text(finding, "severity"), text(finding, "what"))
        })
        .collect()
}

/// Some of everything that stands still.
async fn trouble(node: &Node) {
    node.put("/v1/subscriptions/unattended", json!({"topics": ["t"]})).await;
    node.put("/v1/subscriptions/stopped", json!({"topics": ["t"]})).await;
    node.post("/v1/subscriptions/stopped/pause", json!({"reason": "a move"})).await;
    node.put("/v1/subscriptions/failing", json!({"topics": ["t"]})).await;
    node.post("/v1/topics/t/events", json!({"payload": 1})).await;
    let claimed = node.post("/v1/subscriptions/failing/claim", json!({"worker": "w"})).await;
    let event = &claimed["events"][0];
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "dead", "error": "no"});
    node.post("/v1/subscriptions/failing/settle", json!({"results": [result]})).await;
}

async fn troubles_are_found_while_the_server_runs(place: Place) {
    let node = place.node();
    let (_, findings) = doctor(place.url());
    for check in ["store", "schema", "indexes", "integrity", "dead", "workers", "late", "clock", "version"] {
        assert_eq!(of(&findings, check), [], "{findings:?}");
    }
    trouble(&node).await;
    let (code, findings) = doctor(place.url());
    assert!(code >= 1, "{findings:?}");
    let has = |check: &str, severity: &str, words: &str| {
        let found = of(&findings, check);
        assert!(found.iter().any(|(how, what)| how == severity && what.contains(words)), "{findings:?}");
    };
    has("dead", "warning", "failing has 1 dead events");
    has("workers", "warning", "nobody works on unattended, where 1 events wait");
    has("rules", "note", "stopped is stopped (pause by");
    assert!(of(&findings, "workers").iter().all(|(_, what)| !what.contains("stopped")), "{findings:?}");
}

#[tokio::test]
async fn troubles_are_found_on_sqlite() {
    troubles_are_found_while_the_server_runs(Place::sqlite()).await;
}

#[tokio::test]
async fn troubles_are_found_on_postgres() {
    troubles_are_found_while_the_server_runs(Place::postgres()).await;
}

#[tokio::test]
async fn troubles_are_found_on_mysql() {
    troubles_are_found_while_the_server_runs(Place::mysql().await).await;
}

#[tokio::test]
async fn troubles_are_found_on_redis() {
    troubles_are_found_while_the_server_runs(Place::redis()).await;
}

#[tokio::test]
async fn troubles_are_found_on_a_redis_cluster() {
    troubles_are_found_while_the_server_runs(Place::redis_cluster()).await;
}

#[tokio::test]
async fn a_store_in_redis_that_is_not_there_is_serious_and_none_is_made() {
    for (place, nodes) in [(Place::redis(), 1), (Place::redis_cluster(), 3)] {
        for _ in 0..2 {
            let (code, findings) = doctor(place.url());
            assert_eq!((code, of(&findings, "schema").len()), (2, 1), "{findings:?}");
        }
        tramline::store::open(place.url()).await.unwrap().close().await;
        let (code, findings) = doctor(place.url());
        assert_eq!((code, of(&findings, "schema").len()), (0, 0), "{findings:?}");
        assert_eq!(of(&findings, "sync").len(), nodes, "files are synced once a second: {findings:?}");
    }
}

/// A Cluster is more than the node that was asked: what is wrong with one of them is said of that one.
#[tokio::test]
async fn a_node_of_a_redis_cluster_is_named() {
    let node = OwnRedis::start_cluster();
    let (code, findings) = doctor(&node.url());
    assert_eq!(code, 2, "{findings:?}");
    let [finding] = &findings.iter().filter(|finding| finding["check"] == "server").collect::<Vec<_>>()[..]
    else {
        panic!("{findings:?}")
    };
    assert!(finding["what"].as_str().unwrap().ends_with("this Redis is a node of a Cluster"), "{finding}");
    assert!(finding["remedy"].as_str().unwrap().contains("redis+cluster://"), "{finding}");
    let url = node.cluster_url();
    tramline::store::open(&url).await.unwrap().close().await;
    assert_eq!(of(&doctor(&url).1, "server"), []);
    node.ask::<()>(&["CONFIG", "SET", "appendonly", "no"]);
    let (code, findings) = doctor(&url);
    assert_eq!(code, 2, "{findings:?}");
    let [(severity, what)] = &of(&findings, "persistence")[..] else { panic!("{findings:?}") };
    assert_eq!(severity, "serious");
    assert!(what.starts_with(&format!("the node 127.0.0.1:{} keeps", node.port())), "{what}");
}

#[tokio::test]
async fn tables_of_mysql_that_are_missing_or_not_safe_are_serious() {
    let place = Place::mysql().await;
    let url = place.url();
    let (code, findings) = doctor(url);
    assert_eq!((code, of(&findings, "schema").len()), (2, 1), "there are no tables yet, and none are made");
    tramline::store::open(url).await.unwrap().close().await;
    let mut server = MySqlConnection::connect(url).await.unwrap();
    let sql = "DROP INDEX tramline_slice_claim ON tramline_slice; ALTER TABLE tramline_rule ENGINE = MyISAM";
    sqlx::raw_sql(sql).execute(&mut server).await.unwrap();
    let (code, findings) = doctor(url);
    assert_eq!(code, 2);
    let serious = |what: &str| vec![("serious".to_owned(), what.to_owned())];
    assert_eq!(of(&findings, "schema"), serious("tramline_slice_claim is missing"));
    assert_eq!(
        of(&findings, "engine"),
        serious("tramline_rule is kept by MyISAM, which has no transactions")
    );
}

/// A user who sees nothing of others is told so, and what is his is examined all the same.
#[tokio::test]
async fn a_user_of_mysql_without_rights_is_told_what_was_not_looked_at() {
    let place = Place::mysql().await;
    tramline::store::open(place.url()).await.unwrap().close().await;
    let name = place.url().rsplit('/').next().unwrap().to_owned();
    let mut server = MySqlConnection::connect(place.url()).await.unwrap();
    let sql = format!("CREATE USER {name}@'127.0.0.1'; GRANT ALL ON {name}.* TO {name}@'127.0.0.1'");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut server).await.unwrap();
    let (_, findings) = doctor(&place.url().replace("root@", &format!("{name}@")));
    assert_eq!(of(&findings, "sight").len(), 1, "{findings:?}");
    assert_eq!(of(&findings, "store"), [], "{findings:?}");
    let sql = format!("DROP USER {name}@'127.0.0.1'");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut server).await.unwrap();
}

/// Nobody else would hear of them: the program that inserted them was told that all was well.
#[tokio::test]
async fn what_was_refused_of_the_inbox_of_mysql_is_told() {
    let place = Place::mysql().await;
    let store = tramline::store::open(place.url()).await.unwrap();
    let mut program = MySqlConnection::connect(place.url()).await.unwrap();
    let sql = "INSERT INTO tramline_inbox (topic, payload, headers) VALUES ('t', '1', '{\"a\": 1}'), ('t', '2', NULL)";
    sqlx::raw_sql(sql).execute(&mut program).await.unwrap();
    store.sweep(Sweep { dead_after: None, limit: 100, now: None }).await.unwrap();
    let (_, findings) = doctor(place.url());
    let [(severity, what)] = &of(&findings, "inbox")[..] else { panic!("{findings:?}") };
    assert_eq!(severity, "warning");
    assert!(what.starts_with("1 rows of tramline_inbox were refused") && what.contains("headers"), "{what}");
    sqlx::raw_sql("DELETE FROM tramline_inbox").execute(&mut program).await.unwrap();
    assert_eq!(of(&doctor(place.url()).1, "inbox"), []);
    store.close().await;
}

#[tokio::test]
async fn open_transactions_and_waits_of_mysql_are_seen() {
    let place = Place::mysql().await;
    tramline::store::open(place.url()).await.unwrap().close().await;
    let mut first = MySqlConnection::connect(place.url()).await.unwrap();
    let mut second = MySqlConnection::connect(place.url()).await.unwrap();
    let lock = "START TRANSACTION; SELECT value FROM tramline_meta FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut first).await.unwrap();
    let waiting = tokio::spawn(async move {
        sqlx::raw_sql(lock).execute(&mut second).await.unwrap();
    });
    let blocker: i64 =
        sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(&mut first).await.unwrap();
    let wait = stores::until(async || {
        let Figures::Mysql(figures) = examine(place.url()).await.unwrap() else { return None };
        let idle =
            |holder: &Holder| holder.holds == Holds::Idle && holder.who == format!("connection {blocker}");
        assert!(figures.history.is_some() && figures.sees_all);
        figures
            .waits
            .into_iter()
            .find(|wait| wait.blocked_by == [blocker])
            .filter(|_| figures.holders.iter().any(idle))
    })
    .await;
    assert_ne!(wait.process, blocker);
    sqlx::raw_sql("ROLLBACK").execute(&mut first).await.unwrap();
    waiting.await.unwrap();
}

/// A line of all events has no keys that could be parked: it stood still, and what was said was that workers were missing.
#[tokio::test]
async fn a_line_that_stands_still_behind_an_event_that_fails_is_told() {
    let place = Place::postgres();
    let node = place.node();
    let policy = json!({"topics": ["t"], "ordering": "key", "while_retrying": "halt"});
    node.put("/v1/subscriptions/line", policy).await;
    for key in ["k", "k"] {
        node.post("/v1/topics/t/events", json!({"payload": 1, "key": key})).await;
    }
    let claimed = node.post("/v1/subscriptions/line/claim", json!({"worker": "w", "max_events": 1})).await;
    let event = &claimed["events"][0];
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "retry", "delay_ms": 3_600_000, "error": "no"});
    node.post("/v1/subscriptions/line/settle", json!({"results": [result]})).await;
    assert_eq!(of(&doctor(place.url()).1, "parked"), [], "not for long");
    let schema = place.url().rsplit_once("schema=").unwrap().1;
    let mut server = PgConnection::connect(&std::env::var("TRAMLINE_TEST_POSTGRES").unwrap()).await.unwrap();
    let sql = format!(
        "UPDATE {schema}.tramline_slice SET due_at = due_at - 7200000 WHERE chunk > 0 \
         AND due_at <= extract(epoch FROM now()) * 1000"
    );
    server.execute(AssertSqlSafe(sql)).await.unwrap();
    // A node writes down now and then who has claimed; until then nobody seems to.
    let findings = stores::until(async || {
        let findings = doctor(place.url()).1;
        (of(&findings, "workers").is_empty()).then_some(findings)
    })
    .await;
    let [(severity, what)] = &of(&findings, "parked")[..] else { panic!("{findings:?}") };
    assert_eq!(severity, "warning");
    assert!(what.starts_with("a line of line has stood still for 2h"), "{what}");
    assert_eq!(of(&findings, "late"), [], "{findings:?}");
}

/// The server of the tests runs on this machine, in a directory that the tests may read.
#[tokio::test]
async fn the_disk_of_postgres_is_looked_at_where_it_is_on_this_machine() {
    let place = Place::postgres();
    let Figures::Postgres(figures) = examine(place.url()).await.unwrap() else { panic!("of PostgreSQL") };
    let (path, free) = figures.disk.unwrap();
    assert!(std::path::Path::new(&path).join("PG_VERSION").exists() && free > 0, "{path}: {free}");
}

fn file(place: &Place) -> &str {
    place.url().strip_prefix("sqlite://").unwrap()
}

#[tokio::test]
async fn a_healthy_file_is_fine_and_stays_as_it_is() {
    let place = Place::sqlite();
    drop(tramline::store::open(place.url()).await.unwrap());
    let look = || {
        let (code, mut findings) = doctor(place.url());
        // The machine that runs the tests need not be healthy.
        let mine = |finding: &Value| finding["check"] != "disk" && finding["check"] != "place";
        let all = findings.len();
        findings.retain(mine);
        assert_eq!((code == 0, findings), (all == 0, vec![]));
    };
    look();
    // Whoever closes a file last moves the log into it, so the first look may still do that.
    let before = std::fs::read(file(&place)).unwrap();
    look();
    assert!(std::fs::read(file(&place)).unwrap() == before);
}

#[tokio::test]
async fn a_file_that_lacks_something_is_serious() {
    let place = Place::sqlite();
    drop(tramline::store::open(place.url()).await.unwrap());
    let other = rusqlite::Connection::open(file(&place)).unwrap();
    other.execute_batch("DROP INDEX tramline_slice_claim").unwrap();
    let (code, findings) = doctor(place.url());
    assert_eq!((code, of(&findings, "schema")[0].1.as_str()), (2, "tramline_slice_claim is missing"));
    other.execute_batch("DELETE FROM tramline_migration WHERE version > 5").unwrap();
    let (code, findings) = doctor(place.url());
    assert_eq!(code, 1, "{findings:?}");
    let version: i64 =
        other.query_row("SELECT max(version) FROM tramline_migration", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 5, "nothing is migrated");
}

/// Neither is it copied: a backup that cannot be restored is worse than none.
#[tokio::test]
async fn a_damaged_file_is_serious_and_no_backup_is_made_of_it() {
    let place = Place::sqlite();
    let store = tramline::store::open(place.url()).await.unwrap();
    store.close().await;
    drop(store);
    doctor(place.url()); // whoever closes it last moves the log into it
    let mut bytes = std::fs::read(file(&place)).unwrap();
    let page = 8192;
    // Pages of tables and indexes; the first has the schema, without which it would be no database at all.
    for at in (2 * page..bytes.len()).step_by(page) {
        bytes[at..at + 100].fill(0xa5);
    }
    std::fs::write(file(&place), bytes).unwrap();
    let (code, findings) = doctor(place.url());
    assert_eq!(code, 2, "{findings:?}");
    assert!(findings.iter().any(|it| it["check"] == "integrity" || it["check"] == "store"), "{findings:?}");
    let copy = format!("{}.copy", file(&place));
    let refused = Command::new(PROGRAM).args(["backup", "--store", place.url(), &copy]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(!std::path::Path::new(&copy).exists());
}

#[test]
fn a_store_that_cannot_be_looked_at_is_serious_and_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.db");
    let text = directory.path().join("text.db");
    std::fs::write(&text, "this is no database, but long enough to be looked at as one").unwrap();
    let urls =
        [missing.display().to_string(), text.display().to_string()].map(|path| format!("sqlite://{path}"));
    let away = [
        "postgres://127.0.0.1:1/x",
        "mysql://127.0.0.1:1/x",
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1",
    ];
    for url in urls.iter().map(String::as_str).chain(["sqlite::memory:", "nonsense:x"]).chain(away) {
        let (code, findings) = doctor(url);
        assert_eq!((code, of(&findings, "store").len()), (2, 1), "{url}: {findings:?}");
    }
    assert!(!missing.exists());
}

#[tokio::test]
async fn an_index_of_postgres_that_is_missing_or_not_valid_is_serious() {
    let place = Place::postgres();
    let url = place.url();
    let (code, findings) = doctor(url);
    assert_eq!((code, of(&findings, "schema").len()), (2, 1), "there are no tables yet, and none are made");
    drop(tramline::store::open(url).await.unwrap());
    let schema = url.rsplit_once("schema=").unwrap().1;
    let mut server = PgConnection::connect(&std::env::var("TRAMLINE_TEST_POSTGRES").unwrap()).await.unwrap();
    let sql = format!(
        "DROP INDEX {schema}.tramline_slice_claim; \
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{schema}.tramline_chunk_topic'::regclass; \
         ALTER TABLE {schema}.tramline_head SET (autovacuum_enabled = false)"
    );
    server.execute(AssertSqlSafe(sql)).await.unwrap();
    let (code, findings) = doctor(url);
    assert_eq!(code, 2);
    let serious = |what: &str| vec![("serious".to_owned(), what.to_owned())];
    assert_eq!(of(&findings, "schema"), serious("tramline_slice_claim is missing"));
    assert_eq!(
        of(&findings, "indexes"),
        serious("the index tramline_chunk_topic is not valid, so it is not used")
    );
    assert_eq!(of(&findings, "vacuum"), serious("autovacuum is turned off for tramline_head"));
}

#[tokio::test]
async fn settings_of_postgres_that_lose_events_are_serious() {
    let place = Place::postgres();
    let url = format!(
        "{}&options=-c%20synchronous_commit%3Doff%20-c%20default_transaction_isolation%3Dserializable",
        place.url()
    );
    let (_, findings) = doctor(&url);
    let settings = of(&findings, "settings");
    let has = |severity: &str, name: &str| {
        settings.iter().any(|(how, what)| how == severity && what.starts_with(name))
    };
    assert!(has("serious", "synchronous_commit is off"), "{settings:?}");
    assert!(has("warning", "default_transaction_isolation is serializable"), "{settings:?}");
}

/// The store waits for the disk whatever the default is, and only the URL can ask for less; the doctor took the default for the truth.
#[tokio::test]
async fn a_default_that_does_not_reach_the_store_is_no_finding() {
    let place = Place::postgres();
    drop(tramline::store::open(place.url()).await.unwrap());
    let role = place.url().rsplit_once("schema=").unwrap().1.to_owned();
    let server = std::env::var("TRAMLINE_TEST_POSTGRES").unwrap();
    let mut admin = PgConnection::connect(&server).await.unwrap();
    let create =
        format!("CREATE ROLE {role} SUPERUSER LOGIN; ALTER ROLE {role} SET synchronous_commit = off");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut admin).await.unwrap();
    let (_, findings) = doctor(&place.url().replace("//postgres@", &format!("//{role}@")));
    sqlx::raw_sql(AssertSqlSafe(format!("DROP ROLE {role}"))).execute(&mut admin).await.unwrap();
    assert_eq!(of(&findings, "settings"), []);
}

#[tokio::test]
async fn open_transactions_and_waits_of_postgres_are_seen() {
    let place = Place::postgres();
    drop(tramline::store::open(place.url()).await.unwrap());
    let schema = place.url().rsplit_once("schema=").unwrap().1.to_owned();
    let server = std::env::var("TRAMLINE_TEST_POSTGRES").unwrap();
    let name = format!("{server}{}application_name={schema}", if server.contains('?') { '&' } else { '?' });
    let mut first = PgConnection::connect(&name).await.unwrap();
    let mut second = PgConnection::connect(&name).await.unwrap();
    let lock = format!("BEGIN; LOCK TABLE {schema}.tramline_meta");
    first.execute(AssertSqlSafe(lock.clone())).await.unwrap();
    let waiting = tokio::spawn(async move {
        second.execute(AssertSqlSafe(lock)).await.unwrap();
    });
    let blocker: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut first).await.unwrap();
    let blocker = i64::from(blocker);
    let wait = stores::until(async || {
        let Figures::Postgres(figures) = examine(place.url()).await.unwrap() else { return None };
        let idle = |holder: &Holder| holder.holds == Holds::Idle && holder.who.contains(&schema);
        assert!(figures.holders.iter().any(idle), "{:?}", figures.holders);
        figures.waits.into_iter().find(|wait| wait.blocked_by == [blocker])
    })
    .await;
    assert_ne!(wait.process, blocker);
    first.execute("ROLLBACK").await.unwrap();
    waiting.await.unwrap();
}

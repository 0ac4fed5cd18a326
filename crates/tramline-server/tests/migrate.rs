//! Processes that find a new database at the same moment.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::PROGRAM;
use std::process::{Child, Command, Stdio};
use tramline::{Event, Incarnation, Tramline};

/// Ten real processes at once; each of them must think that the tables are there and right.
fn ten_migrate(store: &str) {
    let processes: Vec<Child> = (0..10)
        .map(|_| {
            let mut migrate = Command::new(PROGRAM);
            migrate.args(["migrate", "--store", store]).env("RUST_LOG", "warn");
            migrate.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {said}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "up to date\n", "{said}");
    }
}

async fn is_of_use(store: &str) {
    let tram = Tramline::open(store).await.unwrap();
    let worker = tram.worker("w").topics(["t"]).on_any(|| async {});
    worker.subscribe().await.unwrap();
    tram.emit(Event::new("t", "x")).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 1);
    tram.close().await;
}

#[tokio::test]
async fn ten_processes_make_the_tables_of_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("new.db").display());
    ten_migrate(&store);
    is_of_use(&store).await;
}

#[tokio::test]
async fn ten_processes_make_the_tables_of_a_new_schema() {
    let server =
        std::env::var("TRAMLINE_TEST_POSTGRES").expect("TRAMLINE_TEST_POSTGRES is not set: run ./test");
    let sign = if server.contains('?') { '&' } else { '?' };
    let store = format!("{server}{sign}schema=migrate_{:x}", Incarnation::random().0);
    ten_migrate(&store);
    is_of_use(&store).await;
}

//! Processes that find a new store at the same moment.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;
mod stores;

use node::PROGRAM;
use std::process::{Child, Command, Stdio};
use stores::{Place, on_every_store};
use tramline::{Event, Tramline};

on_every_store![ten_processes_prepare_a_new_store];

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

async fn ten_processes_prepare_a_new_store(place: Place) {
    ten_migrate(place.url());
    is_of_use(place.url()).await;
}

/// Whoever asks for SQL of a store that has none is told so, and nothing goes into the pipe.
#[test]
fn redis_has_no_tables_to_be_printed() {
    for url in ["redis://127.0.0.1:1", "rediss://a,b,c?name=x"] {
        let print = Command::new(PROGRAM).args(["migrate", "--print", "--store", url]).output().unwrap();
        let said = String::from_utf8_lossy(&print.stderr).into_owned();
        assert_eq!((print.status.code(), &print.stdout[..]), (Some(1), &b""[..]), "{said}");
        assert!(said.contains("has no tables") && said.contains("nothing to prepare"), "{said}");
    }
}

//! Handlers that settle in their own transaction.

use rusqlite::Connection;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tramline::{Context, Counts, Event, Outcome, SqliteStore, Tramline};

const HOUR: Duration = Duration::from_secs(3600);

/// A file with tables of the caller's own beside those of the store.
struct Books {
    tram: Tramline,
    store: Arc<SqliteStore>,
    mine: Arc<Mutex<Connection>>,
    _folder: TempDir,
}

impl Books {
    async fn open() -> Books {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app.db");
        let tram = Tramline::open(&format!("sqlite://{}", file.display())).await.unwrap();
        let store = tram.sqlite().unwrap().clone();
        let mine = Connection::open(&file).unwrap();
        mine.busy_timeout(Duration::from_secs(5)).unwrap();
        mine.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)", []).unwrap();
        Books { tram, store, mine: Arc::new(Mutex::new(mine)), _folder: folder }
    }

    /// Settles each event in the transaction that writes it down, with the outcome that `judge` gives.
    fn worker(&self, judge: fn(&Context) -> Outcome) -> tramline::Worker {
        let (store, mine) = (self.store.clone(), self.mine.clone());
        let worker = self.tram.worker("w").topics(["t"]).concurrency(1).settles_in_transaction();
        worker.on_any(move |cx: Context| {
            let (store, mine) = (store.clone(), mine.clone());
            async move {
                let mut mine = mine.lock().unwrap();
                let tx = mine.transaction().map_err(|error| error.to_string())?;
                tx.execute("INSERT INTO account VALUES (?1, 1)", [cx.event().id.0])
                    .map_err(|error| error.to_string())?;
                let settled =
                    store.settle_in(&tx, &cx.settlement(judge(&cx))).map_err(|error| error.to_string())?;
                assert_eq!(settled.accepted, [[true]]);
                tx.commit().map_err(|error| error.to_string())
            }
        })
    }

    async fn emit(&self, payloads: &[&str]) {
        for payload in payloads {
            self.tram.emit(Event::new("t", (*payload).to_owned()).key("k")).await.unwrap();
        }
    }

    fn written(&self) -> i64 {
        let mine = self.mine.lock().unwrap();
        mine.query_row("SELECT coalesce(sum(total), 0) FROM account", [], |row| row.get(0)).unwrap()
    }

    async fn counts(&self) -> Counts {
        self.tram.stats("w").await.unwrap().counts
    }
}

#[tokio::test]
async fn a_handler_may_settle_in_its_own_transaction() {
    let books = Books::open().await;
    let worker = books.worker(|_| Outcome::Done);
    worker.subscribe().await.unwrap();
    books.emit(&["x"; 5]).await;
    assert_eq!(worker.drain().await.unwrap(), 5);
    assert_eq!((books.written(), books.counts().await), (5, Counts::default()));
    books.tram.close().await;
}

fn first_waits(cx: &Context) -> Outcome {
    let bad = *cx.event().payload == *b"bad";
    if bad { Outcome::Retry { delay: Some(HOUR), error: "later".into() } } else { Outcome::Done }
}

fn first_dies(cx: &Context) -> Outcome {
    if *cx.event().payload == *b"bad" { Outcome::dead("never") } else { Outcome::Done }
}

/// The handler returns `Ok`, but what it told the store is that its event has to run again.
#[tokio::test]
async fn a_failure_that_a_handler_settles_itself_keeps_its_key_waiting() {
    let books = Books::open().await;
    let worker = books.worker(first_waits).ordered_by_key();
    worker.subscribe().await.unwrap();
    books.emit(&["bad", "good", "good"]).await;
    worker.drain().await.unwrap();
    assert_eq!(books.written(), 1);
    assert_eq!(books.counts().await, Counts { delayed: 1, parked: 2, ..Counts::default() });
    books.tram.close().await;
}

#[tokio::test]
async fn a_death_that_a_handler_settles_itself_lets_its_key_go_on() {
    let books = Books::open().await;
    let worker = books.worker(first_dies).ordered_by_key();
    worker.subscribe().await.unwrap();
    books.emit(&["bad", "good", "good"]).await;
    worker.drain().await.unwrap();
    assert_eq!(books.written(), 3);
    assert_eq!(books.counts().await, Counts { dead: 1, ..Counts::default() });
    books.tram.close().await;
}

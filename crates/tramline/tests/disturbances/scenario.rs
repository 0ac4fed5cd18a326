//! One scenario: emit all the time, disturb the workers, and check in the end.

use crate::check::{self, Emitted};
use crate::proxy::{Mode, Proxy};
use crate::recorder::{Log, Record, Recorder};
use crate::worker::{RECORDER, URL, worker};
use std::collections::HashSet;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tramline::model::id::Incarnation;
use tramline::model::lane::{Known, Share};
use tramline::store::Store;
use tramline::store::verbs::{Claim, Settle, SettleSlice, Suspects};
use tramline::{Event, Outcome, Tramline};

pub(crate) const TOPIC: &str = "disturbed";
pub(crate) const UNORDERED: &str = "unordered";
pub(crate) const ORDERED: &str = "ordered";
pub(crate) const AT_MOST_ONCE: &str = "at-most-once";
pub(crate) const LEASE: Duration = Duration::from_millis(1000);

const PROCESSES: usize = 3;
const KEYS: u64 = 7;
/// How far the emitter may be ahead of the workers.
const AHEAD: usize = 300;
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the database is, and how workers reach it.
struct Place {
    /// Straight to the database.
    url: String,
    /// A proxy for every worker process, and the last one for the emitter; none for a file.
    proxies: Vec<Proxy>,
    /// The variable that names the program which restarts the server; none for a file.
    control: Option<&'static str>,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn sqlite() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("disturbed.db").display());
        Place { url, proxies: Vec::new(), control: None, _folder: folder }
    }

    async fn postgres() -> Place {
        let server = std::env::var("TRAMLINE_TEST_POSTGRES").expect("no PostgreSQL to test with: run ./test");
        let url = format!("{server}?schema=disturbed_{}", std::process::id());
        Place::on_server(url, "TRAMLINE_TEST_POSTGRES_CTL").await
    }

    async fn mysql() -> Place {
        let server = std::env::var("TRAMLINE_TEST_MYSQL").expect("no MySQL to test with: run ./test");
        let database = format!("disturbed_{}", std::process::id());
        run_on_mysql(&server, &format!("CREATE DATABASE {database}")).await;
        Place::on_server(format!("{server}/{database}"), "TRAMLINE_TEST_MYSQL_CTL").await
    }

    async fn redis() -> Place {
        let server = std::env::var("TRAMLINE_TEST_REDIS").expect("no Redis to test with: run ./test");
        let url = format!("{server}?name=disturbed_{}", std::process::id());
        Place::on_server(url, "TRAMLINE_TEST_REDIS_CTL").await
    }

    async fn on_server(url: String, control: &'static str) -> Place {
        let mut proxies = Vec::new();
        for _ in 0..=PROCESSES {
            proxies.push(Proxy::start(host_of(&url)).await);
        }
        Place { url, proxies, control: Some(control), _folder: tempfile::tempdir().unwrap() }
    }

    /// Removes what was made on a server.
    async fn remove(&self) {
        if let Some((server, database)) =
            self.url.strip_prefix("mysql://").and_then(|url| url.split_once('/'))
        {
            run_on_mysql(&format!("mysql://{server}"), &format!("DROP DATABASE {database}")).await;
        } else if self.url.starts_with("postgres") {
            drop_schema(&self.url).await;
        }
    }

    fn url_through(&self, proxy: usize) -> String {
        match self.proxies.get(proxy) {
            None => self.url.clone(),
            Some(proxy) => self.url.replacen(&host_of(&self.url), &format!("127.0.0.1:{}", proxy.port), 1),
        }
    }
}

fn host_of(url: &str) -> String {
    let after_user = url.split(['@', '/']).rfind(|part| part.contains(':')).unwrap_or_default();
    after_user.split(['/', '?']).next().unwrap_or_default().to_owned()
}

/// A small generator, so that a failing run can be repeated with `TRAMLINE_SEED`.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

pub(crate) async fn run(name: &str, disturbances: usize) {
    let place = match name.rsplit('_').next() {
        Some("postgres") => Place::postgres().await,
        Some("mysql") => Place::mysql().await,
        Some("redis") => Place::redis().await,
        _ => Place::sqlite().await,
    };
    let seed = std::env::var("TRAMLINE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5EED);
    println!("  seed {seed}");
    let tram = Tramline::open(&place.url).await.unwrap();
    worker(&tram, UNORDERED).subscribe().await.unwrap();
    worker(&tram, ORDERED).ordered_by_key().subscribe().await.unwrap();
    worker(&tram, AT_MOST_ONCE).at_most_once().subscribe().await.unwrap();

    let recorder = Recorder::default();
    let mut crew = Crew::start(&place, recorder.start().await);
    let emitted = Arc::new(Mutex::new(Emitted::default()));
    let stop = CancellationToken::new();
    let emitter = Tramline::open(&place.url_through(PROCESSES)).await.unwrap();
    let emitting = tokio::spawn(emit(emitter, emitted.clone(), recorder.clone(), stop.clone()));

    let mut chance = Chance(seed);
    for number in 0..disturbances {
        let restart = number == disturbances / 2;
        disturb(&place, &mut crew, &recorder, &mut chance, restart).await;
        stale_settlements_are_refused(&tram, &recorder).await;
    }
    stop.cancel();
    emitting.await.unwrap();
    let emitted = std::mem::take(&mut *emitted.lock().unwrap());
    finish(&tram, &recorder, &emitted).await;
    crew.end();
    println!("  {} events emitted, {} records", emitted.acknowledged.len(), recorder.len());
    place.remove().await;
}

/// Emits numbered events to a few keys, never far ahead of the workers.
async fn emit(tram: Tramline, emitted: Arc<Mutex<Emitted>>, recorder: Recorder, stop: CancellationToken) {
    let mut number = 0;
    while !stop.is_cancelled() {
        let batch: Vec<u64> = (number..number + 1 + number % 5).collect();
        number += batch.len() as u64;
        let events: Vec<Event> = batch
            .iter()
            .map(|number| Event::json(TOPIC, number).unwrap().key(format!("key:{}", number % KEYS)))
            .collect();
        emitted.lock().unwrap().sent.extend(&batch);
        // An error leaves open whether the events are stored; a test that does not know must not repeat them.
        if let Ok(receipt) = tram.emit(events).await {
            let ids = receipt.ids().into_iter().map(|id| id.0);
            emitted.lock().unwrap().acknowledged.extend(batch.into_iter().zip(ids));
        }
        let count = emitted.lock().unwrap().acknowledged.len();
        recorder
            .wait(PATIENCE, |log| {
                let ran = |subscription| log.ended(subscription).map_or(0, HashSet::len);
                stop.is_cancelled() || ran(UNORDERED).min(ran(ORDERED)) + AHEAD > count
            })
            .await;
    }
}

/// One disturbance, and then some progress.
async fn disturb(place: &Place, crew: &mut Crew, recorder: &Recorder, chance: &mut Chance, restart: bool) {
    let victim = chance.below(PROCESSES as u64) as usize;
    let kinds = if place.proxies.is_empty() { 2 } else { 7 };
    if let Some(control) = place.control.filter(|_| restart) {
        let control = std::env::var(control).expect("no control of the server: run ./test");
        assert!(Command::new(control).arg("restart").status().unwrap().success());
    }
    match chance.below(kinds) {
        0 => crew.kill(victim, place),
        1 => crew.stop_past_its_lease(victim, recorder).await,
        2 => place.proxies[victim].cut(false),
        3 => place.proxies[victim].cut(true),
        4 => place.proxies[victim].cut_next_answer(),
        5 => place.proxies[PROCESSES].cut_next_answer(),
        _ => {
            place.proxies[victim].set(Mode::Stall);
            progress(recorder, 20).await;
            place.proxies[victim].set(Mode::Pass);
        }
    }
    assert!(progress(recorder, 30).await, "nothing runs any more");
}

async fn progress(recorder: &Recorder, more: usize) -> bool {
    let goal = recorder.len() + more;
    recorder.wait(PATIENCE, |log| log.records.len() >= goal).await
}

/// Claims beside the workers, lets the lease end, and settles late: nothing may change.
async fn stale_settlements_are_refused(tram: &Tramline, recorder: &Recorder) {
    let store: Arc<dyn Store> = tram.store().clone();
    let Ok(subscriptions) = store.subscriptions().await else { return };
    let subscription = subscriptions.iter().find(|s| *s.name == *UNORDERED).unwrap().id;
    let claim = Claim {
        subscription,
        owner: Incarnation::random(),
        max_events: 3,
        max_bytes: 1 << 20,
        lease: Some(Duration::from_millis(50)),
        suspects: Suspects::Leave,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: None,
    };
    let before = recorder.len();
    let Ok(claimed) = store.claim(claim).await else { return };
    let events = claimed.slices.iter().flat_map(|s| s.events.iter().map(|e| (e.event.id.0, s.crashes)));
    let events: Vec<(i64, u32)> = events.collect();
    // Whoever takes them over sees one crash more. An earlier try of theirs may still be recorded after the claim.
    let taken_over = |log: &Log| {
        let later = &log.records[before..];
        let seen = |r: &Record, id: i64| r.id == id && r.subscription == UNORDERED;
        events.iter().all(|(id, crashes)| later.iter().any(|r| seen(r, *id) && r.crashes > *crashes))
    };
    if !recorder.wait(PATIENCE, taken_over).await {
        panic!("events {events:?} were never taken over");
    }
    let late = claimed.slices.iter().map(|slice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|e| (e.event.id.index(), Outcome::dead("too late"))).collect(),
    });
    let settle = Settle { subscription, results: late.collect(), worker: None, now: None };
    if let Ok(settled) = store.settle(settle).await {
        assert!(settled.accepted.iter().flatten().all(|accepted| !accepted), "a stale lease was accepted");
    }
}

/// Everything that was acknowledged runs in the end, and all that was recorded is as promised.
async fn finish(tram: &Tramline, recorder: &Recorder, emitted: &Emitted) {
    for subscription in [UNORDERED, ORDERED] {
        let mut wanted = emitted.acknowledged.iter().map(|(_, id)| *id).peekable();
        let all_ran = |log: &Log| {
            let Some(ran) = log.ended(subscription) else { return wanted.peek().is_none() };
            while wanted.next_if(|id| ran.contains(id)).is_some() {}
            wanted.peek().is_none()
        };
        recorder.wait(PATIENCE * 3, all_ran).await; // the checks below say what is missing
    }
    let records = recorder.records();
    check::nothing_lost(emitted, &records, UNORDERED);
    check::nothing_lost(emitted, &records, ORDERED);
    check::nothing_invented(emitted, &records);
    check::never_twice(&records, AT_MOST_ONCE);
    check::in_order(&records, ORDERED);
    for subscription in [UNORDERED, ORDERED] {
        assert!(
            tram.dead(subscription, Default::default(), 10).await.unwrap().is_empty(),
            "{subscription} has dead events"
        );
    }
}

/// The worker processes.
struct Crew {
    processes: Vec<Child>,
    recorder: String,
}

impl Crew {
    fn start(place: &Place, recorder: String) -> Crew {
        let mut crew = Crew { processes: Vec::new(), recorder };
        for number in 0..PROCESSES {
            let process = crew.spawn(number, place);
            crew.processes.push(process);
        }
        crew
    }

    fn spawn(&self, number: usize, place: &Place) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .env(crate::ROLE, "1")
            .env(URL, place.url_through(number))
            .env(RECORDER, &self.recorder)
            .spawn()
            .unwrap()
    }

    fn kill(&mut self, victim: usize, place: &Place) {
        self.processes[victim].kill().unwrap();
        self.processes[victim].wait().unwrap();
        self.processes[victim] = self.spawn(victim, place);
    }

    /// Stops a process until another one has taken over what it was running, or it was running nothing.
    async fn stop_past_its_lease(&self, victim: usize, recorder: &Recorder) {
        let process = self.processes[victim].id();
        signal("-STOP", process);
        let records = recorder.records();
        let its: HashSet<i64> = records.iter().filter(|r| r.process == process).map(|r| r.id).collect();
        let taken_over = |log: &Log| {
            log.records[records.len()..].iter().any(|late| late.process != process && its.contains(&late.id))
        };
        recorder.wait(LEASE * 2, taken_over).await;
        signal("-CONT", process);
    }

    fn end(&mut self) {
        for process in &mut self.processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill().ok(); // a failed run ends them too
        }
    }
}

fn signal(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

async fn drop_schema(url: &str) {
    use sqlx::{AssertSqlSafe, Connection, Executor};
    let (server, schema) = url.split_once("?schema=").unwrap();
    let mut connection = sqlx::PgConnection::connect(server).await.unwrap();
    connection.execute(AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"))).await.unwrap();
}

async fn run_on_mysql(server: &str, sql: &str) {
    use sqlx::{AssertSqlSafe, Connection};
    let mut connection = sqlx::MySqlConnection::connect(server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}

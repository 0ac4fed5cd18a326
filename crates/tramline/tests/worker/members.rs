//! Processes that join, leave and die: who takes over what, and what it costs the others.

use crate::bed::{SECOND, event};
use crate::support::{Bench, Disturbed, START, start, until};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tramline::{Clock, Event, ManualClock, NoHooks, Options, Result, Shutdown, SqliteStore, Store, Tramline};

/// What a change of the membership may make a process ask.
const ASKED: [&str; 6] = ["claim", "beat", "bury", "settle", "extend", "release"];
/// As many seconds as it takes until somebody silent is dead, and more.
const WHILE: u64 = 12;

/// Processes on one store, each with a count of its own.
struct Crew {
    clock: ManualClock,
    inner: Arc<dyn Store>,
    stores: Vec<Arc<Disturbed>>,
}

type Member = (Shutdown, JoinHandle<Result<()>>);

impl Crew {
    async fn new() -> Crew {
        let inner = Arc::new(SqliteStore::in_memory().await.unwrap());
        Crew { clock: ManualClock::new(START), inner, stores: Vec::new() }
    }

    fn join(&mut self, ordered: bool) -> Member {
        let store = Arc::new(Disturbed::new(self.inner.clone()));
        self.stores.push(store.clone());
        let options = Options::new("").clock(Clock::Manual(self.clock.clone())).hooks(Arc::new(NoHooks));
        let tram = Tramline::from_store(store, options);
        let worker = tram.worker("w").topics(["t"]).on_any(|| async {});
        start(if ordered { worker.ordered_by_key() } else { worker })
    }

    async fn left_alone(&self) {
        for store in &self.stores {
            store.left_alone().await;
        }
    }

    /// Lets time pass, and gives how often the first `members` ask for what meanwhile.
    async fn asked_by(&self, members: usize) -> [u64; ASKED.len()] {
        self.left_alone().await;
        let asked =
            || ASKED.map(|verb| self.stores[..members].iter().map(|store| store.calls(verb)).sum::<u64>());
        let before = asked();
        for _ in 0..WHILE {
            self.clock.advance(SECOND);
            self.left_alone().await;
        }
        let after = asked();
        std::array::from_fn(|at| after[at] - before[at])
    }
}

/// Whoever is there looks once more when somebody comes or goes; with order only for its own lanes, because only these have changed. One
/// that dies is also buried.
#[tokio::test]
async fn a_change_of_the_membership_costs_each_of_the_others_one_more_look() {
    for ordered in [false, true] {
        let mut crew = Crew::new().await;
        let members = [crew.join(ordered), crew.join(ordered)];
        let others = members.len();
        crew.asked_by(others).await; // they learn of each other
        let usual = crew.asked_by(others).await;
        let costs = |asked: [u64; ASKED.len()], more: u64, what: &str| {
            let most = usual.iter().sum::<u64>() + others as u64 * more;
            let sum: u64 = asked.iter().sum();
            assert!(sum <= most, "ordered {ordered}: {what}: {asked:?} of {ASKED:?}, else {usual:?}");
        };
        let third = crew.join(ordered);
        costs(crew.asked_by(others).await, 1, "one more joins");
        third.0.start();
        third.1.await.unwrap().unwrap();
        costs(crew.asked_by(others).await, 1, "it leaves");
        let fourth = crew.join(ordered);
        crew.asked_by(others).await;
        fourth.1.abort();
        assert!(fourth.1.await.is_err());
        costs(crew.asked_by(others).await, 2, "one dies");
        for (shutdown, running) in members {
            shutdown.start();
            running.await.unwrap().unwrap();
        }
    }
}

/// The first one has all there is to do, and never gets on with it.
#[tokio::test]
async fn a_new_worker_has_its_share_of_a_backlog_within_a_heartbeat() {
    let bench = Bench::new().await;
    let (one, two) = (bench.process(), bench.process());
    let (tell, mut begun) = mpsc::unbounded_channel();
    let stuck = one.worker("w").topics(["t"]).ordered_by_key().concurrency(1).on_any(move || {
        tell.send(()).unwrap();
        std::future::pending::<()>()
    });
    stuck.subscribe().await.unwrap();
    let backlog: Vec<Event> = (0..640).map(|n| event("x").key(format!("k{}", n % 64))).collect();
    one.emit(backlog).await.unwrap();
    let (_, first) = start(stuck);
    begun.recv().await.unwrap();
    bench.store.left_alone().await;

    let (tell, mut ran) = mpsc::unbounded_channel();
    let (shutdown, second) = start(two.worker("w").on_any(move || {
        tell.send(()).unwrap();
        async {}
    }));
    until("it is known", || async { one.workers().await.unwrap().len() == 2 }).await;
    bench.store.left_alone().await;
    bench.clock.advance(2 * SECOND);
    bench.store.left_alone().await;
    assert!(ran.try_recv().is_ok(), "{:?}", one.stats("w").await.unwrap().counts);
    shutdown.start();
    second.await.unwrap().unwrap();
    first.abort();
}

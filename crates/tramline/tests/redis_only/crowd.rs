//! Many at once: steps that overtake each other begin anew, and all of them come to an end.

use crate::bed::{Server, claim, claim_by, done, emit, events, subscribe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::task::JoinSet;
use tramline::Event;
use tramline::model::id::Incarnation;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Claim, Suspects};

const PROCESSES: usize = 4;
const EMITS: usize = 20;
const EACH: usize = 10;

async fn a_crowd_emits_and_works(ordering: Ordering) {
    let server = Server::start();
    let first = server.open().await.unwrap();
    let id = subscribe(&first, ordering).await;
    let mut crowd = JoinSet::new();
    for _ in 0..PROCESSES {
        let store = Arc::new(server.open().await.unwrap());
        let emitter = store.clone();
        crowd.spawn(async move {
            for _ in 0..EMITS {
                emit(&*emitter, events(EACH)).await.unwrap();
            }
            0
        });
        crowd.spawn(async move {
            let mut count = 0;
            for _ in 0..EMITS {
                let claimed = claim(&*store, id, 50).await.unwrap();
                let settled = done(&*store, id, &claimed).await.unwrap();
                count += settled.accepted.iter().flatten().filter(|accepted| **accepted).count();
            }
            count
        });
    }
    let mut settled = 0;
    while let Some(count) = crowd.join_next().await {
        settled += count.unwrap();
    }
    let counts = first.stats(id, None).await.unwrap().counts;
    assert_eq!(settled as u64 + counts.pending(), (PROCESSES * EMITS * EACH) as u64);
    assert_eq!(counts.leased, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_order() {
    a_crowd_emits_and_works(Ordering::None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_order() {
    a_crowd_emits_and_works(Ordering::Key).await;
}

const KEYS: usize = 7;
const SUSPECTS: usize = 140;

/// One worker has taken everything and ended. Several take the suspects that it left, one by one.
async fn a_crowd_works_off_suspects() {
    let server = Server::start();
    let first = server.open().await.unwrap();
    let id = subscribe(&first, Ordering::Key).await;
    for number in 0..SUSPECTS {
        let event = Event::new("t", "x").key(format!("key:{}", number % KEYS));
        emit(&first, vec![event]).await.unwrap();
    }
    let taken = claim(&first, id, SUSPECTS as u32).await.unwrap();
    assert_eq!(taken.slices.len(), SUSPECTS);
    let later = taken.now.after(Duration::from_secs(3600));
    let left = Arc::new(AtomicUsize::new(SUSPECTS));
    let mut crowd = JoinSet::new();
    for _ in 0..PROCESSES {
        let (store, left) = (server.open().await.unwrap(), left.clone());
        crowd.spawn(async move {
            while left.load(SeqCst) > 0 {
                let one = claim_by(Incarnation::random(), id, 64);
                let one = Claim { suspects: Suspects::TakeOne, now: Some(later), ..one };
                let claimed = store.claim(one).await.unwrap();
                let settled = done(&store, id, &claimed).await.unwrap();
                let count = settled.accepted.iter().flatten().filter(|accepted| **accepted).count();
                left.fetch_sub(count, SeqCst);
            }
        });
    }
    while let Some(ended) = crowd.join_next().await {
        ended.unwrap();
    }
    assert_eq!(first.stats(id, None).await.unwrap().counts.pending(), 0);
}

/// The story: a claim read in the index that a lane has a suspect, somebody took that, and then the claim read the slice, which was no suspect any
/// more. It looked for the first suspect again, in what it had read, and so on for ever: the process of the worker hung, and others
/// had its lanes when their leases had ended. A step that never ends keeps its thread, so another one waits for it.
#[test]
fn with_suspects_that_others_take_too() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(a_crowd_works_off_suspects());
        tell.send(()).ok(); // nobody waits any more
    });
    told.recv_timeout(Duration::from_secs(100)).expect("a claim never came to its end");
}

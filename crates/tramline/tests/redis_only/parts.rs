//! What is done in parts: a server that is away between two of them.

use crate::bed::{Server, claim, emit, subscribe};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tramline::Event;
use tramline::model::outcome::Outcome;
use tramline::model::subscription::Ordering;
use tramline::store::Store;
use tramline::store::verbs::{Claimed, Settle, SettleSlice};

const EVENTS: u64 = 4_000;
/// How often the moment between two parts is looked for.
const ROUNDS: usize = 20;

fn failures(claimed: &Claimed) -> Vec<SettleSlice> {
    let outcomes = |slice: &tramline::store::verbs::ClaimedSlice| SettleSlice {
        lease: slice.lease,
        outcomes: slice.events.iter().map(|one| (one.event.id.index(), Outcome::retry("no"))).collect(),
    };
    claimed.slices.iter().map(outcomes).collect()
}

/// Whoever were told that all of it failed would settle all of it again, and hear that what is written was lost.
#[tokio::test]
async fn a_settlement_of_which_a_part_is_written_waits_for_a_server_that_refuses_the_rest() {
    let server = Server::start();
    let store = server.open().await.unwrap();
    for ordering in [Ordering::None, Ordering::Key] {
        let mut was_between = false;
        for _ in 0..ROUNDS {
            let id = subscribe(&store, ordering).await;
            let keyed = |n| Event::new("t", "x").key(format!("key-{n}"));
            emit(&store, (0..EVENTS).map(keyed).collect()).await.unwrap();
            let claimed = claim(&store, id, EVENTS as u32).await.unwrap();
            let results = failures(&claimed);
            let count = results.iter().map(|result| result.outcomes.len() as u64).sum::<u64>();
            let settle = Settle { subscription: id, results, worker: None, now: None };
            let over = AtomicBool::new(false);
            let settling = async {
                let settled = store.settle(settle).await;
                over.store(true, SeqCst);
                settled.unwrap()
            };
            let waiting = async || {
                let stats = store.stats(id, None).await.unwrap();
                count - stats.counts.leased
            };
            let refusals = async || server.figure("stats", "total_error_replies").await;
            let between = async {
                while waiting().await == 0 && !over.load(SeqCst) {
                    tokio::task::yield_now().await;
                }
                let refused = refusals().await;
                server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
                while refusals().await == refused && !over.load(SeqCst) {
                    tokio::task::yield_now().await;
                }
                was_between |= !over.load(SeqCst);
                server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
            };
            let (settled, ()) = tokio::join!(settling, between);
            assert!(settled.accepted.iter().flatten().all(|accepted| *accepted), "something was lost");
            assert_eq!(waiting().await, count);
            store.delete_subscription("q").await.unwrap();
            if was_between {
                break;
            }
        }
        assert!(was_between, "{ordering:?}: nobody came between two parts");
    }
}

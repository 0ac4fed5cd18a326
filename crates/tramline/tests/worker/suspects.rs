//! Suspects in a running worker. Time stands still here: whoever waits for his slow poll waits for ever.

use crate::bed::{SECOND, counts};
use crate::on_every_store;
use crate::support::{self, Bench, start, until};
use tramline::model::id::Incarnation;
use tramline::model::lane::{Known, Share};
use tramline::store::Store;
use tramline::store::verbs::{Claim, Suspects};
use tramline::{Event, Worker};

on_every_store! {
    /// All workers had stood still for longer than their leases last, and a thousand slices were suspect. These were worked off at one in a
    /// second, because after each of them, and after each that somebody else had taken, a worker looked for other work first and then
    /// waited for its slow poll.
    async fn many_suspects_are_worked_off_by_one_claim_each(bench: &Bench) {
        for ordered in [false, true] {
            let name = if ordered { "ordered" } else { "unordered" };
            let worker = suspects(bench, name, ordered, 30).await;
            let before = bench.store.calls("claim");
            let (shutdown, running) = start(worker);
            let tram = bench.process();
            until("all are done", || async { tram.stats(name).await.unwrap().counts.pending() == 0 }).await;
            shutdown.start();
            running.await.unwrap().unwrap();
            let claims = bench.store.calls("claim") - before;
            assert!(claims <= 35, "{name}: {claims} claims for 30 suspects");
        }
    }

    /// Another process took the suspect that this one was about to take. There are others.
    async fn who_missed_a_suspect_looks_again_soon(bench: &Bench) {
        let worker = suspects(bench, "w", true, 1).await;
        let mut found = bench.store.hold_answer("claim");
        let (shutdown, running) = start(worker);
        found.begun().await;
        bench.store.pass_over(1);
        found.release();
        let tram = bench.process();
        until("it is done", || async { counts(&tram).await.pending() == 0 }).await;
        shutdown.start();
        running.await.unwrap().unwrap();
    }
}

/// A worker of a subscription of its own topic, with so many suspects.
async fn suspects(bench: &Bench, name: &str, ordered: bool, count: u32) -> Worker {
    let tram = bench.process();
    let worker = tram.worker(name).topics([name]).on_any(|| async {});
    let worker = if ordered { worker.ordered_by_key() } else { worker };
    worker.subscribe().await.unwrap();
    for n in 0..count {
        tram.emit(Event::new(name, "x").key(format!("k{n}"))).await.unwrap();
    }
    let lost = Claim {
        subscription: tram.subscription(name).await.unwrap().id,
        owner: Incarnation::random(),
        max_events: count,
        max_bytes: 1 << 20,
        lease: Some(SECOND),
        suspects: Suspects::Leave,
        share: Share::ALL,
        known: Known::All,
        single: false,
        now: Some(bench.clock.now()),
    };
    let claimed = bench.store.claim(lost).await.unwrap();
    assert_eq!(claimed.slices.len(), count as usize);
    bench.clock.advance(2 * SECOND);
    worker
}

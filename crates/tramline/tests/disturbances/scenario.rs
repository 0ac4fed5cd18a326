//! One scenario: emit all the time, disturb everybody, and check in the end.

use crate::chance::Chance;
use crate::check;
use crate::crew::Crew;
use crate::disturb::Disturber;
use crate::place::Place;
use crate::recorder::{Log, Recorder};
use crate::stale;
use crate::worker::{journaled, worker};
use std::collections::HashSet;
use std::time::Duration;
use tramline::Tramline;
use tramline::model::id::EventId;

pub(crate) const TOPIC: &str = "disturbed";
pub(crate) const UNORDERED: &str = "unordered";
pub(crate) const ORDERED: &str = "ordered";
pub(crate) const AT_MOST_ONCE: &str = "at-most-once";
/// At most once, several at a time, and with a journal: what a process never began runs in its next life.
pub(crate) const JOURNALED: &str = "journaled";
pub(crate) const LEASE: Duration = Duration::from_millis(1000);

/// In so many disturbances old leases are settled again.
const ENOUGH: usize = 24;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What is checked whenever it happens. How often that is, is a matter of chance where there are few disturbances.
#[derive(Default)]
pub(crate) struct Seen {
    /// Leases that were lost and taken over in time.
    pub(crate) taken_over: usize,
    /// Events that journals have saved from being lost by a kill.
    pub(crate) never_begun: usize,
}

pub(crate) async fn run(store: &str, disturbances: usize, seed: u64) -> Seen {
    let place = Place::named(store).await;
    let tram = Tramline::open(&place.url).await.unwrap();
    worker(&tram, UNORDERED).subscribe().await.unwrap();
    worker(&tram, ORDERED).ordered_by_key().subscribe().await.unwrap();
    worker(&tram, AT_MOST_ONCE).at_most_once().subscribe().await.unwrap();
    journaled(&tram).subscribe().await.unwrap();

    let recorder = Recorder::default();
    let crew = Crew::start(&place, recorder.start().await);
    let mut disturber = Disturber::new(&place, crew, &recorder, Chance::new(seed));
    let subscriptions = [UNORDERED, ORDERED];
    let mut refused = [0; 2];
    for number in 0..disturbances {
        if number == disturbances / 2 {
            place.restart();
        }
        disturber.disturb().await;
        let which = number % subscriptions.len();
        let stale = stale::settlements_are_refused(&tram, &recorder, subscriptions[which]).await;
        refused[which] += usize::from(stale);
    }
    end_emitter(&mut disturber.crew, &recorder).await;
    let log = finish(&tram, &recorder).await;
    let (kept_away, taken_over, never_begun) =
        (disturber.kept_away, disturber.taken_over, disturber.crew.never_begun);
    println!(
        "  {} events acknowledged, {} sent, {} records; {taken_over} of {kept_away} lost leases taken over, {refused:?} stale settlements, \
         {never_begun} never begun before a kill",
        log.emitted.acknowledged.len(),
        log.emitted.sent.len(),
        log.records.len(),
    );
    // What is checked whenever it happens has to happen.
    assert!(
        disturbances < ENOUGH || refused.iter().all(|times| *times > 0),
        "stale settlements of {subscriptions:?}: {refused:?}"
    );
    drop(disturber);
    place.remove().await;
    Seen { taken_over, never_begun }
}

/// What it has begun to emit is acknowledged or in doubt before anybody looks.
async fn end_emitter(crew: &mut Crew<'_>, recorder: &Recorder) {
    recorder.stop_emitting();
    until("the emitter ends", async || crew.emitter_has_ended()).await;
}

/// Everything that was acknowledged is done in the end, nothing is left, and all that was recorded is as promised.
async fn finish(tram: &Tramline, recorder: &Recorder) -> Log {
    for subscription in [UNORDERED, ORDERED] {
        let acknowledged = recorder.look(|log| log.emitted.acknowledged.clone());
        let mut wanted = acknowledged.iter().map(|(_, id)| *id).peekable();
        let all_done = |log: &Log| {
            while wanted.next_if(|id| log.is_done(subscription, *id)).is_some() {}
            wanted.peek().is_none()
        };
        if !recorder.wait(PATIENCE * 3, all_done).await {
            // The checks below say what is missing; this is where the store thinks that it is.
            println!("{:?}", tram.stats(subscription).await.unwrap());
            println!("{:?}", tram.parked(subscription, EventId(0), 10).await.unwrap());
        }
    }
    let log = recorder.look(Log::clone);
    for subscription in [UNORDERED, ORDERED] {
        check::nothing_lost(&log, subscription);
    }
    for subscription in [UNORDERED, ORDERED, AT_MOST_ONCE, JOURNALED] {
        // What was consumed at most once, and never settled, is found by a sweep.
        until("nothing is left to do", async || {
            tram.sweep().await.unwrap();
            tram.stats(subscription).await.unwrap().counts.pending() == 0
        })
        .await;
    }
    let log = recorder.look(Log::clone);
    for subscription in [UNORDERED, ORDERED] {
        check::once_per_lease(&log, subscription);
        check::attempts_follow_failures(&log, subscription);
        assert!(dead(tram, subscription).await.is_empty(), "{subscription} has dead events");
    }
    check::nothing_invented(&log);
    for subscription in [AT_MOST_ONCE, JOURNALED] {
        check::never_twice(&log, subscription);
        check::nothing_vanished(&log, subscription, &dead(tram, subscription).await);
    }
    check::in_order(&log, ORDERED);
    log
}

async fn dead(tram: &Tramline, subscription: &str) -> HashSet<i64> {
    let mut dead = HashSet::new();
    let mut after = EventId(0);
    loop {
        let page = tram.dead(subscription, after, 100).await.unwrap();
        let Some(last) = page.last() else { return dead };
        after = last.event.id;
        dead.extend(page.iter().map(|dead| dead.event.id.0));
    }
}

/// Asking is all that can be done from outside.
async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !reached().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asking).await.is_ok(), "never came true: {what}");
}

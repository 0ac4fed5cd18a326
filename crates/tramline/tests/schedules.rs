//! Schedules through the handle: who runs them, how soon a change takes effect, and what an outage does.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod support;

use std::time::Duration;
use support::{Bench, START, until};
use tramline::{Event, EventId, Kind, Missed, Schedule, Tramline};

const MINUTE: Duration = Duration::from_secs(60);

fn minutely(name: &str) -> Schedule {
    Schedule::cron(name, "* * * * *", Event::new("t", "x").kind("tick"))
}

async fn count(tram: &Tramline) -> usize {
    match tram.read_log("t", EventId(0), 1000).await {
        Ok(page) => page.events.len(),
        Err(_) => 0,
    }
}

async fn has_run(tram: &Tramline, runs: usize) {
    until("the schedule has run", || async { count(tram).await >= runs }).await;
    assert_eq!(count(tram).await, runs);
}

/// Waits until the housekeeping has looked and sleeps.
async fn looked(bench: &Bench, calls: u64) {
    until("the housekeeping has looked", || async { bench.store.answers("tick") >= calls }).await;
    support::all_wait().await;
}

on_every_store! {
    async fn the_housekeeping_of_any_process_runs_schedules_and_wakes_workers(bench: &Bench) {
        let (one, other) = (bench.process(), bench.process());
        let (_one, _other) = (one.housekeeping(), other.housekeeping());
        one.put_subscription("q", &["t"], tramline::Policy::default(), tramline::Start::Now).await.unwrap();
        one.put_schedule(minutely("n")).await.unwrap();
        for runs in 1..=5 {
            bench.clock.advance(MINUTE);
            has_run(&one, runs).await;
        }
        assert_eq!(one.stats("q").await.unwrap().counts.ready, 5);
    }

    async fn a_schedule_that_is_put_here_takes_effect_at_once(bench: &Bench) {
        let tram = bench.process();
        let _care = tram.housekeeping();
        looked(bench, 1).await;
        let soon = Schedule::every("n", Duration::from_secs(1), Event::new("t", "x"));
        tram.put_schedule(soon).await.unwrap();
        looked(bench, 2).await;
        // Sooner than a process would look by itself.
        bench.clock.advance(Duration::from_secs(1));
        has_run(&tram, 1).await;
        tram.pause_schedule("n").await.unwrap();
        bench.clock.advance(MINUTE);
        tram.resume_schedule("n").await.unwrap();
        looked(bench, bench.store.calls("tick") + 1).await;
        assert_eq!(count(&tram).await, 1);
        bench.clock.advance(Duration::from_secs(1));
        has_run(&tram, 2).await;
    }

    async fn an_outage_delays_runs_and_repeats_none(bench: &Bench) {
        let tram = bench.process();
        // So rare that it is due once, however often the clock is turned below.
        let yearly = Schedule::cron("n", "@yearly", Event::new("t", "x")).missed(Missed::All);
        let next = tram.put_schedule(yearly).await.unwrap().next_run.unwrap();
        let _care = tram.housekeeping();
        looked(bench, 2).await;
        bench.store.lose_answer("tick");
        bench.store.fail("tick", Kind::Unavailable);
        bench.clock.advance(next.since(START));
        until("it looks again after both", || async {
            bench.clock.advance(Duration::from_millis(10));
            bench.store.calls("tick") >= 5
        })
        .await;
        has_run(&tram, 1).await;
        assert_eq!(tram.schedule("n").await.unwrap().last_run, Some(next));
    }

    async fn an_idle_process_looks_every_few_seconds_and_sleeps_until_the_next_run(bench: &Bench) {
        let tram = bench.process();
        tram.put_schedule(minutely("n")).await.unwrap();
        let _care = tram.housekeeping();
        looked(bench, 1).await;
        for second in 1..60 {
            bench.clock.advance(Duration::from_secs(1));
            looked(bench, 1 + second / 5).await;
        }
        // One look at the start, one every five seconds, and one for the bell of the schedule that was put.
        assert!(bench.store.calls("tick") <= 14, "{} looks in a minute", bench.store.calls("tick"));
        assert_eq!(count(&tram).await, 0);
    }

    async fn a_program_declares_its_schedules_whenever_it_starts(bench: &Bench) {
        let tram = bench.process();
        let first = tram.declare_schedules("mail", [minutely("digest"), minutely("old")]).await.unwrap();
        assert_eq!(first.len(), 2);
        // Nobody was there for the first run; the program that starts now makes up for it.
        bench.clock.advance(MINUTE);
        let again = bench.process();
        again.declare_schedules("mail", [minutely("digest")]).await.unwrap();
        let names: Vec<_> = again.schedules(None, 100).await.unwrap();
        assert_eq!(names.iter().map(|it| it.schedule.name()).collect::<Vec<_>>(), ["digest"]);
        let _care = again.housekeeping();
        has_run(&again, 1).await;
    }

    async fn a_run_can_be_asked_for(bench: &Bench) {
        let tram = bench.process();
        tram.put_schedule(minutely("n")).await.unwrap();
        let receipt = tram.run_schedule_now("n").await.unwrap();
        let stored = tram.schedule("n").await.unwrap();
        assert_eq!((stored.last_event, stored.last_run), (Some(receipt.id()), Some(START)));
        assert_eq!(stored.next_run, Some(START.after(MINUTE)));
        let event = tram.event(receipt.id()).await.unwrap().unwrap().event;
        assert_eq!(event.headers["tramline-scheduled-at"], "2030-01-01T00:00:00Z");
        tram.delete_schedule("n").await.unwrap();
        for refused in [tram.run_schedule_now("n").await.err(), tram.delete_schedule("n").await.err()] {
            assert_eq!(refused.unwrap().kind(), Kind::NotFound);
        }
        assert_eq!(tram.schedule("n").await.unwrap_err().kind(), Kind::NotFound);
    }
}

//! Ticks: each run of a schedule is emitted once, whoever ticks, whenever it dies and whatever the clock does.

use crate::bed::*;
use crate::schedules::minutely;
use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use tramline::Filter;

conformance![
    a_due_schedule_emits_its_event_like_every_emit,
    nothing_is_emitted_before_its_time,
    missed_runs_follow_the_policy,
    of_too_many_missed_runs_the_newest_are_emitted,
    a_clock_that_jumps_repeats_nothing_and_loses_nothing,
    ten_nodes_emit_each_run_once,
    a_tick_that_dies_between_its_steps_is_made_up_for,
    a_deleted_schedule_stays_deleted_while_others_tick,
    many_schedules_run_in_bounded_steps,
    a_year_of_hours_in_vienna_has_every_hour_once,
    a_leap_day_comes_every_four_years_and_no_other_day_stands_in_for_it,
];

/// The minutes from 08:00 on, as headers tell them.
fn minutes(which: impl IntoIterator<Item = u32>) -> Vec<String> {
    which
        .into_iter()
        .map(|minute| format!("2027-01-15T{:02}:{:02}:00Z", 8 + minute / 60, minute % 60))
        .collect()
}

async fn tick_at(bed: &Bed, time: Time) -> Ticked {
    bed.store.tick(Tick { limit: 100, now: Some(time) }).await.unwrap()
}

async fn a_due_schedule_emits_its_event_like_every_emit(bed: Bed) {
    let filter: Filter = serde_json::from_str(r#"[{"field": "type", "equals": "wanted"}]"#).unwrap();
    let all = bed.queue_named("all", &["new/topic"], ordered()).await;
    let none = bed.queue_named("none", &["new/topic"], Policy { filter, ..unordered() }).await;
    let emission = bed.try_emit(vec![Event::new("new/topic", "y").key("k")]).await.unwrap();
    let before = emission.events[0].id;
    let event = Event::new("new/topic", "x").kind("tick").key("k").header("h", "v");
    bed.put_schedule(Schedule::cron("a/n", "* * * * *", event)).await;
    bed.pass(seconds(61));
    let ticked = tick_at(&bed, bed.time()).await;
    assert_eq!((ticked.events, ticked.wake), (1, emission.wake));
    assert_eq!((ticked.now, ticked.next), (bed.time(), Some(bed.time().after(seconds(59)))));
    bed.pass(seconds(60));
    bed.tick().await;
    let events = bed.emitted("new/topic").await;
    let told = |at: usize| {
        let event = &events[at];
        (event.prev, event.headers["tramline-schedule"].as_str(), event.headers["h"].as_str(), &*event.kind)
    };
    assert_eq!(told(1), (Some(before), "a/n", "v", "tick"));
    assert_eq!(told(2), (Some(events[1].id), "a/n", "v", "tick"));
    assert_eq!(events[1].headers["tramline-scheduled-at"], "2027-01-15T08:01:00Z");
    let stands = bed.schedule("a/n").await;
    assert_eq!(
        (stands.last_event, stands.last_run),
        (Some(events[2].id), Some(bed.time().before(seconds(1))))
    );
    assert_eq!((all.drain().await.len(), none.drain().await.len()), (3, 0));
}

async fn nothing_is_emitted_before_its_time(bed: Bed) {
    assert_eq!(tick_at(&bed, bed.time()).await.next, None);
    bed.put_schedule(minutely("n")).await;
    bed.pass(seconds(60) - std::time::Duration::from_millis(1));
    assert_eq!(bed.tick().await, 0);
    bed.pass(std::time::Duration::from_millis(1));
    assert_eq!((bed.tick().await, bed.tick().await), (1, 0));
}

async fn missed_runs_follow_the_policy(bed: Bed) {
    for (name, missed) in [("skip", Missed::Skip), ("one", Missed::One), ("all", Missed::All)] {
        let event = Event::new(name, "x").key("k");
        bed.put_schedule(Schedule::cron(name, "*/10 * * * *", event).missed(missed)).await;
    }
    bed.pass(seconds(35 * 60));
    assert_eq!(bed.tick().await, 4);
    assert_eq!(bed.scheduled("skip").await, minutes([]));
    assert_eq!(bed.scheduled("one").await, minutes([30]));
    assert_eq!(bed.scheduled("all").await, minutes([10, 20, 30]));
    assert_eq!(bed.schedule("skip").await.last_run, None);
    bed.pass(seconds(5 * 60 + 3));
    assert_eq!(bed.tick().await, 3, "a little late is not missed");
    let events = bed.emitted("all").await;
    assert!(events.windows(2).all(|pair| pair[1].prev == Some(pair[0].id)));
}

async fn of_too_many_missed_runs_the_newest_are_emitted(bed: Bed) {
    bed.put_schedule(minutely("n").missed(Missed::All)).await;
    bed.pass(seconds(250 * 60));
    assert_eq!(bed.tick().await, 100);
    assert_eq!(bed.scheduled("t").await, minutes(151..=250));
    bed.pass(seconds(60));
    assert_eq!(bed.tick().await, 1);
}

async fn a_clock_that_jumps_repeats_nothing_and_loses_nothing(bed: Bed) {
    bed.put_schedule(minutely("n").missed(Missed::All)).await;
    let start = bed.time();
    let at = |minute: u64| start.after(seconds(60 * minute));
    assert_eq!(tick_at(&bed, at(3)).await.events, 3, "forwards: those are missed runs");
    for back in [0, 1, 2, 3] {
        let ticked = tick_at(&bed, at(back)).await;
        assert_eq!((ticked.events, ticked.next), (0, Some(at(4))), "backwards: they have run");
    }
    // Also not by way of a change that computes the next run anew.
    for paused in [true, false] {
        let pause = PauseSchedule { name: "n".into(), paused, now: Some(at(1)) };
        bed.store.pause_schedule(pause).await.unwrap();
    }
    let faster = Schedule::cron("n", "*/30 * * * * *", Event::new("t", "x")).missed(Missed::All);
    let put = PutSchedule { schedule: faster, paused: None, over: Over::Anything, now: Some(at(1)) };
    assert_eq!(bed.store.put_schedule(put).await.unwrap().next_run, Some(at(3).after(seconds(30))));
    assert_eq!(tick_at(&bed, at(3)).await.events, 0);
    assert_eq!(tick_at(&bed, at(4)).await.events, 2);
    let times = bed.scheduled("t").await;
    assert_eq!(times.iter().collect::<HashSet<_>>().len(), times.len());
}

async fn ten_nodes_emit_each_run_once(bed: Bed) {
    for name in ["a", "b", "c"] {
        let event = Event::new("t", name).key("k");
        bed.put_schedule(Schedule::cron(name, "* * * * *", event).missed(Missed::All)).await;
    }
    let mut nodes = Vec::new();
    for _ in 0..10 {
        nodes.push(bed.twin().await);
    }
    for _ in 0..8 {
        bed.pass(seconds(120));
        let nodes = &nodes;
        in_parallel(10, |n| {
            let node = nodes[n as usize - 1].clone();
            async move { node.tick().await }
        })
        .await;
    }
    let events = bed.emitted("t").await;
    let runs: HashSet<(String, String)> = events
        .iter()
        .map(|event| ["tramline-schedule", "tramline-scheduled-at"].map(|name| event.headers[name].clone()))
        .map(|[name, at]| (name, at))
        .collect();
    assert_eq!((events.len(), runs.len()), (48, 48));
    for name in ["a", "b", "c"] {
        let of = |run: &&(String, String)| run.0 == name;
        let mut times: Vec<String> = runs.iter().filter(of).map(|run| run.1.clone()).collect();
        times.sort();
        assert_eq!(times, minutes(1..=16));
    }
}

/// Polls a future so often and no more.
async fn poll_at_most(times: u32, future: impl Future) {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|cx| {
        if left == 0 || future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        Poll::Pending
    })
    .await;
}

async fn a_tick_that_dies_between_its_steps_is_made_up_for(bed: Bed) {
    let event = Event::new("t", "x").key("k");
    bed.put_schedule(Schedule::cron("n", "* * * * *", event).missed(Missed::All)).await;
    let minutes_passed = 50;
    for polls in 0..minutes_passed {
        bed.pass(seconds(60));
        let node = bed.twin().await;
        poll_at_most(polls, node.store.tick(Tick { limit: 100, now: bed.now() })).await;
        drop(node);
        bed.tick().await;
    }
    assert_eq!(bed.scheduled("t").await, minutes(1..=minutes_passed));
    let events = bed.emitted("t").await;
    assert!(events.windows(2).all(|pair| pair[1].prev == Some(pair[0].id)));
}

async fn a_deleted_schedule_stays_deleted_while_others_tick(bed: Bed) {
    let bed = &bed;
    for round in 0..5 {
        let name = format!("n{round}");
        bed.put_schedule(minutely(&name)).await;
        bed.pass(seconds(60));
        in_parallel(4, |n| {
            let (bed, name) = (bed.clone(), name.clone());
            async move {
                match n {
                    1 => bed.store.delete_schedule(&name).await.unwrap(),
                    _ => drop(bed.tick().await),
                }
            }
        })
        .await;
        assert_eq!(bed.store.schedule(&name).await.unwrap(), None);
        let runs = bed.emitted("t").await.iter().filter(|it| it.headers["tramline-schedule"] == name).count();
        assert!(runs <= 1);
    }
}

async fn many_schedules_run_in_bounded_steps(bed: Bed) {
    for n in 0..25 {
        bed.put_schedule(minutely(&format!("n{n}")).missed(Missed::All)).await;
    }
    bed.pass(seconds(60));
    let mut steps = Vec::new();
    loop {
        let ticked = bed.store.tick(Tick { limit: 10, now: bed.now() }).await.unwrap();
        steps.push(ticked.events);
        if !ticked.more {
            break;
        }
    }
    assert_eq!(steps, [10, 10, 5]);
    bed.pass(seconds(3600));
    let first = bed.store.tick(Tick { limit: 100, now: bed.now() }).await.unwrap();
    assert!(first.more && first.events < 300, "{} events in one step", first.events);
    assert_eq!(first.events + bed.tick().await, 25 * 60);
}

/// With both changes of the clocks in it, and looked at in uneven steps.
async fn a_year_of_hours_in_vienna_has_every_hour_once(bed: Bed) {
    let hourly = Schedule::cron("n", "0 * * * *", Event::new("t", "x")).zone("Europe/Vienna");
    bed.put_schedule(hourly.missed(Missed::All)).await;
    let night = Schedule::cron("night", "30 2 * * *", Event::new("night", "x")).zone("Europe/Vienna");
    bed.put_schedule(night.missed(Missed::All)).await;
    let start = bed.time();
    let (mut hours, mut step) = (0, 1);
    while hours < 365 * 24 {
        step = step * 7 % 97 + 1;
        hours += step;
        bed.pass(seconds(step * 3600));
        bed.tick().await;
    }
    let expected: Vec<String> = (1..=hours).map(|hour| shown(start.after(seconds(3600 * hour)))).collect();
    assert_eq!(bed.scheduled("t").await, expected);
    // 01:30 in UTC in winter, 00:30 in summer, and 01:00 on the day that has no 02:30.
    let nights = bed.scheduled("night").await;
    let of = |time: &str| nights.iter().filter(|night| night.ends_with(time)).count();
    assert_eq!((of("T01:00:00Z"), of("T00:30:00Z")), (1, 217));
    assert_eq!(of("T01:30:00Z"), nights.len() - 218);
    let days: HashSet<&str> = nights.iter().map(|night| &night[..10]).collect();
    assert_eq!(days.len(), nights.len());
    assert!(nights.contains(&"2027-03-28T01:00:00Z".to_owned()));
    assert!(nights.contains(&"2027-10-31T00:30:00Z".to_owned()));
}

async fn a_leap_day_comes_every_four_years_and_no_other_day_stands_in_for_it(bed: Bed) {
    let hour = 3600;
    bed.pass(seconds((350 * 24 + 16) * hour));
    assert_eq!(shown(bed.time()), "2028-01-01T00:00:00Z");
    let leap = Schedule::cron("n", "0 12 29 2 *", Event::new("t", "x")).missed(Missed::All);
    bed.put_schedule(leap).await;
    let next = async || bed.schedule("n").await.next_run.map(shown).unwrap();
    for year in [2028, 2032, 2036] {
        assert_eq!(next().await, format!("{year}-02-29T12:00:00Z"));
        for _ in 0..4 * 12 {
            bed.pass(seconds(365 * 24 * hour / 12));
            bed.tick().await;
        }
    }
    assert_eq!(next().await, "2040-02-29T12:00:00Z");
    let runs = [2028, 2032, 2036].map(|year| format!("{year}-02-29T12:00:00Z"));
    assert_eq!(bed.scheduled("t").await, runs);
}

fn shown(time: Time) -> String {
    jiff::Timestamp::from_millisecond(time.0).unwrap().to_string()
}

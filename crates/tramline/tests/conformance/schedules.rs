//! Schedules as they are put, changed, declared, paused and deleted.

use crate::bed::*;

conformance![
    a_schedule_is_put_found_and_deleted,
    schedules_are_listed_by_name_in_pages,
    what_is_put_again_keeps_how_it_stands,
    a_schedule_replaces_only_what_it_may,
    impossible_schedules_are_refused,
    what_is_no_longer_declared_is_deleted_and_others_are_left_alone,
    what_is_declared_is_stored_together_or_not_at_all,
    many_may_declare_and_put_the_same_at_once,
    a_paused_schedule_runs_nothing_and_makes_up_for_nothing,
    a_run_that_was_asked_for_changes_no_times,
];

pub(crate) fn minutely(name: &str) -> Schedule {
    Schedule::cron(name, "* * * * *", Event::new("t", "x"))
}

async fn names(bed: &Bed) -> Vec<String> {
    let all = bed.store.schedules(ListSchedules { after: None, limit: 100 }).await.unwrap();
    all.iter().map(|stored| stored.schedule.name().to_owned()).collect()
}

async fn declare(bed: &Bed, by: &str, schedules: &[Schedule]) -> Result<Vec<StoredSchedule>> {
    let declare = DeclareSchedules { by: by.into(), schedules: schedules.to_vec(), now: bed.now() };
    bed.store.declare_schedules(declare).await
}

async fn a_schedule_is_put_found_and_deleted(bed: Bed) {
    let event = Event::new("t", vec![0, 255]).kind("k").key("key").header("h", "v").priority(3);
    let schedule = Schedule::cron("a/n", "30 8 * * *", event).zone("Europe/Vienna").missed(Missed::All);
    let put = bed.put_schedule(schedule.clone()).await;
    assert_eq!(put.schedule, schedule);
    assert_eq!(bed.schedule("a/n").await, put);
    assert_eq!((put.created_at, put.updated_at, put.paused), (bed.time(), bed.time(), false));
    // It is 09:00 in Vienna: the next 08:30 is tomorrow's.
    assert_eq!(put.next_run, Some(bed.time().after(seconds(23 * 3600 + 1800))));
    assert_eq!((put.last_run, put.last_event, put.declared_by), (None, None, None));
    bed.store.delete_schedule("a/n").await.unwrap();
    assert_eq!(bed.store.schedule("a/n").await.unwrap(), None);
    assert_eq!(bed.store.delete_schedule("a/n").await.unwrap_err().kind(), Kind::NotFound);
}

async fn schedules_are_listed_by_name_in_pages(bed: Bed) {
    for name in ["b", "a/x", "a", "B", "c"] {
        bed.put_schedule(minutely(name)).await;
    }
    assert_eq!(names(&bed).await, ["B", "a", "a/x", "b", "c"]);
    let page = bed.store.schedules(ListSchedules { after: Some("a".into()), limit: 2 }).await.unwrap();
    assert_eq!(page.iter().map(|it| it.schedule.name()).collect::<Vec<_>>(), ["a/x", "b"]);
}

async fn what_is_put_again_keeps_how_it_stands(bed: Bed) {
    let every = |minutes: u64| Schedule::every("n", seconds(60 * minutes), Event::new("t", "x"));
    let first = bed.put_schedule(every(5)).await;
    assert_eq!(first.next_run, Some(bed.time().after(seconds(300))));
    bed.pass(seconds(300));
    assert_eq!(bed.tick().await, 1);
    let ran = bed.schedule("n").await;
    assert_eq!(ran.last_run, first.next_run);
    assert!(ran.last_event.is_some());
    bed.pass(seconds(100));
    assert_eq!(bed.put_schedule(every(5)).await, ran, "nothing has changed");
    let other = Schedule::every("n", seconds(300), Event::new("t", "y"));
    let changed = bed.put_schedule(other.clone()).await;
    let expected = StoredSchedule { schedule: other, updated_at: bed.time(), ..ran.clone() };
    assert_eq!(changed, expected, "the times are the same");
    let slower = bed.put_schedule(every(7)).await;
    assert_eq!(slower.next_run, Some(bed.time().after(seconds(420))));
    assert_eq!((slower.last_run, slower.created_at), (ran.last_run, ran.created_at));
}

async fn a_schedule_replaces_only_what_it_may(bed: Bed) {
    let put = |over: Over| {
        let put = PutSchedule { schedule: minutely("n"), paused: None, over, now: bed.now() };
        bed.store.put_schedule(put)
    };
    put(Over::Nothing).await.unwrap();
    for over in [Over::Nothing, Over::Topic("other".into())] {
        assert_eq!(put(over).await.unwrap_err().kind(), Kind::Conflict);
    }
    put(Over::Topic("t".into())).await.unwrap();
}

async fn impossible_schedules_are_refused(bed: Bed) {
    let event = || Event::new("t", "x");
    for bad in [
        Schedule::cron("n", "60 * * * *", event()),
        Schedule::cron("n", "@daily", event()).zone("Mars/Olympus"),
        Schedule::every("n", seconds(0), event()),
        Schedule::cron("n", "@daily", Event::new("no topic", "x")),
        Schedule::cron("", "@daily", event()),
    ] {
        let put = PutSchedule { schedule: bad.clone(), paused: None, over: Over::Anything, now: bed.now() };
        assert_eq!(bed.store.put_schedule(put).await.unwrap_err().kind(), Kind::Invalid, "{bad:?}");
        assert_eq!(declare(&bed, "service", &[bad]).await.unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(names(&bed).await, [""; 0]);
}

async fn what_is_no_longer_declared_is_deleted_and_others_are_left_alone(bed: Bed) {
    bed.put_schedule(minutely("by-hand")).await;
    declare(&bed, "billing", &[minutely("bills")]).await.unwrap();
    declare(&bed, "mail", &[minutely("digest"), minutely("cleanup")]).await.unwrap();
    assert_eq!(names(&bed).await, ["bills", "by-hand", "cleanup", "digest"]);
    assert_eq!(bed.schedule("digest").await.declared_by.as_deref(), Some("mail"));
    bed.pause_schedule("digest", true).await;
    bed.pass(seconds(60));
    assert_eq!(bed.tick().await, 3);
    let before = bed.schedule("digest").await;
    let declared = declare(&bed, "mail", &[minutely("new"), minutely("digest")]).await.unwrap();
    assert_eq!(declared.len(), 2);
    assert_eq!(names(&bed).await, ["bills", "by-hand", "digest", "new"]);
    assert_eq!(bed.schedule("digest").await, before, "an operator's pause stays");
    declare(&bed, "mail", &[]).await.unwrap();
    assert_eq!(names(&bed).await, ["bills", "by-hand"]);
}

async fn what_is_declared_is_stored_together_or_not_at_all(bed: Bed) {
    bed.put_schedule(minutely("by-hand")).await;
    declare(&bed, "mail", &[minutely("old")]).await.unwrap();
    for (by, name) in [("mail", "by-hand"), ("billing", "old")] {
        let refused = declare(&bed, by, &[minutely("a"), minutely(name), minutely("z")]).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Conflict);
    }
    let twice = declare(&bed, "mail", &[minutely("a"), minutely("a")]).await.unwrap_err();
    assert_eq!(twice.kind(), Kind::Invalid);
    assert_eq!(names(&bed).await, ["by-hand", "old"]);
}

async fn many_may_declare_and_put_the_same_at_once(bed: Bed) {
    let bed = &bed;
    in_parallel(6, |n| {
        let bed = bed.clone();
        async move {
            let bed = bed.twin().await;
            let mut all = ["a", "b", "c", "d"].map(minutely);
            all.rotate_left(n as usize % 4);
            declare(&bed, "service", &all).await.unwrap();
            bed.put_schedule(minutely("by-hand")).await;
        }
    })
    .await;
    assert_eq!(names(bed).await, ["a", "b", "by-hand", "c", "d"]);
}

async fn a_paused_schedule_runs_nothing_and_makes_up_for_nothing(bed: Bed) {
    bed.put_schedule(minutely("n").missed(Missed::All)).await;
    bed.pass(seconds(120));
    let paused = bed.pause_schedule("n", true).await;
    assert_eq!((paused.paused, paused.next_run), (true, None));
    bed.pass(seconds(600));
    assert_eq!(bed.tick().await, 0);
    bed.pause_schedule("n", true).await;
    let resumed = bed.pause_schedule("n", false).await;
    assert_eq!(resumed.next_run, Some(bed.time().after(seconds(60))));
    assert_eq!(bed.pause_schedule("n", false).await, resumed, "again is harmless");
    bed.pass(seconds(60));
    assert_eq!(bed.tick().await, 1);
    let put =
        PutSchedule { schedule: minutely("n"), paused: Some(true), over: Over::Anything, now: bed.now() };
    assert!(bed.store.put_schedule(put).await.unwrap().paused);
    let nobody = PauseSchedule { name: "nobody".into(), paused: true, now: bed.now() };
    assert_eq!(bed.store.pause_schedule(nobody).await.unwrap_err().kind(), Kind::NotFound);
}

async fn a_run_that_was_asked_for_changes_no_times(bed: Bed) {
    let queue = bed.queue_named("queue", &["t"], unordered()).await;
    let put = bed.put_schedule(minutely("n")).await;
    bed.pass(seconds(7));
    let run = || bed.store.run_schedule(NameSchedule { name: "n".into(), now: bed.now() });
    let emission = run().await.unwrap();
    assert_eq!((emission.events.len(), &emission.wake), (1, &vec![queue.id]));
    let (last_run, last_event) = (bed.now(), Some(emission.events[0].id));
    assert_eq!(bed.schedule("n").await, StoredSchedule { last_run, last_event, ..put });
    bed.pause_schedule("n", true).await;
    run().await.unwrap();
    assert_eq!(bed.scheduled("t").await, ["2027-01-15T08:00:07Z"; 2]);
    let nobody = bed.store.run_schedule(NameSchedule { name: "nobody".into(), now: bed.now() }).await;
    assert_eq!(nobody.unwrap_err().kind(), Kind::NotFound);
}

//! What sweeps do about tallies: expiry, removal, and proof that none is stuck.

use crate::bed::*;
use crate::tally_news::{kinds, told};
use std::sync::Arc;

conformance![
    a_tally_expires_and_never_completes,
    a_tally_past_its_time_has_expired_before_a_sweep_meets_it,
    the_expiry_of_a_tally_is_told_once_however_it_goes,
    tallies_past_their_time_are_listed_as_expired,
    idle_tallies_are_removed_open_and_sealed_apart,
    idle_tallies_of_one_topic_are_removed_and_the_others_counted,
    activity_postpones_removal,
    a_removal_with_many_parts_is_done_in_steps,
    a_tally_that_lost_count_is_put_right,
    a_sweep_finds_nothing_wrong_with_what_is_right,
];

async fn a_tally_expires_and_never_completes(bed: Bed) {
    let tally = bed.open(NewTally::new().expires_in(seconds(60))).await;
    let kept = bed.open(NewTally::new()).await;
    let complete = bed.open(NewTally::new().expires_in(seconds(60))).await;
    bed.add(tally, 1).await;
    bed.seal(tally).await;
    bed.seal(complete).await;
    bed.pass(seconds(59));
    assert_eq!(bed.sweep_tallies().await.expired, 0);
    bed.pass(seconds(1));
    assert_eq!(bed.sweep_tallies().await.expired, 1);
    assert_eq!(bed.sweep_tallies().await.expired, 0);
    assert!(!bed.ack(tally, 0).await);
    assert_eq!(bed.tally(tally).await.state, TallyState::Expired);
    assert_eq!(bed.tally(kept).await.state, TallyState::Open);
    assert!(bed.tally(complete).await.is_complete());
}

/// Nobody had swept yet, and the last ack completed a tally whose time was over.
async fn a_tally_past_its_time_has_expired_before_a_sweep_meets_it(bed: Bed) {
    let expiring = || NewTally::new().expires_in(seconds(60));
    let (sealed, open) = (bed.open(expiring()).await, bed.open(expiring().growing()).await);
    let counter = bed.open(expiring().estimated()).await;
    for tally in [sealed, open] {
        bed.add(tally, 2).await;
    }
    bed.ack(sealed, 0).await;
    bed.seal(sealed).await;
    let expires_at = bed.tally(sealed).await.expires_at;
    bed.pass(seconds(60));
    let late = bed.ack_all(vec![Ack { tally: sealed, items: vec![1.into()], ending: Ending::Done }]).await;
    assert_eq!((late.results[0][0].closed, late.completed.len()), (1, 0));
    assert_eq!(bed.try_seal(open, None).await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(bed.try_add(open, 1).await.unwrap_err().kind(), Kind::Conflict);
    for parent in [Parent::New(open), Parent::Item(TallyItem { tally: open, number: 0 })] {
        let child = bed.try_open(NewTally::new().parent(parent)).await;
        assert_eq!(child.unwrap_err().kind(), Kind::Conflict);
    }
    let cancel = NameTally { tally: open, now: bed.now() };
    assert_eq!(bed.store.cancel_tally(cancel).await.unwrap_err().kind(), Kind::Conflict);
    let counts = vec![(counter, 1), (counter, -1)];
    let counted = bed.store.count_tallies(CountTallies { counts, now: bed.now() }).await.unwrap();
    assert!(counted[0].is_err());
    assert_eq!(counted[1].as_ref().unwrap().tally.state, TallyState::Expired);
    bed.queue(unordered()).await;
    assert!(bed.try_emit(vec![plain_event().tally(open)]).await.is_err());
    for tally in [sealed, open, counter] {
        let found = bed.tally(tally).await;
        assert_eq!((found.state, found.ended_at), (TallyState::Expired, expires_at));
    }
    bed.pass(seconds(5));
    assert_eq!(bed.sweep_tallies().await.expired, 3);
    let found = bed.tally(sealed).await;
    assert_eq!((found.state, found.done, found.ended_at), (TallyState::Expired, 1, expires_at));
}

async fn the_expiry_of_a_tally_is_told_once_however_it_goes(bed: Bed) {
    let parent = bed.open(NewTally::new()).await;
    let expiring = |name| {
        NewTally::new().topic(name).expires_in(seconds(60)).parent(Parent::New(parent)).on_expiry(told(name))
    };
    let swept = bed.open(expiring("swept")).await;
    let deleted = bed.open(expiring("deleted")).await;
    bed.open(expiring("removed")).await;
    bed.add(swept, 1).await;
    bed.seal(parent).await;
    bed.pass(seconds(60));
    bed.ack(swept, 0).await;
    bed.store.delete_tally(NameTally { tally: deleted, now: bed.now() }).await.unwrap();
    let topic = Some("removed".to_owned());
    let reap = ReapTallies { open: true, idle_since: bed.time(), topic, limit: 10, now: bed.now() };
    assert_eq!(bed.store.reap_tallies(reap).await.unwrap().tallies, 1);
    for _ in 0..2 {
        bed.sweep_tallies().await;
        bed.deliver().await;
    }
    let mut all = kinds(&bed).await;
    all.sort();
    assert_eq!(all, ["deleted", "removed", "swept"].map(Arc::from));
    assert_eq!(bed.tallied(parent).await, (3, 0, 3));
}

async fn tallies_past_their_time_are_listed_as_expired(bed: Bed) {
    let expiring = || NewTally::new().user_key("k").expires_in(seconds(60));
    let swept = bed.open(expiring()).await;
    bed.pass(seconds(60));
    bed.sweep_tallies().await;
    let (open, sealed) = (bed.open(expiring()).await, bed.open(expiring()).await);
    bed.add(sealed, 1).await;
    bed.seal(sealed).await;
    let kept = bed.open(NewTally::new().user_key("k")).await;
    bed.pass(seconds(60));
    let list = async |states: &[TallyState], user_key: Option<&str>| {
        let user_key = user_key.map(str::to_owned);
        let list =
            ListTallies { states: states.to_vec(), user_key, after: TallyId(0), limit: 9, now: bed.now() };
        bed.store.tallies(list).await.unwrap().iter().map(|tally| tally.id).collect::<Vec<_>>()
    };
    for key in [None, Some("k")] {
        assert_eq!(list(&[TallyState::Expired], key).await, [swept, open, sealed]);
        assert_eq!(list(&[TallyState::Open, TallyState::Sealed], key).await, [kept]);
        assert_eq!(list(&[TallyState::Open, TallyState::Expired], key).await, [swept, open, sealed, kept]);
    }
}

async fn idle_tallies_are_removed_open_and_sealed_apart(bed: Bed) {
    let (open, sealed) = (bed.open(NewTally::new()).await, bed.open(NewTally::new()).await);
    bed.add(open, 7).await;
    bed.add(sealed, 3).await;
    bed.seal(sealed).await;
    bed.pass(seconds(10));
    let reap = async |open, ago| {
        let idle_since = bed.time().before(seconds(ago));
        let reap = ReapTallies { open, idle_since, topic: None, limit: 10, now: bed.now() };
        let reaped = bed.store.reap_tallies(reap).await.unwrap();
        (reaped.tallies, reaped.items)
    };
    assert_eq!(reap(true, 10).await, (0, 0));
    assert_eq!(reap(true, 9).await, (1, 7));
    assert_eq!(reap(true, 9).await, (0, 0));
    assert!(bed.store.tally(NameTally { tally: open, now: None }).await.unwrap().is_none());
    assert_eq!(reap(false, 10).await, (0, 0));
    assert_eq!(reap(false, 0).await, (1, 3));
}

async fn idle_tallies_of_one_topic_are_removed_and_the_others_counted(bed: Bed) {
    let own = bed.open(NewTally::new().topic("imports")).await;
    let other = bed.open(NewTally::new().topic("exports")).await;
    let free = bed.open(NewTally::new()).await;
    assert_eq!(bed.tally(own).await.topic.as_deref(), Some("imports"));
    assert_eq!(bed.tally(free).await.topic, None);
    bed.seal(other).await;
    let counts = bed.store.tally_counts().await.unwrap();
    assert_eq!((counts.open, counts.sealed, counts.complete), (2, 0, 1));
    bed.pass(seconds(10));
    for (open, removed) in [(true, 1), (false, 0)] {
        let topic = Some("imports".to_owned());
        let reap = ReapTallies { open, idle_since: bed.time(), topic, limit: 10, now: bed.now() };
        assert_eq!(bed.store.reap_tallies(reap).await.unwrap().tallies, removed);
    }
    let counts = bed.store.tally_counts().await.unwrap();
    assert_eq!((counts.open, counts.complete), (1, 1));
}

async fn activity_postpones_removal(bed: Bed) {
    let acked = bed.open(NewTally::new()).await;
    let added = bed.open(NewTally::new()).await;
    let silent = bed.open(NewTally::new()).await;
    for tally in [acked, added, silent] {
        bed.add(tally, 100).await;
    }
    bed.pass(seconds(6 * 24 * 3600));
    bed.ack(acked, 3).await;
    bed.add(added, 1).await;
    bed.pass(seconds(2 * 24 * 3600));
    assert_eq!(bed.sweep_tallies().await.reaped, 1);
    assert!(bed.store.tally(NameTally { tally: silent, now: None }).await.unwrap().is_none());
    bed.pass(seconds(4 * 24 * 3600));
    assert_eq!(bed.sweep_tallies().await.reaped, 0);
    bed.pass(seconds(2 * 24 * 3600));
    assert_eq!(bed.sweep_tallies().await.reaped, 2);
}

async fn a_removal_with_many_parts_is_done_in_steps(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 50_000_000).await;
    for first in [0, 4_096_000, 40_960_000, 8_192_000] {
        bed.ack(tally, first..=first + 4_095_999).await;
    }
    bed.pass(seconds(8 * 24 * 3600));
    assert_eq!(bed.sweep_tallies().await.reaped, 1);
    assert!(bed.store.tally(NameTally { tally, now: None }).await.unwrap().is_none());
    bed.pass(seconds(60));
    let mut sweeps = 0;
    while bed.sweep_tallies().await.more {
        sweeps += 1;
        assert!(sweeps < 20);
    }
    // Were anything left to clear, sweeps would find it.
    assert_eq!(bed.sweep_tallies().await, SweptTallies::default());
}

/// Nothing in the program makes a tally lose count. Somebody who restores a table from a backup may.
async fn a_tally_that_lost_count_is_put_right(bed: Bed) {
    let tally = bed.open(NewTally::new().on_complete(plain_event())).await;
    bed.add(tally, 5000).await;
    bed.seal(tally).await;
    bed.ack(tally, 0..=4095).await;
    let lose = format!("UPDATE tramline_tally SET parts_left = 7, done = 1 WHERE id = {tally}");
    if !bed.spoil(&lose).await {
        return;
    }
    bed.ack(tally, 4096..=4999).await;
    assert_eq!(bed.tally(tally).await.state, TallyState::Sealed);
    bed.pass(seconds(3600));
    let swept = bed.sweep_tallies().await;
    assert_eq!((swept.repaired, swept.news), (1, vec![tally]));
    assert!(bed.tally(tally).await.is_complete());
    assert_eq!(bed.tallied(tally).await, (5000, 5000, 0));
    assert_eq!(bed.deliver().await.count, 1);
}

async fn a_sweep_finds_nothing_wrong_with_what_is_right(bed: Bed) {
    for count in [1u64, 4096, 4097, 20_000] {
        let tally = bed.open(NewTally::new()).await;
        bed.add(tally, count).await;
        bed.add(tally, count).await;
        bed.seal(tally).await;
        bed.fail(tally, 0).await;
        bed.ack(tally, 0..=count / 2).await;
    }
    bed.open(NewTally::new().estimated()).await;
    bed.pass(seconds(3600));
    let swept = bed.sweep_tallies().await;
    assert_eq!((swept.repaired, swept.expired, swept.reaped), (0, 0, 0));
}

//! Tallies: sets of items that are tracked to completion.

use crate::bed::*;

conformance![
    a_tally_is_complete_when_it_is_sealed_and_all_items_are_done,
    all_acked_and_then_sealed_is_complete_with_the_seal,
    an_empty_tally_is_complete_as_soon_as_it_is_sealed,
    sealing_twice_changes_nothing_and_tells_once,
    an_ack_twice_changes_nothing_and_is_told_already,
    nothing_is_added_to_a_sealed_tally,
    a_seal_that_expects_another_number_is_refused_and_leaves_it_open,
    an_unknown_tally_is_not_found_but_an_answer_in_an_ack,
    the_items_of_an_addition_start_at_a_multiple_of_64_and_are_never_given_twice,
    an_item_that_was_never_added_is_unknown_and_the_others_count,
    numbers_and_ranges_of_several_tallies_are_acked_at_once,
    a_range_over_many_parts_and_gaps_counts_each_item_once,
    failed_items_count_as_finished_and_stay_failed,
    of_two_endings_of_one_item_in_one_call_the_first_counts,
    a_hundred_million_items_are_added_and_acked_in_one_step_each,
    opening_again_with_a_key_gives_the_same_tally,
    adding_again_with_a_token_gives_the_same_items,
    a_repeated_call_is_told_once_more_that_it_completed,
    a_tally_keeps_what_it_was_given,
    tallies_are_listed_by_state_and_user_key_page_by_page,
    a_cancelled_tally_changes_no_more,
    a_complete_tally_cannot_be_cancelled,
    a_deleted_tally_is_gone_and_its_number_never_comes_back,
    an_estimated_tally_is_complete_when_it_is_sealed_and_counted_down,
    an_estimated_tally_may_go_below_zero_while_it_is_open,
    estimated_and_exact_tallies_are_not_mixed_up,
    a_growing_tally_grows_from_inside_an_unfinished_item,
    an_open_tally_does_not_grow_from_inside_an_item_that_never_was,
];

fn done(tally: TallyId, items: &[(u64, u64)]) -> Ack {
    let items = items.iter().map(|(first, last)| (*first..=*last).into()).collect();
    Ack { tally, items, ending: Ending::Done }
}

fn acked(acked: u64) -> AckCount {
    AckCount { acked, ..AckCount::default() }
}

fn already(already: u64) -> AckCount {
    AckCount { already, ..AckCount::default() }
}

fn unknown(unknown: u64) -> AckCount {
    AckCount { unknown, ..AckCount::default() }
}

async fn a_tally_is_complete_when_it_is_sealed_and_all_items_are_done(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let items = bed.add(tally, 3).await;
    assert!(!bed.seal(tally).await);
    assert!(!bed.ack(tally, items.first).await);
    assert!(!bed.ack(tally, items.first + 2).await);
    assert_eq!(bed.tally(tally).await.state, TallyState::Sealed);
    assert!(bed.ack(tally, items.first + 1).await);
    let tally = bed.tally(tally).await;
    assert_eq!((tally.state, tally.total, tally.done, tally.pending()), (TallyState::Complete, 3, 3, 0));
    assert_eq!(tally.ended_at, bed.now());
}

async fn all_acked_and_then_sealed_is_complete_with_the_seal(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let items = bed.add(tally, 130).await;
    assert!(!bed.ack(tally, items.items()).await);
    assert_eq!(bed.tally(tally).await.state, TallyState::Open);
    assert!(bed.seal(tally).await);
    assert!(bed.tally(tally).await.is_complete());
}

async fn an_empty_tally_is_complete_as_soon_as_it_is_sealed(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let sealed = bed.try_seal(tally, Some(0)).await.unwrap();
    assert!(sealed.completed_now && sealed.tally.is_complete());
}

async fn sealing_twice_changes_nothing_and_tells_once(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 1).await;
    assert!(!bed.seal(tally).await);
    assert!(!bed.seal(tally).await);
    assert!(bed.ack(tally, 0).await);
    assert!(!bed.seal(tally).await);
    let empty = bed.open(NewTally::new()).await;
    assert!(bed.seal(empty).await);
    let again = bed.try_seal(empty, None).await.unwrap();
    assert!(!again.completed_now && again.tally.is_complete());
}

async fn an_ack_twice_changes_nothing_and_is_told_already(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 2).await;
    bed.seal(tally).await;
    assert_eq!(bed.ack_all(vec![done(tally, &[(0, 0)])]).await.results, [[acked(1)]]);
    assert_eq!(bed.ack_all(vec![done(tally, &[(0, 0)])]).await.results, [[already(1)]]);
    assert_eq!(bed.tallied(tally).await, (2, 1, 0));
    assert!(bed.ack(tally, 1).await);
    let late = bed.ack_all(vec![done(tally, &[(0, 1)])]).await;
    assert_eq!((late.results, late.completed.len()), (vec![vec![already(2)]], 0));
}

async fn nothing_is_added_to_a_sealed_tally(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 1).await;
    bed.seal(tally).await;
    assert_eq!(bed.try_add(tally, 1).await.unwrap_err().kind(), Kind::Conflict);
    bed.ack(tally, 0).await;
    assert_eq!(bed.try_add(tally, 1).await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(bed.try_add(bed.open(NewTally::new()).await, 0).await.unwrap_err().kind(), Kind::Invalid);
}

async fn a_seal_that_expects_another_number_is_refused_and_leaves_it_open(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 5).await;
    assert_eq!(bed.try_seal(tally, Some(6)).await.unwrap_err().kind(), Kind::Conflict);
    bed.add(tally, 1).await;
    assert!(bed.try_seal(tally, Some(6)).await.unwrap().tally.is_sealed());
    assert_eq!(
        bed.try_seal(tally, Some(7)).await.unwrap_err().kind(),
        Kind::Conflict,
        "also when it is sealed"
    );
    assert!(bed.try_seal(tally, Some(6)).await.unwrap().tally.is_sealed());
}

async fn an_unknown_tally_is_not_found_but_an_answer_in_an_ack(bed: Bed) {
    let known = bed.open(NewTally::new()).await;
    bed.add(known, 1).await;
    let nobody = TallyId(known.0 + 99);
    assert_eq!(bed.try_add(nobody, 1).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(bed.try_seal(nobody, None).await.unwrap_err().kind(), Kind::NotFound);
    assert!(bed.store.tally(NameTally { tally: nobody, now: None }).await.unwrap().is_none());
    let both = bed.ack_all(vec![done(nobody, &[(0, 4)]), done(known, &[(0, 0)])]).await;
    assert_eq!(both.results, [[unknown(5)], [acked(1)]]);
}

async fn the_items_of_an_addition_start_at_a_multiple_of_64_and_are_never_given_twice(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let mut next = 0;
    for count in [1, 64, 65, 4096, 4097, 10_000, 1] {
        let added = bed.add(tally, count).await;
        assert_eq!((added.first % 64, added.count), (0, count));
        assert!(added.first >= next);
        next = added.first + count;
    }
    assert_eq!(bed.tallied(tally).await.0, 18_324);
}

async fn an_item_that_was_never_added_is_unknown_and_the_others_count(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let (first, second) = (bed.add(tally, 70).await, bed.add(tally, 5).await);
    let acks = done(tally, &[(69, 69), (70, 70), (second.first + 4, second.first + 6), (1 << 40, 1 << 40)]);
    let result = bed.ack_all(vec![acks]).await.results.remove(0);
    let some = AckCount { acked: 1, unknown: 2, ..AckCount::default() };
    assert_eq!(result, [acked(1), unknown(1), some, unknown(1)]);
    assert_eq!(bed.tallied(tally).await, (75, 2, 0));
    assert_eq!(first.first, 0);
}

async fn numbers_and_ranges_of_several_tallies_are_acked_at_once(bed: Bed) {
    let (one, two) = (bed.open(NewTally::new().user_key("one")).await, bed.open(NewTally::new()).await);
    bed.add(one, 10).await;
    bed.add(two, 20).await;
    bed.seal(one).await;
    bed.seal(two).await;
    let answer =
        bed.ack_all(vec![done(one, &[(3, 3), (0, 2)]), done(two, &[(0, 9)]), done(one, &[(2, 9)])]).await;
    let both = AckCount { acked: 6, already: 2, ..AckCount::default() };
    assert_eq!(answer.results, [vec![acked(1), acked(3)], vec![acked(10)], vec![both]]);
    let completed = CompletedTally { id: one, user_key: Some("one".into()) };
    assert_eq!(answer.completed, [completed]);
    assert_eq!(bed.tallied(two).await, (20, 10, 0));
}

async fn a_range_over_many_parts_and_gaps_counts_each_item_once(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let mut last = 0;
    for count in [5000, 1, 4096, 12_289] {
        let added = bed.add(tally, count).await;
        last = added.first + added.count - 1;
    }
    bed.ack(tally, 100..=4200).await;
    bed.seal(tally).await;
    let answer = bed.ack_all(vec![done(tally, &[(0, last)])]).await;
    let counts = answer.results[0][0];
    assert_eq!((counts.acked, counts.already), (5000 + 1 + 4096 + 12_289 - 4101, 4101));
    assert_eq!(counts.acked + counts.already + counts.unknown, last + 1);
    assert_eq!(answer.completed.len(), 1);
}

async fn failed_items_count_as_finished_and_stay_failed(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 4).await;
    bed.seal(tally).await;
    assert!(!bed.fail(tally, 0..=1).await);
    assert!(!bed.ack(tally, 1..=2).await);
    assert!(!bed.fail(tally, 2).await);
    assert_eq!(bed.tallied(tally).await, (4, 1, 2));
    assert!(bed.fail(tally, 3).await);
    assert_eq!(bed.tallied(tally).await, (4, 1, 3));
}

async fn of_two_endings_of_one_item_in_one_call_the_first_counts(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 2).await;
    let failed = Ack { ending: Ending::Failed, ..done(tally, &[(0, 0)]) };
    bed.ack_all(vec![failed, done(tally, &[(0, 1)])]).await;
    assert_eq!(bed.tallied(tally).await, (2, 1, 1));
}

async fn a_hundred_million_items_are_added_and_acked_in_one_step_each(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let items = bed.add(tally, 100_000_000).await;
    bed.seal(tally).await;
    assert!(!bed.ack(tally, 0..=3_999_999).await);
    assert!(!bed.ack(tally, 99_999_999).await);
    assert_eq!(bed.tallied(tally).await, (100_000_000, 4_000_001, 0));
    assert_eq!(items.count, 100_000_000);
}

async fn opening_again_with_a_key_gives_the_same_tally(bed: Bed) {
    let new = NewTally::new().idempotency_key("k").user_key("u");
    let first = bed.try_open(new.clone()).await.unwrap();
    let again = bed.try_open(new.clone()).await.unwrap();
    assert_eq!((first.repeated, again.repeated, again.id), (false, true, first.id));
    assert_eq!(bed.try_open(new.clone().user_key("v")).await.unwrap_err().kind(), Kind::Conflict);
    let bed = &bed;
    let ids = in_parallel(8, |_| {
        let (bed, new) = (bed.clone(), NewTally::new().idempotency_key("other"));
        async move { bed.open(new).await }
    })
    .await;
    assert!(ids.windows(2).all(|two| two[0] == two[1]), "{ids:?}");
    bed.store.delete_tally(NameTally { tally: first.id, now: bed.now() }).await.unwrap();
    assert!(!bed.try_open(new).await.unwrap().repeated);
}

async fn adding_again_with_a_token_gives_the_same_items(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    let add = AddItems { tally, count: 10, within: None, token: Some(-7), now: bed.now() };
    let added = bed.store.add_items(add).await.unwrap();
    assert_eq!(bed.store.add_items(add).await.unwrap(), added);
    let other = AddItems { count: 11, ..add };
    assert_eq!(bed.store.add_items(other).await.unwrap_err().kind(), Kind::Conflict);
    bed.seal(tally).await;
    assert_eq!(bed.store.add_items(add).await.unwrap(), added);
    assert_eq!(bed.tallied(tally).await.0, 10);
}

/// The answer of a call may be lost: whoever repeats it must be told what it did.
async fn a_repeated_call_is_told_once_more_that_it_completed(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 1).await;
    bed.seal(tally).await;
    let ack = AckItems { acks: vec![done(tally, &[(0, 0)])], by: 5, now: bed.now() };
    for _ in 0..2 {
        assert_eq!(bed.store.ack_items(ack.clone()).await.unwrap().completed.len(), 1);
    }
    let other = AckItems { by: 6, ..ack };
    assert!(bed.store.ack_items(other).await.unwrap().completed.is_empty());
    let tally = bed.open(NewTally::new()).await;
    let seal = SealTally { tally, expected: None, by: 7, now: bed.now() };
    for _ in 0..2 {
        assert!(bed.store.seal_tally(seal).await.unwrap().completed_now);
    }
    assert!(!bed.store.seal_tally(SealTally { by: 8, ..seal }).await.unwrap().completed_now);
}

async fn a_tally_keeps_what_it_was_given(bed: Bed) {
    let metadata = serde_json::json!({"a": [1, "ü"], "b": null});
    let user_key = "ü".repeat(255);
    let new =
        NewTally::new().user_key(&user_key).metadata(metadata.clone()).growing().expires_in(seconds(60));
    let opened = bed.time();
    let tally = bed.open(new).await;
    bed.pass(seconds(5));
    bed.add(tally, 1).await;
    bed.pass(seconds(5));
    bed.seal(tally).await;
    let found = bed.tally(tally).await;
    assert_eq!((found.id, found.user_key, found.metadata), (tally, Some(user_key), Some(metadata)));
    assert_eq!((found.growing, found.estimated, found.parent), (true, false, None));
    assert_eq!((found.created_at, found.expires_at), (opened, Some(opened.after(seconds(60)))));
    assert_eq!((found.sealed_at, found.ended_at, found.active_at), (bed.now(), None, bed.time()));
    bed.pass(seconds(5));
    bed.ack(tally, 0).await;
    assert_eq!(bed.tally(tally).await.active_at, bed.time());
}

async fn tallies_are_listed_by_state_and_user_key_page_by_page(bed: Bed) {
    let mut all = Vec::new();
    for n in 0..10 {
        let tally = bed.open(NewTally::new().user_key(format!("key{}", n % 2))).await;
        if n % 3 == 0 {
            bed.add(tally, 1).await;
            bed.seal(tally).await;
        }
        if n % 3 == 1 {
            bed.seal(tally).await;
        }
        all.push(tally);
    }
    let list = async |states: &[TallyState], user_key: Option<&str>| {
        let mut list = ListTallies {
            states: states.to_vec(),
            user_key: user_key.map(str::to_owned),
            after: TallyId(0),
            limit: 2,
            now: bed.now(),
        };
        let mut ids = Vec::new();
        loop {
            let page = bed.store.tallies(list.clone()).await.unwrap();
            assert!(page.len() <= 2);
            let Some(last) = page.last() else { return ids };
            list.after = last.id;
            ids.extend(page.into_iter().map(|tally| tally.id));
        }
    };
    let some = |which: &[usize]| which.iter().map(|at| all[*at]).collect::<Vec<_>>();
    assert_eq!(list(&[], None).await, all);
    assert_eq!(list(&[TallyState::Open], None).await, some(&[2, 5, 8]));
    assert_eq!(list(&[TallyState::Complete, TallyState::Sealed], None).await, some(&[0, 1, 3, 4, 6, 7, 9]));
    assert_eq!(list(&[], Some("key1")).await, some(&[1, 3, 5, 7, 9]));
    assert_eq!(list(&[TallyState::Open], Some("key1")).await, some(&[5]));
    assert_eq!(list(&[], Some("nobody")).await, []);
}

async fn a_cancelled_tally_changes_no_more(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 2).await;
    bed.seal(tally).await;
    bed.ack(tally, 0).await;
    let name = NameTally { tally, now: bed.now() };
    for _ in 0..2 {
        assert_eq!(bed.store.cancel_tally(name).await.unwrap().state, TallyState::Cancelled);
    }
    let late = bed.ack_all(vec![done(tally, &[(1, 1)])]).await;
    assert_eq!(late.results, [[AckCount { closed: 1, ..AckCount::default() }]]);
    assert!(late.completed.is_empty());
    assert_eq!(bed.tallied(tally).await, (2, 1, 0));
    assert_eq!(bed.try_add(tally, 1).await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(bed.try_seal(tally, None).await.unwrap_err().kind(), Kind::Conflict);
}

async fn a_complete_tally_cannot_be_cancelled(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.seal(tally).await;
    let error = bed.store.cancel_tally(NameTally { tally, now: bed.now() }).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let nobody = NameTally { tally: TallyId(9999), now: None };
    assert_eq!(bed.store.cancel_tally(nobody).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(bed.store.delete_tally(nobody).await.unwrap_err().kind(), Kind::NotFound);
}

async fn a_deleted_tally_is_gone_and_its_number_never_comes_back(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 5000).await;
    bed.ack(tally, 0).await;
    let name = NameTally { tally, now: bed.now() };
    bed.store.delete_tally(name).await.unwrap();
    assert!(bed.store.tally(name).await.unwrap().is_none());
    assert_eq!(bed.ack_all(vec![done(tally, &[(1, 1)])]).await.results, [[unknown(1)]]);
    assert_eq!(bed.store.delete_tally(name).await.unwrap_err().kind(), Kind::NotFound);
    assert!(bed.open(NewTally::new()).await > tally);
}

async fn count(bed: &Bed, tally: TallyId, by: i64) -> Result<CountedTally> {
    let counts = vec![(tally, by)];
    bed.store.count_tallies(CountTallies { counts, now: bed.now() }).await.unwrap().remove(0)
}

async fn an_estimated_tally_is_complete_when_it_is_sealed_and_counted_down(bed: Bed) {
    let tally = bed.open(NewTally::new().estimated().user_key("e")).await;
    count(&bed, tally, 5).await.unwrap();
    assert!(!count(&bed, tally, -4).await.unwrap().completed_now);
    assert!(!bed.seal(tally).await);
    let last = count(&bed, tally, -1).await.unwrap();
    assert!(last.completed_now && last.tally.is_complete());
    assert_eq!((last.tally.estimated, last.tally.user_key.as_deref()), (true, Some("e")));
    assert!(!count(&bed, tally, -1).await.unwrap().completed_now);
    assert_eq!(count(&bed, tally, 1).await.unwrap_err().kind(), Kind::Conflict);
    let late = bed.open(NewTally::new().estimated()).await;
    count(&bed, late, 1).await.unwrap();
    count(&bed, late, -1).await.unwrap();
    assert!(bed.seal(late).await);
}

async fn an_estimated_tally_may_go_below_zero_while_it_is_open(bed: Bed) {
    let tally = bed.open(NewTally::new().estimated()).await;
    let below = count(&bed, tally, -3).await.unwrap();
    assert_eq!((below.completed_now, below.tally.pending()), (false, 0));
    count(&bed, tally, 4).await.unwrap();
    assert!(!bed.seal(tally).await);
    assert!(count(&bed, tally, -1).await.unwrap().completed_now);
}

async fn estimated_and_exact_tallies_are_not_mixed_up(bed: Bed) {
    let estimated = bed.open(NewTally::new().estimated()).await;
    let exact = bed.open(NewTally::new()).await;
    bed.add(exact, 1).await;
    assert_eq!(bed.try_add(estimated, 1).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(count(&bed, exact, 1).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(count(&bed, estimated, i64::MIN).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(count(&bed, TallyId(999), 1).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(bed.ack_all(vec![done(estimated, &[(0, 0)])]).await.results, [[unknown(1)]]);
    let counts = vec![(exact, -1), (estimated, 2), (estimated, -1)];
    let counted = bed.store.count_tallies(CountTallies { counts, now: bed.now() }).await.unwrap();
    let pending: Vec<Option<u64>> =
        counted.iter().map(|one| one.as_ref().ok().map(|one| one.tally.pending())).collect();
    assert_eq!(pending, [None, Some(2), Some(1)]);
}

async fn a_growing_tally_grows_from_inside_an_unfinished_item(bed: Bed) {
    let tally = bed.open(NewTally::new().growing()).await;
    bed.add(tally, 2).await;
    bed.seal(tally).await;
    let add = |within| AddItems { tally, count: 1, within, token: None, now: bed.now() };
    bed.ack(tally, 0).await;
    for refused in [None, Some(0), Some(2), Some(4096)] {
        assert_eq!(
            bed.store.add_items(add(refused)).await.unwrap_err().kind(),
            Kind::Conflict,
            "{refused:?}"
        );
    }
    let more = bed.store.add_items(add(Some(1))).await.unwrap();
    assert!(!bed.ack(tally, 1).await);
    let last = bed.store.add_items(add(Some(more.first))).await.unwrap();
    assert!(!bed.ack(tally, more.first).await);
    assert!(bed.ack(tally, last.first).await);
    assert_eq!(bed.store.add_items(add(Some(last.first))).await.unwrap_err().kind(), Kind::Conflict);
}

async fn an_open_tally_does_not_grow_from_inside_an_item_that_never_was(bed: Bed) {
    let tally = bed.open(NewTally::new()).await;
    bed.add(tally, 2).await;
    bed.ack(tally, 0).await;
    let add = |number| AddItems { tally, count: 1, within: Some(number), token: None, now: bed.now() };
    for number in [2, 4096, u64::MAX] {
        assert_eq!(bed.store.add_items(add(number)).await.unwrap_err().kind(), Kind::Conflict, "{number}");
    }
    // A replayed event may add from inside its item, which has ended.
    for number in [0, 1] {
        bed.store.add_items(add(number)).await.unwrap();
    }
    bed.queue(unordered()).await;
    let emit = async |number| {
        bed.try_emit(vec![plain_event().within(TallyItem { tally, number })]).await.map(|_| ())
    };
    assert_eq!(emit(5).await.unwrap_err().kind(), Kind::Conflict);
    emit(1).await.unwrap();
}

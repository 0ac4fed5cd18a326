//! Histories that failed once, as they were found. They are run on every store before new ones.

use crate::course::Course;
use crate::setting::Setting;
use crate::step::{New, Step, Verdict};
use tramline::model::subscription::Ordering;

pub(crate) fn kept() -> Vec<(Course, Vec<Step>)> {
    vec![
        (on(1, Ordering::Key), a_single_event_of_a_lane_with_more_behind_it()),
        (on(2, Ordering::None), a_retry_beside_what_is_not_yet_said()),
        (on(1, Ordering::None), a_delayed_event_whose_lane_is_taken_over()),
        (on(1, Ordering::None), a_cancelled_event_that_is_resent_before_its_key_fails()),
    ]
}

fn on(lanes: u32, once: Ordering) -> Course {
    Course::new(Setting::plain(lanes, once))
}

fn a_single_event_of_a_lane_with_more_behind_it() -> Vec<Step> {
    vec![
        emit([None, Some(2)]),
        emit([Some(2)]),
        Step::Claim { sub: 1, worker: 0, max: 100, idle: false, share: None, single: true, known: None },
        emit([None]),
        emit([None]),
    ]
}

fn a_retry_beside_what_is_not_yet_said() -> Vec<Step> {
    vec![
        emit([None, None]),
        emit([None]),
        Step::Emit(vec![New { delay: 1, ..new(None) }]),
        claim(1, 100, false),
        settle(1, [Verdict::Retry]),
    ]
}

fn a_delayed_event_whose_lane_is_taken_over() -> Vec<Step> {
    vec![
        Step::Emit(vec![New { delay: 1, ..new(Some(0)) }, new(Some(0))]),
        emit([None]),
        Step::Pass { seconds: 1 },
        claim(1, 100, false),
        Step::Pass { seconds: 5 },
        Step::Pass { seconds: 5 },
        claim(1, 1, true),
        settle(1, [Verdict::Retry]),
    ]
}

fn a_cancelled_event_that_is_resent_before_its_key_fails() -> Vec<Step> {
    let not_yet = Verdict::NotYet;
    vec![
        emit([Some(1), None, None, None, Some(1)]),
        Step::Cancel { pick: 3194 },
        Step::Resend { sub: 2, pick: 30384 },
        claim(2, 100, false),
        settle(2, [Verdict::Retry, not_yet, not_yet, not_yet, Verdict::Done]),
    ]
}

fn new(key: Option<u8>) -> New {
    New { key, delay: 0, priority: 3, tally: None }
}

fn emit<const N: usize>(keys: [Option<u8>; N]) -> Step {
    Step::Emit(keys.map(new).to_vec())
}

fn claim(sub: usize, max: u32, idle: bool) -> Step {
    Step::Claim { sub, worker: 0, max, idle, share: None, single: false, known: None }
}

/// What is not said is not yet settled.
fn settle<const N: usize>(sub: usize, verdicts: [Verdict; N]) -> Step {
    let verdicts = verdicts.into_iter().chain(std::iter::repeat(Verdict::NotYet)).take(12).collect();
    Step::Settle { sub, worker: 0, verdicts }
}

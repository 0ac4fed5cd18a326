//! A year of runs beside a model that knows nothing of changes of clocks: it walks through real time in small steps and looks at
//! the local clock.

use super::Timetable;
use crate::model::time::Time;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Zones, and a year in which something happens to their clocks.
const ZONES: [(&str, i64); 8] = [
    ("UTC", 2028),
    ("Europe/Vienna", 2026),
    ("America/New_York", 2026),
    ("Australia/Lord_Howe", 2026),
    ("Pacific/Apia", 2011),
    ("Africa/Cairo", 2026),      // midnight is left out
    ("Asia/Kathmandu", 1986),    // a quarter of an hour is left out
    ("Africa/Casablanca", 2026), // two changes within a month
];
const DAYS: i64 = 366;
/// The model looks every five minutes; a test that looked every minute would take five times as long.
const GRAIN: i64 = 5;
const MILLIS: i64 = GRAIN * 60_000;

/// The local time at every look, from the first of January on.
static CLOCKS: LazyLock<Vec<(Time, Vec<DateTime>)>> = LazyLock::new(|| ZONES.map(clock).to_vec());

fn clock((zone, year): (&str, i64)) -> (Time, Vec<DateTime>) {
    let zone = TimeZone::get(zone).unwrap();
    let start: Timestamp = format!("{year}-01-01T00:00:00Z").parse().unwrap();
    let at = |look: i64| start.checked_add((look * GRAIN).minutes()).unwrap();
    let local = (0..DAYS * 1440 / GRAIN).map(|look| zone.to_datetime(at(look))).collect();
    (Time(start.as_millisecond()), local)
}

/// A field of an expression: how it is written, and what it names.
#[derive(Clone, Debug)]
struct Field {
    text: String,
    set: BTreeSet<i8>,
    is_star: bool,
    is_step: bool,
}

/// Numbers up to `most` are written out.
fn field(low: i8, high: i8, most: i8) -> impl Strategy<Value = Field> {
    let star = Just(Field { text: "*".into(), set: (low..=high).collect(), is_star: true, is_step: true });
    let step = (2..=high.min(20)).prop_map(move |step| Field {
        text: format!("*/{step}"),
        set: (low..=high).step_by(step as usize).collect(),
        is_star: true,
        is_step: true,
    });
    let list = proptest::collection::btree_set(low..=most, 1..4).prop_map(|set| Field {
        text: set.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        set,
        is_star: false,
        is_step: false,
    });
    prop_oneof![3 => star, 1 => step, 3 => list]
}

/// Minutes that the model sees.
fn minutes() -> impl Strategy<Value = Field> {
    let coarse = |field: Field| Field { set: field.set.iter().map(|at| at * GRAIN as i8).collect(), ..field };
    field(0, 11, 11).prop_map(coarse).prop_map(|field| {
        let list = || field.set.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let text = match field.text.strip_prefix("*/").map(|step| step.parse::<i64>().unwrap_or(1)) {
            Some(step) => format!("*/{}", step * GRAIN),
            None if field.is_star => format!("*/{GRAIN}"),
            None => list(),
        };
        Field { text, ..field }
    })
}

fn fields() -> impl Strategy<Value = [Field; 5]> {
    // Up to the 28th, so that every combination comes.
    (minutes(), field(0, 23, 23), field(1, 31, 28), field(1, 12, 12), field(0, 6, 6))
        .prop_map(|(minute, hour, day, month, weekday)| [minute, hour, day, month, weekday])
}

fn names(fields: &[Field; 5], local: DateTime) -> bool {
    let [minute, hour, day, month, weekday] = fields;
    let of_month = day.set.contains(&local.day());
    let of_week = weekday.set.contains(&local.weekday().to_sunday_zero_offset());
    let either = !day.is_star && !weekday.is_star;
    let is_day = if either { of_month || of_week } else { of_month && of_week };
    minute.set.contains(&local.minute())
        && hour.set.contains(&local.hour())
        && month.set.contains(&local.month())
        && is_day
}

/// Runs by the model. An entry at fixed times runs when the clock passes a time that it names for the first time; one with stars
/// or steps whenever the clock shows such a time.
fn expected(fields: &[Field; 5], start: Time, clock: &[DateTime]) -> Vec<Time> {
    let follows_real_time = fields[0].is_step || fields[1].is_step;
    let mut runs = Vec::new();
    let mut furthest = clock[0];
    for (look, local) in clock.iter().enumerate().skip(1) {
        let runs_now = match follows_real_time {
            true => names(fields, *local),
            false => (1..)
                .map_while(|n| Some(furthest + (n * GRAIN).minutes()).filter(|it| it <= local))
                .any(|it| names(fields, it)),
        };
        if runs_now {
            runs.push(Time(start.0 + look as i64 * MILLIS));
        }
        furthest = furthest.max(*local);
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_year_of_runs_is_as_a_plain_clock_says(fields in fields(), at in 0..ZONES.len()) {
        let (start, clock) = &CLOCKS[at];
        let expression = fields.each_ref().map(|field| field.text.as_str()).join(" ");
        let table = Timetable::cron(&expression, ZONES[at].0).unwrap();
        let end = Time(start.0 + (clock.len() as i64 - 1) * MILLIS);
        let runs: Vec<Time> = std::iter::successors(table.next(*start), |run| table.next(*run))
            .take_while(|run| *run <= end)
            .collect();
        prop_assert_eq!(runs, expected(&fields, *start, clock), "{} in {}", expression, ZONES[at].0);
    }
}

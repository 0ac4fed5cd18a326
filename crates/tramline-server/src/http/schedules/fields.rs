//! What may be said of a schedule, and what is shown of it.

use crate::http::json::{Id, Object, When, payload};
use crate::http::problem::{Answer, Problem};
use crate::http::tallies::open::NewsIn;
use crate::http::unique::{UniqueIn, UniqueOut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::time::Duration;
use tramline::{Event, Headers, Missed, Schedule, StoredSchedule, Timing};
use utoipa::ToSchema;

/// A schedule to put. It has either `cron` or `every_ms`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleIn {
    /// A cron expression: minute, hour, day of the month, month, day of the week, with the second in front if there are six
    #[schema(example = "30 3 * * mon-fri")]
    cron: Option<String>,
    /// An interval, from a second to ten years
    #[schema(minimum = 1_000, maximum = 315_619_200_000_i64)]
    every_ms: Option<u64>,
    /// Whose clocks `cron` means, by the IANA name of the time zone; UTC unless set
    #[schema(example = "Europe/Vienna")]
    zone: Option<String>,
    pub(super) topic: String,
    key: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Any JSON up to 64 KiB; null unless set
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    #[serde(default)]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: Headers,
    /// From 0 (first) to 9 (last); 5 unless set
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Makes its events unique: of one topic and unique key at most one is pending
    #[schema(value_type = Option<UniqueIn>)]
    unique: Option<Object<UniqueIn>>,
    /// What becomes of runs for which no node was there in time; `one` unless set
    #[serde(default)]
    missed: Missed,
    /// Whether it rests; left out: as it was
    pub(super) paused: Option<bool>,
}

/// A schedule, and how it stands.
#[derive(Serialize, ToSchema)]
pub(crate) struct ScheduleOut<'a> {
    name: &'a str,
    #[serde(flatten)]
    timing: TimingOut<'a>,
    topic: &'a str,
    key: Option<&'a str>,
    /// The type of its events, if they have one
    #[serde(rename = "type")]
    kind: Option<&'a str>,
    /// The payload, if it is JSON
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    /// The payload in Base64, if it is not JSON
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    content_type: &'a str,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: &'a Headers,
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<UniqueOut<'a>>,
    missed: Missed,
    paused: bool,
    /// The program that declares it in its code, if one does
    declared_by: Option<&'a str>,
    /// When it runs next; null while it rests
    next_run_at: Option<When>,
    /// For which time it last ran
    last_run_at: Option<When>,
    /// The event that it emitted last
    last_event: Option<Id>,
    created_at: When,
    updated_at: When,
}

/// When a schedule runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct TimingOut<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
}

impl ScheduleIn {
    pub(super) fn schedule(self, name: String) -> Answer<Schedule> {
        let event: Event = NewsIn {
            topic: self.topic,
            payload: self.payload,
            kind: self.kind,
            key: self.key,
            headers: self.headers,
            delay_ms: None,
            priority: self.priority,
        }
        .event()?;
        let event = match self.unique {
            Some(Object(unique)) => event.unique(unique),
            None => event,
        };
        let schedule = match (self.cron, self.every_ms, self.zone) {
            (Some(cron), None, zone) => {
                let schedule = Schedule::cron(name, cron, event);
                if let Some(zone) = zone { schedule.zone(zone) } else { schedule }
            }
            (None, Some(millis), None) => Schedule::every(name, Duration::from_millis(millis), event),
            (None, Some(_), Some(_)) => {
                return Err(Problem::invalid(
                    "an interval is real time and has no zone",
                    "leave the zone out, or say with `cron` at which local times it shall run",
                ));
            }
            _ => return Err(Problem::invalid("a schedule has either cron or every_ms", "set one of them")),
        };
        Ok(schedule.missed(self.missed))
    }
}

impl<'a> From<&'a StoredSchedule> for ScheduleOut<'a> {
    fn from(stored: &'a StoredSchedule) -> ScheduleOut<'a> {
        let schedule = &stored.schedule;
        let event = schedule.event().parts();
        let (payload, payload_base64) = payload(event.content_type, event.payload);
        ScheduleOut {
            name: schedule.name(),
            timing: TimingOut::from(schedule.timing()),
            topic: event.topic,
            key: event.key,
            kind: Some(event.kind).filter(|kind| !kind.is_empty()),
            payload,
            payload_base64,
            content_type: event.content_type,
            headers: event.headers,
            priority: event.priority,
            unique: event.unique.map(UniqueOut::from),
            missed: schedule.missed_policy(),
            paused: stored.paused,
            declared_by: stored.declared_by.as_deref(),
            next_run_at: stored.next_run.map(When),
            last_run_at: stored.last_run.map(When),
            last_event: stored.last_event.map(Id),
            created_at: When(stored.created_at),
            updated_at: When(stored.updated_at),
        }
    }
}

impl<'a> From<&'a Timing> for TimingOut<'a> {
    fn from(timing: &'a Timing) -> TimingOut<'a> {
        match timing {
            Timing::Cron { expression, zone } => {
                TimingOut { cron: Some(expression), zone: Some(zone), every_ms: None }
            }
            Timing::Every { millis } => TimingOut { cron: None, zone: None, every_ms: Some(*millis) },
        }
    }
}

//! Schedules: what is emitted at certain times. A token sees those that emit to its topics.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::emit::{Receipts, receipts};
use crate::http::json::{Id, Json, List, When, ok};
use crate::http::params::{Name, Page, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use crate::http::tallies::open::NewsIn;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::time::Duration;
use tramline::model::name;
use tramline::store::verbs::{Over, PutSchedule};
use tramline::{Event, Headers, Missed, Schedule, Scope, StoredSchedule, Timing};
use utoipa::ToSchema;

const MANAGE: &[Scope] = &[Scope::Manage];
/// How many schedules are read at once.
const PAGE: u32 = 100;

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
    topic: String,
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
    /// What becomes of runs for which no node was there in time; `one` unless set
    #[serde(default)]
    missed: Missed,
    /// Whether it rests; left out: as it was
    paused: Option<bool>,
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

/// All schedules that the token may see, by name.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", params(Page), responses((status = 200, body = List<ScheduleOut>)),
    security(("token" = ["manage"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Answer<Response> {
    caller.needs(MANAGE)?;
    let wanted = page.limit() as usize;
    let mut after = page.after().map(str::to_owned);
    let mut seen: Vec<StoredSchedule> = Vec::new();
    loop {
        let found = app.ask(app.tram.schedules(after.as_deref(), PAGE)).await?;
        after = found.last().map(|last| last.schedule.name().to_owned());
        let is_last = found.len() < PAGE as usize;
        seen.extend(found.into_iter().filter(|it| caller.sees_topic(it.schedule.event().topic())));
        if is_last || seen.len() > wanted {
            break;
        }
    }
    let more = seen.len() > wanted;
    seen.truncate(wanted);
    let next = seen.last().filter(|_| more).map(|last| last.schedule.name().to_owned());
    Ok(ok(List { items: seen.iter().map(ScheduleOut::from).collect(), next }).into_response())
}

/// One schedule.
#[utoipa::path(get, path = "/v1/schedules/{name}", tag = "schedules", params(("name" = schema::Name, Path)),
    responses((status = 200, body = ScheduleOut)), security(("token" = ["manage"])))]
pub(crate) async fn get(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    let found = visible(&app, &caller, &name.0).await?.ok_or_else(unknown)?;
    Ok(ok(ScheduleOut::from(&found)).into_response())
}

/// Creates a schedule, or replaces it. If its times stay the same, so does its next run.
#[utoipa::path(put, path = "/v1/schedules/{name}", tag = "schedules", params(("name" = schema::Name, Path)), request_body = ScheduleIn,
    responses((status = 200, body = ScheduleOut), (status = 409, description = "The name is taken, or there are too many schedules")),
    security(("token" = ["manage"])))]
pub(crate) async fn put(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.needs(MANAGE)?;
    let body = app.read(&headers, body).await?;
    let put: ScheduleIn = body::parse(&body)?;
    caller.topic(MANAGE, &put.topic)?;
    let name = name.checked("schedule")?;
    // Where some topics are hidden, so are their schedules: one of those must not be replaced by accident.
    let over = match visible(&app, &caller, &name).await? {
        _ if caller.sees_all_topics() => Over::Anything,
        Some(old) => Over::Topic(old.schedule.event().topic().to_owned()),
        None => Over::Nothing,
    };
    let paused = put.paused;
    let put = PutSchedule { schedule: put.schedule(name)?, paused, over, now: None };
    let stored = app.ask(app.tram.replace_schedule(put)).await?;
    Ok(ok(ScheduleOut::from(&stored)).into_response())
}

/// Deletes a schedule. What it has emitted stays.
#[utoipa::path(delete, path = "/v1/schedules/{name}", tag = "schedules", params(("name" = schema::Name, Path)),
    responses((status = 204, description = "Deleted")), security(("token" = ["manage"])))]
pub(crate) async fn delete(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    visible(&app, &caller, &name.0).await?.ok_or_else(unknown)?;
    app.ask(app.tram.delete_schedule(&name.0)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Lets a schedule rest. What would have run until it is resumed is not made up for.
#[utoipa::path(post, path = "/v1/schedules/{name}/pause", tag = "schedules", params(("name" = schema::Name, Path)),
    responses((status = 200, body = ScheduleOut)), security(("token" = ["manage"])))]
pub(crate) async fn pause(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    visible(&app, &caller, &name.0).await?.ok_or_else(unknown)?;
    let stored = app.ask(app.tram.pause_schedule(&name.0)).await?;
    tracing::info!(schedule = name.0, by = caller.name(), "schedule paused");
    Ok(ok(ScheduleOut::from(&stored)).into_response())
}

/// Lets a schedule run again, from its next time on.
#[utoipa::path(post, path = "/v1/schedules/{name}/resume", tag = "schedules", params(("name" = schema::Name, Path)),
    responses((status = 200, body = ScheduleOut)), security(("token" = ["manage"])))]
pub(crate) async fn resume(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    visible(&app, &caller, &name.0).await?.ok_or_else(unknown)?;
    let stored = app.ask(app.tram.resume_schedule(&name.0)).await?;
    tracing::info!(schedule = name.0, by = caller.name(), "schedule resumed");
    Ok(ok(ScheduleOut::from(&stored)).into_response())
}

/// Emits what a schedule emits, once and now, also while it rests. Its times stay as they are.
#[utoipa::path(post, path = "/v1/schedules/{name}/run", tag = "schedules", params(("name" = schema::Name, Path)),
    responses((status = 201, description = "Stored", body = Receipts)), security(("token" = ["manage"])))]
pub(crate) async fn run(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    let found = visible(&app, &caller, &name.0).await?.ok_or_else(unknown)?;
    let receipt = app.ask(app.tram.run_schedule_now(&name.0)).await?;
    let event = found.schedule.event().parts();
    app.metrics.emitted.add(event.topic, 1);
    let events = receipts(receipt, vec![event.key.map(str::to_owned)]);
    Ok(Json(StatusCode::CREATED, Receipts { events }).into_response())
}

/// A schedule that the caller may see. One that it may not see is like one that does not exist.
async fn visible(app: &App, caller: &Caller, name: &str) -> Answer<Option<StoredSchedule>> {
    caller.needs(MANAGE)?;
    name::check("schedule", name)?;
    let found = app.ask(app.tram.store().schedule(name)).await?;
    Ok(found.filter(|it| caller.sees_topic(it.schedule.event().topic())))
}

/// Nobody has the name, or it is nobody's business. It is not named: both answers are the same.
fn unknown() -> Problem {
    Problem::not_found("there is no such schedule")
}

impl ScheduleIn {
    fn schedule(self, name: String) -> Answer<Schedule> {
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
        let is_json = event.content_type == tramline::model::event::JSON;
        // Read once more: a program may have put anything under that content type.
        let payload = if is_json { serde_json::from_slice::<&RawValue>(event.payload).ok() } else { None };
        ScheduleOut {
            name: schedule.name(),
            timing: TimingOut::from(schedule.timing()),
            topic: event.topic,
            key: event.key,
            kind: Some(event.kind).filter(|kind| !kind.is_empty()),
            payload_base64: payload.is_none().then(|| BASE64_STANDARD.encode(event.payload)),
            payload,
            content_type: event.content_type,
            headers: event.headers,
            priority: event.priority,
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

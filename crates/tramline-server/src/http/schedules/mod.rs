//! Schedules: what is emitted at certain times. A token sees those that emit to its topics.

mod fields;

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::emit::{Receipts, receipts};
use crate::http::json::{Json, List, ok};
use crate::http::params::{Name, Page, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use fields::{ScheduleIn, ScheduleOut};
use tramline::model::name;
use tramline::store::verbs::{Over, PutSchedule};
use tramline::{Scope, StoredSchedule};

const MANAGE: &[Scope] = &[Scope::Manage];
/// How many schedules are read at once.
const PAGE: u32 = 100;

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

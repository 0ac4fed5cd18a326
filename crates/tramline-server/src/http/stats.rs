//! Live figures: who works, and how much is to be done.

use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::control::RuleOut;
use crate::http::events::READ;
use crate::http::json::{List, When, ok};
use crate::http::params::{Page, Params};
use crate::http::problem::Answer;
use crate::http::push::shown::{DeliveryOut, Pending};
use crate::http::tallies::figures::{self, TallyStats};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::collections::HashMap;
use tramline::{Counts, Health, RuleKind, SubscriptionId};
use utoipa::ToSchema;

/// How many subscriptions the figures are about, at most.
pub(crate) const MOST: usize = 1_000;

/// Somebody who claims.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkerOut {
    name: String,
    kind: WorkerKind,
    subscriptions: Vec<String>,
    born_at: When,
    /// Its last sign of life
    beat_at: When,
    /// How often it claimed, over HTTP
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<u64>,
    /// Where it is in the list: names may be those of several
    #[serde(skip)]
    place: String,
}

/// How a worker claims.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerKind {
    /// From the store, where it has a heartbeat.
    Process,
    /// Over HTTP, from any node in the last minutes.
    Http,
}

/// Who works on what, as far as the token may see it, by name.
#[utoipa::path(get, path = "/v1/workers", tag = "figures", params(Page), responses((status = 200, body = List<WorkerOut>)),
    security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn workers(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Answer<Response> {
    caller.needs(READ)?;
    let known = app.ask(app.tram.subscriptions()).await?;
    let seen: HashMap<SubscriptionId, &str> =
        known.iter().filter(|one| caller.sees(one)).map(|one| (one.id, &*one.name)).collect();
    let all = caller.everywhere().is_ok();
    let mut items = Vec::new();
    for worker in app.ask(app.tram.workers()).await? {
        let subscriptions: Vec<String> =
            worker.subscriptions.iter().filter_map(|id| seen.get(id)).map(ToString::to_string).collect();
        if all || !subscriptions.is_empty() {
            let (born_at, beat_at) = (When(worker.born_at), When(worker.beat_at));
            items.push(WorkerOut {
                place: format!("{}/{:016x}", worker.name, worker.incarnation.0),
                name: worker.name,
                kind: WorkerKind::Process,
                subscriptions,
                born_at,
                beat_at,
                claims: None,
            });
        }
    }
    app.workers.tell(&app.tram).await;
    for worker in app.ask(app.tram.remote_workers()).await? {
        if let Some(subscription) = seen.get(&worker.subscription) {
            items.push(WorkerOut {
                place: format!("{}/{subscription}", worker.name),
                name: worker.name,
                kind: WorkerKind::Http,
                subscriptions: vec![subscription.to_string()],
                born_at: When(worker.born_at),
                beat_at: When(worker.seen_at),
                claims: Some(worker.claims),
            });
        }
    }
    items.sort_by(|a, b| a.place.cmp(&b.place));
    let (items, next) = page.cut(items, |worker| &worker.place);
    Ok(ok(List { items, next }).into_response())
}

/// The figures of everything.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatsOut {
    version: &'static str,
    /// How long this node has been running
    uptime_ms: u64,
    now: When,
    topics: usize,
    counts: Counts,
    subscriptions: Vec<SubscriptionStats>,
    tallies: TallyStats,
}

/// The figures of one subscription.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubscriptionStats {
    name: String,
    counts: Counts,
    oldest_ready_at: Option<When>,
    /// When the oldest dead event died
    oldest_dead_at: Option<When>,
    /// The kinds of rules that stop it, by name or by pattern
    stopped_by: Vec<RuleKind>,
    /// These rules: who set them, why, and until when
    rules: Vec<RuleOut>,
    /// How its sending stands, if it is pushed
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<DeliveryOut>,
}

/// How much is to be done, in the first 1,000 subscriptions that the token may see.
#[utoipa::path(get, path = "/v1/stats", tag = "figures", responses((status = 200, body = StatsOut)),
    security(("token" = ["consume"]), ("token" = ["manage"])))]
pub(crate) async fn stats(State(app): State<Shared>, caller: Caller) -> Answer<Response> {
    caller.needs(READ)?;
    let topics =
        app.ask(app.tram.topics()).await?.iter().filter(|topic| caller.sees_topic(&topic.name)).count();
    let now = app.ask(app.tram.store().now()).await?;
    let mut sum = Counts::default();
    let mut subscriptions = Vec::new();
    let all = app.ask(app.tram.subscriptions()).await?;
    let board = app.ask(app.tram.push_board()).await?;
    let board: HashMap<SubscriptionId, &Health> =
        board.iter().map(|entry| (entry.subscription.id, &entry.health)).collect();
    for subscription in all.iter().filter(|one| caller.sees(one)).take(MOST) {
        let stats = match app.ask(app.tram.store().stats(subscription.id, None)).await {
            // Deleted since the list was read.
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => continue,
            stats => stats?,
        };
        sum.ready += stats.counts.ready;
        sum.delayed += stats.counts.delayed;
        sum.leased += stats.counts.leased;
        sum.parked += stats.counts.parked;
        sum.dead += stats.counts.dead;
        let delivery = match &subscription.policy.push {
            None => None,
            Some(push) => {
                let health = board.get(&subscription.id).copied().cloned().unwrap_or_default();
                match Pending::look(&app, subscription, push, &stats).await {
                    Err(problem) if problem.status() == StatusCode::NOT_FOUND => continue,
                    pending => Some(DeliveryOut::new(push, &health, pending?)),
                }
            }
        };
        let mut stopped_by: Vec<RuleKind> = stats.rules.iter().map(|rule| rule.kind).collect();
        stopped_by.dedup();
        subscriptions.push(SubscriptionStats {
            name: subscription.name.to_string(),
            counts: stats.counts,
            oldest_ready_at: stats.oldest_ready_at.map(When),
            oldest_dead_at: stats.oldest_dead_at.map(When),
            stopped_by,
            rules: stats.rules.into_iter().map(RuleOut::from).collect(),
            delivery,
        });
    }
    let uptime_ms = u64::try_from(app.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let version = env!("CARGO_PKG_VERSION");
    let tallies = figures::stats(&app, &caller).await?;
    Ok(ok(StatsOut { version, uptime_ms, now: When(now), topics, counts: sum, subscriptions, tallies })
        .into_response())
}

//! Every route, on one page. A route takes its path and method from the description of its handler.

use crate::compat::{carlyle, routemaster};
use crate::config::Switch;
use crate::http::app::Shared;
use crate::http::caller::Caller;
use crate::http::control::Act;
use crate::http::limits::Door;
use crate::http::params::Name;
use crate::http::problem::Problem;
use crate::http::{
    audit, chain, claims, control, dead, drops, emit, events, health, limits, metrics, openapi, push, rules,
    schedules, settle, stats, subscriptions, tallies, tokens, topics,
};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::handler::Handler;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodFilter, on};
use std::collections::HashMap;
use utoipa::Path;
use utoipa::openapi::path::{HttpMethod, Operation, ParameterIn};

/// The router of a node.
pub(crate) fn router(app: Shared) -> Router {
    let Routes { router: mut guarded, queries, .. } = guarded();
    let door = Door { app: app.clone(), queries: queries.into() };
    if app.config.carlyle == Switch::On {
        guarded = guarded.merge(carlyle::routes());
    }
    let mut all = guarded
        .layer(from_fn_with_state(door.clone(), limits::admit))
        .merge(open().router.layer(from_fn(limits::check_head)));
    if app.config.routemaster == Switch::On {
        all = all.merge(routemaster::routes(&app, door));
    }
    all.merge(openapi::route())
        .fallback(|| async { Problem::not_found("there is no such path") })
        .method_not_allowed_fallback(|| async {
            let detail = "the path has no such method";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail, "compare with /v1/openapi.json")
        })
        .with_state(app)
}

/// Methods and paths of everything that is served, but for the description itself.
#[cfg(test)]
pub(crate) fn list() -> Vec<String> {
    guarded().list.into_iter().chain(open().list).collect()
}

/// What needs a token.
fn guarded() -> Routes {
    Act::ALL
        .into_iter()
        .fold(Routes::default(), Routes::add_rule)
        .add::<emit::__path_emit, _, _>(emit::emit)
        .add::<events::__path_list, _, _>(events::list)
        .add::<topics::__path_list, _, _>(topics::list)
        .add::<topics::__path_put, _, _>(topics::put)
        .add::<topics::__path_get, _, _>(topics::get)
        .add::<topics::__path_delete, _, _>(topics::delete)
        .add::<events::__path_head, _, _>(events::head)
        .add::<events::__path_get, _, _>(events::get)
        .add::<events::__path_cancel, _, _>(events::cancel)
        .add::<subscriptions::__path_list, _, _>(subscriptions::list)
        .add::<subscriptions::__path_put, _, _>(subscriptions::put)
        .add::<subscriptions::__path_get, _, _>(subscriptions::get)
        .add::<subscriptions::__path_delete, _, _>(subscriptions::delete)
        .add::<claims::__path_claim, _, _>(claims::claim)
        .add::<settle::__path_settle, _, _>(settle::settle)
        .add::<settle::__path_extend, _, _>(settle::extend)
        .add::<settle::__path_release, _, _>(settle::release)
        .add::<dead::__path_dead, _, _>(dead::dead)
        .add::<dead::__path_replay, _, _>(dead::replay)
        .add::<dead::__path_drop, _, _>(dead::drop)
        .add::<dead::__path_parked, _, _>(dead::parked)
        .add::<dead::__path_release_parked, _, _>(dead::release_parked)
        .add::<dead::__path_resend, _, _>(dead::resend)
        .add::<push::steer::__path_enable, _, _>(push::steer::enable)
        .add::<push::steer::__path_disable, _, _>(push::steer::disable)
        .add::<push::steer::__path_replay, _, _>(push::steer::replay)
        .add::<push::attempts::__path_list, _, _>(push::attempts::list)
        .add::<push::secrets::__path_add, _, _>(push::secrets::add)
        .add::<push::secrets::__path_remove, _, _>(push::secrets::remove)
        .add::<drops::__path_drops, _, _>(drops::drops)
        .add::<audit::__path_audit, _, _>(audit::audit)
        .add::<rules::__path_create, _, _>(rules::create)
        .add::<rules::__path_list, _, _>(rules::list)
        .add::<rules::__path_delete, _, _>(rules::delete)
        .add::<chain::__path_chain, _, _>(chain::chain)
        .add::<tallies::open::__path_open, _, _>(tallies::open::open)
        .add::<tallies::look::__path_list, _, _>(tallies::look::list)
        .add::<tallies::ack_many::__path_ack_many, _, _>(tallies::ack_many::ack_many)
        .add::<tallies::look::__path_get, _, _>(tallies::look::get)
        .add::<tallies::end::__path_delete, _, _>(tallies::end::delete)
        .add::<tallies::add::__path_add, _, _>(tallies::add::add)
        .add::<tallies::add::__path_seal, _, _>(tallies::add::seal)
        .add::<tallies::ack::__path_ack, _, _>(tallies::ack::ack)
        .add::<tallies::ack::__path_fail, _, _>(tallies::ack::fail)
        .add::<tallies::count::__path_count, _, _>(tallies::count::count)
        .add::<tallies::end::__path_cancel, _, _>(tallies::end::cancel)
        .add::<schedules::__path_list, _, _>(schedules::list)
        .add::<schedules::__path_put, _, _>(schedules::put)
        .add::<schedules::__path_get, _, _>(schedules::get)
        .add::<schedules::__path_delete, _, _>(schedules::delete)
        .add::<schedules::__path_pause, _, _>(schedules::pause)
        .add::<schedules::__path_resume, _, _>(schedules::resume)
        .add::<schedules::__path_run, _, _>(schedules::run)
        .add::<stats::__path_workers, _, _>(stats::workers)
        .add::<stats::__path_stats, _, _>(stats::stats)
        .add::<tokens::__path_create, _, _>(tokens::create)
        .add::<tokens::__path_list, _, _>(tokens::list)
        .add::<tokens::__path_delete, _, _>(tokens::delete)
        .add::<metrics::__path_metrics, _, _>(metrics::metrics)
}

/// What anybody may ask.
fn open() -> Routes {
    Routes::default()
        .add::<health::__path_live, _, _>(health::live)
        .add::<health::__path_ready, _, _>(health::ready)
}

/// Routes as they are gathered.
#[derive(Default)]
struct Routes {
    router: Router<Shared>,
    list: Vec<String>,
    queries: HashMap<String, Vec<String>>,
}

impl Routes {
    /// Serves a handler where its description says: utoipa keeps that beside it, under the name `__path_` and the handler's.
    fn add<P: Path, H: Handler<T, Shared>, T: 'static>(self, handler: H) -> Routes {
        let serve =
            |routes: Routes, method| routes.serve(method, &P::path(), &P::operation(), handler.clone());
        P::methods().into_iter().fold(self, serve)
    }

    /// One handler for all that can be done to rules.
    fn add_rule(self, act: Act) -> Routes {
        let handler = move |State(app), caller: Caller, name: Name, headers: HeaderMap, body: Body| {
            control::rule(act, app, caller, name, headers, body)
        };
        self.serve(HttpMethod::Post, &act.path(), &act.operation(), handler)
    }

    fn serve<T: 'static>(
        mut self,
        method: HttpMethod,
        path: &str,
        operation: &Operation,
        handler: impl Handler<T, Shared>,
    ) -> Routes {
        let (filter, name) = match method {
            HttpMethod::Get => (MethodFilter::GET, "GET"),
            HttpMethod::Put => (MethodFilter::PUT, "PUT"),
            HttpMethod::Delete => (MethodFilter::DELETE, "DELETE"),
            _ => (MethodFilter::POST, "POST"),
        };
        let route = format!("{name} {path}");
        self.router = self.router.route(path, on(filter, handler));
        self.queries.insert(route.clone(), query_of(operation));
        self.list.push(route);
        self
    }
}

/// The query parameters of an operation.
fn query_of(operation: &Operation) -> Vec<String> {
    let parameters = operation.parameters.iter().flatten();
    parameters.filter(|it| it.parameter_in == ParameterIn::Query).map(|it| it.name.clone()).collect()
}

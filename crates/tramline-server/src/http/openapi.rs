//! The description of the API, made from the code.

use crate::http::app::Shared;
use crate::http::json::json_response;
use crate::http::problem::Told;
use crate::http::{
    claims, control, dead, emit, events, health, metrics, settle, stats, subscriptions, tallies, tokens,
    topics,
};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Info, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{OpenApi as _, ToSchema};

/// Every handler, so that its description is found. A test compares them with the routes.
#[derive(utoipa::OpenApi)]
#[openapi(
    components(schemas(Told)),
    paths(
        emit::emit,
        events::list,
        topics::list,
        topics::put,
        topics::get,
        topics::delete,
        events::head,
        events::get,
        events::cancel,
        subscriptions::list,
        subscriptions::put,
        subscriptions::get,
        subscriptions::delete,
        claims::claim,
        settle::settle,
        settle::extend,
        settle::release,
        control::pause,
        control::resume,
        control::block,
        control::unblock,
        dead::dead,
        dead::replay,
        dead::drop,
        dead::parked,
        dead::release_parked,
        dead::resend,
        tallies::open::open,
        tallies::look::list,
        tallies::ack_many::ack_many,
        tallies::look::get,
        tallies::end::delete,
        tallies::add::add,
        tallies::add::seal,
        tallies::ack::ack,
        tallies::ack::fail,
        tallies::count::count,
        tallies::end::cancel,
        stats::workers,
        stats::stats,
        tokens::create,
        tokens::list,
        tokens::delete,
        metrics::metrics,
        health::live,
        health::ready,
    )
)]
struct Handlers;

/// The description, with what all operations have in common: the name, tokens, and problems.
pub(crate) fn describe() -> OpenApi {
    let mut api = Handlers::openapi();
    api.info = Info::new("Tramline", env!("CARGO_PKG_VERSION"));
    let components = api.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("token", SecurityScheme::Http(bearer));
    for path in api.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.delete];
        operations.into_iter().flatten().for_each(add_problems);
    }
    api
}

fn add_problems(operation: &mut Operation) {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(Told::name()))).build();
    let problem =
        ResponseBuilder::new().description("A problem").content("application/problem+json", content).build();
    operation.responses.responses.insert("default".into(), RefOr::T(problem));
}

/// Serves the description. It is written once.
pub(crate) fn route() -> Router<Shared> {
    let written: Bytes = describe().to_json().unwrap_or_default().into();
    Router::new().route(
        "/v1/openapi.json",
        get(move || async move { json_response(StatusCode::OK, written.to_vec()) }),
    )
}

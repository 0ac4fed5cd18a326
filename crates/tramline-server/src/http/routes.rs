//! Every route, on one page. Routes and their description come from the same list, so they cannot differ.

use crate::http::app::Shared;
use crate::http::problem::Problem;
use crate::http::{
    claims, control, dead, emit, events, health, limits, metrics, openapi, stats, subscriptions, tokens,
    topics,
};
use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The router of a node.
pub(crate) fn router(app: Shared) -> Router {
    let (router, _) = build(app);
    router
}

/// The router, and the description of its routes.
pub(crate) fn build(app: Shared) -> (Router, OpenApi) {
    let guarded = guarded().layer(from_fn_with_state(app.clone(), limits::admit));
    let (router, described) = guarded.merge(open()).split_for_parts();
    let described = openapi::complete(described);
    let router = router
        .merge(openapi::route(&described))
        .fallback(|| async { Problem::not_found("there is no such path") })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "the path has no such method",
                "compare with /v1/openapi.json",
            )
        })
        .with_state(app);
    (router, described)
}

/// What needs a token.
fn guarded() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(emit::emit, events::list))
        .routes(routes!(topics::list))
        .routes(routes!(topics::put, topics::get, topics::delete))
        .routes(routes!(events::head))
        .routes(routes!(events::get))
        .routes(routes!(events::cancel))
        .routes(routes!(subscriptions::list))
        .routes(routes!(subscriptions::put, subscriptions::get, subscriptions::delete))
        .routes(routes!(claims::claim))
        .routes(routes!(claims::settle))
        .routes(routes!(claims::extend))
        .routes(routes!(claims::release))
        .routes(routes!(control::pause))
        .routes(routes!(control::resume))
        .routes(routes!(control::block))
        .routes(routes!(control::unblock))
        .routes(routes!(dead::dead))
        .routes(routes!(dead::replay))
        .routes(routes!(dead::drop))
        .routes(routes!(dead::parked))
        .routes(routes!(dead::release_parked))
        .routes(routes!(dead::resend))
        .routes(routes!(stats::workers))
        .routes(routes!(stats::stats))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::delete))
        .routes(routes!(metrics::metrics))
}

/// What anybody may ask.
fn open() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(health::live)).routes(routes!(health::ready))
}

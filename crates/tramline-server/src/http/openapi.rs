//! The description of the API, made from the code.

use crate::http::app::Shared;
use crate::http::json::json_response;
use crate::http::problem::Told;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Info, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};

/// Adds what all operations have in common: the name, tokens, and problems.
pub(crate) fn complete(mut api: OpenApi) -> OpenApi {
    api.info = Info::new("Tramline", env!("CARGO_PKG_VERSION"));
    let components = api.components.get_or_insert_default();
    components.schemas.insert(Told::name().into_owned(), Told::schema());
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
pub(crate) fn route(api: &OpenApi) -> Router<Shared> {
    let written: Bytes = api.to_json().unwrap_or_default().into();
    Router::new().route(
        "/v1/openapi.json",
        get(move || async move { json_response(StatusCode::OK, written.to_vec()) }),
    )
}

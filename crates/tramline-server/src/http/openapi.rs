//! The description of the API, made from the code.

use crate::http::app::Shared;
use crate::http::control::Act;
use crate::http::json::json_response;
use crate::http::problem::Told;
use crate::http::{
    audit, chain, claims, control, dead, drops, emit, events, health, metrics, push, rules, schedules,
    schema, settle, stats, subscriptions, tallies, tokens, topics,
};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use bytes::Bytes;
use std::collections::BTreeSet;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, Info, OpenApi, Ref, RefOr, Required, ResponseBuilder, Schema,
};
use utoipa::{OpenApi as _, PartialSchema, ToSchema};

/// Every handler, so that its description is found. A test compares them with the routes.
#[derive(utoipa::OpenApi)]
#[openapi(
    components(schemas(Told, schema::Limit)),
    paths(
        emit::emit,
        events::list,
        topics::list,
        topics::put,
        topics::get,
        topics::delete,
        events::head,
        chain::chain,
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
        control::rule,
        dead::dead,
        dead::replay,
        dead::drop,
        dead::parked,
        dead::release_parked,
        dead::resend,
        push::steer::enable,
        push::steer::disable,
        push::steer::replay,
        push::attempts::list,
        push::secrets::add,
        push::secrets::remove,
        drops::drops,
        audit::audit,
        rules::create,
        rules::list,
        rules::delete,
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
        schedules::list,
        schedules::put,
        schedules::get,
        schedules::delete,
        schedules::pause,
        schedules::resume,
        schedules::run,
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
    for act in Act::ALL {
        api.paths.paths.entry(act.path()).or_default().post = Some(act.operation());
    }
    let components = api.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme("token", SecurityScheme::Http(bearer));
    components.schemas.values_mut().for_each(tighten);
    let optional = without_required_fields(components);
    for path in api.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.delete];
        for operation in operations.into_iter().flatten() {
            name_uniquely(operation);
            add_problems(operation);
            allow_empty_body(operation, &optional);
        }
    }
    api
}

/// Handlers of different files may have the same name; with their tag it is unique.
fn name_uniquely(operation: &mut Operation) {
    let tag = operation.tags.iter().flatten().next();
    if let (Some(id), Some(tag)) = (&mut operation.operation_id, tag) {
        *id = format!("{tag}_{id}");
    }
}

/// Every problem that an operation can answer: those of its own, and those that come with a token, a name, a query or a body.
fn add_problems(operation: &mut Operation) {
    let mut statuses = BTreeSet::from([431]);
    if operation.security.is_some() {
        statuses.extend([400, 401, 403, 503]);
    }
    for parameter in operation.parameters.iter().flatten() {
        match parameter.parameter_in {
            ParameterIn::Path => statuses.extend([404, 422]),
            _ => statuses.extend([422]),
        }
    }
    if operation.request_body.is_some() {
        statuses.extend([408, 413, 415, 422]);
    }
    let responses = &mut operation.responses.responses;
    for status in statuses {
        let common = ResponseBuilder::new().description(about(status)).build();
        responses.entry(status.to_string()).or_insert(RefOr::T(common));
    }
    for (status, response) in responses.iter_mut() {
        if let RefOr::T(response) = response
            && status.starts_with(['4', '5'])
        {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(Told::name()))).build();
            response.content.insert("application/problem+json".into(), content);
            if matches!(status.as_str(), "429" | "503") {
                let after =
                    HeaderBuilder::new().schema(i32::schema()).description(Some("Seconds to wait")).build();
                response.headers.insert("Retry-After".into(), after);
            }
        }
    }
}

/// What a problem means that many operations have.
fn about(status: u16) -> &'static str {
    match status {
        400 => "Malformed: not JSON, not UTF-8, an unknown query parameter, or it ended early",
        401 => "No token, an unknown or an expired one",
        403 => "The token does not allow this here",
        404 => "There is no such thing",
        408 => "The body did not come in time",
        413 => "Too large",
        415 => "The content type or encoding is not taken here",
        422 => "Well-formed, but it can never succeed",
        431 => "The head of the request is too large",
        _ => "Too busy, or the store is away",
    }
}

/// What the attributes of utoipa cannot say: objects with one property have that one, and those in an enum have no others.
fn tighten(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::T(Schema::Object(object)) => object.min_properties = object.max_properties,
        RefOr::T(Schema::OneOf(one_of)) => {
            for item in &mut one_of.items {
                if let RefOr::T(Schema::Object(object)) = item {
                    object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
                }
            }
        }
        _ => {}
    }
}

/// The schemas of which everything may be left out.
fn without_required_fields(components: &Components) -> BTreeSet<String> {
    let optional = |schema: &RefOr<Schema>| matches!(schema, RefOr::T(Schema::Object(object)) if object.required.is_empty() && object.min_properties.is_none());
    components.schemas.iter().filter(|(_, schema)| optional(schema)).map(|(name, _)| name.clone()).collect()
}

/// No body stands for an empty object.
fn allow_empty_body(operation: &mut Operation, optional: &BTreeSet<String>) {
    let Some(body) = &mut operation.request_body else { return };
    let json = body.content.get("application/json").and_then(|content| content.schema.as_ref());
    if let Some(RefOr::Ref(json)) = json
        && json.ref_location.rsplit('/').next().is_some_and(|name| optional.contains(name))
    {
        body.required = Some(Required::False);
    }
}

/// Serves the description. It is written once.
pub(crate) fn route() -> Router<Shared> {
    let written: Bytes = describe().to_json().unwrap_or_default().into();
    Router::new().route(
        "/v1/openapi.json",
        get(move || async move { json_response(StatusCode::OK, written.to_vec()) }),
    )
}

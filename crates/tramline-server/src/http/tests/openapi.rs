//! The description and the routes are the same.

use super::bed::{Bed, ROOT};
use super::matrix::body_for;
use crate::config::Config;
use axum::http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use utoipa::openapi::path::PathItem;

/// All that the contract fixes, and what is offered beyond it.
const CONTRACT: &[&str] = &[
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "GET /v1/drops",
    "GET /v1/events/{id}",
    "POST /v1/events/{id}/cancel",
    "GET /v1/rules",
    "POST /v1/rules",
    "DELETE /v1/rules/{rule}",
    "GET /v1/schedules",
    "DELETE /v1/schedules/{name}",
    "GET /v1/schedules/{name}",
    "PUT /v1/schedules/{name}",
    "POST /v1/schedules/{name}/pause",
    "POST /v1/schedules/{name}/resume",
    "POST /v1/schedules/{name}/run",
    "GET /v1/stats",
    "GET /v1/subscriptions",
    "DELETE /v1/subscriptions/{name}",
    "GET /v1/subscriptions/{name}",
    "PUT /v1/subscriptions/{name}",
    "GET /v1/subscriptions/{name}/attempts",
    "GET /v1/subscriptions/{name}/audit",
    "POST /v1/subscriptions/{name}/block",
    "POST /v1/subscriptions/{name}/claim",
    "GET /v1/subscriptions/{name}/dead",
    "POST /v1/subscriptions/{name}/dead/drop",
    "POST /v1/subscriptions/{name}/dead/replay",
    "POST /v1/subscriptions/{name}/disable",
    "POST /v1/subscriptions/{name}/enable",
    "POST /v1/subscriptions/{name}/extend",
    "GET /v1/subscriptions/{name}/parked",
    "POST /v1/subscriptions/{name}/parked/release",
    "POST /v1/subscriptions/{name}/pause",
    "POST /v1/subscriptions/{name}/release",
    "POST /v1/subscriptions/{name}/replay",
    "POST /v1/subscriptions/{name}/resend",
    "POST /v1/subscriptions/{name}/resume",
    "POST /v1/subscriptions/{name}/secrets",
    "DELETE /v1/subscriptions/{name}/secrets/{secret}",
    "POST /v1/subscriptions/{name}/settle",
    "POST /v1/subscriptions/{name}/unblock",
    "GET /v1/tallies",
    "POST /v1/tallies",
    "POST /v1/tallies/ack",
    "DELETE /v1/tallies/{tally}",
    "GET /v1/tallies/{tally}",
    "POST /v1/tallies/{tally}/ack",
    "POST /v1/tallies/{tally}/add",
    "POST /v1/tallies/{tally}/cancel",
    "POST /v1/tallies/{tally}/count",
    "POST /v1/tallies/{tally}/fail",
    "POST /v1/tallies/{tally}/seal",
    "GET /v1/tokens",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{name}",
    "GET /v1/topics",
    "DELETE /v1/topics/{topic}",
    "GET /v1/topics/{topic}",
    "PUT /v1/topics/{topic}",
    "GET /v1/topics/{topic}/chain",
    "GET /v1/topics/{topic}/events",
    "POST /v1/topics/{topic}/events",
    "GET /v1/topics/{topic}/head",
    "GET /v1/workers",
];

/// The methods of a path.
pub(super) fn methods(item: &PathItem) -> Vec<Method> {
    let all = [
        (&item.get, Method::GET),
        (&item.put, Method::PUT),
        (&item.post, Method::POST),
        (&item.delete, Method::DELETE),
        (&item.patch, Method::PATCH),
    ];
    all.into_iter().filter(|(operation, _)| operation.is_some()).map(|(_, method)| method).collect()
}

#[tokio::test]
async fn the_description_the_routes_and_the_contract_have_the_same_calls() {
    let bed = Bed::open().await;
    let described: BTreeSet<String> = bed
        .api
        .paths
        .paths
        .iter()
        .flat_map(|(path, item)| methods(item).into_iter().map(move |method| format!("{method} {path}")))
        .collect();
    let contract: BTreeSet<String> = CONTRACT.iter().map(ToString::to_string).collect();
    assert_eq!(described, contract);
    assert_eq!(described, crate::http::routes::list().into_iter().collect());
}

#[tokio::test]
async fn every_described_call_is_served_and_other_methods_are_not() {
    let bed = Bed::open().await;
    for (path, item) in &bed.api.paths.paths {
        let url =
            path.replace("{topic}", "t").replace("{name}", "n").replace("{id}", "1").replace("{tally}", "1");
        let known = methods(item);
        for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE, Method::PATCH] {
            let reply = bed.call(method.clone(), &url, None, "").await;
            let served = reply.status != 405 && !reply.text.contains("no such path");
            assert_eq!(served, known.contains(&method), "{method} {path}: {} {}", reply.status, reply.text);
        }
    }
}

/// The first tally of a new store, and the second, which is estimated.
const TALLY: &str = "1";
const COUNTER: &str = "2";

/// A body of the description: what it needs, and what its fields may be.
struct Described {
    url: String,
    method: Method,
    base: Value,
    schema: Value,
}

fn resolve<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    let first = |all: &'a Value| all.as_array().unwrap().iter().find(|one| one["type"] != "null").unwrap();
    match (schema["$ref"].as_str(), &schema["oneOf"]) {
        (Some(name), _) => resolve(api, &api["components"]["schemas"][name.rsplit('/').next().unwrap()]),
        (None, one_of) if one_of.is_array() => resolve(api, first(one_of)),
        _ => schema,
    }
}

fn bodies(api: &Value) -> Vec<Described> {
    let mut bodies = Vec::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_object() {
                let schema = resolve(api, schema).clone();
                let tally = if path.ends_with("/count") { COUNTER } else { TALLY };
                // Either `all`, or what the events are.
                let alone = schema["maxProperties"] == 1 || path.contains("/dead/");
                let is_push = path.ends_with("/disable") || path.ends_with("/secrets");
                let name = if is_push { "p" } else { "s" };
                bodies.push(Described {
                    url: path.replace("{topic}", "t").replace("{name}", name).replace("{tally}", tally),
                    method: method.to_uppercase().parse().unwrap(),
                    base: if alone { json!({}) } else { body_for(path, "t") },
                    schema,
                });
            }
        }
    }
    bodies
}

/// Values at the edges of what a schema allows, and beyond.
fn edges(schema: &Value) -> (Vec<Value>, Vec<Value>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for (edge, step) in [("minimum", -1), ("maximum", 1)] {
        if let Some(number) = schema[edge].as_i64() {
            good.push(json!(number));
            bad.push(json!(number + step));
        }
    }
    let text = |length: &Value| length.as_u64().map(|length| "x".repeat(length as usize));
    if let Some(longest) = text(&schema["maxLength"]) {
        bad.push(json!(format!("{longest}x")));
        good.push(json!(longest));
    }
    if let Some(most) = schema["maxItems"].as_u64() {
        bad.push(json!(vec!["1"; most as usize + 1]));
    }
    if schema["minItems"] == 1 {
        bad.push(json!([]));
    }
    if schema["minLength"] == 1 {
        bad.push(json!(""));
    }
    if schema["enum"].is_array() {
        bad.push(json!("no such word"));
    }
    (good, bad)
}

/// True for fields of push subscriptions only.
fn is_push(schema: &Value) -> bool {
    schema["description"].as_str().is_some_and(|text| text.starts_with("Push:"))
}

fn push() -> Value {
    json!({"topics": ["t"], "kind": "push", "callback": "https://receiver.example/"})
}

#[tokio::test]
async fn what_the_description_forbids_is_refused_and_its_edges_are_taken() {
    let config = Config { root_token: Some(ROOT.into()), max_wait_ms: 1, ..Config::defaults().unwrap() };
    let bed = Bed::with(config).await;
    let api = serde_json::to_value(&bed.api).unwrap();
    for tally in [json!({}), json!({"estimated": true})] {
        bed.post("/v1/tallies", tally).await.good();
    }
    let mut checked = 0;
    for body in bodies(&api) {
        let with = |field: &str, value: &Value| {
            let mut changed = body.base.clone();
            if is_push(&body.schema["properties"][field]) {
                changed["kind"] = json!("push");
                changed["callback"] = json!("https://receiver.example/");
            }
            // How many, of those that are meant by something else.
            if field == "limit" {
                changed["all"] = json!(true);
            }
            changed[field] = value.clone();
            changed.to_string()
        };
        bed.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await.good();
        bed.put("/v1/subscriptions/p", push()).await.good();
        for (field, schema) in body.schema["properties"].as_object().unwrap() {
            let url = if is_push(schema) { "/v1/subscriptions/p".to_owned() } else { body.url.clone() };
            let (good, bad) = edges(resolve(&api, schema));
            checked += bad.len();
            for value in bad {
                let reply = bed.call(body.method.clone(), &url, Some(ROOT), &with(field, &value)).await;
                assert_eq!(reply.status, 422, "{} {} {field} {value}: {}", body.method, body.url, reply.text);
            }
            for value in good {
                let reply = bed.call(body.method.clone(), &url, Some(ROOT), &with(field, &value)).await;
                assert_ne!(reply.status, 422, "{} {} {field} {value}: {}", body.method, body.url, reply.text);
            }
        }
        for other in [with("nobody_knows_it", &json!(1)), json!([]).to_string(), json!([null]).to_string()] {
            let reply = bed.call(body.method.clone(), &body.url, Some(ROOT), &other).await;
            assert_eq!(reply.status, 422, "{} {} {other}: {}", body.method, body.url, reply.text);
        }
    }
    assert!(checked > 50, "only {checked} values were found in the description");
}

#[tokio::test]
async fn the_names_of_operations_are_unique() {
    let api = serde_json::to_value(&Bed::open().await.api).unwrap();
    let items = api["paths"].as_object().unwrap().values();
    let ids: Vec<&Value> =
        items.flat_map(|item| item.as_object().unwrap().values().map(|it| &it["operationId"])).collect();
    assert_eq!(ids.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len(), ids.len());
}

#[tokio::test]
async fn the_description_is_served() {
    let bed = Bed::guarded().await;
    let served = bed.call(Method::GET, "/v1/openapi.json", None, "").await.good();
    assert_eq!(served["openapi"], "3.1.0");
    assert_eq!(served["paths"].as_object().unwrap().len(), bed.api.paths.paths.len());
    let text = served.to_string();
    for name in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(served["components"]["schemas"][name].is_object(), "{name} is not described");
    }
}

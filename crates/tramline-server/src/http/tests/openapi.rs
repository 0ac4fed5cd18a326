//! The description and the routes are the same.

use super::bed::Bed;
use axum::http::Method;
use std::collections::BTreeSet;
use utoipa::openapi::path::PathItem;

/// All that the contract fixes, but for schedules.
const CONTRACT: &[&str] = &[
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "GET /v1/events/{id}",
    "POST /v1/events/{id}/cancel",
    "GET /v1/stats",
    "GET /v1/subscriptions",
    "DELETE /v1/subscriptions/{name}",
    "GET /v1/subscriptions/{name}",
    "PUT /v1/subscriptions/{name}",
    "POST /v1/subscriptions/{name}/block",
    "POST /v1/subscriptions/{name}/claim",
    "GET /v1/subscriptions/{name}/dead",
    "POST /v1/subscriptions/{name}/dead/drop",
    "POST /v1/subscriptions/{name}/dead/replay",
    "POST /v1/subscriptions/{name}/extend",
    "GET /v1/subscriptions/{name}/parked",
    "POST /v1/subscriptions/{name}/parked/release",
    "POST /v1/subscriptions/{name}/pause",
    "POST /v1/subscriptions/{name}/release",
    "POST /v1/subscriptions/{name}/resend",
    "POST /v1/subscriptions/{name}/resume",
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

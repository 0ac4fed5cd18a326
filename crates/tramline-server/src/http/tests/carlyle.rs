//! Who may call Carlyle's API, and that it can be switched off. What it answers is tested through the binary.

use super::bed::{Bed, Reply};
use crate::compat::carlyle;
use crate::config::{Config, Switch};
use axum::http::Method;
use serde_json::{Value, json};

const ROLES: &[&str] = &["publish", "consume", "manage", "admin"];
const FILL: &[&str] = &["publish", "manage", "admin"];
const ACK: &[&str] = &["consume", "manage", "admin"];
const MANAGE: &[&str] = &["manage", "admin"];

/// Every call and who may make it.
const RIGHTS: &[(&str, &str, &[&str])] = &[
    ("POST", "/api/v1/batch/exact", FILL),
    ("POST", "/api/v1/batch/exact/", FILL),
    ("GET", "/api/v1/batch/exact/{id}", ROLES),
    ("POST", "/api/v1/batch/exact/close/{id}", FILL),
    ("POST", "/api/v1/batch/exact/items", FILL),
    ("POST", "/api/v1/batch/exact/items/ack", ACK),
    ("DELETE", "/api/v1/batch/exact/open", MANAGE),
    ("DELETE", "/api/v1/batch/exact/closed", MANAGE),
    ("POST", "/api/v1/batch/estimated", FILL),
    ("POST", "/api/v1/batch/estimated/", FILL),
    ("POST", "/api/v1/batch/estimated/decr", ACK),
    ("POST", "/api/v1/batch/estimated/{id}/incr", FILL),
    ("POST", "/api/v1/batch/estimated/{id}/close", FILL),
    ("GET", "/api/v1/batch/estimated/{id}", ROLES),
    ("DELETE", "/api/v1/batch/estimated/{id}", MANAGE),
];

/// A node with one batch of each kind.
struct Batches {
    bed: Bed,
    exact: Value,
    item: String,
    estimated: Value,
}

impl Batches {
    async fn new() -> Batches {
        let bed = Bed::guarded().await;
        let exact = bed.post("/api/v1/batch/exact", json!({})).await.good()["batchId"].clone();
        let add = json!({"batchId": exact, "items": 5});
        let groups = bed.post("/api/v1/batch/exact/items", add).await.good();
        let item = format!("{exact}:{}:0", groups["batchItemGroupIds"][0]["id"].as_str().unwrap());
        let estimated = bed.post("/api/v1/batch/estimated", json!({})).await.good()["batchId"].clone();
        Batches { bed, exact, item, estimated }
    }

    async fn token(&self, scopes: &[&str], topics: &str) -> String {
        let token = json!({"name": format!("t{}", scopes.len()), "scopes": scopes, "topics": [topics]});
        self.bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned()
    }

    /// A call that would succeed.
    async fn call(&self, method: &str, path: &str, token: Option<&str>) -> Reply {
        let id = match path.contains("exact") {
            true => self.exact.to_string(),
            false => self.estimated.as_str().unwrap().to_owned(),
        };
        let since =
            if method == "DELETE" && path.contains("exact") { "?since=2000-01-01T00:00:00Z" } else { "" };
        let url = format!("{}{since}", path.replace("{id}", &id));
        let body = match path.rsplit('/').next() {
            Some("items") => json!({"batchId": self.exact, "items": 1}),
            Some("ack") => json!({"batchItemIds": [self.item]}),
            Some("decr") => json!({"acks": [{"batchId": self.estimated}]}),
            _ => json!({}),
        };
        self.bed.call(method.parse().unwrap(), &url, token, &body.to_string()).await
    }
}

#[test]
fn it_is_known_of_every_call_who_may_make_it() {
    let served: Vec<(Method, &str)> = carlyle::list();
    let known: Vec<(Method, &str)> =
        RIGHTS.iter().map(|(method, path, _)| (method.parse().unwrap(), *path)).collect();
    assert_eq!(served, known);
}

#[tokio::test]
async fn every_role_may_do_what_its_scope_says_and_nothing_else() {
    for (method, path, roles) in RIGHTS {
        for role in ROLES {
            let batches = Batches::new().await;
            let token = batches.token(&[role], "carlyle/**").await;
            let reply = batches.call(method, path, Some(&token)).await;
            let what = format!("{method} {path} as {role}: {} {}", reply.status, reply.text);
            match roles.contains(role) {
                true => assert!(reply.status.is_success(), "{what}"),
                false => assert_eq!(reply.status, 403, "{what}"),
            }
        }
    }
}

#[tokio::test]
async fn batches_of_others_are_hidden_and_nobody_without_a_token_gets_in() {
    let batches = Batches::new().await;
    let token = batches.token(&["publish", "consume", "manage", "admin"], "acme/**").await;
    for (method, path, _) in RIGHTS {
        let reply = batches.call(method, path, Some(&token)).await;
        let what = format!("{method} {path}: {} {}", reply.status, reply.text);
        assert!(reply.status == 403 || reply.status == 404, "{what}");
        batches.call(method, path, None).await.problem(401);
    }
    let exact = batches.bed.get(&format!("/v1/tallies/{}", batches.exact)).await.good();
    assert_eq!((&exact["total"], &exact["done"], &exact["state"]), (&json!(5), &json!(0), &json!("open")));
}

#[tokio::test]
async fn switched_off_it_does_not_exist() {
    let bed = Bed::with(Config { carlyle: Switch::Off, ..Config::defaults().unwrap() }).await;
    for (method, path, _) in RIGHTS {
        let path = path.replace("{id}", "1");
        let reply = bed.call(method.parse().unwrap(), &path, None, "{}").await;
        assert_eq!(reply.problem(404)["detail"], "there is no such path");
    }
}

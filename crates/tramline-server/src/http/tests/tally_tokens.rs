//! Who may do what with tallies: beyond what the matrix of routes and roles shows.

use super::bed::{Bed, ROOT, Reply};
use axum::http::Method;
use serde_json::{Value, json};

/// A node with a token for one tenant that may do everything but manage tokens.
struct Tenant {
    bed: Bed,
    token: String,
}

impl Tenant {
    async fn new(scopes: Value) -> Tenant {
        let bed = Bed::guarded().await;
        for name in ["acme/a", "rival/a"] {
            let path = format!("/v1/subscriptions/{}", name.replace('/', "%2F"));
            bed.put(&path, json!({"topics": [name]})).await.good();
        }
        let token =
            json!({"name": "acme", "scopes": scopes, "topics": ["acme/**"], "subscriptions": ["acme/**"]});
        let token = bed.post("/v1/tokens", token).await.good()["token"].as_str().unwrap().to_owned();
        Tenant { bed, token }
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.bed.call(Method::POST, path, Some(&self.token), &body.to_string()).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.bed.call(Method::GET, path, Some(&self.token), "").await
    }

    async fn rivals(&self) -> String {
        let tally = json!({"topic": "rival/a", "user_key": "rival"});
        self.bed.post("/v1/tallies", tally).await.good()["tally"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn who_is_limited_to_topics_opens_tallies_of_these_only() {
    let tenant = Tenant::new(json!(["publish", "manage"])).await;
    let refused = tenant.post("/v1/tallies", json!({})).await.problem(403);
    assert!(refused["remedy"].as_str().unwrap().contains("`topic`"), "{refused}");
    tenant.post("/v1/tallies", json!({"topic": "rival/a"})).await.problem(403);
    tenant
        .post("/v1/tallies", json!({"topic": "acme/a", "on_complete": {"topic": "rival/a"}}))
        .await
        .problem(403);
    tenant
        .post("/v1/tallies", json!({"topic": "acme/a", "on_expiry": {"topic": "rival/a"}}))
        .await
        .problem(403);
    let rivals = tenant.rivals().await;
    tenant.post("/v1/tallies", json!({"topic": "acme/a", "parent": {"id": rivals}})).await.problem(404);
    tenant.post("/v1/tallies", json!({"topic": "acme/a", "on_complete": {"topic": "acme/b"}})).await.good();
}

#[tokio::test]
async fn events_of_tallies_need_the_scope_to_publish() {
    let tenant = Tenant::new(json!(["manage"])).await;
    tenant.post("/v1/tallies", json!({"topic": "acme/a"})).await.good();
    tenant
        .post("/v1/tallies", json!({"topic": "acme/a", "on_complete": {"topic": "acme/a"}}))
        .await
        .problem(403);
}

#[tokio::test]
async fn nothing_of_a_foreign_tally_is_seen_or_changed() {
    let tenant = Tenant::new(json!(["publish", "consume", "manage"])).await;
    let rivals = tenant.rivals().await;
    tenant.bed.post(&format!("/v1/tallies/{rivals}/add"), json!({"count": 2})).await.good();
    let own = tenant.post("/v1/tallies", json!({"topic": "acme/a"})).await.good()["tally"].clone();
    let acks = json!({"acks": [{"tally": rivals, "items": [0]}, {"tally": rivals, "items": []}, {"tally": own, "items": []}]});
    let acked = tenant.post("/v1/tallies/ack", acks).await.good()["results"].clone();
    let status: Vec<&Value> = acked.as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(status, ["not_found", "not_found", "acked"]);
    assert_eq!((&acked[0]["total"], &acked[1]["total"]), (&Value::Null, &Value::Null));
    let event = json!({"payload": 1, "tally": {"id": rivals}});
    let emitted = tenant.post("/v1/topics/acme%2Fa/events", event).await;
    assert_eq!(emitted.problem(404)["detail"], "there is no such tally");
    let event = json!({"payload": 1, "tally": {"id": own, "subscription": "rival/a"}});
    tenant.post("/v1/topics/acme%2Fa/events", event).await.problem(403);
    let listed = tenant.get("/v1/tallies").await.good();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    let stats = tenant.get("/v1/stats").await.good()["tallies"].clone();
    assert_eq!((&stats["counts"], stats["under_way"].as_array().unwrap().len()), (&Value::Null, 1));
    assert!(!tenant.get("/metrics").await.text.contains("tramline_tallies"));
    let path = format!("/v1/tallies/{rivals}");
    let seen = tenant.bed.call(Method::GET, &path, Some(ROOT), "").await.good();
    assert_eq!((&seen["total"], &seen["pending"]), (&json!(2), &json!(2)));
}

#[tokio::test]
async fn a_page_of_a_limited_token_goes_on_where_it_stopped() {
    let tenant = Tenant::new(json!(["publish"])).await;
    let mut own = Vec::new();
    for n in 0..6 {
        tenant.rivals().await;
        let tally = json!({"topic": "acme/a", "user_key": format!("n{n}")});
        own.push(tenant.post("/v1/tallies", tally).await.good()["tally"].clone());
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = tenant.get(&format!("/v1/tallies?limit=4&after={after}")).await.good();
        seen.extend(page["items"].as_array().unwrap().iter().map(|one| one["tally"].clone()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, own);
}

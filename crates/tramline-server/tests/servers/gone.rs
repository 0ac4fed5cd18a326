//! The server of a store is gone for a while: nothing is acknowledged, and then everything goes on by itself.

use crate::node::{Launch, Node, PATIENCE, answer, until_true};
use crate::own_redis::OwnRedis;
use crate::stores::Place;
use crate::way::Way;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

#[tokio::test]
async fn while_postgres_is_gone_nothing_is_acknowledged_and_then_it_goes_on() {
    cut_off(Place::postgres()).await;
}

#[tokio::test]
async fn while_mysql_is_gone_nothing_is_acknowledged_and_then_it_goes_on() {
    cut_off(Place::mysql().await).await;
}

#[tokio::test]
async fn while_redis_is_gone_nothing_is_acknowledged_and_then_it_goes_on() {
    cut_off(Place::redis()).await;
}

/// A Cluster says itself where its nodes are, so there is no way to it that could be cut.
#[tokio::test]
async fn while_a_redis_cluster_is_killed_nothing_is_acknowledged_and_then_it_goes_on() {
    let mut cluster = OwnRedis::start_cluster();
    let mut outage = Outage::before(&cluster.cluster_url()).await;
    cluster.kill();
    outage.is_told().await;
    cluster.start_again();
    outage.is_over().await;
}

async fn cut_off(place: Place) {
    let (way, url) = Way::to(place.url());
    let mut outage = Outage::before(&url).await;
    way.cut();
    outage.is_told().await;
    way.mend();
    outage.is_over().await;
}

/// A node whose store will be gone, and clients that have to live with that.
struct Outage {
    node: Node,
    token: String,
    follower: Response,
    /// How a claim is answered that waits.
    waiting: JoinHandle<StatusCode>,
    acknowledged: Vec<String>,
}

impl Outage {
    async fn before(store: &str) -> Outage {
        let node = Launch::with(&["--store", store, "--store-timeout-ms", "3000"]).start();
        let waiting = wait(&node).await;
        node.post("/v1/topics/t/events", json!({"payload": 0})).await;
        let token = node.post("/v1/tokens", json!({"name": "a", "scopes": ["admin"]})).await;
        let token = token["token"].as_str().unwrap().to_owned();
        let follow = node.http.get(node.url("/v1/topics/t/events?after=now")).bearer_auth(&token);
        let mut follower = follow.header("accept", "text/event-stream").send().await.unwrap();
        let first = follower.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(b"id: "), "{first:?}");
        let mut outage = Outage { node, token, follower, waiting, acknowledged: Vec::new() };
        assert_eq!(outage.emit().await.0, StatusCode::CREATED);
        outage
    }

    /// The token stays known all the time.
    async fn emit(&mut self) -> (StatusCode, String) {
        let request = self.node.http.post(self.node.url("/v1/topics/t/events")).bearer_auth(&self.token);
        let request = request.header("content-type", "application/json").body("{\"payload\":1}");
        let reply = request.send().await.unwrap();
        let (status, text) = (reply.status(), reply.text().await.unwrap());
        if status == StatusCode::CREATED {
            let receipt: Value = serde_json::from_str(&text).unwrap();
            self.acknowledged.push(receipt["events"][0]["id"].as_str().unwrap().to_owned());
        }
        (status, text)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.node.http.get(self.node.url(path)).bearer_auth(&self.token)
    }

    async fn is_told(&mut self) {
        let (status, text) = self.emit().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert!(!problem["remedy"].as_str().unwrap().is_empty() && !text.contains("://"), "{text}");
        let get = async |path: &str| self.get(path).send().await.unwrap();
        let ready = get("/health/ready").await;
        assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ready.headers()["retry-after"], "1");
        assert_eq!(get("/health/live").await.status(), StatusCode::OK);
        assert_eq!(get("/pulse").await.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            timeout(PATIENCE, &mut self.waiting).await.unwrap().unwrap(),
            StatusCode::SERVICE_UNAVAILABLE
        );
    }

    async fn is_over(&mut self) {
        until_true(async || self.emit().await.0 == StatusCode::CREATED).await;
        let stored = answer(self.get("/v1/topics/t/events?limit=1000").send().await.unwrap()).await;
        let ids: Vec<&str> =
            stored["items"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect();
        assert!(self.acknowledged.iter().all(|id| ids.contains(&id.as_str())), "{ids:?}");
        // Who followed before follows on.
        let last = format!("id: {}\n", self.acknowledged.last().unwrap());
        let mut text = String::new();
        while !text.contains(&last) {
            let more = timeout(PATIENCE, self.follower.chunk()).await.unwrap();
            text += std::str::from_utf8(&more.unwrap().unwrap()).unwrap();
        }
        assert!(self.acknowledged.iter().all(|id| text.contains(&format!("id: {id}\n"))), "{text}");
    }
}

/// A claim that finds nothing, and waits.
async fn wait(node: &Node) -> JoinHandle<StatusCode> {
    node.put("/v1/subscriptions/idle", json!({"topics": ["quiet"]})).await;
    let claim = node.http.post(node.url("/v1/subscriptions/idle/claim"));
    let claim = claim.body(json!({"wait_ms": 60_000}).to_string()).send();
    let waiting = tokio::spawn(async { claim.await.unwrap().status() });
    until_true(async || node.metrics().await.contains("tramline_store_seconds_count{verb=\"claim\"}")).await;
    waiting
}

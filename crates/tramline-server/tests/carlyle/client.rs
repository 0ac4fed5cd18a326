//! Calls of Carlyle's API, as its clients make them.

use crate::node::Node;
use crate::stores;
use serde_json::{Value, json};

pub(crate) const EXACT: &str = "/api/v1/batch/exact";
pub(crate) const ESTIMATED: &str = "/api/v1/batch/estimated";

/// A node with Carlyle's API.
pub(crate) struct Carlyle(pub(crate) Node);

impl Carlyle {
    pub(crate) async fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let request = self.0.http.request(method.parse().unwrap(), self.0.url(path));
        let request = request.header("content-type", "application/json");
        let request = if body.is_null() { request } else { request.body(body.to_string()) };
        let reply = request.send().await.unwrap();
        let (status, text) = (reply.status().as_u16(), reply.text().await.unwrap());
        (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() })
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, body).await
    }

    pub(crate) async fn create(&self, body: Value) -> i64 {
        let (status, created) = self.post(EXACT, body).await;
        assert_eq!((status, created.as_object().unwrap().len()), (200, 1), "{created}");
        created["batchId"].as_i64().unwrap()
    }

    /// Adds items, and gives their names as a client makes them.
    pub(crate) async fn add(&self, batch: i64, items: i64) -> Vec<String> {
        let (status, added) =
            self.post(&format!("{EXACT}/items"), json!({"batchId": batch, "items": items})).await;
        assert_eq!(status, 200, "{added}");
        let groups = added["batchItemGroupIds"].as_array().unwrap();
        let names = |group: &Value| {
            let id = group["id"].as_str().unwrap().to_owned();
            (0..group["upto"].as_u64().unwrap()).map(move |index| format!("{batch}:{id}:{index}"))
        };
        groups.iter().flat_map(names).collect()
    }

    pub(crate) async fn ack(&self, items: &[String]) -> (u16, Value) {
        self.post(&format!("{EXACT}/items/ack"), json!({"batchItemIds": items})).await
    }

    pub(crate) async fn close(&self, batch: i64) -> (u16, Value) {
        self.post(&format!("{EXACT}/close/{batch}"), Value::Null).await
    }

    pub(crate) async fn get(&self, batch: i64) -> Value {
        let (status, seen) = self.send("GET", &format!("{EXACT}/{batch}"), Value::Null).await;
        assert_eq!(status, 200, "{seen}");
        seen
    }

    pub(crate) async fn create_estimated(&self, body: Value) -> String {
        let (status, created) = self.post(ESTIMATED, body).await;
        assert_eq!(status, 200, "{created}");
        created["batchId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn incr(&self, batch: &str, by: i64) -> u16 {
        self.post(&format!("{ESTIMATED}/{batch}/incr?by={by}"), Value::Null).await.0
    }

    pub(crate) async fn decr(&self, acks: Value) -> (u16, Value) {
        self.post(&format!("{ESTIMATED}/decr"), json!({"acks": acks})).await
    }

    pub(crate) async fn close_estimated(&self, batch: &str) -> (u16, Value) {
        self.post(&format!("{ESTIMATED}/{batch}/close"), Value::Null).await
    }

    /// The events that complete batches emitted, as soon as there are any.
    pub(crate) async fn completions(&self, kind: &str) -> Vec<Value> {
        let path = format!("/v1/topics/carlyle%2F{kind}/events?limit=1000");
        stores::until(async || {
            let (status, seen) = self.send("GET", &path, Value::Null).await;
            (status == 200)
                .then(|| seen["items"].as_array().unwrap().clone())
                .filter(|items| !items.is_empty())
        })
        .await
    }
}

/// What the ack that ends a batch is told.
pub(crate) fn complete(batch: i64) -> Value {
    json!({"batchCompletions": [{"batchId": batch}]})
}

/// What other acks are told.
pub(crate) fn nothing() -> Value {
    json!({"batchCompletions": []})
}

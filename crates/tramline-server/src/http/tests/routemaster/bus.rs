//! A node with clients of Routemaster's, and their calls.

use crate::config::Config;
use crate::http::tests::bed::{Bed, ROOT, Reply};
use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// A node with clients of Routemaster's.
pub(super) struct Bus(pub(super) Bed);

pub(super) const CALLBACK: &str = "https://web.example/events";

impl Bus {
    /// With a root token, and the tokens `shop` and `web` for two clients of these names.
    pub(super) async fn open() -> Bus {
        let bus = Bus(Bed::guarded().await);
        for name in ["shop", "web"] {
            bus.good("POST", "/api_tokens", ROOT, json!({"name": name, "token": name})).await;
        }
        bus
    }

    /// Without any tokens.
    pub(super) async fn local() -> Bus {
        Bus(Bed::with(Config::defaults().unwrap()).await)
    }

    /// A call as Routemaster's clients make it: the token is the user name.
    pub(super) async fn call(&self, method: &str, path: &str, token: &str, body: Value) -> Reply {
        self.raw(method, path, token, &if body.is_null() { String::new() } else { body.to_string() }).await
    }

    pub(super) async fn raw(&self, method: &str, path: &str, token: &str, body: &str) -> Reply {
        let basic = BASE64_STANDARD.encode(format!("{token}:x"));
        let request =
            Request::builder().method(method).uri(path).header("authorization", format!("Basic {basic}"));
        let request = request.header("content-type", "application/json");
        self.0.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(super) async fn good(&self, method: &str, path: &str, token: &str, body: Value) -> Value {
        self.call(method, path, token, body).await.good()
    }

    pub(super) async fn get(&self, path: &str, token: &str) -> Value {
        self.good("GET", path, token, Value::Null).await
    }

    /// Publishes an event about an object.
    pub(super) async fn publish(&self, topic: &str, number: u32) {
        self.good("POST", &format!("/topics/{topic}"), "shop", event(number)).await;
    }

    /// Subscribes `web`.
    pub(super) async fn subscribe(&self, topics: &[&str]) {
        let wanted = json!({"topics": topics, "callback": CALLBACK, "uuid": "secret-of-web"});
        let reply = self.call("POST", "/subscription", "web", wanted).await;
        assert_eq!((reply.status.as_u16(), &*reply.text), (204, ""));
    }

    /// `web` as it is listed for it.
    pub(super) async fn subscriber(&self) -> Value {
        self.get("/subscribers", "web").await[0].clone()
    }

    /// How a topic is listed, if it is.
    pub(super) async fn topic(&self, name: &str) -> Option<Value> {
        let all = self.get("/topics", "web").await;
        all.as_array().unwrap().iter().find(|topic| topic["name"] == name).cloned()
    }

    /// The names of all topics of the store, also of those that are not listed.
    pub(super) async fn stored_topics(&self) -> Vec<String> {
        let topics = self.0.app.tram.topics().await.unwrap();
        topics.iter().map(|topic| topic.name.to_string()).collect()
    }
}

/// An event about an object.
pub(super) fn event(number: u32) -> Value {
    json!({"type": "update", "url": format!("https://shop.example/widgets/{number}")})
}

impl Reply {
    /// Checks that it says no in this way, in plain text.
    pub(super) fn refused(self, status: u16, start: &str) {
        assert_eq!(self.status, status, "{}", self.text);
        assert!(self.text.starts_with(start), "{}", self.text);
        assert_eq!(self.headers["content-type"], "text/plain; charset=utf-8");
        assert!(self.text.len() < 300, "{}", self.text);
    }
}

//! A node that serves TLS, as Routemaster's clients insist, and their calls.

use crate::node::Node;
use crate::stores::Place;
use reqwest::Client;
use serde_json::{Value, json};

pub(crate) const ROOT: &str = "root-token-of-the-tests";

/// A node, with the clients `shop` and `web`, whose tokens are their names.
pub(crate) struct Bus {
    pub(crate) node: Node,
    pub(crate) http: Client,
}

impl Bus {
    pub(crate) async fn start(place: &Place) -> Bus {
        let file = |name: &str| format!("{}/tests/tls/first.{name}.pem", env!("CARGO_MANIFEST_DIR"));
        let (cert, key) = (file("cert"), file("key"));
        let arguments =
            ["--tls-cert", &cert, "--tls-key", &key, "--push-allow", "127.0.0.1", "--push-insecure-tls"];
        let node = place.launch(&arguments).env("TRAMLINE_ROOT_TOKEN", ROOT).start();
        tramline::tls::prepare();
        let http = Client::builder().danger_accept_invalid_certs(true).build().unwrap();
        let bus = Bus { node, http };
        for name in ["shop", "web"] {
            let (status, made) =
                bus.call("POST", "/api_tokens", ROOT, json!({"name": name, "token": name})).await;
            assert_eq!(status, 201, "{made}");
        }
        bus
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.node.address)
    }

    /// A call as Routemaster's clients make it: the token is the user name, the password is of no interest.
    pub(crate) async fn call(&self, method: &str, path: &str, token: &str, body: Value) -> (u16, Value) {
        let request = self.http.request(method.parse().unwrap(), self.url(path)).basic_auth(token, Some("x"));
        let request = match body {
            Value::Null => request,
            body => request.header("content-type", "application/json").body(body.to_string()),
        };
        let reply = request.send().await.unwrap();
        let (status, text) = (reply.status().as_u16(), reply.text().await.unwrap());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Publishes an event about an object. Gives what a drain is to be sent of it.
    pub(crate) async fn publish(&self, topic: &str, number: u64) -> Value {
        let url = format!("https://shop.example/{topic}/{number}");
        let event = json!({"type": "update", "url": url, "timestamp": number});
        let (status, told) = self.call("POST", &format!("/topics/{topic}"), "shop", event).await;
        assert_eq!(status, 200, "{told}");
        json!({"topic": topic, "type": "update", "url": url, "t": number})
    }

    /// Subscribes `web`.
    pub(crate) async fn subscribe(&self, topics: &[&str], callback: &str, timeout: u64, max: u64) {
        let wanted =
            json!({"topics": topics, "callback": callback, "uuid": "a-uuid", "timeout": timeout, "max": max});
        let (status, told) = self.call("POST", "/subscription", "web", wanted).await;
        assert_eq!(status, 204, "{told}");
    }

    /// The figures of `web`.
    pub(crate) async fn events(&self) -> Value {
        self.call("GET", "/subscribers", "web", Value::Null).await.1[0]["events"].clone()
    }
}

//! Whether the bus lives, and whether it keeps up.

use super::bus::{Bus, CALLBACK, event};
use crate::config::Config;
use crate::http::tests::bed::{Bed, ROOT};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test]
async fn a_bus_that_lives_has_a_pulse() {
    let bus = Bus::open().await;
    for path in ["/pulse", "/pulse/scaling"] {
        for token in [ROOT, "shop"] {
            let reply = bus.call("GET", path, token, Value::Null).await;
            assert_eq!((reply.status.as_u16(), &*reply.text), (204, ""), "{path}");
        }
        assert_eq!(bus.call("GET", path, "wrong", Value::Null).await.status, 401);
    }
}

#[tokio::test]
async fn health_needs_no_token() {
    let bus = Bus::open().await;
    let reply = bus.0.call("GET".parse().unwrap(), "/health", None, "").await;
    assert_eq!((reply.status.as_u16(), &*reply.text), (200, "{}"));
    let reply = bus.0.call("GET".parse().unwrap(), "/health/ping", None, "").await;
    let pong = reply.json()["pong"].as_str().unwrap().to_owned();
    assert!(pong.starts_with("20") && pong.ends_with('Z'), "{pong}");
}

#[tokio::test]
async fn a_bus_that_does_not_keep_up_answers_late() {
    let config = Config {
        root_token: Some(ROOT.into()),
        routemaster_scaling_threshold: 2,
        ..Config::defaults().unwrap()
    };
    let bus = Bus(Bed::with(config).await);
    bus.good("POST", "/api_tokens", ROOT, json!({"name": "shop", "token": "shop"})).await;
    let wanted = json!({"topics": ["widgets"], "callback": CALLBACK, "max": 1, "timeout": 0});
    bus.good("POST", "/subscription", "shop", wanted).await;
    let took = async || {
        let started = Instant::now();
        assert_eq!(bus.call("GET", "/pulse/scaling", ROOT, Value::Null).await.status, 204);
        started.elapsed()
    };
    for number in 0..2 {
        bus.good("POST", "/topics/widgets", "shop", event(number)).await;
    }
    assert!(took().await < Duration::from_secs(1), "as many as the limit are not too many");
    bus.good("POST", "/topics/widgets", "shop", event(3)).await;
    assert!(took().await >= Duration::from_secs(1));
}

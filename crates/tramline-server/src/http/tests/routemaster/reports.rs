//! What a statsd server is told.

use super::bus::{Bus, CALLBACK, event};
use crate::compat::routemaster::statsd;
use crate::config::Config;
use crate::http::access::Access;
use crate::http::app::App;
use crate::http::metrics::Metrics;
use crate::http::tests::bed::{Bed, ROOT};
use crate::http::timed::Timed;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tramline::store::verbs::RecordPush;
use tramline::{Attempt, EventId, Options, Tramline, Verdict};

#[tokio::test]
async fn a_server_that_ends_reports_what_went_through_it() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let target = socket.local_addr().unwrap().to_string();
    let bus = watched(target).await;
    let reporting = statsd::start(&bus.0.app).unwrap();
    bus.good("POST", "/api_tokens", ROOT, json!({"name": "shop", "token": "shop"})).await;
    bus.good("POST", "/subscription", "shop", json!({"topics": ["widgets"], "callback": CALLBACK})).await;
    for number in 0..2 {
        bus.good("POST", "/topics/widgets", "shop", event(number)).await;
    }
    deliver(&bus).await;
    bus.0.app.draining.cancel();
    reporting.await.unwrap();
    let mut packet = vec![0; 2_000];
    let (size, _) =
        tokio::time::timeout(Duration::from_secs(10), socket.recv_from(&mut packet)).await.unwrap().unwrap();
    let report = std::str::from_utf8(&packet[..size]).unwrap();
    for line in [
        "bus.events.published:2|c|#topic:widgets,publisher:shop",
        "bus.events.added:2|c|#queue:shop",
        "bus.events.removed:1|c|#queue:shop",
        "bus.delivery.batches:1|c|#queue:shop,status:success",
        "bus.delivery.time:25|c|#queue:shop,status:success",
        "bus.latency.batches.count:1|c|#queue:shop",
        "bus.latency.batches.first_attempt:40|c|#queue:shop",
        "bus.latency.batches.last_attempt:40|c|#queue:shop",
        "bus.subscriber.queue.events:2|g|#subscriber:shop",
        "bus.subscriber.queue.batches:1|g|#subscriber:shop",
    ] {
        assert!(report.lines().any(|told| told == line), "{line} in {report}");
    }
}

/// A node whose calls of the store are seen.
async fn watched(target: String) -> Bus {
    let metrics = Arc::new(Metrics::default());
    let seen = metrics.clone();
    let options =
        Options::new("sqlite::memory:").watch_store(move |store| Arc::new(Timed::new(store, seen.clone())));
    let tram = Tramline::with(options).await.unwrap();
    let config = Config {
        root_token: Some(ROOT.into()),
        statsd: Some(target),
        statsd_prefix: "bus".into(),
        ..Config::defaults().unwrap()
    };
    let access = Access::open(tram.store().clone(), config.root_token.as_deref(), true).await.unwrap();
    Bus(Bed::of(App::new(tram, config, access, metrics)))
}

/// Writes down that the first event was sent, 40 ms after it was stored.
async fn deliver(bus: &Bus) {
    let tram = &bus.0.app.tram;
    let first = tram.read_log("widgets", EventId(0), 1).await.unwrap().events.remove(0);
    let attempt = Attempt {
        at: first.emitted_at.after(Duration::from_millis(40)),
        first: first.id,
        last: first.id,
        events: 1,
        acknowledged: 1,
        verdict: Verdict::Delivered,
        status: Some(200),
        latency: Duration::from_millis(25),
        excerpt: String::new(),
        retry_after: None,
    };
    let subscription = tram.subscription("shop").await.unwrap().id;
    tram.store()
        .record_push(RecordPush {
            subscription,
            attempts: vec![attempt],
            counted: Default::default(),
            now: None,
        })
        .await
        .unwrap();
}

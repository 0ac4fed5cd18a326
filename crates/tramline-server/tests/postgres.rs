//! Several nodes on one PostgreSQL, and what they do when it is gone.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Node, until_true};
use serde_json::{Value, json};
use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The URL of a server of the tests.
fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run ./test"))
}

/// A private schema behind the URL of the test server.
fn url() -> String {
    private(&server("TRAMLINE_TEST_POSTGRES"))
}

fn private(server: &str) -> String {
    let schema = format!("serve_{:x}", tramline::Incarnation::random().0);
    format!("{server}{}schema={schema}", if server.contains('?') { '&' } else { '?' })
}

#[tokio::test]
async fn two_nodes_are_one_system() {
    let url = url();
    let (first, second) = (Node::start(&["--store", &url]), Node::start(&["--store", &url]));
    first.put("/v1/subscriptions/s", json!({"topics": ["t"], "ordering": "key"})).await;
    let claim = second.post("/v1/subscriptions/s/claim", json!({"worker": "w", "wait_ms": 30_000}));
    let emit = async {
        until_true(async || {
            let metrics = second.metrics().await;
            metrics.contains("tramline_store_seconds_count{verb=\"claim\"}")
        })
        .await;
        first.post("/v1/topics/t/events", json!({"payload": 1, "key": "a"})).await
    };
    let (claimed, emitted) = tokio::join!(claim, emit);
    let event = &claimed["events"][0];
    assert_eq!(event["id"], emitted["events"][0]["id"]);
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "done"});
    let settled = first.post("/v1/subscriptions/s/settle", json!({"results": [result]})).await;
    assert_eq!(settled["results"][0]["status"], "settled");
    // Who claims from one node is seen by the other.
    until_true(async || {
        let workers = first.get("/v1/workers").await;
        let items = workers["items"].as_array().unwrap();
        items
            .iter()
            .any(|it| it["name"] == "w" && it["kind"] == "http" && it["subscriptions"] == json!(["s"]))
    })
    .await;
    // A token of one node is known to the other, and so is its end.
    let token = first.post("/v1/tokens", json!({"name": "a", "scopes": ["admin"]})).await;
    let secret = token["token"].as_str().unwrap();
    let status = async |node: &Node, secret: Option<&str>| {
        let mut request = node.http.get(node.url("/v1/topics"));
        if let Some(secret) = secret {
            request = request.bearer_auth(secret);
        }
        request.send().await.unwrap().status().as_u16()
    };
    until_true(async || status(&second, Some(secret)).await == 200).await;
    until_true(async || status(&second, None).await == 401).await;
    let dropped = second.http.delete(second.url("/v1/tokens/a")).bearer_auth(secret).send().await.unwrap();
    assert_eq!(dropped.status(), 204);
    until_true(async || status(&first, None).await == 200).await;
}

/// A way to the server that can be cut.
#[derive(Clone)]
struct Way {
    port: u16,
    /// The open connections; `None` while the way is cut.
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Way {
    fn to(server: String) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way =
            Way { port: listener.local_addr().unwrap().port(), open: Arc::new(Mutex::new(Some(Vec::new()))) };
        let open = way.open.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut open = open.lock().unwrap();
                let Some(open) = open.as_mut() else { continue };
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                for stream in [&client, &upstream] {
                    open.push(stream.try_clone().unwrap());
                }
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), upstream.try_clone().unwrap()), (upstream, client)]
                {
                    std::thread::spawn(move || {
                        copy(&mut from, &mut to).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        way
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().take().into_iter().flatten() {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn mend(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }
}

#[tokio::test]
async fn while_the_database_is_gone_nothing_is_acknowledged_and_then_it_goes_on() {
    let url = url();
    let (start, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    let (user, server) =
        authority.rsplit_once('@').map_or((String::new(), authority), |(u, s)| (format!("{u}@"), s));
    let server = if server.contains(':') { server.to_owned() } else { format!("{server}:5432") };
    let way = Way::to(server);
    let url = format!("{start}://{user}127.0.0.1:{}/{path}", way.port);
    let node = Node::start(&["--store", &url, "--store-timeout-ms", "3000"]);
    let emit = async || {
        let request =
            node.http.post(node.url("/v1/topics/t/events")).header("content-type", "application/json");
        let reply = request.body("{\"payload\":1}").send().await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    let mut acknowledged = Vec::new();
    let mut remember = |text: &str| {
        let receipt: Value = serde_json::from_str(text).unwrap();
        acknowledged.push(receipt["events"][0]["id"].clone());
    };
    let (status, text) = emit().await;
    assert_eq!(status, 201, "{text}");
    remember(&text);
    way.cut();
    let (status, text) = emit().await;
    assert_eq!(status, 503, "{text}");
    assert!(!text.contains("postgres://"), "{text}");
    let ready = node.http.get(node.url("/health/ready")).send().await.unwrap();
    assert_eq!(ready.status(), 503);
    assert_eq!(ready.headers()["retry-after"], "1");
    let pulse = node.http.get(node.url("/pulse")).send().await.unwrap();
    assert_eq!(pulse.status(), 500);
    way.mend();
    until_true(async || {
        let (status, text) = emit().await;
        if status == 201 {
            remember(&text);
        }
        status == 201
    })
    .await;
    let stored = node.get("/v1/topics/t/events?limit=1000").await;
    let ids: Vec<&Value> = stored["items"].as_array().unwrap().iter().map(|event| &event["id"]).collect();
    assert!(acknowledged.iter().all(|id| ids.contains(&id)), "{acknowledged:?} in {ids:?}");
}

/// The id that a message of a stream ends with, and whether it had an event.
fn messages(text: &str) -> Vec<(i64, bool)> {
    let whole = text.split_inclusive("\n\n").filter(|message| message.ends_with("\n\n"));
    let ids = whole.filter_map(|message| Some((message.strip_prefix("id: ")?, message.contains("\ndata: "))));
    ids.map(|(rest, event)| (rest.split('\n').next().unwrap().parse().unwrap(), event)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_of_one_node_gets_all_that_is_emitted_at_another_and_comes_back_to_where_it_was() {
    const EMITTERS: usize = 4;
    const EMITS: usize = 25;
    let url = url();
    let (first, second) = (Arc::new(Node::start(&["--store", &url])), Node::start(&["--store", &url]));
    first.post("/v1/topics/t/events", json!({"payload": "before"})).await;
    let open = async |last: Option<i64>| {
        let request = second.http.get(second.url("/v1/topics/t/events?after=now"));
        let request = request.header("accept", "text/event-stream");
        let request = last.into_iter().fold(request, |it, last| it.header("last-event-id", last.to_string()));
        request.send().await.unwrap()
    };
    let mut stream = open(None).await;
    let emitters: Vec<_> = (0..EMITTERS)
        .map(|number| {
            let first = first.clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..EMITS {
                    let event = json!({"payload": 1, "key": format!("k{number}")});
                    let emitted = first.post("/v1/topics/t/events", event).await;
                    ids.push(emitted["events"][0]["id"].as_str().unwrap().parse::<i64>().unwrap());
                }
                ids
            })
        })
        .collect();
    let (mut seen, mut last) = (Vec::new(), None);
    while seen.len() < EMITTERS * EMITS {
        let mut text = String::new();
        // Cut off after a few messages, also after the one that only says where the stream began; and never waiting for more than come.
        let few = (1 + seen.len() % 9).min(EMITTERS * EMITS - seen.len());
        while messages(&text).len() < few {
            text += std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap();
        }
        for (id, event) in messages(&text) {
            last = Some(id);
            seen.extend(event.then_some(id));
        }
        stream = open(last).await;
    }
    let mut emitted = Vec::new();
    for emitter in emitters {
        emitted.extend(emitter.await.unwrap());
    }
    emitted.sort_unstable();
    assert_eq!(seen, emitted);
}

/// A figure of a node's metrics; 0 if there is none yet.
async fn figure(node: &Node, name: &str) -> u64 {
    let metrics = node.metrics().await;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

/// How often a waiting claim of one node got an event of another within this many seconds, of five.
async fn wakes(first: &Node, second: &Node, within: &str) -> u64 {
    const CLAIMS: &str = "tramline_store_seconds_count{verb=\"claim\"}";
    second.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    for round in 1..=5 {
        let before = figure(second, CLAIMS).await;
        let claim = second.post("/v1/subscriptions/s/claim", json!({"wait_ms": 30_000}));
        let emit = async {
            // It has looked, and found nothing.
            until_true(async || figure(second, CLAIMS).await > before).await;
            first.post("/v1/topics/t/events", json!({"payload": round})).await
        };
        let (claimed, emitted) = tokio::join!(claim, emit);
        assert_eq!(claimed["events"][0]["id"], emitted["events"][0]["id"]);
    }
    figure(second, &format!("tramline_wake_lag_seconds_bucket{{le=\"{within}\"}}")).await
}

/// The pooler loses LISTEN, so hints go past it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_nodes_wake_each_other_past_it() {
    let store = format!("{}&pooled=true", private(&server("TRAMLINE_TEST_PGBOUNCER")));
    let direct = server("TRAMLINE_TEST_POSTGRES");
    let arguments = ["--store", &store, "--store-listen-url", &direct];
    let (first, second) = (Node::start(&arguments), Node::start(&arguments));
    // Without hints a claim that waits looks again after a second.
    let prompt = wakes(&first, &second, "0.25").await;
    assert!(prompt >= 3, "{prompt} of 5 events came promptly");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_without_a_way_past_it_events_are_found_by_looking() {
    let store = format!("{}&pooled=true", private(&server("TRAMLINE_TEST_PGBOUNCER")));
    let (first, second) = (Node::start(&["--store", &store]), Node::start(&["--store", &store]));
    assert_eq!(wakes(&first, &second, "5").await, 5);
}

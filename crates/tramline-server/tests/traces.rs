//! Traces over OTLP: a collector sees the way of an event through the real binary as one trace.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod node;

use node::{Launch, Node, PATIENCE, until_true};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// Takes every request, remembers it and says 200.
struct Receiver {
    address: String,
    requests: Arc<Mutex<Vec<Received>>>,
}

#[derive(Clone)]
struct Received {
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Receiver {
    fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let taken = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let taken = taken.clone();
                std::thread::spawn(move || serve(stream, &taken));
            }
        });
        Receiver { address, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn received(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }

    /// All spans that came so far.
    fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for request in self.received() {
            assert_eq!(request.path, "/v1/traces");
            let export = ExportTraceServiceRequest::decode(&*request.body).unwrap();
            for resource in export.resource_spans {
                let name = resource.resource.unwrap().attributes;
                assert!(name.iter().any(|it| it.key == "service.name"), "{name:?}");
                spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        spans
    }

    async fn span(&self, name: &str) -> Span {
        let find = || self.spans().into_iter().find(|span| span.name == name);
        until_true(async || find().is_some()).await;
        find().unwrap()
    }
}

fn serve(stream: TcpStream, taken: &Mutex<Vec<Received>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        taken.lock().unwrap().push(request);
        if writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

fn read(from: &mut impl BufRead) -> Option<Received> {
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    from.read_exact(&mut body).ok()?;
    Some(Received { path, headers, body })
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    format!("{:?}", found.and_then(|attribute| attribute.value.clone()).and_then(|value| value.value))
}

async fn emit(node: &Node, traceparent: &str) {
    let request = node.http.post(node.url("/v1/topics/orders/events")).header("traceparent", traceparent);
    let body = json!({"payload": "secret payload", "key": "secret key"}).to_string();
    node::answer(request.header("tracestate", "vendor=1").body(body).send().await.unwrap()).await;
}

async fn push_to(node: &Node, receiver: &Receiver) {
    let push =
        json!({"kind": "push", "topics": ["orders"], "callback": receiver.url("/hook"), "timeout_ms": 0});
    node.put("/v1/subscriptions/hooks", push).await;
}

#[tokio::test]
async fn an_emit_the_request_to_its_receiver_and_the_settlement_are_one_trace() {
    let (collector, receiver) = (Receiver::start(), Receiver::start());
    let node =
        Node::start(&["--push-allow", "127.0.0.0/8", "--otlp-endpoint", &format!("{}/", collector.url(""))]);
    push_to(&node, &receiver).await;
    emit(&node, &format!("00-{TRACE}-{CALLER}-01")).await;
    let settle = collector.span("settle orders").await;
    let (push, emit) = (collector.span("push orders").await, collector.span("emit orders").await);
    let request = collector.span("POST /v1/topics/{topic}/events").await;
    for span in [&request, &emit, &push, &settle] {
        assert_eq!(hex(&span.trace_id), TRACE, "{}", span.name);
        assert!(!format!("{span:?}").contains("secret"), "{span:?}");
    }
    assert_eq!(hex(&request.parent_span_id), CALLER);
    assert_eq!(emit.parent_span_id, request.span_id);
    assert_eq!(push.parent_span_id, emit.span_id);
    assert_eq!(settle.parent_span_id, push.span_id);
    assert!(attribute(&push, "http.response.status_code").contains("200"));
    assert!(attribute(&settle, "tramline.outcome").contains("done"));
    assert!(attribute(&settle, "messaging.destination.subscription.name").contains("hooks"));
    let sent = receiver.received().remove(0);
    assert_eq!(sent.headers["traceparent"], format!("00-{TRACE}-{}-01", hex(&push.span_id)));
    assert_eq!(sent.headers["tracestate"], "vendor=1");
}

/// A worker over HTTP may settle on another node than it claimed on, so it is the worker that knows the context.
#[tokio::test]
async fn a_settlement_over_http_belongs_to_the_trace_of_its_event() {
    let collector = Receiver::start();
    let node = Node::start(&["--otlp-endpoint", &collector.url("")]);
    node.put("/v1/subscriptions/mails", json!({"topics": ["orders"]})).await;
    emit(&node, &format!("00-{TRACE}-{CALLER}-01")).await;
    let event = node.post("/v1/subscriptions/mails/claim", json!({})).await["events"][0].clone();
    let result = json!({"id": event["id"], "lease": event["lease"], "outcome": "done",
        "traceparent": event["headers"]["traceparent"]});
    for _ in 0..2 {
        node.post("/v1/subscriptions/mails/settle", json!({"results": [result]})).await;
    }
    let settled =
        || -> Vec<Span> { collector.spans().into_iter().filter(|it| it.name == "settle mails").collect() };
    until_true(async || settled().len() == 2).await;
    let emit = collector.span("emit orders").await;
    let mut lost: Vec<String> = Vec::new();
    for span in settled() {
        assert_eq!((hex(&span.trace_id).as_str(), &span.parent_span_id), (TRACE, &emit.span_id));
        assert!(attribute(&span, "tramline.outcome").contains("done"));
        lost.push(attribute(&span, "tramline.lease_lost"));
    }
    assert_eq!(lost.iter().filter(|lost| lost.contains("true")).count(), 1, "the second one came too late");
}

#[tokio::test]
async fn a_context_is_carried_on_by_a_node_that_does_not_trace() {
    let receiver = Receiver::start();
    let node = Node::start(&["--push-allow", "127.0.0.0/8"]);
    push_to(&node, &receiver).await;
    let context = format!("00-{TRACE}-{CALLER}-01");
    emit(&node, &context).await;
    until_true(async || !receiver.received().is_empty()).await;
    let sent = receiver.received().remove(0);
    assert_eq!((&sent.headers["traceparent"], &*sent.headers["tracestate"]), (&context, "vendor=1"));
    let body: serde_json::Value = serde_json::from_slice(&sent.body).unwrap();
    assert_eq!(body["events"][0]["headers"]["traceparent"], context);
}

#[tokio::test]
async fn without_a_collector_the_work_goes_on_and_that_is_said_once() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let receiver = Receiver::start();
    let launch = Launch::with(&["--push-allow", "127.0.0.0/8"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{gone}"));
    let node = launch.start();
    push_to(&node, &receiver).await;
    let events = |node: &Node| {
        let (request, body) = (node.http.post(node.url("/v1/topics/orders/events")), json!({"payload": 1}));
        async move { node::answer(request.body(body.to_string()).send().await.unwrap()).await }
    };
    for round in 1..=3 {
        events(&node).await;
        until_true(async || receiver.received().len() >= round).await;
    }
    let start = std::time::Instant::now();
    node.signal("-TERM");
    let (status, log) = node.ended();
    assert!(status.success() && start.elapsed() < PATIENCE / 2, "{log}");
    assert_eq!(log.matches("the collector of traces does not answer").count(), 1, "{log}");
}

#[tokio::test]
async fn what_is_not_sampled_is_not_sent() {
    let (collector, receiver) = (Receiver::start(), Receiver::start());
    let url = collector.url("");
    let node = Node::start(&["--push-allow", "127.0.0.0/8", "--otlp-endpoint", &url, "--otlp-sample", "0"]);
    push_to(&node, &receiver).await;
    node.post("/v1/topics/orders/events", json!({"payload": 1})).await;
    // Otherwise the two may go in one request.
    until_true(async || receiver.received().len() == 1).await;
    // What its caller records is recorded.
    emit(&node, &format!("00-{TRACE}-{CALLER}-01")).await;
    collector.span("settle orders").await;
    assert!(collector.spans().iter().all(|span| hex(&span.trace_id) == TRACE));
    let received = receiver.received();
    let sampled: Vec<bool> =
        received.iter().map(|request| request.headers["traceparent"].ends_with("-01")).collect();
    assert_eq!(sampled, [false, true]);
}

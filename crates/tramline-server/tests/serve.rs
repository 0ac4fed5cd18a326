//! The real binary on a real port: it starts, serves, defends itself and stops without losing anything.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Launch, Node, PATIENCE, PROGRAM, answer, refused, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn it_serves_out_of_the_box_and_stops_when_asked() {
    let node = Node::start(&[]);
    assert_eq!(node.get("/health/ready").await["status"], "ok");
    node.post("/v1/topics/orders/events", json!({"payload": {"total": 1}})).await;
    assert!(node.directory.path().join("tramline.db").exists());
    node.signal("-TERM");
    let (status, log) = node.ended();
    assert!(
        status.success() && log.contains("listening on http://127.0.0.1:") && log.contains("stopped"),
        "{log}"
    );
}

#[tokio::test]
async fn what_was_acknowledged_outlives_a_kill() {
    let mut node = Node::start(&[]);
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    for number in 0..50 {
        node.post("/v1/topics/t/events", json!({"payload": number})).await;
    }
    node.kill();
    node.start_again().await;
    let claimed = node.post("/v1/subscriptions/s/claim", json!({"max_events": 100})).await;
    assert_eq!(claimed["events"].as_array().unwrap().len(), 50);
}

#[tokio::test]
async fn a_drain_answers_those_who_wait_and_ends_those_who_follow() {
    let node = Node::start(&[]);
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    node.post("/v1/topics/t/events", json!({"payload": 1})).await;
    node.post("/v1/subscriptions/s/claim", json!({})).await;
    let follow = node.http.get(node.url("/v1/topics/t/events")).header("accept", "text/event-stream");
    let mut follow = follow.send().await.unwrap();
    let first = follow.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b"id: "), "{first:?}");
    let (claim, ()) =
        tokio::join!(node.post("/v1/subscriptions/s/claim", json!({"wait_ms": 60_000})), async {
            // It waits once the metrics show a second claim.
            loop {
                let metrics = node.metrics().await;
                if metrics.contains("tramline_store_seconds_count{verb=\"claim\"} 2") {
                    break;
                }
            }
            node.signal("-TERM");
        });
    assert_eq!(claim["events"], json!([]));
    while follow.chunk().await.unwrap().is_some() {}
    assert!(node.ended().0.success());
}

/// A client that left while it waited must not be given the next event: it would be gone until its lease ends.
#[tokio::test]
async fn who_leaves_while_waiting_gets_nothing() {
    let node = Node::start(&[]);
    node.put("/v1/subscriptions/s", json!({"topics": ["t"]})).await;
    let mut socket = node.socket();
    let claim = "{\"wait_ms\": 60000}";
    let head = "POST /v1/subscriptions/s/claim HTTP/1.1\r\nhost: localhost\r\n";
    write!(socket, "{head}content-length: {}\r\n\r\n{claim}", claim.len()).unwrap();
    let waits = async |connections: &str| loop {
        let metrics = node.metrics().await;
        let claimed = metrics.contains("tramline_store_seconds_count{verb=\"claim\"}");
        if claimed && metrics.contains(&format!("tramline_http_connections {connections}\n")) {
            break;
        }
    };
    waits("2").await;
    drop(socket);
    waits("1").await;
    let emitted = node.post("/v1/topics/t/events", json!({"payload": 1})).await;
    let claimed = node.post("/v1/subscriptions/s/claim", json!({"wait_ms": 10_000})).await;
    assert_eq!(claimed["events"][0]["id"], emitted["events"][0]["id"]);
}

#[test]
fn it_refuses_to_serve_the_world_without_tokens() {
    let error = refused(&["--listen", "0.0.0.0:0"]);
    assert!(error.contains("refusing to listen") && error.contains("TRAMLINE_ROOT_TOKEN"), "{error}");
}

#[test]
fn wrong_settings_are_told() {
    assert!(refused(&["--store", "mongo://x"]).contains("not a known kind of store"));
    assert!(refused(&["--listen", "nonsense"]).contains("cannot listen on nonsense"));
    assert!(refused(&["--tls-cert", "x"]).contains("both a certificate and a key"));
    assert!(refused(&["--config", "missing.toml"]).contains("missing.toml cannot be read"));
}

#[test]
fn a_store_whose_url_is_wrong_is_told_with_a_remedy() {
    for (store, what, remedy) in [
        ("redis://u:secret@h?nme=x", "the unknown parameter \"nme\"", "there are name, answer_ms and spread"),
        ("redis://u:secret@a,b?spread=keys", "cannot be spread over \"keys\"", "write spread=topics"),
        ("redis://u:secret@h?name=%7Bx%7D", "cannot be called \"{x}\"", "letters, digits"),
        ("redis://u:secret@h/x", "no database by its number", "redis://user:password@host:6379/0"),
        ("redis://u:secret@a,b/1", "a Cluster has no databases but 0", "redis://user:password@host:6379/0"),
        ("mysql://u:secret@h", "names no database", "mysql://user:password@host:3306/database"),
        ("mysql://u:secret@h/d?max_connections=0", "max_connections=0 is out of range", "use 2 to 1000"),
        ("postgres://u:secret@h/d?schema=A-b", "\"A-b\" cannot be used as a schema name", "small letters"),
    ] {
        let error = refused(&["--store", store]);
        assert!(error.contains(what) && error.contains(remedy), "{store}: {error}");
        assert!(!error.contains("secret"), "{store}: {error}");
    }
}

/// Nobody listens there.
#[test]
fn a_store_that_cannot_be_reached_is_told_with_a_remedy() {
    for (store, what) in [
        ("redis://u:secret@127.0.0.1:1", "Redis failed"),
        ("rediss://u:secret@127.0.0.1:1", "Redis failed"),
        ("redis://u:secret@127.0.0.1:1,127.0.0.1:2", "Redis failed"),
        ("redis+cluster://u:secret@127.0.0.1:1", "Redis failed"),
        ("mysql://u:secret@127.0.0.1:1/d", "the database failed"),
        ("mariadb://u:secret@127.0.0.1:1/d", "the database failed"),
        ("postgres://u:secret@127.0.0.1:1/d", "the database failed"),
    ] {
        let error = refused(&["--store", store]);
        assert!(error.contains(what) && error.contains("Connection refused"), "{store}: {error}");
        assert!(error.contains("runs and can be reached"), "{store}: {error}");
        assert!(!error.contains("secret"), "{store}: {error}");
    }
}

#[tokio::test]
async fn with_a_root_token_it_serves_the_world() {
    let launch = Launch::with(&["--listen", "0.0.0.0:0"]).env("TRAMLINE_ROOT_TOKEN", "a-long-root-token");
    let node = launch.start();
    let topics = node.http.get(node.url("/v1/topics"));
    assert_eq!(topics.try_clone().unwrap().send().await.unwrap().status(), 401);
    answer(topics.bearer_auth("a-long-root-token").send().await.unwrap()).await;
}

#[tokio::test]
async fn a_log_as_json_is_an_object_per_line_and_tells_neither_payloads_nor_tokens() {
    let (root, wrong, payload) = ("root-token-marker", "wrong-token-marker", "payload-marker");
    let launch = Launch::with(&["--log-format", "json"]).env("RUST_LOG", "debug");
    let node = launch.env("TRAMLINE_ROOT_TOKEN", root).start();
    let call = async |path: &str, token: &str, body: String| {
        let request =
            node.http.post(node.url(path)).bearer_auth(token).header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    };
    let subscribe = node.http.put(node.url("/v1/subscriptions/s")).bearer_auth(root);
    answer(subscribe.body(json!({"topics": ["t"]}).to_string()).send().await.unwrap()).await;
    let event = json!({"payload": payload, "key": "k", "headers": {"h": payload}});
    answer(call("/v1/topics/t/events", root, event.to_string()).await).await;
    assert_eq!(call("/v1/topics/t/events", wrong, event.to_string()).await.status(), 401);
    assert_eq!(call("/v1/topics/t/events", root, format!("{{\"{payload}")).await.status(), 400);
    let claimed = answer(call("/v1/subscriptions/s/claim", root, "{}".into()).await).await;
    let event = &claimed["events"][0];
    let failed = json!({"id": event["id"], "lease": event["lease"], "outcome": "dead", "error": "no"});
    answer(call("/v1/subscriptions/s/settle", root, json!({"results": [failed]}).to_string()).await).await;
    node.signal("-TERM");
    let (_, log) = node.ended();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let has = |name: &str| line[name].is_string();
        assert!(has("timestamp") && has("level") && has("target"), "{line}");
    }
    assert!(log.contains("\"DEBUG\"") && !log.contains("-marker"), "{log}");
}

#[test]
fn settings_come_from_a_file_and_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("t.toml"), "max_waiting = 7\n").unwrap();
    let mut command = Command::new(PROGRAM);
    command.current_dir(directory.path()).env("TRAMLINE_MAX_BODY", "1234");
    let output = command.args(["config", "--config", "t.toml", "--drain-ms", "5"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in ["max_waiting = 7", "max_body = 1234", "drain_ms = 5", "listen = \"127.0.0.1:7070\""] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

/// Sends a part of a request and waits until the server closes the connection.
fn send_and_wait(node: &Node, request: &str) -> String {
    let mut socket = node.socket();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).ok();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn clients_that_dawdle_are_given_up() {
    let node = Node::start(&["--header-timeout-ms", "200", "--body-timeout-ms", "200"]);
    // Headers that never end, and an idle connection.
    send_and_wait(&node, "GET /health/live HTTP/1.1\r\nhost: x\r\nx-slow: ");
    assert!(send_and_wait(&node, "GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
    let head = "POST /v1/topics/t/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let answer = send_and_wait(&node, &format!("{head}content-length: 100\r\n\r\n{{"));
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    node.get("/health/ready").await;
}

#[tokio::test]
async fn requests_that_are_none_harm_nobody() {
    let node = Node::start(&["--header-timeout-ms", "300"]);
    send_and_wait(&node, "\u{0}\u{1}\u{2} nonsense\r\n\r\n");
    send_and_wait(&node, &format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100 << 10)));
    send_and_wait(&node, "POST /v1/topics/t/events HTTP/1.1\r\ncontent-length: -5\r\n\r\n");
    node.get("/health/ready").await;
}

#[tokio::test]
async fn one_connection_too_many_is_told_when_to_come_back() {
    let node = Node::start(&["--max-connections", "2"]);
    let mut first = [node.socket(), node.socket()];
    for socket in &mut first {
        socket.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
    }
    let answer = send_and_wait(&node, "");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
    drop(first);
    until(|| {
        let mut socket = node.socket();
        socket.write_all(b"GET /health/live HTTP/1.1\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    });
}

fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// True if the server shows this certificate.
async fn shows(address: &str, certificate: &str) -> bool {
    let certificate = reqwest::Certificate::from_pem(&std::fs::read(pem(certificate)).unwrap()).unwrap();
    tramline::tls::prepare();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([certificate]).build().unwrap();
    client
        .get(format!("https://{address}/health/ready"))
        .send()
        .await
        .is_ok_and(|reply| reply.status() == 200)
}

#[tokio::test]
async fn tls_takes_a_new_certificate_without_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let copy = |which: &str| {
        for (from, to) in [("cert", "cert.pem"), ("key", "key.pem")] {
            let from = pem(&format!("{which}.{from}.pem"));
            // Renamed into place, as tools that renew certificates do.
            std::fs::copy(from, directory.path().join("new")).unwrap();
            std::fs::rename(directory.path().join("new"), directory.path().join(to)).unwrap();
        }
    };
    copy("first");
    let files = directory.path().to_owned();
    let arguments = [files.join("cert.pem"), files.join("key.pem")];
    let arguments: Vec<&str> = arguments.iter().map(|path| path.to_str().unwrap()).collect();
    let node = Node::start(&["--tls-cert", arguments[0], "--tls-key", arguments[1]]);
    assert!(shows(&node.address, "first.cert.pem").await);
    assert!(!shows(&node.address, "second.cert.pem").await);
    copy("second");
    let start = Instant::now();
    while !shows(&node.address, "second.cert.pem").await {
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(!shows(&node.address, "first.cert.pem").await);
}

/// A proxy would look names up itself, behind the guard's back. Whoever wants one says so in the settings.
#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let launch = Launch::with(&["--push-allow", "127.0.0.0/8"]).env("NO_PROXY", "");
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let node = names.iter().fold(launch, |it, name| it.env(name, &format!("http://{address}"))).start();
    // A request begins with its method, a handshake of TLS with its number.
    for (scheme, first) in [("http", b'P'), ("https", 0x16)] {
        let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let callback = format!("{scheme}://{}/", receiver.local_addr().unwrap());
        let push = json!({"topics": [scheme], "kind": "push", "callback": callback, "timeout_ms": 0});
        node.put(&format!("/v1/subscriptions/{scheme}"), push).await;
        node.post(&format!("/v1/topics/{scheme}/events"), json!({"payload": 1})).await;
        let (mut stream, _) = receiver.accept().await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), first, "{scheme}");
    }
    let probe = TcpStream::connect(address).await.unwrap();
    assert_eq!(proxy.accept().await.unwrap().1, probe.local_addr().unwrap(), "nobody came before");
}

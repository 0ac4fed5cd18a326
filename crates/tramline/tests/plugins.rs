//! Handlers as plug-ins: an HTTP forward and a shell command.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Bench, until};
use tramline::testkit::TestKit;
use tramline::{Event, EventId, HttpForward, Plugin, Retry, ShellCommand, Shutdown};

const MINUTE: Duration = Duration::from_secs(60);

/// What became of one event: `done`, or its error.
async fn outcome(plugin: Arc<dyn Plugin>, event: Event) -> (TestKit, String) {
    let kit = TestKit::new().await.unwrap();
    let worker = kit.tram().worker("w").topics(["t"]).retry(Retry::never()).plug_any(plugin);
    worker.subscribe().await.unwrap();
    kit.tram().emit(event).await.unwrap();
    kit.drain_until_idle(&[&worker]).await.unwrap();
    let counts = kit.tram().stats("w").await.unwrap().counts;
    let said = match kit.tram().dead("w", EventId(0), 1).await.unwrap().pop() {
        Some(dead) => dead.error,
        None if counts.delayed == 1 => "snoozed".to_owned(),
        None => "done".to_owned(),
    };
    (kit, said)
}

fn shell(script: &str) -> Arc<ShellCommand> {
    Arc::new(ShellCommand::new("sh", ["-c", script]).later(MINUTE))
}

#[tokio::test]
async fn a_command_gets_the_payload_on_its_input_and_the_rest_in_variables() {
    let script = r#"[ "$(cat)" = "hello" ] && [ "$TRAMLINE_TYPE $TRAMLINE_KEY $TRAMLINE_ATTEMPT" = "greet k 1" ] \
        && [ "$TRAMLINE_TOPIC $TRAMLINE_HEADER_trace_id" = "t abc" ]"#;
    let event = Event::new("t", "hello").kind("greet").key("k").header("trace-id", "abc");
    let script = script.replace("TRAMLINE_HEADER_trace_id", "TRAMLINE_HEADER_TRACE_ID");
    assert_eq!(outcome(shell(&script), event).await.1, "done");
}

#[tokio::test]
async fn a_command_that_fails_says_why_with_its_last_line() {
    let (_, said) =
        outcome(shell("echo first >&2; echo 'disk full' >&2; exit 3"), Event::new("t", "x")).await;
    assert_eq!(said, "exit status: 3: disk full");
    let (_, said) =
        outcome(Arc::new(ShellCommand::new("/nowhere/program", [""])), Event::new("t", "x")).await;
    assert!(said.starts_with("/nowhere/program could not be run"), "{said}");
}

#[tokio::test]
async fn a_command_may_ask_to_be_run_later() {
    assert_eq!(outcome(shell("exit 75"), Event::new("t", "x")).await.1, "snoozed");
}

#[tokio::test]
async fn a_command_that_does_not_read_and_writes_much_does_no_harm() {
    let big = Event::new("t", vec![b'x'; 1 << 20]);
    let (_, said) = outcome(shell("yes 0123456789 | head -n 200000 >&2; echo end >&2; exit 1"), big).await;
    assert_eq!(said, "exit status: 1: end");
}

#[tokio::test]
async fn a_command_is_killed_when_its_time_is_up() {
    let bench = Bench::new().await;
    let tram = bench.process();
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let script = format!("echo $$ > {0}.tmp; mv {0}.tmp {0}; exec sleep 1000", pid_file.display());
    let worker = tram
        .worker("w")
        .topics(["t"])
        .time_limit(MINUTE)
        .retry(Retry::never())
        .lease(10 * MINUTE)
        .plug_any(shell(&script));
    tram.emit(Event::new("t", "x")).await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { worker.run(shutdown).await }
    });
    until("the command runs", || async { pid_file.exists() }).await;
    let process = format!("/proc/{}/cmdline", std::fs::read_to_string(&pid_file).unwrap().trim());
    bench.clock.advance(MINUTE);
    // A killed process has no command line any more, even before somebody has taken note of its end.
    until("it is gone", || async { std::fs::read(&process).unwrap_or_default().is_empty() }).await;
    shutdown.start();
    running.await.unwrap().unwrap();
}

/// A server that answers each request with the next of these answers, and keeps what it was sent.
fn server(answers: &'static [&'static str]) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = requests.clone();
    std::thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut request = String::new();
            while !request.ends_with("\r\n\r\n") {
                reader.read_line(&mut request).unwrap();
            }
            let length = request
                .to_lowercase()
                .split_once("content-length: ")
                .map_or(0, |(_, rest)| rest.split("\r\n").next().unwrap().parse().unwrap());
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            request += &String::from_utf8(body).unwrap();
            seen.lock().unwrap().push(request);
            let end = "content-length: 0\r\nconnection: close\r\n\r\n";
            reader.get_mut().write_all(format!("HTTP/1.1 {answer}\r\n{end}").as_bytes()).unwrap();
        }
    });
    (url, requests)
}

#[tokio::test]
async fn an_event_is_posted_with_its_metadata_in_headers() {
    let (url, requests) = server(&["204 No Content"]);
    let forward = Arc::new(HttpForward::new(&url, MINUTE).unwrap());
    let event = Event::json("t", &serde_json::json!({"a": 1})).unwrap().kind("made").key("ключ");
    assert_eq!(outcome(forward, event).await.1, "done");
    let request = requests.lock().unwrap()[0].to_lowercase();
    assert!(request.starts_with("post /hook "), "{request}");
    for part in
        ["tramline-type: made", "tramline-topic: t", "tramline-key: %d0%ba", "application/json", "{\"a\":1}"]
    {
        assert!(request.contains(part), "{part} in {request}");
    }
}

#[tokio::test]
async fn answers_other_than_success_are_failures_or_pauses() {
    let (url, _) = server(&[
        "500 Oops",
        "302 Found\r\nlocation: http://127.0.0.1:1/",
        "429 Slow\r\nretry-after: 60",
        "503 Busy",
    ]);
    let forward = Arc::new(HttpForward::new(&url, MINUTE).unwrap());
    let mut said = Vec::new();
    for _ in 0..4 {
        said.push(outcome(forward.clone(), Event::new("t", "x")).await.1);
    }
    assert!(said[0].contains("500") && said[1].contains("302") && said[3].contains("503"), "{said:?}");
    assert_eq!(said[2], "snoozed");
    let nobody = Arc::new(HttpForward::new("http://127.0.0.1:1/", MINUTE).unwrap());
    let (_, said) = outcome(nobody, Event::new("t", "x")).await;
    assert!(!said.is_empty() && !said.contains("127.0.0.1:1/"), "addresses may hold secrets: {said}");
    assert!(HttpForward::new("not a url", MINUTE).is_err());
}

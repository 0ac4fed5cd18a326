//! What is sent, what comes back, and what becomes of receivers that do not behave.

use crate::bed::{LONG, Receiver, allowing, answered, failed, local, post, read_request, request};
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tramline::push::{Client, FailKind, Settings};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_arrives_as_it_was_given() {
    let mut receiver = Receiver::answering(&["HTTP/1.1 204 No Content\r\n\r\n"]).await;
    let mut sent = request(&receiver.url());
    sent.headers.insert("webhook-id", "msg_1".parse().unwrap());
    let answer = local().post(sent).await;
    assert!(answer.latency < LONG);
    assert_eq!(answer.result.unwrap().status, 204);
    let came = receiver.requests.recv().await.unwrap();
    assert!(came.starts_with("POST /hook?a=b HTTP/1.1\r\n") && came.ends_with("\r\n\r\n[1]"), "{came}");
    let host = format!("host: {}\r\n", receiver.address);
    for line in [
        "content-type: application/json\r\n",
        "webhook-id: msg_1\r\n",
        "content-length: 3\r\n",
        "user-agent: tramline/",
        &host,
    ] {
        assert!(came.contains(line), "{line}: {came}");
    }
}

#[tokio::test]
async fn headers_of_the_connection_are_not_the_subscribers() {
    let mut receiver = Receiver::answering(&[OK]).await;
    let mut sent = request(&receiver.url());
    for name in [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "expect",
        "proxy-authorization",
    ] {
        sent.headers.insert(HeaderName::from_static(name), HeaderValue::from_static("chunked"));
    }
    assert_eq!(local().post(sent).await.result.unwrap().status, 200);
    let came = receiver.requests.recv().await.unwrap();
    assert!(!came.contains("chunked") && came.contains("content-length: 3\r\n"), "{came}");
}

#[tokio::test]
async fn an_answer_has_status_type_body_and_when_to_ask_again() {
    let busy =
        "HTTP/1.1 503 Busy\r\ncontent-type: text/plain\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nlate";
    let receiver = Receiver::answering(&[busy]).await;
    let answer = answered(&local(), &receiver.url()).await;
    assert_eq!((answer.status, answer.retry_after), (503, Some(Duration::from_secs(7))));
    assert_eq!(
        (answer.content_type.as_deref(), &answer.body[..], answer.cut),
        (Some("text/plain"), &b"late"[..], false)
    );
}

#[tokio::test]
async fn options_asks_the_way_cloud_events_want_it() {
    let allowed = "HTTP/1.1 200 OK\r\nwebhook-allowed-origin: events.example\r\ncontent-length: 0\r\n\r\n";
    let mut receiver = Receiver::answering(&[allowed]).await;
    let mut asked = request(&receiver.url());
    asked.body = Bytes::new();
    asked.headers =
        [(HeaderName::from_static("webhook-request-origin"), HeaderValue::from_static("events.example"))]
            .into_iter()
            .collect();
    let answer = local().options(asked).await.result.unwrap();
    assert_eq!(answer.headers["webhook-allowed-origin"], "events.example");
    assert!(receiver.requests.recv().await.unwrap().starts_with("OPTIONS /hook?a=b HTTP/1.1\r\n"));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let target = Receiver::answering(&[OK]).await;
    let moved = format!("HTTP/1.1 307 Moved\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", target.url());
    let receiver = Receiver::answering(&[&moved]).await;
    assert_eq!(answered(&local(), &receiver.url()).await.status, 307);
    assert_eq!(target.settled().await, 0);
}

#[tokio::test]
async fn requests_share_a_connection() {
    let receiver = Receiver::answering(&[OK]).await;
    let client = local();
    for _ in 0..10 {
        assert_eq!(&answered(&client.clone(), &receiver.url()).await.body[..], b"ok");
    }
    assert_eq!(receiver.accepted(), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_in_between_is_replaced() {
    let closing = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let receiver = Receiver::answering(&[closing]).await;
    let client = local();
    for _ in 0..3 {
        assert_eq!(answered(&client, &receiver.url()).await.status, 200);
    }
    assert_eq!(receiver.accepted(), 3);
}

/// A receiver that answers twice could otherwise answer a request that it has not seen.
#[tokio::test]
async fn an_answer_that_nobody_asked_for_is_nobodys() {
    let twice = format!("{OK}HTTP/1.1 500 Sorry\r\ncontent-length: 0\r\n\r\n");
    let receiver = Receiver::answering(&[&twice, OK]).await;
    let client = local();
    for _ in 0..2 {
        assert_eq!(answered(&client, &receiver.url()).await.status, 200);
    }
    assert_eq!(receiver.accepted(), 2);
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let idle_timeout = Duration::from_millis(10);
    let client = Client::new(Settings { idle_timeout, ..allowing(&["127.0.0.0/8"]) });
    let receiving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        stream.write_all(OK.as_bytes()).await.unwrap();
        read_request(&mut stream).await
    };
    let (_, more) = tokio::join!(answered(&client, &url), tokio::time::timeout(LONG, receiving));
    assert_eq!(more.expect("it stays open"), None);
}

#[tokio::test]
async fn more_than_is_wanted_of_a_body_is_cut_off() {
    let receiver = Receiver::answering(&["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789"]).await;
    for (most, cut) in [(0, true), (8, true), (9, false), (10, false)] {
        let client = Client::new(Settings { max_answer: most, ..allowing(&["127.0.0.1"]) });
        let answer = answered(&client, &receiver.url()).await;
        assert_eq!((answer.cut, answer.body.len()), (cut, most.min(9)));
    }
}

/// The clock is real: what is measured is that the limit ends it, not how long that takes.
#[tokio::test]
async fn a_body_that_comes_drop_by_drop_ends_in_time() {
    let receiver = Receiver::answering(&["HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"]).await;
    let mut sent = request(&receiver.url());
    sent.timeout = Duration::from_millis(200);
    let answer = local().post(sent).await;
    assert_eq!(answer.result.unwrap_err().kind, FailKind::Timeout);
    assert!(answer.latency >= Duration::from_millis(200) && answer.latency < LONG);
}

#[tokio::test]
async fn a_receiver_that_says_nothing_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut sent = request(&format!("http://{}/", silent.local_addr().unwrap()));
    sent.timeout = Duration::from_millis(100);
    let failed = local().post(sent).await.result.unwrap_err();
    assert_eq!((failed.kind, &*failed.text), (FailKind::Timeout, "no complete answer within 100ms"));
}

#[tokio::test]
async fn a_connection_that_breaks_is_told_from_one_that_never_was() {
    let receiver = Receiver::answering(&[""]).await;
    let (kind, text) = failed(&local(), &receiver.url()).await;
    assert_eq!(kind, FailKind::Reset, "{text}");
    let half =
        Receiver::answering(&["HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\n123"]).await;
    assert_eq!(failed(&local(), &half.url()).await.0, FailKind::Reset);
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (kind, text) = failed(&local(), &format!("http://{nobody}/")).await;
    assert!(kind == FailKind::Connect && text.starts_with("the receiver cannot be reached: "), "{text}");
}

#[tokio::test]
async fn what_is_not_http_is_malformed() {
    let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(300_000));
    for answer in ["SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP/1.1 9999 ?\r\n\r\n", &head] {
        let receiver = Receiver::answering(&[answer]).await;
        assert_eq!(failed(&local(), &receiver.url()).await.0, FailKind::Malformed, "{}", &answer[..20]);
    }
}

#[tokio::test]
async fn a_password_in_the_url_is_neither_sent_nor_shown() {
    let receiver = Receiver::answering(&[OK]).await;
    let (kind, text) = failed(&local(), &receiver.url().replace("//", "//user:secret@")).await;
    assert!(kind == FailKind::Invalid && !text.contains("secret"), "{text}");
    assert_eq!(receiver.settled().await, 0);
}

#[tokio::test]
async fn many_requests_at_a_time_all_get_their_answer() {
    let receiver = Receiver::answering(&[OK]).await;
    let (client, url) = (local(), receiver.url());
    let all = futures_util::future::join_all((0..200).map(|_| post(&client, &url))).await;
    assert!(all.iter().all(|answer| answer.result.as_ref().is_ok_and(|it| it.status == 200)));
}

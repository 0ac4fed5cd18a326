//! Which sockets are opened, seen from the other side.

use crate::bed::{LONG, Names, Receiver, allowing, answered, failed, request};
use async_trait::async_trait;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tramline::push::{Client, FailKind, Resolve, Settings};

const CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

fn url(receiver: &Receiver) -> String {
    format!("http://hooks.example:{}/", receiver.address.port())
}

fn client(ranges: &[&str], names: &Arc<Names>) -> Client {
    Client::new(Settings { resolver: names.clone(), ..allowing(ranges) })
}

#[tokio::test]
async fn a_name_that_leads_inside_is_not_dialled() {
    let receiver = Receiver::answering(&[CLOSE]).await;
    for address in ["127.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "0.0.0.0", "::", "::1"]
    {
        let names = Names::leading_to(&[&[address]]);
        let (kind, text) = failed(&client(&[], &names), &url(&receiver)).await;
        assert!(kind == FailKind::Refused && text.contains("must not be dialled"), "{address}: {text}");
    }
    assert_eq!(receiver.settled().await, 0);
}

/// The look-up that is checked is the one that is dialled: a second answer is never asked for.
#[tokio::test]
async fn a_name_that_changes_its_mind_reaches_only_what_was_checked() {
    let inside = Receiver::answering(&[CLOSE]).await;
    let outside = Receiver::at(&format!("127.0.0.2:{}", inside.address.port()), &[CLOSE]).await;
    let names = Names::leading_to(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let client = client(&["127.0.0.2"], &names);
    assert_eq!(answered(&client, &url(&outside)).await.status, 200);
    assert_eq!(names.asked(), 1);
    assert_eq!(failed(&client, &url(&outside)).await.0, FailKind::Refused);
    assert_eq!(names.asked(), 2);
    assert_eq!((inside.settled().await, outside.settled().await), (0, 1));
}

#[tokio::test]
async fn one_address_inside_condemns_the_name() {
    let inside = Receiver::answering(&[CLOSE]).await;
    let outside = Receiver::at(&format!("127.0.0.2:{}", inside.address.port()), &[CLOSE]).await;
    for answer in [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]] {
        let names = Names::leading_to(&[&answer]);
        assert_eq!(failed(&client(&["127.0.0.2"], &names), &url(&outside)).await.0, FailKind::Refused);
    }
    let mut many = vec!["127.0.0.2"; 40];
    many.push("127.0.0.1");
    let names = Names::leading_to(&[&many]);
    assert_eq!(failed(&client(&["127.0.0.2"], &names), &url(&outside)).await.0, FailKind::Refused);
    assert_eq!((inside.settled().await, outside.settled().await), (0, 0));
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_fails() {
    let receiver = Receiver::at("127.0.0.3:0", &[CLOSE]).await;
    let names = Names::leading_to(&[&["127.0.0.1", "127.0.0.2", "127.0.0.3"]]);
    assert_eq!(answered(&client(&["127.0.0.0/8"], &names), &url(&receiver)).await.status, 200);
}

#[tokio::test]
async fn a_name_without_addresses_is_not_found() {
    let receiver = Receiver::answering(&[CLOSE]).await;
    let (kind, text) = failed(&client(&[], &Names::leading_to(&[&[]])), &url(&receiver)).await;
    assert!(kind == FailKind::Resolve && text.contains("no addresses"), "{text}");
}

/// Never answers.
#[derive(Debug)]
struct Hanging;

#[async_trait]
impl Resolve for Hanging {
    async fn resolve(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_look_up_that_hangs_is_given_up_before_the_request_is() {
    let connect_timeout = Duration::from_millis(50);
    let client = Client::new(Settings { connect_timeout, resolver: Arc::new(Hanging), ..allowing(&[]) });
    let answer = client.post(request("http://hooks.example/")).await;
    let failed = answer.result.unwrap_err();
    assert_eq!(
        (failed.kind, &*failed.text),
        (FailKind::Connect, "no connection to the receiver within 50ms")
    );
    assert!(answer.latency < LONG);
}

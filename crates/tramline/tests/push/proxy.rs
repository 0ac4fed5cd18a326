//! A proxy that is configured, and what the guard can still see.

use crate::bed::{Names, Receiver, allowing, answered, failed, read_request};
use crate::tls::self_signed;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tramline::push::{Client, FailKind, Settings};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Nothing but the proxy is reachable, and names are not looked up here.
fn through(proxy: &Receiver) -> Client {
    let proxy = format!("http://me:secret@127.0.0.1:{}", proxy.address.port());
    let resolver = Names::leading_to(&[&["127.0.0.9"]]);
    Client::new(Settings { proxy: Some(proxy.parse().unwrap()), resolver, ..allowing(&[]) })
}

#[tokio::test]
async fn requests_without_tls_tell_the_proxy_the_whole_address() {
    let mut proxy = Receiver::answering(&[OK]).await;
    let client = through(&proxy);
    assert_eq!(answered(&client, "http://hooks.example/a?b").await.status, 200);
    let came = proxy.requests.recv().await.unwrap();
    assert!(came.starts_with("POST http://hooks.example/a?b HTTP/1.1\r\n"), "{came}");
    assert!(came.contains("proxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{came}");
}

#[tokio::test]
async fn requests_with_tls_ask_it_for_a_tunnel() {
    let mut proxy = Receiver::answering(&["HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n"]).await;
    let (kind, text) = failed(&through(&proxy), "https://hooks.example/a").await;
    assert!(kind == FailKind::Proxy && !text.contains("secret"), "{kind}: {text}");
    let came = proxy.requests.recv().await.unwrap();
    assert!(came.starts_with("CONNECT hooks.example:443 HTTP/1.1\r\n"), "{came}");
    assert!(came.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{came}");
}

/// A proxy that connects to one place whatever it is asked for.
async fn tunnel_to(target: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        read_request(&mut client).await.unwrap();
        client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
        let mut server = TcpStream::connect(target).await.unwrap();
        tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
    });
    proxy
}

#[tokio::test]
async fn the_tunnel_carries_the_request_encrypted() {
    let target = self_signed().await.replace("https://", "").replace('/', "");
    let proxy = Some(tunnel_to(target).await.parse().unwrap());
    let client = Client::new(Settings { proxy, insecure_tls: true, ..allowing(&[]) });
    assert_eq!(&answered(&client, "https://hooks.example/a").await.body[..], b"ok");
}

#[tokio::test]
async fn an_address_that_is_written_out_is_still_checked() {
    let proxy = Receiver::answering(&[OK]).await;
    for url in [
        "http://10.0.0.1/",
        "https://10.0.0.1/",
        "http://[::ffff:a9fe:a9fe]/",
        "https://0x7f.1/",
        "http://2130706433/",
    ] {
        assert_eq!(failed(&through(&proxy), url).await.0, FailKind::Refused, "{url}");
    }
    assert_eq!(proxy.settled().await, 0);
}

#[tokio::test]
async fn a_proxy_that_is_gone_is_named_as_the_cause() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Some(format!("http://{nobody}").parse().unwrap());
    let client = Client::new(Settings { proxy, ..Settings::default() });
    for url in ["http://hooks.example/", "https://hooks.example/"] {
        assert_eq!(failed(&client, url).await.0, FailKind::Proxy, "{url}");
    }
}

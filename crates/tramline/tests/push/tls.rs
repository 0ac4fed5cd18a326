//! TLS: whom the client trusts.

use crate::bed::{allowing, answered, failed, local, read_request};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tramline::push::{Client, FailKind, Settings};

/// A receiver with a certificate that it has signed itself. Gives its URL.
pub(crate) async fn self_signed() -> String {
    let cert = CertificateDer::from_pem_slice(include_bytes!("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .unwrap();
    let (acceptor, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            read_request(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
                .await
                .unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let (kind, text) = failed(&local(), &self_signed().await).await;
    assert!(kind == FailKind::Tls && text.contains("certificate"), "{text}");
}

#[tokio::test]
async fn it_is_accepted_only_by_who_asked_for_that() {
    let client = Client::new(Settings { insecure_tls: true, ..allowing(&["127.0.0.1"]) });
    assert_eq!(&answered(&client, &self_signed().await).await.body[..], b"ok");
}

#[tokio::test]
async fn what_is_not_trusted_may_still_not_be_anywhere() {
    let client = Client::new(Settings { insecure_tls: true, ..Settings::default() });
    assert_eq!(failed(&client, &self_signed().await).await.0, FailKind::Refused);
}

#[tokio::test]
async fn a_receiver_that_does_not_speak_tls_is_told_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        read_request(&mut stream).await;
    });
    let (kind, text) = failed(&local(), &url).await;
    assert!(kind == FailKind::Tls && text.starts_with("no TLS with the receiver"), "{kind}: {text}");
}

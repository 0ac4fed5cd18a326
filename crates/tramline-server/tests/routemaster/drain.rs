//! A receiver that takes only what Routemaster's own drain takes.

use crate::node::PATIENCE;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

/// A receiver over TLS. It takes batches as long as it is well.
pub(crate) struct Drain {
    pub(crate) callback: String,
    well: Arc<AtomicBool>,
    batches: UnboundedReceiver<(u16, Vec<Value>)>,
}

impl Drain {
    pub(crate) async fn open() -> Drain {
        let cert = CertificateDer::from_pem_slice(include_bytes!("../tls/second.cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/second.key.pem")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let callback = format!("https://{}/events", listener.local_addr().unwrap());
        let well = Arc::new(AtomicBool::new(true));
        let (tell, batches) = unbounded_channel();
        tokio::spawn(accept(TlsAcceptor::from(Arc::new(config)), listener, well.clone(), tell));
        Drain { callback, well, batches }
    }

    pub(crate) fn is_well(&self, well: bool) {
        self.well.store(well, Ordering::SeqCst);
    }

    /// The next batch, and with which status it was answered.
    pub(crate) async fn next(&mut self) -> (u16, Vec<Value>) {
        tokio::time::timeout(PATIENCE, self.batches.recv()).await.expect("nothing was sent").unwrap()
    }
}

async fn accept(
    acceptor: TlsAcceptor,
    listener: TcpListener,
    well: Arc<AtomicBool>,
    tell: UnboundedSender<(u16, Vec<Value>)>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(stream) = acceptor.accept(stream).await else { continue };
        let (well, tell) = (well.clone(), tell.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| take(request, well.clone(), tell.clone()));
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

async fn take(
    request: Request<Incoming>,
    well: Arc<AtomicBool>,
    tell: UnboundedSender<(u16, Vec<Value>)>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let status = judge(&request, well.load(Ordering::SeqCst));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    tell.send((status, serde_json::from_slice(&body).unwrap_or_default())).ok();
    Ok(Response::builder().status(StatusCode::from_u16(status).unwrap()).body(Empty::new()).unwrap())
}

/// The status with which Routemaster's drain answers.
fn judge(request: &Request<Incoming>, well: bool) -> u16 {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let basic = format!("Basic {}", BASE64_STANDARD.encode("a-uuid:x"));
    match () {
        () if header("authorization") != Some(&basic) => 401,
        () if header("content-type") != Some("application/json") => 415,
        () if request.method() != "POST" || request.uri().path() != "/events" => 404,
        () if !well => 500,
        () => 204,
    }
}

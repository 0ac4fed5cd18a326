//! What a server does at least: an endpoint that reads the JSON of an event and answers 204. `scripts/http-rate.sh` compares the real
//! one with it.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use axum::serve::ListenerExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "payload")]
    _payload: &'a RawValue,
    #[serde(rename = "type")]
    _kind: &'a str,
}

/// Listens at the address that it is given.
#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7071".to_owned());
    let listener = TcpListener::bind(address).await?.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, Router::new().route("/emit", post(read))).await
}

async fn read(body: Bytes) -> StatusCode {
    match serde_json::from_slice::<Event<'_>>(&body) {
        Ok(_) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::BAD_REQUEST,
    }
}

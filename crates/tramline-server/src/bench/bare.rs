//! What a server does at least: an axum endpoint that reads the JSON of an event and answers 204, started as axum's documentation starts one,
//! without any of the limits of the real one.

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

/// Serves `/emit` until it is dropped.
pub(super) async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, Router::new().route("/emit", post(read))).await
}

async fn read(body: Bytes) -> StatusCode {
    match serde_json::from_slice::<Event<'_>>(&body) {
        Ok(_) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::BAD_REQUEST,
    }
}

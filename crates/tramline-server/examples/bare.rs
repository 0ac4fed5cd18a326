//! The endpoint with which `scripts/http-rate.sh` compares the real one. Listens at the address that it is given.

#[path = "../src/bench/bare.rs"]
mod bare;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7071".to_owned());
    bare::serve(tokio::net::TcpListener::bind(address).await?).await
}

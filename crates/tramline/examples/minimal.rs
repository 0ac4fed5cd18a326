//! The smallest useful program: emit an event, run a worker.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use tokio::sync::mpsc;
use tramline::{Context, Event, Json, State, Tramline};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    customer: String,
    total: u32,
}

async fn thank(
    order: Json<Order>,
    cx: Context,
    done: State<mpsc::UnboundedSender<()>>,
) -> Result<(), String> {
    println!("event {}: thank you, {}, for {} Euro", cx.event().id, order.customer, order.total);
    done.send(()).map_err(|error| error.to_string())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // "sqlite://app.db" keeps the events in a file; this one forgets them when the program ends.
    let tram = Tramline::open("sqlite::memory:").await?;

    let order = Order { customer: "Ada".into(), total: 12 };
    let receipt = tram.emit(Event::json("orders", &order)?.kind("order.paid").key("order:42")).await?;
    println!("stored as event {}", receipt.id());

    let (tell, mut done) = mpsc::unbounded_channel::<()>();
    let worker = tram.worker("thanks").topics(["orders"]).state(tell).on("order.paid", thank);
    worker.run_until(done.recv()).await?;

    println!("left to do: {:?}", tram.stats("thanks").await?.counts);
    tram.close().await;
    Ok(())
}

//! The consumer's side of the order: events arrive shuffled and twice, as networks like it, and are applied in order and once.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;
use tramline::model::resequencer::{Arrival, Limits, Verdict};
use tramline::{Event, EventId, Resequencer, Tramline};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tram = Tramline::open("sqlite::memory:").await?;
    for what in ["created", "paid", "packed", "sent"] {
        tram.emit(Event::new("orders", what).kind("order").key("order:42")).await?;
    }

    // Stands for a transport that delivers at least once and in any order.
    let mut arrivals = tram.read_log("orders", EventId(0), 100).await?.events;
    arrivals.swap(1, 3);
    arrivals.push(arrivals[0].clone());

    let mut order = Resequencer::new(Limits::default());
    for event in arrivals {
        let what = String::from_utf8_lossy(&event.payload).into_owned();
        let arrival = Arrival {
            key: event.key.clone(),
            id: event.id,
            prev: event.prev,
            skipped: vec![],
            item: what.clone(),
        };
        match order.arrive(arrival, Duration::ZERO) {
            Verdict::Apply(items) => println!("{what:<8} arrives: apply {items:?}"),
            Verdict::Wait => {
                println!("{what:<8} arrives: wait for event {:?}", event.prev.map(|prev| prev.0))
            }
            Verdict::Duplicate => println!("{what:<8} arrives: again, ignored"),
            Verdict::Overflow(_) => println!("{what:<8} arrives: too many are waiting"),
        }
    }
    tram.close().await;
    Ok(())
}

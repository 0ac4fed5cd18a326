//! How a program tests its handlers: no sleeps, no server, a clock to turn.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;
use tramline::testkit::TestKit;
use tramline::{Context, Event, Retry, Tramline, Worker};

/// What the program under test would have: a worker that reminds of unpaid orders.
fn reminders(tram: &Tramline) -> Worker {
    tram.worker("reminders")
        .topics(["orders"])
        .retry(Retry::delays([Duration::from_secs(60), Duration::from_secs(3600)]))
        .on("order.unpaid", |cx: Context| async move {
            if cx.attempt() < 3 {
                return Err(format!("the mail server refused try {}", cx.attempt()));
            }
            let mail = Event::new("mails", cx.event().payload.clone()).kind("reminder");
            cx.tramline().emit(mail).await.map(|_| ()).map_err(|error| error.to_string())
        })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let kit = TestKit::new().await?;
    let worker = reminders(kit.tram());
    worker.subscribe().await?;
    let week = Duration::from_secs(7 * 24 * 3600);
    kit.tram().emit(Event::new("orders", "42").kind("order.unpaid").delay(week)).await?;

    println!("at once:            {} ran", kit.drain_until_idle(&[&worker]).await?);
    for (wait, label) in [
        (week, "a week later"),
        (Duration::from_secs(60), "a minute later"),
        (Duration::from_secs(3600), "an hour later"),
    ] {
        kit.advance(wait);
        println!("{label:<20}{} ran", kit.drain_until_idle(&[&worker]).await?);
    }
    kit.assert_emitted("mails", "reminder", 1).await;
    println!("one reminder was emitted");
    Ok(())
}

//! Fan-out tracking: a report is made of many pages, and somebody is told, once, when the last page is done.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::future::pending;
use tramline::{Context, Event, EventId, NewTally, Outcome, Result, TopicSettings, Tramline};

#[tokio::main]
async fn main() -> Result<()> {
    let tram = Tramline::open("sqlite::memory:").await?;

    // A page may fail; a chapter emits its pages while it runs, into the tally that it is an item of.
    let renderer = tram
        .worker("renderer")
        .topics(["pages"])
        .on("chapter", |cx: Context| async move {
            let pages = (0..20).map(|page| cx.grow(Event::new("pages", page.to_string()).kind("page")));
            cx.tramline().emit(pages.collect::<Vec<_>>()).await.map(|_| ())
        })
        .on("page", |cx: Context| async move {
            if cx.event().payload == "13" { Outcome::dead("out of ink") } else { Outcome::Done }
        });
    renderer.subscribe().await?;

    tram.put_topic("reports", TopicSettings::default()).await?;

    // The event on completion is emitted exactly once, whoever ends the last item.
    let done = Event::new("reports", "report 7").kind("report.done");
    let tally =
        tram.tallies().open(NewTally::new().user_key("report 7").growing().on_complete(done)).await?.id;
    for _ in 0..5 {
        tram.emit(Event::new("pages", "").kind("chapter").tally(tally)).await?;
    }
    tram.tallies().seal(tally, Some(5)).await?;

    renderer.run_until(tram.tallies().wait(tally, pending())).await?;
    let report = tram.tallies().get(tally).await?;
    println!("{} items, {} done, {} failed", report.total, report.done, report.failed);

    let event = tram.follow("reports", EventId(0)).next().await?;
    println!("{} with {:?}", event.kind, event.headers);
    tram.close().await;
    Ok(())
}

//! Mails that must never be sent twice: the claim consumes, and a journal remembers which ones were begun. The program "crashes"
//! in the middle of the second mail; the next life sends only what no life has begun.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tramline::{Event, Options, Raw, State, Tramline, Worker};

struct Mailer {
    crash_at: &'static str,
    sent: mpsc::UnboundedSender<String>,
}

async fn send(Raw(to): Raw, mailer: State<Mailer>) -> Result<(), String> {
    let to = String::from_utf8_lossy(&to).into_owned();
    println!("  sending to {to}");
    mailer.sent.send(to.clone()).map_err(|error| error.to_string())?;
    if to == mailer.crash_at {
        std::future::pending::<()>().await; // the crash comes while this mail is under way
    }
    Ok(())
}

fn worker(tram: &Tramline, journal: &Path, mailer: Mailer) -> Worker {
    tram.worker("mails")
        .topics(["mails"])
        .at_most_once()
        .claim_size(4) // a crash may interrupt up to as many as have begun, and these are run one at a time
        .concurrency(1)
        .journal(journal)
        .state(mailer)
        .on("mail", send)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("tramline-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let url = format!("sqlite://{}", folder.join("app.db").display());
    let journal = folder.join("mails.journal");
    // A name that belongs to one process at a time: the next life takes over what this one held.
    let open = || Tramline::with(Options::new(url.clone()).name("mailer-1"));

    let first = Arc::new(open().await?);
    let mails = ["ann", "bob", "cy", "dan"].map(|to| Event::new("mails", to).kind("mail"));
    first.emit(mails).await?;

    println!("first life:");
    let (sent, mut told) = mpsc::unbounded_channel();
    let life = worker(&first, &journal, Mailer { crash_at: "bob", sent });
    let running = tokio::spawn(async move { life.run_until(std::future::pending::<()>()).await });
    while told.recv().await.as_deref() != Some("bob") {}
    running.abort(); // no goodbye
    drop(running.await);

    println!("second life:");
    let second = open().await?;
    let (sent, mut told) = mpsc::unbounded_channel();
    let life = worker(&second, &journal, Mailer { crash_at: "nobody", sent });
    let both = async {
        told.recv().await;
        told.recv().await;
    };
    tokio::time::timeout(Duration::from_secs(10), life.run_until(both)).await??;

    let dead = second.dead("mails", tramline::EventId(0), 10).await?;
    for dead in &dead {
        println!("not known whether sent: {} ({})", String::from_utf8_lossy(&dead.event.payload), dead.error);
    }
    second.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

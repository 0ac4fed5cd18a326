//! Events of one key run strictly one after the other, different keys at the same time. A failure makes only its own key wait.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tramline::{Context, Event, Retry, State, Tramline};

/// Counts the changes, and tells when the last one is made.
#[derive(Clone, Default)]
struct Progress {
    made: Arc<AtomicU32>,
    all: Arc<Notify>,
}

async fn apply(cx: Context, progress: State<Progress>) -> Result<(), &'static str> {
    let event = cx.event();
    let what = String::from_utf8_lossy(&event.payload).into_owned();
    let account = event.key.as_deref().unwrap_or("-");
    if account == "bob" && what == "deposit" && cx.attempt() == 1 {
        println!("{account}: {what} fails, so everything of {account} waits");
        return Err("the bank is closed");
    }
    println!("{account}: {what} (event {}, after {:?})", event.id, event.prev.map(|prev| prev.0));
    if progress.made.fetch_add(1, Ordering::SeqCst) + 1 == 6 {
        progress.all.notify_one();
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tram = Tramline::open("sqlite::memory:").await?;
    for what in ["open", "deposit", "withdraw"] {
        // Emitted together: stored together or not at all.
        let both = ["ann", "bob"].map(|account| Event::new("accounts", what).kind("changed").key(account));
        tram.emit(both).await?;
    }

    let progress = Progress::default();
    let worker = tram
        .worker("ledger")
        .topics(["accounts"])
        .ordered_by_key()
        .retry(Retry::constant(5, Duration::from_millis(300)))
        .state(progress.clone())
        .on("changed", apply);
    worker.run_until(progress.all.notified()).await?;

    println!("left to do: {:?}", tram.stats("ledger").await?.counts);
    tram.close().await;
    Ok(())
}

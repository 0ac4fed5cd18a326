//! The outbox without an outbox: an event is stored in the same transaction as the program's own rows. If the transaction is rolled
//! back, nothing has happened.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use rusqlite::Connection;
use std::error::Error;
use tokio::sync::mpsc;
use tramline::{Event, Raw, State, Tramline};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("tramline-outbox-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("app.db");

    let tram = Tramline::open(&format!("sqlite://{}", file.display())).await?;
    let store = tram.sqlite().ok_or("this is a SQLite store")?;
    let (tell, mut told) = mpsc::unbounded_channel::<()>();
    let worker = tram.worker("mails").topics(["orders"]).state(tell).on("order.paid", announce);
    worker.subscribe().await?;

    // The program's own connection to the same file, and its own table.
    let mut mine = Connection::open(&file)?;
    mine.busy_timeout(std::time::Duration::from_secs(5))?;
    mine.execute("CREATE TABLE shop_order (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)", [])?;

    for (order, regret) in [(1, false), (2, true), (3, false)] {
        let tx = mine.transaction()?;
        tx.execute("INSERT INTO shop_order VALUES (?1, 12)", [order])?;
        let event =
            Event::new("orders", format!("order {order}")).kind("order.paid").key(format!("order:{order}"));
        let emission = store.emit_in(&tx, [event])?;
        if regret {
            tx.rollback()?;
            println!("order {order}: rolled back, with its event");
        } else {
            tx.commit()?;
            println!("order {order}: committed");
            tram.receipt(emission).wake();
        }
    }

    let two = async {
        told.recv().await;
        told.recv().await;
    };
    worker.run_until(two).await?;
    let orders: u32 = mine.query_row("SELECT count(*) FROM shop_order", [], |row| row.get(0))?;
    println!("{orders} orders, {:?}", tram.stats("mails").await?.counts);
    drop(mine);
    tram.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

async fn announce(Raw(order): Raw, told: State<mpsc::UnboundedSender<()>>) -> Result<(), String> {
    println!("mail for {}", String::from_utf8_lossy(&order));
    told.send(()).map_err(|error| error.to_string())
}

use std::time::Instant;
use tramline::*;
#[tokio::main]
async fn main() {
    let url = std::env::var("LATURL")
        .unwrap_or_else(|_| std::env::var("TRAMLINE_TEST_POSTGRES").unwrap() + "?schema=lat");
    let tram = Tramline::open(&url).await.unwrap();
    let beside =
        if std::env::var("SAME").is_ok() { tram.clone() } else { Tramline::open(&url).await.unwrap() };
    let (tx, mut rx) = tokio::sync::mpsc::channel(1);
    let worker = beside.worker("lat").topics(["lat"]).on_any(move || {
        let tx = tx.clone();
        let at = Instant::now();
        async move { tx.send(at).await.map_err(|_| "x") }
    });
    worker.subscribe().await.unwrap();
    let sd = Shutdown::new();
    let d = sd.clone();
    let r = tokio::spawn(async move { worker.run(d).await });
    let (mut e, mut h) = (vec![], vec![]);
    for _ in 0..1000 {
        let s = Instant::now();
        tram.emit(Event::new("lat", vec![b'x'; 100])).await.unwrap();
        let m = Instant::now();
        let at = rx.recv().await.unwrap();
        e.push((m - s).as_micros());
        h.push(at.duration_since(m).as_micros());
        if std::env::var("GAP").is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(7)).await;
        }
    }
    sd.start();
    r.await.unwrap().unwrap();
    e.sort();
    h.sort();
    println!("emit p50 {} handover p50 {}", e[500], h[500]);
    let c = tram.store();
    let _ = c;
}

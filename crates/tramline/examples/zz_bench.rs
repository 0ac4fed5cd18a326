use std::sync::Arc;
use std::time::{Duration, Instant};
use tramline::*;
#[tokio::main]
async fn main() {
    let dir = std::env::temp_dir().join(format!("tl-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for mode in ["memory", "file"] {
        for ordered in [false, true] {
            let url = if mode == "memory" {
                "sqlite::memory:".to_string()
            } else {
                format!("sqlite://{}/b{}.db", dir.display(), ordered)
            };
            let tram = Tramline::with(Options::new(url).hooks(Arc::new(NoHooks))).await.unwrap();
            let n: usize = 500_000;
            let mk = || {
                let w = tram.worker("w").topics(["t"]).concurrency(32);
                if ordered { w.ordered_by_key() } else { w }
            };
            mk().subscribe().await.unwrap();
            let t = Instant::now();
            for part in 0..n / 5_000 {
                let events: Vec<Event> = (0..5_000)
                    .map(|i| {
                        let e = Event::new("t", vec![b'x'; 100]);
                        if ordered { e.key(format!("k{}", (part * 5000 + i) % 1000)) } else { e }
                    })
                    .collect();
                tram.emit(events).await.unwrap();
            }
            println!("{mode} ordered={ordered} bulk emit {:.0}/s", n as f64 / t.elapsed().as_secs_f64());
            let t = Instant::now();
            let w = mk().on_any(|| async {});
            let got = w.drain().await.unwrap();
            println!("{mode} ordered={ordered} drain {got} {:.0}/s", got as f64 / t.elapsed().as_secs_f64());
        }
        let url = if mode == "memory" {
            "sqlite::memory:".to_string()
        } else {
            format!("sqlite://{}/e.db", dir.display())
        };
        let tram = Tramline::with(Options::new(url).hooks(Arc::new(NoHooks))).await.unwrap();
        tram.worker("w").topics(["t"]).subscribe().await.unwrap();
        let t = Instant::now();
        let mut set = tokio::task::JoinSet::new();
        for _ in 0..256 {
            let tram = tram.clone();
            set.spawn(async move {
                for _ in 0..500 {
                    tram.emit(Event::new("t", vec![b'x'; 100])).await.unwrap();
                }
            });
        }
        while set.join_next().await.is_some() {}
        println!("{mode} 256 single emitters {:.0}/s", 256.0 * 500.0 / t.elapsed().as_secs_f64());
    }
    // idle cpu
    let tram = Tramline::with(Options::new(format!("sqlite://{}/e.db", dir.display()))).await.unwrap();
    let w = tram.worker("idle").topics(["none"]).on_any(|| async {});
    let c0 = cpu();
    let t = Instant::now();
    w.run_until(tokio::time::sleep(Duration::from_secs(5))).await.unwrap();
    println!("idle cpu {:.2} %", (cpu() - c0) / t.elapsed().as_secs_f64() * 100.0);
    std::fs::remove_dir_all(dir).ok();
}
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
}

//! Real processes that are killed, stopped past their leases and cut from their database, while a recorder that is never killed
//! checks what they did.
//!
//! - `scenario`: emit all the time, disturb everybody, and check in the end
//! - `process`, `worker`, `emitter`: the processes, which are this same program; `crew` starts and ends them
//! - `disturb`, `proxy`, `stale`: what is done to them
//! - `recorder`, `check`: what they did, and what must be true of it
//! - `power`: what a server has acknowledged when it dies; `again`: what it had not written down then
//!
//! `TRAMLINE_DISTURBANCES` says how many disturbances there are on each store. `TRAMLINE_SEED` repeats those of another run.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program: a panic is a failure, and it talks"
)]

mod again;
mod chance;
mod check;
mod crew;
mod disturb;
mod emitter;
mod place;
mod power;
mod process;
mod proxy;
mod recorder;
mod scenario;
mod stale;
mod worker;

use tramline::model::id::Incarnation;

/// On each store, in how many disturbances. On a file and a Cluster there are four kinds, on a server twelve or thirteen: each kind comes several times.
const STORES: [(&str, usize); 6] = [
    ("sqlite", 60),
    ("postgres", 60),
    ("mysql", 24),
    ("redis", 24),
    ("redis_cluster", 12),
    ("redis_spread", 12),
];

/// Among so many, some leases are taken over that were lost; among fewer, on a slow machine, perhaps none is in time.
const MANY: usize = 60;

#[tokio::main]
async fn main() {
    match std::env::var(process::ROLE).as_deref() {
        Ok(process::WORKER) => return worker::main().await,
        Ok(process::EMITTER) => return emitter::main().await,
        _ => {}
    }
    // The arguments are those of the usual test harness: names to filter by, and options that do not matter here.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let disturbances = number("TRAMLINE_DISTURBANCES");
    let seed = number("TRAMLINE_SEED").unwrap_or_else(|| Incarnation::random().0.unsigned_abs()).max(1);
    let (mut passed, mut seen) = (0, scenario::Seen::default());
    for (store, usual) in STORES {
        let name = format!("disturbances_{store}");
        if wanted.is_empty() || wanted.iter().any(|filter| name.contains(filter.as_str())) {
            let disturbances = disturbances.map_or(usual, |number| number as usize);
            // Said before, so that a run that fails has told it.
            println!("test {name} ({disturbances} disturbances, TRAMLINE_SEED={seed})");
            let here = scenario::run(store, disturbances, seed).await;
            assert!(disturbances < MANY || here.taken_over > 0, "no lease that was lost was ever taken over");
            seen.taken_over += here.taken_over;
            seen.never_begun += here.never_begun;
            passed += 1;
        }
    }
    let is_usual = wanted.is_empty() && disturbances.is_none();
    assert!(!is_usual || seen.taken_over > STORES.len(), "hardly a lease that was lost was taken over");
    assert!(!is_usual || seen.never_begun > 0, "no journal was ever of use");
    for store in power::STORES {
        let name = format!("disturbances_power_{store}");
        if wanted.is_empty() || wanted.iter().any(|filter| name.contains(filter.as_str())) {
            println!("test {name}");
            power::run(store).await;
            passed += 1;
        }
    }
    let name = "disturbances_again_postgres";
    if wanted.is_empty() || wanted.iter().any(|filter| name.contains(filter.as_str())) {
        println!("test {name}");
        again::run().await;
        passed += 1;
    }
    println!("{passed} passed, 0 failed");
}

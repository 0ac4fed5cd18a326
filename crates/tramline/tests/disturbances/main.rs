//! Real worker processes that are killed, stopped past their leases and cut from their database, while a recorder that is
//! never killed checks what they did.
//!
//! `TRAMLINE_DISTURBANCES` says how many disturbances there are in all; 60 unless set.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program: a panic is a failure, and it talks"
)]

mod check;
mod proxy;
mod recorder;
mod scenario;
mod worker;

/// Set in worker processes, which are this same program.
const ROLE: &str = "TRAMLINE_DISTURBED_WORKER";

#[tokio::main]
async fn main() {
    if std::env::var_os(ROLE).is_some() {
        return worker::main().await;
    }
    // The arguments are those of the usual test harness: names to filter by, and options that do not matter here.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let total: usize = std::env::var("TRAMLINE_DISTURBANCES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut passed = 0;
    let quarter = total / 4;
    let scenarios = [
        ("disturbances_sqlite", quarter),
        ("disturbances_postgres", total - 3 * quarter),
        ("disturbances_mysql", quarter),
        ("disturbances_redis", quarter),
    ];
    for (name, share) in scenarios {
        if wanted.is_empty() || wanted.iter().any(|filter| name.contains(filter.as_str())) {
            println!("test {name} ({share} disturbances)");
            scenario::run(name, share).await;
            passed += 1;
        }
    }
    println!("{passed} passed, 0 failed");
}

//! A real server process, at an address that stays the same.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Node {
    process: Child,
    store: String,
    port: u16,
}

impl Node {
    /// Starts a server on a free port, and waits until it serves.
    pub(crate) async fn start(store: &str) -> Node {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let node = Node { process: spawn(store, port), store: store.to_owned(), port };
        node.until_ready().await;
        node
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again at the same address. Gives how long it took until it served.
    pub(crate) async fn start_again(&mut self) -> Duration {
        let start = Instant::now();
        self.process = spawn(&self.store, self.port);
        self.until_ready().await;
        start.elapsed()
    }

    async fn until_ready(&self) {
        let url = format!("{}/health/ready", self.url());
        let ready = async {
            // One attempt after the other, as a load balancer would.
            while !reqwest::get(&url).await.is_ok_and(|answer| answer.status().is_success()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ready).await.expect("the server does not start");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A failed test ends it too.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn spawn(store: &str, port: u16) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tramline"))
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store", store, "--log", "warn"])
        .env_remove("TRAMLINE_ROOT_TOKEN")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

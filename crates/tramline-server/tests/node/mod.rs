//! A real node: the binary on a free port, with a directory of its own.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use serde_json::Value;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A node, with a directory for its files. Killed when it is dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) http: reqwest::Client,
    pub(crate) directory: TempDir,
}

pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tramline"));
    command.current_dir(directory).env_remove("TRAMLINE_ROOT_TOKEN").env("RUST_LOG", "info");
    command.arg("serve").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Node {
    pub(crate) fn start(arguments: &[&str]) -> Node {
        Node::start_in(tempfile::tempdir().unwrap(), arguments, &[])
    }

    pub(crate) fn start_in(directory: TempDir, arguments: &[&str], environment: &[(&str, &str)]) -> Node {
        let file = directory.path().join("address");
        std::fs::remove_file(&file).ok();
        let mut all = vec!["--address-file", "address"];
        if !arguments.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend(arguments);
        let mut child = command(directory.path(), &all).envs(environment.iter().copied()).spawn().unwrap();
        let address = until(|| {
            if let Some(status) = child.try_wait().unwrap() {
                let mut log = String::new();
                child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
                panic!("the server ended with {status}: {log}");
            }
            std::fs::read_to_string(&file).ok().filter(|text| text.contains(':'))
        });
        Node { child, address, http: reqwest::Client::builder().no_proxy().build().unwrap(), directory }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address.replace("0.0.0.0", "127.0.0.1"))
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let reply = self.http.post(self.url(path)).header("content-type", "application/json");
        answer(reply.body(body.to_string()).send().await.unwrap()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Value {
        answer(self.http.put(self.url(path)).body(body.to_string()).send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        answer(self.http.get(self.url(path)).send().await.unwrap()).await
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end; gives the log.
    pub(crate) fn ended(mut self) -> (std::process::ExitStatus, String) {
        let status = until(|| self.child.try_wait().unwrap());
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status, log)
    }

    pub(crate) fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub(crate) async fn answer(reply: reqwest::Response) -> Value {
    let status = reply.status();
    let text = reply.text().await.unwrap();
    assert!(status.is_success(), "{status}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Looks until there is something.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it never came true");
        std::thread::yield_now();
    }
}

pub(crate) fn refused(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let Output { status, stderr, .. } = command(directory.path(), arguments).output().unwrap();
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

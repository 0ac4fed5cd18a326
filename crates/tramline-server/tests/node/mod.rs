//! A real node: the binary on a free port, with a directory of its own.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tramline");
/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How a node is started, and started again.
#[derive(Clone, Default)]
pub(crate) struct Launch {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    shell: Option<&'static str>,
}

impl Launch {
    pub(crate) fn with(arguments: &[&str]) -> Launch {
        Launch { arguments: arguments.iter().map(ToString::to_string).collect(), ..Launch::default() }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Launch {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// What a shell does before it becomes the server.
    pub(crate) fn after(self, shell: &'static str) -> Launch {
        Launch { shell: Some(shell), ..self }
    }

    pub(crate) fn start(self) -> Node {
        self.start_in(tempfile::tempdir().unwrap())
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn start_in(self, directory: TempDir) -> Node {
        let listens = self.arguments.iter().any(|argument| argument == "--listen");
        let running = self.spawn(directory.path(), (!listens).then_some("127.0.0.1:0"));
        let Running { child, address, log } = running;
        Node { child, address, http: client(), directory, log: Some(log), launch: self }
    }

    fn spawn(&self, directory: &Path, listen: Option<&str>) -> Running {
        let mut command = self.command(directory);
        if let Some(listen) = listen {
            command.args(["--listen", listen]);
        }
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, told) = channel();
        let log = std::thread::spawn(move || keep(stderr, &tell));
        match address(&told) {
            Some(address) => Running { child, address, log },
            None => panic!("the server ended with {}: {}", child.wait().unwrap(), log.join().unwrap()),
        }
    }

    fn command(&self, directory: &Path) -> Command {
        let mut command = match self.shell {
            None => Command::new(PROGRAM),
            Some(shell) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\""), PROGRAM]);
                command
            }
        };
        command
            .current_dir(directory)
            .env_remove("TRAMLINE_ROOT_TOKEN")
            .env("RUST_LOG", "info")
            .arg("serve")
            .args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

struct Running {
    child: Child,
    address: String,
    log: JoinHandle<String>,
}

/// Reads the log to its end, so that the server never waits for a reader, and tells where it listens.
fn keep(stderr: impl BufRead, tell: &Sender<String>) -> String {
    let mut log = String::new();
    for line in stderr.lines().map_while(Result::ok) {
        if let Some((_, address)) =
            line.split_once("listening on http").and_then(|(_, url)| url.split_once("://"))
        {
            // In a line of JSON the text ends with a quote.
            let address = address.split([' ', '"']).next().unwrap_or_default();
            tell.send(address.to_owned()).ok();
        }
        log += &line;
        log.push('\n');
    }
    log
}

/// `None` when the server ended instead.
fn address(told: &Receiver<String>) -> Option<String> {
    use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
    match told.recv_timeout(PATIENCE) {
        Ok(address) => Some(address),
        Err(Disconnected) => None,
        Err(Timeout) => panic!("the server does not start"),
    }
}

/// A node, with a directory for its files. Killed when it is dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) http: reqwest::Client,
    pub(crate) directory: TempDir,
    log: Option<JoinHandle<String>>,
    launch: Launch,
}

impl Node {
    pub(crate) fn start(arguments: &[&str]) -> Node {
        Launch::with(arguments).start()
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

    pub(crate) async fn metrics(&self) -> String {
        self.http.get(self.url("/metrics")).send().await.unwrap().text().await.unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again in the same place and at the same address. Gives how long it took until it served.
    pub(crate) async fn start_again(&mut self) -> Duration {
        let start = Instant::now();
        let running = self.launch.spawn(self.directory.path(), Some(&self.address));
        (self.child, self.log) = (running.child, Some(running.log));
        self.http = client(); // the old one has connections to the old server
        self.get("/health/ready").await;
        start.elapsed()
    }

    /// Waits for the end; gives the log.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let log = self.log.take().unwrap().join().unwrap();
        (self.child.wait().unwrap(), log)
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

fn client() -> reqwest::Client {
    tramline::tls::prepare();
    reqwest::Client::builder().no_proxy().build().unwrap()
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

/// Looks until it is true.
pub(crate) async fn until_true(mut look: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !look().await {
        assert!(start.elapsed() < PATIENCE, "it never came true");
    }
}

/// What a server says that does not start.
pub(crate) fn refused(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = Launch::with(arguments).command(directory.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

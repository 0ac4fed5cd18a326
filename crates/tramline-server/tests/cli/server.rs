//! A server of its own for each test, and the commands that talk to it.

use crate::node::{Launch, Node, PROGRAM};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A running server with an empty store. It ends with the test.
pub(crate) struct Server {
    node: Node,
    token: Option<&'static str>,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(None)
    }

    /// With a token that may do everything, and that every command shows unless told otherwise.
    pub(crate) fn start_with(token: Option<&'static str>) -> Server {
        let launch =
            token.into_iter().fold(Launch::default(), |it, token| it.env("TRAMLINE_ROOT_TOKEN", token));
        Server { node: launch.start(), token }
    }

    /// With a token, and allowed to push to receivers on this machine.
    pub(crate) fn start_pushing() -> Server {
        let token = "root-token-of-the-tests";
        let launch = Launch::with(&["--push-allow", "127.0.0.0/8"]).env("TRAMLINE_ROOT_TOKEN", token);
        Server { node: launch.start(), token: Some(token) }
    }

    /// A file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.node.directory.path().join(name)
    }

    /// A file of this test with something in it.
    pub(crate) fn file_with(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.file(name), text).unwrap();
        self.file(name)
    }

    /// A pipe with a name: opening one end waits for the other.
    pub(crate) fn pipe(&self, name: &str) -> PathBuf {
        assert!(Command::new("mkfifo").arg(self.file(name)).status().unwrap().success());
        self.file(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(args).env("TRAMLINE_SERVER", self.node.url("")).current_dir(self.node.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match self.token {
            Some(token) => command.env("TRAMLINE_TOKEN", token),
            None => command.env_remove("TRAMLINE_TOKEN"),
        };
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Said {
        Said::from(self.command(args).output().unwrap())
    }

    /// Runs a command that reads `input`.
    pub(crate) fn feed(&self, args: &[&str], input: &str) -> Said {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Said::from(child.wait_with_output().unwrap())
    }

    /// Runs a command that succeeds, and gives what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let said = self.run(args);
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
        said.out
    }

    /// Runs a command with `--json` that prints one object.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// How many events of a subscription have this status.
    pub(crate) fn count(&self, subscription: &str, status: &str) -> u64 {
        self.json(&["subscriptions", subscription])["counts"][status].as_u64().unwrap()
    }

    /// Creates a subscription with a policy, which no command does.
    pub(crate) fn subscribe(&self, name: &str, policy: Value) {
        let url = self.node.url(&format!("/v1/subscriptions/{name}"));
        self.request(|client| {
            client.put(url).header("content-type", "application/json").body(policy.to_string())
        });
    }

    /// Deletes a subscription, which no command does.
    pub(crate) fn unsubscribe(&self, name: &str) {
        self.request(|client| client.delete(self.node.url(&format!("/v1/subscriptions/{name}"))));
    }

    pub(crate) fn metrics(&self) -> String {
        self.request(|client| client.get(self.node.url("/metrics")))
    }

    fn request(&self, make: impl FnOnce(&reqwest::Client) -> reqwest::RequestBuilder) -> String {
        block_on(async {
            let request = make(&self.node.http);
            let request = match self.token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let answer = request.send().await.unwrap();
            let (status, text) = (answer.status(), answer.text().await.unwrap());
            assert!(status.is_success(), "{text}");
            text
        })
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Asks a process to end, as a service manager does.
pub(crate) fn terminate(process: &Child) {
    assert!(Command::new("kill").arg(process.id().to_string()).status().unwrap().success());
}

/// Waits for the other end of a pipe, and for what it writes.
pub(crate) fn read(pipe: &Path) -> String {
    std::fs::read_to_string(pipe).unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

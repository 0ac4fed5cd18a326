//! A Redis of a test's own, for what would disturb all others.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use crate::node::until;
use redis::FromRedisValue;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Killed when it is dropped.
pub(crate) struct OwnRedis {
    child: Child,
    port: u16,
    settings: &'static [&'static str],
    directory: TempDir,
}

impl OwnRedis {
    pub(crate) fn start() -> OwnRedis {
        OwnRedis::start_with(&[])
    }

    /// One node that has all slots.
    pub(crate) fn start_cluster() -> OwnRedis {
        let node = OwnRedis::start_with(&["--cluster-enabled", "yes"]);
        node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        until(|| node.try_ask::<Option<String>>(&["GET", "x"]).ok());
        node
    }

    fn start_with(settings: &'static [&'static str]) -> OwnRedis {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = run(port, &directory, settings);
        let server = OwnRedis { child, port, settings, directory };
        server.until_up();
        server
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on what it has written.
    pub(crate) fn start_again(&mut self) {
        self.child = run(self.port, &self.directory, self.settings);
        self.until_up();
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where a server is; of a Cluster this is the way to one node.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn cluster_url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.port)
    }

    /// A command of the test's own.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap()
    }

    fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// It has read what it had written.
    fn until_up(&self) {
        until(|| self.try_ask::<String>(&["PING"]).ok());
    }
}

impl Drop for OwnRedis {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn run(port: u16, directory: &TempDir, settings: &[&str]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""])
        .arg("--dir")
        .arg(directory.path())
        .args(settings)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

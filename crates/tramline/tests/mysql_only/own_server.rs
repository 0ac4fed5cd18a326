//! A MariaDB of a test's own, for what would disturb all others.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub(crate) struct OwnServer {
    process: Child,
    folder: TempDir,
}

impl OwnServer {
    /// Starts one that listens on a socket only.
    pub(crate) fn start() -> OwnServer {
        let folder = tempfile::tempdir().unwrap();
        let data = format!("--datadir={}", folder.path().join("data").display());
        let socket = format!("--socket={}", folder.path().join("socket").display());
        let installed = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(["--cross-bootstrap", &data])
            .output()
            .unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        let mut process = Command::new("mariadbd")
            // Only root may name the user, and has to.
            .args([
                "--no-defaults",
                "--user=root",
                "--skip-networking",
                "--innodb-buffer-pool-size=32M",
                &data,
                &socket,
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(process.stderr.take().unwrap()).lines();
        let is_ready = says.by_ref().any(|line| line.unwrap().contains("ready for connections"));
        // It must not stop because nobody listens to it.
        std::thread::spawn(move || says.for_each(drop));
        let server = OwnServer { process, folder };
        assert!(is_ready, "the server did not start");
        server
    }

    /// The URL of a database, for one of the users.
    pub(crate) fn url(&self, user: &str, database: &str) -> String {
        format!("mysql://{user}@localhost/{database}?socket={}", self.folder.path().join("socket").display())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

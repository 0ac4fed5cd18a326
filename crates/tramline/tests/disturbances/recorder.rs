//! The recorder: takes down what every handler did, and is never disturbed itself.

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// One line: a handler starts or ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) subscription: String,
    pub(crate) process: u32,
    pub(crate) ended: bool,
    pub(crate) id: i64,
    pub(crate) prev: Option<i64>,
    pub(crate) key: Option<String>,
    pub(crate) skipped: Vec<i64>,
    pub(crate) replayed: bool,
    pub(crate) crashes: u32,
    /// The number in the payload, which the emitter chose.
    pub(crate) number: u64,
}

/// What was recorded so far. Whoever waits looks at it after every record, so what is asked often is kept ready.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<Record>,
    ended: HashMap<String, HashSet<i64>>,
}

impl Log {
    fn add(&mut self, record: Record) {
        if record.ended {
            self.ended.entry(record.subscription.clone()).or_default().insert(record.id);
        }
        self.records.push(record);
    }

    /// The events that a subscription has run.
    pub(crate) fn ended(&self, subscription: &str) -> Option<&HashSet<i64>> {
        self.ended.get(subscription)
    }
}

/// Takes down what it is told.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    log: Arc<Mutex<Log>>,
    grown: Arc<Notify>,
}

impl Recorder {
    /// Listens; gives the address to tell workers.
    pub(crate) async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let recorder = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(recorder.clone().serve(stream));
            }
        });
        address
    }

    async fn serve(self, stream: TcpStream) {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            self.log.lock().unwrap().add(serde_json::from_str(&line).unwrap());
            self.grown.notify_waiters();
            if write.write_all(b"ok\n").await.is_err() {
                return; // the worker was killed while it waited
            }
        }
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.log.lock().unwrap().records.clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.log.lock().unwrap().records.len()
    }

    /// Waits until `reached` says yes to what was recorded. Gives false when nothing of the kind comes in time.
    pub(crate) async fn wait(
        &self,
        within: std::time::Duration,
        mut reached: impl FnMut(&Log) -> bool,
    ) -> bool {
        let wait = async {
            loop {
                let grown = self.grown.notified();
                if reached(&self.log.lock().unwrap()) {
                    return;
                }
                grown.await;
            }
        };
        tokio::time::timeout(within, wait).await.is_ok()
    }
}

/// A worker's line to the recorder: every record is acknowledged before the handler goes on.
pub(crate) struct Line {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl Line {
    pub(crate) async fn open(address: &str) -> Line {
        let (read, write) = TcpStream::connect(address).await.unwrap().into_split();
        Line { read: BufReader::new(read), write }
    }

    pub(crate) async fn record(&mut self, record: &Record) {
        let mut line = serde_json::to_vec(record).unwrap();
        line.push(b'\n');
        self.write.write_all(&line).await.unwrap();
        let mut answer = String::new();
        self.read.read_line(&mut answer).await.unwrap();
        assert_eq!(answer, "ok\n", "the recorder has gone");
    }
}

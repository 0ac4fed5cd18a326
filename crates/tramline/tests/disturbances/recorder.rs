//! The recorder: takes down what every process did, and is never disturbed itself.

use crate::scenario::{ORDERED, UNORDERED};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

/// How far the emitter may be ahead of the workers.
const AHEAD: usize = 300;
/// An event whose third crash alone may be the next one would look like the cause of what the test does.
const DANGER: u32 = 2;

/// One line that a process tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// A handler starts or ends.
    Ran(Record),
    /// The emitter is about to emit these numbers.
    Sent(Vec<u64>),
    /// Number and id of what was acknowledged.
    Acknowledged(Vec<(u64, i64)>),
}

/// How far a handler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    Started,
    /// It is about to say that it succeeded.
    Done,
    /// It is about to say that it failed.
    Failed,
}

/// A handler starts or ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) subscription: String,
    pub(crate) process: u32,
    pub(crate) stage: Stage,
    pub(crate) id: i64,
    pub(crate) prev: Option<i64>,
    pub(crate) key: Option<String>,
    pub(crate) skipped: Vec<i64>,
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    /// The number in the payload, which the emitter chose.
    pub(crate) number: u64,
}

/// What the emitter told: the numbers it sent, and the ids of those that were acknowledged.
#[derive(Clone, Default)]
pub(crate) struct Emitted {
    /// Every number that was ever handed to `emit`.
    pub(crate) sent: HashSet<u64>,
    /// Number and id of what was acknowledged.
    pub(crate) acknowledged: Vec<(u64, i64)>,
}

/// What was recorded so far. Whoever waits looks at it after every record, so what is asked often is kept ready.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<Record>,
    pub(crate) emitted: Emitted,
    /// Events that were hit so often that they have to get through before the next disturbance.
    pub(crate) in_danger: HashSet<(String, i64)>,
    done: HashMap<String, HashSet<i64>>,
    /// No more emits are wanted.
    enough: bool,
}

impl Log {
    fn add(&mut self, note: Note) {
        match note {
            Note::Ran(record) => self.add_record(record),
            Note::Sent(numbers) => self.emitted.sent.extend(numbers),
            Note::Acknowledged(pairs) => self.emitted.acknowledged.extend(pairs),
        }
    }

    fn add_record(&mut self, record: Record) {
        let event = (record.subscription.clone(), record.id);
        match record.stage {
            Stage::Started if record.crashes >= DANGER => _ = self.in_danger.insert(event),
            Stage::Started => {}
            Stage::Done | Stage::Failed => _ = self.in_danger.remove(&event),
        }
        if record.stage == Stage::Done {
            self.done.entry(record.subscription.clone()).or_default().insert(record.id);
        }
        self.records.push(record);
    }

    /// How many events a subscription has done.
    pub(crate) fn done(&self, subscription: &str) -> usize {
        self.done.get(subscription).map_or(0, HashSet::len)
    }

    /// True if a subscription has done the event.
    pub(crate) fn is_done(&self, subscription: &str, id: i64) -> bool {
        self.done.get(subscription).is_some_and(|done| done.contains(&id))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.done(UNORDERED).min(self.done(ORDERED)) + AHEAD > self.emitted.acknowledged.len()
    }
}

/// A handler that waits inside for the recorder, which goes on with it when this is dropped.
pub(crate) struct Caught {
    pub(crate) record: Record,
    _goes_on: oneshot::Sender<()>,
}

struct Trap {
    process: u32,
    caught: oneshot::Sender<Caught>,
}

/// Takes down what it is told.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    log: Arc<Mutex<Log>>,
    grown: Arc<Notify>,
    trap: Arc<Mutex<Option<Trap>>>,
}

impl Recorder {
    /// Listens; gives the address to tell the others.
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
            let note: Note = serde_json::from_str(&line).unwrap();
            let held = self.spring(&note);
            let emits = matches!(note, Note::Sent(_));
            self.note(|log| log.add(note));
            if let Some(held) = held {
                held.await.ok(); // it ends by being dropped
            }
            let mut answer: &[u8] = b"ok\n";
            if emits {
                self.until(|log| log.enough || log.has_room()).await;
                answer = if self.look(|log| log.enough) { b"enough\n" } else { answer };
            }
            if write.write_all(answer).await.is_err() {
                return; // the process was killed while it waited
            }
        }
    }

    /// Catches the handler if somebody waits for it.
    fn spring(&self, note: &Note) -> Option<oneshot::Receiver<()>> {
        let Note::Ran(record) = note else { return None };
        let wanted =
            record.stage == Stage::Started && [UNORDERED, ORDERED].contains(&record.subscription.as_str());
        let mut trap = self.trap.lock().unwrap();
        let trap = trap.take_if(|trap| wanted && trap.process == record.process)?;
        let (goes_on, held) = oneshot::channel();
        trap.caught.send(Caught { record: record.clone(), _goes_on: goes_on }).ok()?;
        Some(held)
    }

    fn note(&self, note: impl FnOnce(&mut Log)) {
        note(&mut self.log.lock().unwrap());
        self.grown.notify_waiters();
    }

    /// Asks something of what was recorded so far.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.log.lock().unwrap())
    }

    /// Answers the emitter from now on that no more is wanted.
    pub(crate) fn stop_emitting(&self) {
        self.note(|log| log.enough = true);
    }

    /// Waits until `reached` says yes to what was recorded.
    pub(crate) async fn until(&self, mut reached: impl FnMut(&Log) -> bool) {
        loop {
            let grown = self.grown.notified();
            if reached(&self.log.lock().unwrap()) {
                return;
            }
            grown.await;
        }
    }

    /// The same, but gives false when nothing of the kind comes in time.
    pub(crate) async fn wait(&self, within: Duration, reached: impl FnMut(&Log) -> bool) -> bool {
        tokio::time::timeout(within, self.until(reached)).await.is_ok()
    }

    /// Waits until a process starts a handler that runs at least once, and keeps it there.
    pub(crate) async fn catch(&self, process: u32) -> Caught {
        let (tell, caught) = oneshot::channel();
        *self.trap.lock().unwrap() = Some(Trap { process, caught: tell });
        caught.await.unwrap()
    }

    /// Waits until somebody else runs what was caught: its lease has ended. Gives false when that does not happen in time.
    pub(crate) async fn taken_over(&self, caught: &Caught, within: Duration) -> bool {
        let Record { subscription, id, crashes, .. } = &caught.record;
        let later = |r: &Record| r.id == *id && r.subscription == *subscription && r.crashes > *crashes;
        let mut looked = self.look(|log| log.records.len());
        let taken = |log: &Log| {
            let new = log.records[looked..].iter().any(later);
            looked = log.records.len();
            new
        };
        self.wait(within, taken).await
    }
}

/// A process's line to the recorder: every note is acknowledged before it goes on.
pub(crate) struct Line {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl Line {
    pub(crate) async fn open(address: &str) -> Line {
        let (read, write) = TcpStream::connect(address).await.unwrap().into_split();
        Line { read: BufReader::new(read), write }
    }

    /// Gives false when the recorder has heard enough.
    pub(crate) async fn tell(&mut self, note: &Note) -> bool {
        let mut line = serde_json::to_vec(note).unwrap();
        line.push(b'\n');
        self.write.write_all(&line).await.unwrap();
        let mut answer = String::new();
        self.read.read_line(&mut answer).await.unwrap();
        assert!(!answer.is_empty(), "the recorder has gone");
        answer == "ok\n"
    }
}

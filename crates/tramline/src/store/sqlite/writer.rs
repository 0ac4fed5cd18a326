//! The one thread that writes: jobs that wait at the same moment share a transaction, and so its fsync.

use super::group::{Answer as Emitted, Crowd, Group, Taken};
use super::session::CatalogCache;
use super::standing::{Board, Serving};
use crate::error::{Error, Result};
use crate::store::standing::Standing;
use crate::store::verbs::{Claim, Emit};
use rusqlite::Connection;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{mpsc, oneshot};

/// How many jobs may wait. More callers wait in turn.
const QUEUE: usize = 1024;
/// How many jobs share a transaction at most.
const GROUP: usize = 256;

/// How long the thread looks out for the next job before it sleeps, where the last one came as soon as that.
const WATCH: Duration = Duration::from_micros(250);
/// The same where jobs come slowly: looking out for them would only keep a processor busy.
const GLANCE: Duration = Duration::from_micros(20);

/// A handle to the writing thread.
#[derive(Debug)]
pub(super) struct Writer {
    work: mpsc::Sender<Work>,
    emits: Arc<Group>,
    standing: Arc<Board>,
}

/// Whether the caller relies on the commit having reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    /// The answer is a promise.
    Yes,
    /// Losing it in a power cut does no harm: a claim is simply due again.
    No,
}

/// What the thread is woken for.
enum Work {
    Job(Job),
    /// Somebody has begun a group of emits.
    Emits,
}

struct Job {
    durable: Durable,
    run: Box<dyn FnOnce(Transaction<'_>) -> Answer + Send>,
}

/// The connection inside a transaction, or the reason why none could begin.
type Transaction<'a> = Result<(&'a Connection, &'a CatalogCache), &'a Error>;

/// Tells the caller, once it is known whether the transaction was committed.
type Answer = Box<dyn FnOnce(Option<&Error>)>;

impl Writer {
    /// Starts the thread. It ends when the writer is dropped.
    pub(super) fn start(conn: Connection, cache: Arc<CatalogCache>) -> Result<Writer> {
        let (work, queue) = mpsc::channel(QUEUE);
        let emits = Arc::new(Group::default());
        let standing = Arc::new(Board::default());
        let (group, board) = (emits.clone(), standing.clone());
        let thread = std::thread::Builder::new().name("tramline-sqlite".into());
        let write = move || {
            let open = Open { group, board };
            Thread { conn, cache, open: &open }.write_all(queue);
        };
        thread.spawn(write).map_err(|error| {
            Error::unavailable("the writing thread could not be started", "check the limits of the process")
                .because(error)
        })?;
        Ok(Writer { work, emits, standing })
    }

    /// Stores events durably, together with what others emit at the same moment.
    pub(super) async fn emit(&self, emit: Emit) -> Emitted {
        let (told, is_first) = self.emits.join(emit).ok_or_else(closed)?;
        if is_first && let Err(TrySendError::Closed(_)) = self.work.try_send(Work::Emits) {
            // A full queue is as good as a hint: the thread looks at the emits whenever it takes jobs.
            return Err(closed());
        }
        told.await.map_err(|_| closed())?
    }

    /// Keeps a claim until something is emitted for it.
    pub(super) fn stand(&self, claim: Claim) -> Standing {
        self.standing.add(claim)
    }

    /// Runs `job` in a transaction, together with others that wait. What it wrote is undone if it fails; others of the
    /// same transaction are not touched.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        durable: Durable,
        job: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        let run = Box::new(move |conn: Transaction<'_>| {
            let result = conn.map_err(Error::share).and_then(|(conn, cache)| in_savepoint(conn, cache, job));
            Box::new(move |failure: Option<&Error>| {
                let result = match failure {
                    Some(error) => Err(error.share()),
                    None => result,
                };
                tell.send(result).ok(); // the caller may have gone
            }) as Answer
        });
        self.work.send(Work::Job(Job { durable, run })).await.map_err(|_| closed())?;
        told.await.map_err(|_| closed())?
    }
}

fn closed() -> Error {
    Error::unavailable("the store is closed", "open it again")
}

/// Emits are written and claims may stand as long as this lives. However the thread ends, be it by a panic, nobody waits for it any more.
struct Open {
    group: Arc<Group>,
    board: Arc<Board>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.group.close();
        self.board.close();
    }
}

/// What the thread has to itself.
struct Thread<'a> {
    conn: Connection,
    cache: Arc<CatalogCache>,
    open: &'a Open,
}

impl Thread<'_> {
    fn write_all(&self, mut queue: mpsc::Receiver<Work>) {
        let (conn, cache, emits) = (&self.conn, &*self.cache, &*self.open.group);
        let mut synced = Durable::Yes;
        let mut jobs = Vec::with_capacity(GROUP);
        let mut patience = WATCH;
        let mut crowd = Crowd::nobody();
        while let Some(first) = next(&mut queue, emits, &mut patience) {
            jobs.extend(first.job());
            while jobs.len() < GROUP
                && let Ok(work) = queue.try_recv()
            {
                jobs.extend(work.job());
            }
            emits.gather(&crowd);
            let mut group = emits.take();
            let count = group.len();
            if count == 0 && jobs.is_empty() {
                continue;
            }
            let durable = count > 0 || jobs.iter().any(|job| job.durable == Durable::Yes);
            let begun = begin(conn, if durable { Durable::Yes } else { Durable::No }, &mut synced);
            match begun.and_then(|()| group.write(conn, cache)) {
                Ok(mut emitted) => {
                    let serving = self.open.board.serve(conn, cache, &mut emitted);
                    let answers = jobs.drain(..).map(|job| (job.run)(Ok((conn, cache)))).collect();
                    self.commit((group, emitted), serving, answers);
                }
                Err(error) => {
                    group.fail(&error);
                    jobs.drain(..).for_each(|job| (job.run)(Err(&error))(None));
                }
            }
            if count > 0 {
                crowd.told(count);
            }
        }
    }

    fn commit(&self, (group, emitted): (Taken, Vec<Emitted>), serving: Serving, answers: Vec<Answer>) {
        let committed = self.conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
        let failure = committed.err().map(Error::from);
        if failure.is_some() {
            self.cache.forget();
            self.conn.execute_batch("ROLLBACK").ok(); // fails only if the commit has already undone everything
        }
        match &failure {
            Some(error) => group.fail(error),
            None => {
                serving.tell();
                group.tell(emitted);
            }
        }
        for answer in answers {
            answer(failure.as_ref());
        }
    }
}

impl Work {
    fn job(self) -> Option<Job> {
        match self {
            Work::Job(job) => Some(job),
            Work::Emits => None,
        }
    }
}

/// What is next. A claim follows an emit, and an emit a settlement, within microseconds; falling asleep and being woken takes
/// longer than that, so the thread watches for a moment before it sleeps, if that was worth it the last time.
fn next(queue: &mut mpsc::Receiver<Work>, emits: &Group, patience: &mut Duration) -> Option<Work> {
    if !emits.is_empty() {
        return Some(Work::Emits);
    }
    let start = Instant::now();
    while start.elapsed() < *patience {
        match queue.try_recv() {
            Ok(work) => {
                *patience = WATCH;
                return Some(work);
            }
            Err(TryRecvError::Disconnected) => return None,
            // Whoever has something to do goes first: on a busy machine he may be about to bring the next job.
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
    let work = queue.blocking_recv();
    *patience = if start.elapsed() < WATCH { WATCH } else { GLANCE };
    work
}

fn begin(conn: &Connection, durable: Durable, synced: &mut Durable) -> Result<()> {
    if durable != *synced {
        // In WAL mode NORMAL does not wait for the disk at commit; the next FULL commit brings everything along.
        conn.execute_batch(match durable {
            Durable::Yes => "PRAGMA synchronous = FULL",
            Durable::No => "PRAGMA synchronous = NORMAL",
        })?;
        *synced = durable;
    }
    Ok(conn.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(|_| ())?)
}

pub(super) fn in_savepoint<T>(
    conn: &Connection,
    cache: &CatalogCache,
    job: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    tracing::trace!(target: "tramline::query", "step");
    if conn.is_autocommit() {
        // The one before it failed so badly that everything was undone. A savepoint by itself would be a transaction, and be committed.
        return Err(Error::unavailable("the transaction was given up", "try again"));
    }
    conn.prepare_cached("SAVEPOINT job")?.execute([])?;
    let result = job(conn);
    if result.is_err() {
        cache.forget();
        conn.prepare_cached("ROLLBACK TO job")?.execute([])?;
    }
    conn.prepare_cached("RELEASE job")?.execute([])?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    /// The first emit after the end of the thread was refused but left in line, and the next ones relied on it to give the hint.
    #[tokio::test]
    async fn when_the_thread_has_died_every_emit_is_refused() {
        let conn = Connection::open_in_memory().unwrap();
        let writer = Writer::start(conn, Arc::default()).unwrap();
        let died =
            writer.run(Durable::No, |_| -> Result<()> { panic!("a job that panics, on purpose") }).await;
        assert_eq!(died.unwrap_err().kind(), Kind::Unavailable);
        for _ in 0..3 {
            let emit = writer.emit(Emit { units: Vec::new(), now: None });
            let refused = tokio::time::timeout(Duration::from_secs(30), emit).await.expect("an answer");
            assert_eq!(refused.unwrap_err().kind(), Kind::Unavailable);
        }
    }
}

//! How a step is run: read, decide, write if nothing has changed meanwhile, else begin anew.

use super::RedisStore;
use super::link::{Command, Commit, Ended, Link, Micros};
use super::session::{Draws, Seen, Session, Writes, hget, is_blob, is_checked, key};
use super::spread::owed;
use super::{Role, catalog, connection};
use crate::error::{Error, Result};
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use futures_util::future::try_join_all;
use redis::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How often a step begins anew, and how often it waits for somebody else's turn: longer than a turn lasts.
const TRIES: u32 = 300;
const WAITS: u32 = 3_000;
/// After so many, it takes the turn: whoever commits meanwhile has to wait.
const PATIENCE: u32 = 6;
/// How long a turn lasts at most: whoever took it may have died, and nobody can extend a lease meanwhile. A step that takes longer takes
/// another turn.
const TURN: Duration = Duration::from_millis(500);
/// How long somebody waits for another one's turn before looking again.
const PAUSE: Duration = Duration::from_millis(2);
/// How often one try may read more.
const TRIPS: u32 = 100_000;
/// How many numbers for slices a process draws at a time.
const NUMBERS: i64 = 10_000;
/// How much is read at one moment: a script has to end soon.
const MOMENT: usize = 500;
/// How many values one command gives, and how many such commands are on their way at once: each value may have a megabyte, and everybody
/// else waits behind them.
const BLOBS: usize = 8;
const AT_ONCE: usize = 4;

/// How one try ended.
enum Tried<T> {
    Over(Result<T>),
    Changed,
    Wait,
    Refused(Error),
}

/// Why a step failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// Its writes were on their way when the answer was lost, so it may have happened.
    pub(super) perhaps_done: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, perhaps_done: false }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

/// What a step is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'n> {
    /// It only reads.
    Read,
    /// It writes, under this name; a server that is full refuses it.
    Add(&'n [u8]),
    /// It writes, under this name, also on a server that is full: work goes on there.
    Write(&'n [u8]),
}

impl RedisStore {
    /// One step that may write.
    pub(super) async fn write<T>(
        &self,
        now: Option<Time>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T> {
        Ok(self.run(now, true, step).await?)
    }

    /// One step that may write, for somebody who has to know whether it may have happened if it fails.
    pub(super) async fn try_write<T>(
        &self,
        now: Option<Time>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T, Failed> {
        self.run(now, true, step).await
    }

    /// One step that brings new events or items: a server that is full refuses it.
    pub(super) async fn add<T>(
        &self,
        now: Option<Time>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T> {
        Ok(self.run(now, false, step).await?)
    }

    async fn run<T>(
        &self,
        now: Option<Time>,
        when_full: bool,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T, Failed> {
        let (mut overtaken, mut waited, mut refused) = (0, 0, 0);
        let name = format!("{:x}-{:x}", self.incarnation.0, getrandom::u32().unwrap_or(0));
        let kind = if when_full { Step::Write(name.as_bytes()) } else { Step::Add(name.as_bytes()) };
        let mut turn = Turn {
            link: self.link.clone(),
            turn: self.turn(),
            meta: self.key("meta"),
            name: name.clone(),
            taken: false,
        };
        while overtaken < TRIES && waited < WAITS {
            match self.attempt(now, &step, kind).await? {
                Tried::Over(result) => {
                    turn.end().await;
                    return Ok(result?);
                }
                Tried::Changed => overtaken += 1,
                Tried::Wait => {
                    waited += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Tried::Refused(error) => {
                    refused += 1;
                    if refused == connection::TRIES {
                        return Err(error.into());
                    }
                    tokio::time::sleep(connection::PAUSE * 2_u32.pow(refused - 1)).await;
                }
            }
            // Again and again: a turn may have ended meanwhile.
            if overtaken >= PATIENCE {
                turn.take().await.unwrap_or(false);
            }
        }
        Err(Failed::from(Error::unavailable(
            "a step in Redis was overtaken too often",
            "try again; are too many at work on one thing?",
        )))
    }

    /// One step that only reads, and may see what is written meanwhile.
    pub(super) async fn read<T>(
        &self,
        now: Option<Time>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.attempt(now, &step, Step::Read).await? {
            Tried::Over(result) => result,
            Tried::Changed | Tried::Wait | Tried::Refused(_) => {
                Err(Error::unavailable("a look at Redis was refused", "try again"))
            }
        }
    }

    async fn attempt<T>(
        &self,
        now: Option<Time>,
        step: &impl Fn(&Session<'_>) -> Result<T>,
        kind: Step<'_>,
    ) -> Result<Tried<T>, Failed> {
        let breaks = if kind == Step::Read { self.numbers.breaks() } else { self.assured().await? };
        let mut seen = Seen::new();
        let (time, catalog) = self.begin(&mut seen, self.first_reads(now, step)).await?;
        let draws = Draws::new(&self.numbers);
        for trips in 0..TRIPS {
            let session = Session::new(self, now.unwrap_or(time), &seen, catalog.clone(), &draws);
            let result = step(&session).and_then(|value| session.finish().map(|_| value));
            let left = session.leave();
            if !left.missing.is_empty() {
                self.fetch(&mut seen, left.missing).await?;
                continue;
            }
            if left.numbers_wanted > 0 {
                self.draw_numbers(left.numbers_wanted).await?;
                continue;
            }
            let writes = if result.is_ok() { left.writes } else { Writes::default() };
            // What was read at one moment needs no second look.
            if kind == Step::Read || (trips == 0 && writes.is_empty()) {
                return Ok(Tried::Over(result));
            }
            let next_chunk = writes.field(&self.key("meta"), b"chunk").map(<[u8]>::to_vec);
            let lanes = writes.fields_under(&self.key("lanes:"));
            let ended = self.commit(&seen, writes, kind, breaks, None).await;
            return Ok(match ended.map_err(|error| Failed { error, perhaps_done: true })? {
                Ended::Done(time) => {
                    self.at_once.clock.set(time);
                    self.at_once.remember_lanes(lanes);
                    if let Some(next) = next_chunk {
                        self.at_once.expect_chunk(next);
                    }
                    Tried::Over(result)
                }
                Ended::Changed => Tried::Changed,
                Ended::Wait => Tried::Wait,
                Ended::Refused(error) => Tried::Refused(error),
            });
        }
        Err(Failed::from(Error::unavailable("a step in Redis never came to its end", "report this")))
    }

    /// Writes what a step decided, if all that it has seen is still so and nothing went wrong since `breaks` was what it is, and says
    /// something on a channel.
    pub(super) async fn commit(
        &self,
        seen: &Seen,
        writes: Writes,
        kind: Step<'_>,
        breaks: u64,
        said: Option<(String, &str)>,
    ) -> Result<Ended> {
        let owes = self.role == Role::Site && writes.adds_to(&owed::table(&self.options.name));
        let (name, when_full) = match kind {
            Step::Read => (&[][..], true),
            Step::Add(name) => (name, false),
            Step::Write(name) => (name, true),
        };
        let mut reads: Vec<(&Command, &[u8])> = seen
            .iter()
            .filter(|(command, _)| is_checked(command))
            .map(|(command, (_, sign))| (command, &sign[..]))
            .collect();
        reads.sort_unstable();
        let (turn, meta, mut writes) = (self.turn(), self.key("meta"), writes.commands(when_full));
        writes
            .extend(said.map(|(channel, hint)| ["PUBLISH", &channel, hint].map(|word| word.into()).to_vec()));
        let (reads, writes) = (&reads[..], &writes[..]);
        let commit = Commit { name, turn: &turn, meta: &meta, when_full, breaks, reads, writes };
        let ended = self.link.commit(&commit).await;
        if owes {
            self.owes.store(true, SeqCst);
        }
        ended
    }

    /// What a step reads first, found out by running it on nothing: so that is read together with the time and the catalogue.
    fn first_reads<T>(&self, now: Option<Time>, step: &impl Fn(&Session<'_>) -> Result<T>) -> Vec<Command> {
        let (seen, draws) = (Seen::new(), Draws::new(&self.numbers));
        let now = now.unwrap_or_default();
        let session = Session::new(self, now, &seen, self.cache.get(), &draws);
        // It ends at the first thing that it has to know, or because there is nothing to do.
        drop(step(&session));
        session.leave().missing
    }

    /// The time, and the catalogue as it is now.
    async fn begin(&self, seen: &mut Seen, mut reads: Vec<Command>) -> Result<(Time, Arc<Catalog>)> {
        let version = self.catalog_version();
        reads.sort_unstable();
        reads.dedup();
        let commands: Vec<Command> = std::iter::once(version.clone()).chain(reads).take(MOMENT).collect();
        let moment = self.link.read(&self.turn(), &commands).await?;
        let now = self.heard(moment.now);
        seen.extend(commands.into_iter().zip(moment.replies));
        let cached = self.cache.get();
        if catalog::version_of(seen.get(&version).map(|(value, _)| value)) == cached.version {
            return Ok((now, cached));
        }
        self.read_catalog(seen).await?;
        let draws = Draws::new(&self.numbers);
        let session = Session::new(self, now, seen, Arc::default(), &draws);
        let fresh = Arc::new(session.loosely(|| catalog::load(&session))?);
        self.cache.set(fresh.clone());
        // The version alone says whether the rest is still so.
        seen.retain(|command, _| *command == version);
        Ok((now, fresh))
    }

    /// Reads the catalogue and its version. A large one takes several moments, and is of one piece if they all give the same version.
    async fn read_catalog(&self, seen: &mut Seen) -> Result<()> {
        let version = self.catalog_version();
        seen.clear();
        for _ in 0..TRIES {
            let left = catalog::parts(&self.options.name).filter(|part| !seen.contains_key(part));
            let commands: Vec<Command> = std::iter::once(version.clone()).chain(left).collect();
            if commands.len() == 1 {
                return Ok(());
            }
            let moment = self.link.read(&self.turn(), &commands).await?;
            let mut read = commands.into_iter().zip(moment.replies);
            let current = read.next();
            if current.as_ref().is_some_and(|(_, now)| seen.get(&version).is_some_and(|then| then != now)) {
                seen.clear();
            } else {
                seen.extend(current.into_iter().chain(read));
            }
        }
        Err(Error::unavailable("topics and subscriptions in Redis change all the time", "try again"))
    }

    fn heard(&self, now: Micros) -> Time {
        self.at_once.clock.set(now);
        now.time()
    }

    pub(super) fn catalog_version(&self) -> Command {
        hget(&self.key("meta"), b"catalog")
    }

    pub(super) fn key(&self, what: &str) -> Vec<u8> {
        key(&self.options.name, what)
    }

    pub(super) fn turn(&self) -> Vec<u8> {
        self.key("turn")
    }

    async fn fetch(&self, seen: &mut Seen, mut missing: Vec<Command>) -> Result<()> {
        missing.sort_unstable();
        missing.dedup();
        let (blobs, missing) = missing.into_iter().partition(is_blob);
        let (blobs, rows) = tokio::try_join!(self.blobs(blobs), self.rows(missing))?;
        seen.extend(blobs.into_iter().chain(rows));
        Ok(())
    }

    async fn rows(&self, missing: Vec<Command>) -> Result<Vec<(Command, (Value, Vec<u8>))>> {
        let (mut rows, mut missing) = (Vec::with_capacity(missing.len()), missing.into_iter());
        while !missing.as_slice().is_empty() {
            let some = &missing.as_slice()[..missing.len().min(MOMENT)];
            let moment = self.link.read(&self.turn(), some).await?;
            // What did not fit into this moment is for the next one.
            rows.extend(missing.by_ref().take(moment.replies.len()).zip(moment.replies));
        }
        Ok(rows)
    }

    /// Values that never change come by plain commands, at any moment: Lua would hash every byte of them.
    async fn blobs(&self, blobs: Vec<Command>) -> Result<Vec<(Command, (Value, Vec<u8>))>> {
        let some = |some: &[Command]| some.iter().map(|command| command[1].clone()).collect::<Vec<_>>();
        let keys: Vec<Vec<Vec<u8>>> = blobs.chunks(BLOBS).map(some).collect();
        let mut values = Vec::with_capacity(blobs.len());
        for at_once in keys.chunks(AT_ONCE) {
            let some = try_join_all(at_once.iter().map(|keys| self.link.values(keys))).await?;
            values.extend(some.into_iter().flatten().map(|value| (value, Vec::new())));
        }
        Ok(blobs.into_iter().zip(values).collect())
    }

    /// Draws more numbers for slices, of which `wanted` are needed at once.
    pub(super) async fn draw_numbers(&self, wanted: i64) -> Result<()> {
        let count = wanted + NUMBERS;
        let words = [b"INCRBY".to_vec(), self.key("slices"), count.to_string().into_bytes()];
        let breaks = self.assured().await?;
        let Value::Int(last) = self.link.small(&self.key("meta"), &words).await? else {
            return Err(Error::unavailable("Redis gave no number", "see the server's log"));
        };
        self.numbers.fill(last - count + 1, count, breaks);
        Ok(())
    }
}

/// A turn that a step may have. However the step ends, others need not wait until the turn ends by itself: not for an error, and not for a
/// caller who went away.
struct Turn {
    link: Link,
    turn: Vec<u8>,
    meta: Vec<u8>,
    name: String,
    taken: bool,
}

impl Turn {
    /// True if it is this step's turn now.
    async fn take(&mut self) -> Result<bool> {
        let millis = TURN.as_millis().to_string();
        let words = [&b"SET"[..], &self.turn[..], self.name.as_bytes(), b"NX", b"PX", millis.as_bytes()];
        // Whoever goes away while he asks for it may get it.
        self.taken = true;
        Ok(self.link.small(&self.meta, &words.map(<[u8]>::to_vec)).await? != Value::Nil)
    }

    /// A commit has ended the turn already; a step that wrote nothing has not. If this fails, the turn ends by itself.
    async fn end(&mut self) {
        if self.taken {
            end_turn(&self.link, &self.turn, &self.meta, self.name.as_bytes()).await;
            self.taken = false;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| self.taken);
        if let Some(runtime) = runtime {
            let (link, turn, meta) = (self.link.clone(), self.turn.clone(), self.meta.clone());
            let name = self.name.clone();
            // Nobody is left to wait for it, and it ends with its one command.
            drop(runtime.spawn(async move { end_turn(&link, &turn, &meta, name.as_bytes()).await }));
        }
    }
}

async fn end_turn(link: &Link, turn: &[u8], meta: &[u8], name: &[u8]) {
    let breaks = link.breaks().load(SeqCst);
    let commit = Commit { name, turn, meta, when_full: true, breaks, reads: &[], writes: &[] };
    if let Err(error) = link.commit(&commit).await {
        tracing::debug!(error = %error, "a turn ends by itself");
    }
}

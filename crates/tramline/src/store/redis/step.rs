//! How a step is run: read, decide, write if nothing has changed meanwhile, else begin anew.

use super::RedisStore;
use super::catalog;
use super::link::{Command, Ended};
use super::session::{Draws, Seen, Session, hget, is_checked, key};
use crate::error::{Error, Result};
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;

/// How often a step begins anew, and how often it waits for somebody else's turn: longer than a turn lasts.
const TRIES: u32 = 300;
const WAITS: u32 = 3_000;
/// After so many, it takes the turn: whoever commits meanwhile has to wait.
const PATIENCE: u32 = 6;
/// How long a turn lasts at most: whoever took it may have died.
const TURN: Duration = Duration::from_secs(2);
/// How long somebody waits for another one's turn before looking again.
const PAUSE: Duration = Duration::from_millis(2);
/// How often one try may read more.
const TRIPS: u32 = 100_000;
/// How many numbers for slices a process draws at a time.
const NUMBERS: i64 = 10_000;
/// How much is read at one moment: a script has to end soon.
const MOMENT: usize = 1_000;

/// How one try ended.
enum Tried<T> {
    Over(Result<T>),
    Changed,
    Wait,
}

impl RedisStore {
    /// One step that may write.
    pub(super) async fn write<T>(
        &self,
        now: Option<Time>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T> {
        let (mut overtaken, mut waited) = (0, 0);
        let mut my_turn = false;
        let name = format!("{:x}-{:x}", self.incarnation.0, getrandom::u32().unwrap_or(0));
        while overtaken < TRIES && waited < WAITS {
            match self.attempt(now, &step, Some(name.as_bytes())).await? {
                Tried::Over(result) => {
                    if my_turn {
                        self.end_turn(&name).await;
                    }
                    return result;
                }
                Tried::Changed => overtaken += 1,
                Tried::Wait => {
                    waited += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // Again and again: a turn may have ended meanwhile.
            if overtaken >= PATIENCE {
                my_turn |= self.take_turn(&name).await.unwrap_or(false);
            }
        }
        Err(Error::unavailable(
            "a step in Redis was overtaken too often",
            "try again; are too many at work on one thing?",
        ))
    }

    /// One step that only reads, and may see what is written meanwhile.
    pub(super) async fn read<T>(
        &self,
        now: Option<Time>,
        step: impl Fn(&Session<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.attempt(now, &step, None).await? {
            Tried::Over(result) => result,
            Tried::Changed | Tried::Wait => {
                Err(Error::unavailable("a look at Redis was refused", "try again"))
            }
        }
    }

    async fn attempt<T>(
        &self,
        now: Option<Time>,
        step: &impl Fn(&Session<'_>) -> Result<T>,
        name: Option<&[u8]>,
    ) -> Result<Tried<T>> {
        let mut seen = Seen::new();
        let (time, catalog) = self.begin(&mut seen, self.first_reads(now, step)).await?;
        let draws = Draws::new(&self.numbers);
        for trips in 0..TRIPS {
            let session =
                Session::new(&self.options.name, now.unwrap_or(time), &seen, catalog.clone(), &draws);
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
            let writes = if result.is_ok() { left.writes.commands() } else { Vec::new() };
            // What was read at one moment needs no second look.
            let (Some(name), false) = (name, writes.is_empty() && trips == 0) else {
                return Ok(Tried::Over(result));
            };
            let reads: Vec<(&Command, &[u8])> = seen
                .iter()
                .filter(|(command, _)| is_checked(command))
                .map(|(command, (_, digest))| (command, &digest[..]))
                .collect();
            return Ok(match self.link.commit(&self.turn(), name, &reads, &writes).await? {
                Ended::Done => Tried::Over(result),
                Ended::Changed => Tried::Changed,
                Ended::Wait => Tried::Wait,
            });
        }
        Err(Error::unavailable("a step in Redis never came to its end", "report this"))
    }

    /// What a step reads first, found out by running it on nothing: so that is read together with the time and the catalogue.
    fn first_reads<T>(&self, now: Option<Time>, step: &impl Fn(&Session<'_>) -> Result<T>) -> Vec<Command> {
        let (seen, draws) = (Seen::new(), Draws::new(&self.numbers));
        let now = now.unwrap_or_default();
        let session = Session::new(&self.options.name, now, &seen, self.cache.get(), &draws);
        // It ends at the first thing that it has to know, or because there is nothing to do.
        drop(step(&session));
        session.leave().missing
    }

    /// The time, and the catalogue as it is now.
    async fn begin(&self, seen: &mut Seen, reads: Vec<Command>) -> Result<(Time, Arc<Catalog>)> {
        let version = self.catalog_version();
        let commands: Vec<Command> = std::iter::once(version.clone()).chain(reads).take(MOMENT).collect();
        let moment = self.link.read(&self.turn(), &commands).await?;
        let now = moment.now;
        seen.extend(commands.into_iter().zip(moment.replies));
        let cached = self.cache.get();
        if catalog::version_of(seen.get(&version).map(|(value, _)| value)) == cached.version {
            return Ok((now, cached));
        }
        let commands: Vec<Command> =
            std::iter::once(version).chain(catalog::parts(&self.options.name)).collect();
        let moment = self.link.read(&self.turn(), &commands).await?;
        seen.clear();
        seen.extend(commands.into_iter().zip(moment.replies));
        let draws = Draws::new(&self.numbers);
        let session = Session::new(&self.options.name, now, seen, Arc::default(), &draws);
        let fresh = Arc::new(catalog::load(&session)?);
        self.cache.set(fresh.clone());
        // The version alone says whether the rest is still so.
        seen.retain(|command, _| *command == self.catalog_version());
        Ok((now, fresh))
    }

    fn catalog_version(&self) -> Command {
        hget(&key(&self.options.name, "meta"), b"catalog")
    }

    fn turn(&self) -> Vec<u8> {
        key(&self.options.name, "turn")
    }

    async fn fetch(&self, seen: &mut Seen, mut missing: Vec<Command>) -> Result<()> {
        missing.sort_unstable();
        missing.dedup();
        for some in missing.chunks(MOMENT) {
            let moment = self.link.read(&self.turn(), some).await?;
            seen.extend(some.iter().cloned().zip(moment.replies));
        }
        Ok(())
    }

    /// True if it is this step's turn now. A server that is full grants none.
    async fn take_turn(&self, name: &str) -> Result<bool> {
        let mut command = redis::cmd("SET");
        command.arg(self.turn()).arg(name).arg("NX").arg("PX").arg(TURN.as_millis() as u64);
        Ok(self.link.send(&command, true).await? != Value::Nil)
    }

    /// A commit has ended the turn already; a step that wrote nothing has not. If this fails, the turn ends by itself.
    async fn end_turn(&self, name: &str) {
        if let Err(error) = self.link.commit(&self.turn(), name.as_bytes(), &[], &[]).await {
            tracing::debug!(error = %error, "a turn ends by itself");
        }
    }

    /// Draws more numbers for slices, of which `wanted` are needed at once.
    async fn draw_numbers(&self, wanted: i64) -> Result<()> {
        let count = wanted + NUMBERS;
        let mut command = redis::cmd("INCRBY");
        command.arg(key(&self.options.name, "slices")).arg(count);
        let Value::Int(last) = self.link.send(&command, true).await? else {
            return Err(Error::unavailable("Redis gave no number", "see the server's log"));
        };
        self.numbers.fill(last - count + 1, count);
        Ok(())
    }
}

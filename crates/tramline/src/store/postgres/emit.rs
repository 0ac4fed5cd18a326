//! Emit: heads, then numbers, then chunks, slices and heads; see `migrations/0002_emit.sql`.

use super::PostgresStore;
use super::session::{Begin, CatalogCache, POOLED, Planner, Session};
use super::step::{Tries, lost_against_another, was_cancelled};
use super::tell::Telling;
use crate::error::{Error, Result};
use crate::model::event::{Due, Event};
use crate::model::id::ChunkId;
use crate::model::time::{Time, millis};
use crate::model::unique::check_unit;
use crate::plan::emit::{ChunkPlan, EmitPlan, HeadPlan, Link, Place};
use crate::store::catalog::Catalog;
use crate::store::driver::asked;
use crate::store::emit::{Stored, TRIES, needs_steps, restless};
use crate::store::verbs::{Emission, Emit};
use sqlx::{PgConnection, Row};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a group of emits waits for a key. One that is locked for longer must not hold up the others.
pub(super) const GROUP_WAIT: Duration = Duration::from_millis(100);
/// How long an emit waits for a key that is known to be locked.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(5);
/// A delay that no sum with a time can overflow: about 30,000 years.
const LONGEST_DELAY: i64 = 1_000_000_000_000_000;

/// How a plan is written.
#[derive(Default)]
pub(super) struct With {
    /// The version of the catalogue of which the plan was made. None: the caller has locked the topics and knows better.
    pub(super) version: Option<i64>,
    /// Test time.
    pub(super) now: Option<Time>,
    /// How long to wait for a key.
    pub(super) wait: Option<Duration>,
    /// What to tell whoever waits, once it is committed. Only for a [`Plain`] plan, and not inside of a transaction.
    pub(super) telling: Option<Telling>,
}

impl With {
    fn version(version: i64) -> With {
        With { version: Some(version), ..With::default() }
    }
}

impl PostgresStore {
    /// Stores units. Each gets an answer of its own.
    pub(super) async fn emit_units(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        let Emit { units, now } = emit;
        let mut answers: Vec<Option<Result<Emission>>> = units.iter().map(|_| None).collect();
        // Units that need more steps: the others do not wait for them.
        let (with, without): (Vec<usize>, Vec<usize>) =
            (0..units.len()).partition(|at| needs_steps(&units[*at]));
        let (with, without) =
            tokio::join!(self.emit_all(&units, with, now), self.emit_all(&units, without, now));
        for (at, answer) in with.into_iter().chain(without) {
            answers[at] = Some(answer);
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(restless()))).collect())
    }

    /// A group in one transaction, or an error and none of it. A connection that is lost leaves open whether it was stored;
    /// that is for the caller to decide, so nothing is repeated here but what the server undid.
    pub(super) async fn emit_together(
        &self,
        units: &[Vec<Event>],
        group: &[usize],
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        let group: Cow<'_, [Vec<Event>]> = match group.len() == units.len() {
            true => Cow::Borrowed(units),
            false => Cow::Owned(group.iter().map(|at| units[*at].clone()).collect()),
        };
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let by_steps = needs_steps(first);
        let mut tries = 0;
        loop {
            let result = match by_steps {
                true => self.emit_by_steps(&group, now, wait).await,
                false => self.emit_plain(&group, now, wait).await,
            };
            match result {
                Err(error) if lost_against_another(&error) && tries < 3 => tries += 1,
                result => return result,
            }
        }
    }

    /// One round trip: the function is a transaction of its own. Behind a pooler even that needs one around it, because the
    /// statement is parsed and run in two steps.
    async fn emit_plain(
        &self,
        units: &[Vec<Event>],
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        let emitting = self.speech.emit();
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic), Tries::few(), wait).await?;
            let mut conn = self.connection().await?;
            let catalog = self.catalog(&mut conn).await?;
            let Some(plan) = self.plan(units, &catalog) else { continue };
            let lone = !self.texts.pooled && units.len() == 1 && Plain::of(&plan).is_some();
            let mut told = if lone { emitting.telling(plan.wake(0)) } else { None };
            let telling = told.as_ref().map(|(_, telling)| telling.clone());
            let with = With { version: Some(catalog.version), now, wait: Some(wait), telling };
            let stored = if self.texts.pooled {
                let mut tx = sqlx::Connection::begin(&mut *conn).await?;
                asked(self.answer, self.texts.query(POOLED).execute(&mut *tx)).await?;
                let stored = self.store(&mut tx, &plan, with).await?;
                tx.commit().await?;
                stored
            } else {
                match self.store(&mut conn, &plan, with).await {
                    Err(error) => match told.take() {
                        Some((_, telling)) => {
                            Some(self.stored_untold(&mut conn, &telling.mark, error).await?)
                        }
                        None => return Err(error),
                    },
                    Ok(stored) => stored,
                }
            };
            conn.keep();
            if let Some(numbers) = stored {
                let mut emissions = numbers.emissions(&plan, units.len());
                if let Some((voice, _)) = told {
                    voice.ring(plan.wake(0));
                    emissions.iter_mut().for_each(|emission| emission.hinted = true);
                }
                return Ok(emissions.into_iter().map(Ok).collect());
            }
            self.cache.set(Arc::default());
        }
        Err(restless())
    }

    /// One unit in the caller's own transaction.
    pub(super) async fn emit_unit_in(&self, conn: &mut PgConnection, unit: Vec<Event>) -> Result<Emission> {
        if unit.is_empty() {
            return Err(Error::invalid("nothing to emit", "pass at least one event"));
        }
        for event in &unit {
            event.check()?;
        }
        check_unit(&unit)?;
        let planner = Planner::save(conn, &self.texts).await?;
        let emitted = self.emit_with(conn, &[unit]).await;
        planner.restore(conn, &self.texts, emitted).await
    }

    async fn emit_with(&self, conn: &mut PgConnection, units: &[Vec<Event>]) -> Result<Emission> {
        // A cache of its own: what this transaction has changed does not exist for others until it is committed.
        let cache = CatalogCache::default();
        cache.set(self.cache.get());
        for _ in 0..TRIES {
            let mut session =
                Session::new(conn, &self.texts, &cache, Begin { foreign: true, ..Begin::default() }).await?;
            let catalog = session.catalog.clone();
            let Some(plan) = self.plan(units, &catalog) else {
                // The shared cache may know a topic that is gone.
                self.cache.set(Arc::default());
                self.create_topics_for(&mut session, units.iter().flatten().map(Event::topic)).await?;
                cache.set(Arc::default());
                continue;
            };
            if needs_steps(&units[0]) {
                if let Some(mut answers) = self.emit_by_steps_in(&mut session, units).await? {
                    return answers.pop().unwrap_or_else(|| Err(restless()));
                }
            } else if let Some(numbers) =
                self.store(session.conn, &plan, With::version(catalog.version)).await?
                && let Some(emission) = numbers.emissions(&plan, 1).pop()
            {
                return Ok(emission);
            }
            cache.set(Arc::default());
        }
        Err(restless())
    }

    /// `None` when a topic is not known: its events would not be in the plan.
    pub(super) fn plan(&self, units: &[Vec<Event>], catalog: &Catalog) -> Option<EmitPlan> {
        let known = units.iter().flatten().all(|event| catalog.topic(&event.topic).is_some());
        known.then(|| EmitPlan::new(units, catalog.views(), self.spread.fetch_add(1, Ordering::Relaxed)))
    }

    /// Calls the function that writes a plan. `None` when the plan was made from another version of the catalogue than the
    /// stored one.
    pub(super) async fn store(
        &self,
        conn: &mut PgConnection,
        plan: &EmitPlan,
        with: With,
    ) -> Result<Option<Stored>> {
        if let Some(plain) = Plain::of(plan) {
            return self.store_plain(conn, plain, with).await;
        }
        let sql = "SELECT stored_at, chunks, heads FROM tramline_emit_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, \
                   $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)";
        let topics: BTreeSet<i64> = plan.chunks.iter().map(|chunk| chunk.topic.0).collect();
        let (heads, chunks) = (&plan.heads, &plan.chunks);
        let (first_prevs, prevs) = links(chunks.iter().map(|chunk| &chunk.prevs[..]));
        let (first_mains, mains) = links(chunks.iter().map(|chunk| &chunk.mains[..]));
        let slices: Vec<_> = chunks
            .iter()
            .enumerate()
            .flat_map(|(at, chunk)| chunk.slices.iter().map(move |slice| (at as i32 + 1, slice)))
            .collect();
        let query = self
            .texts
            .query(sql)
            .bind(with.version)
            .bind(with.now.map(|now| now.0))
            .bind(with.wait.map(millis))
            .bind(topics.into_iter().collect::<Vec<i64>>())
            .bind(heads.iter().map(|head| head.topic.0).collect::<Vec<i64>>())
            .bind(heads.iter().map(|head| head.key.clone()).collect::<Vec<String>>())
            .bind(heads.iter().map(|head| number(head.last)).collect::<Vec<i64>>())
            .bind(
                heads
                    .iter()
                    .map(|head| head.state.as_ref().map(|state| state.to_vec()))
                    .collect::<Vec<Option<Vec<u8>>>>(),
            )
            .bind(chunks.iter().map(|chunk| chunk.topic.0).collect::<Vec<i64>>())
            .bind(chunks.iter().map(|chunk| chunk.count.cast_signed()).collect::<Vec<i32>>())
            .bind(chunks.iter().map(|chunk| chunk.bytes.cast_signed()).collect::<Vec<i32>>())
            .bind(chunks.iter().map(|chunk| chunk.encoded.meta.as_str()).collect::<Vec<&str>>())
            .bind(chunks.iter().map(|chunk| chunk.encoded.body.as_slice()).collect::<Vec<&[u8]>>())
            .bind(first_prevs)
            .bind(prevs)
            .bind(first_mains)
            .bind(mains)
            .bind(slices.iter().map(|(at, _)| *at).collect::<Vec<i32>>())
            .bind(slices.iter().map(|(_, slice)| slice.subscription.0).collect::<Vec<i64>>())
            .bind(slices.iter().map(|(_, slice)| slice.lane.0).collect::<Vec<i64>>())
            .bind(slices.iter().map(|(_, slice)| i64::from(slice.priority)).collect::<Vec<i64>>())
            .bind(slices.iter().map(|(_, slice)| after(slice.due)).collect::<Vec<Option<i64>>>())
            .bind(slices.iter().map(|(_, slice)| at(slice.due)).collect::<Vec<Option<i64>>>())
            .bind(slices.iter().map(|(_, slice)| slice.mask.to_i64()).collect::<Vec<i64>>());
        let row = asked(self.answer, query.fetch_one(conn)).await?;
        if row.try_get::<Option<i64>, _>(0)?.is_none() {
            return Ok(None);
        }
        let chunks: Vec<i64> = row.try_get::<Option<Vec<i64>>, _>(1)?.unwrap_or_default();
        Ok(Some(Stored { chunks: chunks.into_iter().map(ChunkId).collect(), heads: row.try_get(2)? }))
    }

    async fn store_plain(
        &self,
        conn: &mut PgConnection,
        plain: Plain<'_>,
        with: With,
    ) -> Result<Option<Stored>> {
        let quiet = "SELECT stored_at, new_chunk, prev FROM tramline_emit_chunk($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                     $12, $13, $14, $15, $16)";
        let telling = "CALL tramline_emit_and_tell($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, \
                       $17, $18, $19, NULL, NULL, NULL)";
        let Plain { chunk, head, due } = plain;
        let slices = &chunk.slices;
        let query = self
            .texts
            .query(if with.telling.is_some() { telling } else { quiet })
            .bind(with.version)
            .bind(with.now.map(|now| now.0))
            .bind(with.wait.map(millis))
            .bind(chunk.topic.0)
            .bind(head.map(|head| head.key.clone()))
            .bind(head.and_then(|head| head.state.as_ref()).map(|state| state.to_vec()))
            .bind(chunk.count.cast_signed())
            .bind(chunk.bytes.cast_signed())
            .bind(chunk.encoded.meta.clone())
            .bind(chunk.encoded.body.clone())
            .bind(after(due))
            .bind(at(due))
            .bind(slices.iter().map(|slice| slice.subscription.0).collect::<Vec<i64>>())
            .bind(slices.iter().map(|slice| slice.lane.0).collect::<Vec<i64>>())
            .bind(slices.iter().map(|slice| i64::from(slice.priority)).collect::<Vec<i64>>())
            .bind(slices.iter().map(|slice| slice.mask.to_i64()).collect::<Vec<i64>>());
        let query = match with.telling {
            Some(Telling { hint, mark }) => query.bind(self.wake_channel()).bind(hint).bind(mark),
            None => query,
        };
        let row = asked(self.answer, query.fetch_one(conn)).await?;
        let Some(chunk) = row.try_get::<Option<i64>, _>(1)? else { return Ok(None) };
        let heads = row.try_get::<Option<i64>, _>(2)?.into_iter().collect();
        Ok(Some(Stored { chunks: vec![ChunkId(chunk)], heads }))
    }

    /// What became of an emit that failed, and was to tell after its commit: a cancel that comes during that ends the telling, and what
    /// is stored would be an error. Only its own mark proves that: what this connection drew last may be of an emit whose caller has gone.
    async fn stored_untold(&self, conn: &mut PgConnection, mark: &str, error: Error) -> Result<Stored> {
        if !was_cancelled(&error) {
            return Err(error);
        }
        let sql = "SELECT c.chunk, c.prevs[1] FROM tramline_chunk c WHERE c.chunk = CASE \
                   WHEN split_part(current_setting('tramline.stored', true), ':', 1) = $1 \
                   THEN split_part(current_setting('tramline.stored', true), ':', 2)::bigint END";
        let query = self.texts.query(sql).bind(mark);
        let Ok(Some(row)) = asked(self.answer, query.fetch_optional(conn)).await else { return Err(error) };
        let heads = row.try_get::<Option<i64>, _>(1)?.into_iter().collect();
        Ok(Stored { chunks: vec![ChunkId(row.try_get(0)?)], heads })
    }
}

/// A plan of one chunk with one event, or with several that have no keys and nothing to do with each other, all due at the same time.
struct Plain<'p> {
    chunk: &'p ChunkPlan,
    head: Option<&'p HeadPlan>,
    due: Due,
}

impl<'p> Plain<'p> {
    fn of(plan: &'p EmitPlan) -> Option<Plain<'p>> {
        let [chunk] = &plan.chunks[..] else { return None };
        let due = chunk.slices.first().map_or(Due::After(Duration::ZERO), |slice| slice.due);
        let plain = chunk.slices.iter().all(|slice| slice.due == due)
            && chunk.mains.iter().all(|main| *main == Link::None)
            && (chunk.count == 1 || plan.heads.is_empty());
        plain.then_some(Plain { chunk, head: plan.heads.first(), due })
    }
}

fn after(due: Due) -> Option<i64> {
    match due {
        Due::After(delay) => Some(millis(delay).min(LONGEST_DELAY)),
        Due::At(_) => None,
    }
}

fn at(due: Due) -> Option<i64> {
    match due {
        Due::After(_) => None,
        Due::At(time) => Some(time.0),
    }
}

/// An event of a plan as the function names it.
fn number(place: Place) -> i64 {
    (place.chunk as i64 + 1) * 64 + i64::from(place.index)
}

/// The links of all chunks that have any, one after the other, and where those of each chunk begin, from 1.
fn links<'a>(chunks: impl Iterator<Item = &'a [Link]>) -> (Vec<Option<i32>>, Vec<i64>) {
    let encode = |link: &Link| match link {
        Link::None => 0,
        Link::Head(at) => -(*at as i64 + 1),
        Link::Event(place) => number(*place),
    };
    let (mut firsts, mut all) = (Vec::new(), Vec::new());
    for links in chunks {
        let linked = links.iter().any(|link| *link != Link::None);
        firsts.push(linked.then_some(all.len() as i32 + 1));
        if linked {
            all.extend(links.iter().map(encode));
        }
    }
    (firsts, all)
}

//! Emit: heads, then numbers, then chunks, slices and heads; see `migrations/0002_emit.sql`.

use super::PostgresStore;
use super::session::{Begin, Session};
use super::step::{lost_against_another, waited_too_long};
use crate::error::{Error, Result};
use crate::model::event::{Due, Event};
use crate::model::id::{ChunkId, TopicId};
use crate::model::time::{Time, millis};
use crate::plan::emit::{EmitPlan, Link, Numbers, Place};
use crate::store::catalog::Catalog;
use crate::store::idempotency::{self, Entry};
use crate::store::verbs::Emission;
use futures_util::StreamExt;
use sqlx::{PgConnection, Row};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a group of emits waits for a key. One that is locked for longer must not hold up the others.
const GROUP_WAIT: Duration = Duration::from_millis(100);
/// How long an emit waits for a key that is known to be locked.
const LONG_WAIT: Duration = Duration::from_secs(5);
/// A delay that no sum with a time can overflow: about 30,000 years.
const LONGEST_DELAY: i64 = 1_000_000_000_000_000;
/// How often an emit is planned anew because the catalogue changes.
const TRIES: u32 = 10;

type Units = Vec<Vec<Event>>;

impl PostgresStore {
    /// Stores units. Each gets an answer of its own.
    pub(super) async fn emit_units(&self, units: Units, now: Option<Time>) -> Result<Vec<Result<Emission>>> {
        self.create_topics(units.iter().flatten().map(Event::topic)).await?;
        let mut answers: Vec<Option<Result<Emission>>> = units.iter().map(|_| None).collect();
        // Units with an idempotency key need more steps; the others do not wait for them.
        let keyed = |unit: &[Event]| unit.first().is_some_and(|event| event.idempotency_key.is_some());
        let (with, without): (Vec<_>, Vec<_>) =
            units.into_iter().enumerate().partition(|(_, unit)| keyed(unit));
        let (with, without) = tokio::join!(self.emit_all(with, now), self.emit_all(without, now));
        for (at, answer) in with.into_iter().chain(without) {
            answers[at] = Some(answer);
        }
        let lost =
            || Err(Error::unavailable("an emit was not answered", "try again with an idempotency key"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }

    /// Together if possible. Units whose keys are locked by somebody else's open transaction are set aside: the others go
    /// on at once, and those wait for longer, each key for itself.
    async fn emit_all(
        &self,
        units: Vec<(usize, Vec<Event>)>,
        now: Option<Time>,
    ) -> Vec<(usize, Result<Emission>)> {
        if units.is_empty() {
            return Vec::new();
        }
        let (places, units): (Vec<usize>, Units) = units.into_iter().unzip();
        let error = match self.emit_together(&units, now, GROUP_WAIT).await {
            Ok(answers) => return places.into_iter().zip(answers).collect(),
            Err(error) => error,
        };
        if !waited_too_long(&error) && !lost_against_another(&error) {
            return places.into_iter().map(|at| (at, Err(error.share()))).collect();
        }
        tracing::debug!(units = units.len(), "keys are locked by another transaction; emits are set aside");
        let locked = self.locked_keys(&units).await.unwrap_or_default();
        let families = families(&units, &locked);
        let parallel = families.len();
        let waits = families.into_iter().map(|family| async {
            let mine: Units = family.iter().map(|at| units[*at].clone()).collect();
            let answers = self.emit_family(mine, now).await;
            family.into_iter().zip(answers).collect::<Vec<_>>()
        });
        let answers: Vec<Vec<(usize, Result<Emission>)>> =
            futures_util::stream::iter(waits).buffer_unordered(parallel.max(1)).collect().await;
        answers.into_iter().flatten().map(|(at, answer)| (places[at], answer)).collect()
    }

    /// Units that wait for the same key. Only so many connections may wait that others are left.
    async fn emit_family(&self, units: Units, now: Option<Time>) -> Vec<Result<Emission>> {
        let _permit = self.waiting.acquire().await;
        match self.emit_together(&units, now, LONG_WAIT).await {
            Ok(answers) => answers,
            Err(error) if waited_too_long(&error) => {
                let busy = || {
                    Error::unavailable(
                        "another transaction has locked a key of this emit, or its topic, for too long",
                        "end that transaction; then emit again",
                    )
                };
                units.iter().map(|_| Err(busy())).collect()
            }
            Err(error) => units.iter().map(|_| Err(error.share())).collect(),
        }
    }

    /// All units in one transaction, or an error and none of them. A connection that is lost leaves open whether they were
    /// stored; that is for the caller to decide, so nothing is repeated here but what the server undid.
    async fn emit_together(
        &self,
        units: &Units,
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        let keyed =
            units.iter().any(|unit| unit.first().is_some_and(|event| event.idempotency_key.is_some()));
        let mut tries = 0;
        loop {
            let result = match keyed {
                true => self.emit_keyed(units, now, wait).await,
                false => self.emit_plain(units, now, wait).await,
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
        units: &Units,
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        let mut conn = self.connection().await?;
        for _ in 0..TRIES {
            let catalog = self.catalog(&mut conn).await?;
            let plan = EmitPlan::new(units, catalog.views(), self.spread.fetch_add(1, Ordering::Relaxed));
            let stored = if self.texts.pooled {
                let mut tx = sqlx::Connection::begin(&mut *conn).await?;
                let stored = self.store(&mut tx, &plan, catalog.version, now, Some(wait)).await?;
                tx.commit().await?;
                stored
            } else {
                self.store(&mut conn, &plan, catalog.version, now, Some(wait)).await?
            };
            if let Some(numbers) = stored {
                return Ok(numbers.emissions(&plan, units.len()).into_iter().map(Ok).collect());
            }
            self.cache.set(Arc::default());
        }
        Err(restless())
    }

    async fn emit_keyed(
        &self,
        units: &Units,
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            let mut tx = self.begin().await?;
            let wait_ms = format!("SET LOCAL lock_timeout = {}", millis(wait));
            sqlx::raw_sql(sqlx::AssertSqlSafe(wait_ms)).execute(&mut *tx).await?;
            let begin = Begin { now, ..Begin::default() };
            let mut session = Session::new(&mut tx, &self.texts, &self.cache, begin).await?;
            let answers = self.emit_keyed_in(&mut session, units).await?;
            if let Some(answers) = answers {
                tx.commit().await?;
                return Ok(answers);
            }
            tx.rollback().await?;
            self.cache.set(Arc::default());
        }
        Err(restless())
    }

    /// Locks topics, then idempotency keys, then everything else. `None` when the catalogue has changed.
    async fn emit_keyed_in(
        &self,
        session: &mut Session<'_>,
        units: &[Vec<Event>],
    ) -> Result<Option<Vec<Result<Emission>>>> {
        let catalog = session.catalog.clone();
        if lock_topics(session, &catalog, units).await? != catalog.version {
            return Ok(None);
        }
        let entries: Vec<Option<Entry>> = units.iter().map(|unit| Entry::of(unit, &catalog)).collect();
        let known = take_keys(session, entries.iter().flatten()).await?;
        // The same key twice in one group: the second one sees what the first one stores.
        let mut first: BTreeMap<(TopicId, &str), usize> = BTreeMap::new();
        let mut fresh: Vec<usize> = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let Some(entry) = entry else {
                fresh.push(at);
                continue;
            };
            let name = (entry.topic, entry.key.as_str());
            if !known.contains_key(&(entry.topic, entry.key.clone())) && !first.contains_key(&name) {
                first.insert(name, at);
                fresh.push(at);
            }
        }
        let new: Units = fresh.iter().map(|at| units[*at].clone()).collect();
        let emissions = match new.is_empty() {
            true => Vec::new(),
            false => {
                let plan = EmitPlan::new(&new, catalog.views(), self.spread.fetch_add(1, Ordering::Relaxed));
                let now = Some(session.now);
                let Some(numbers) = self.store(session.conn, &plan, catalog.version, now, None).await? else {
                    return Ok(None);
                };
                numbers.emissions(&plan, new.len())
            }
        };
        write_receipts(session, fresh.iter().map(|at| entries[*at].as_ref()).zip(&emissions)).await?;
        let stored: BTreeMap<usize, Emission> = fresh.into_iter().zip(emissions).collect();
        let answer = |(at, entry): (usize, &Option<Entry>)| match (stored.get(&at), entry) {
            (Some(emission), _) => Ok(emission.clone()),
            (None, Some(entry)) => match first.get(&(entry.topic, entry.key.as_str())) {
                Some(one) => {
                    let hash = entries[*one].as_ref().map_or(&[][..], |entry| &entry.hash);
                    entry.answer(hash, &idempotency::receipt(&stored[one].events))
                }
                None => {
                    let (hash, receipt) = &known[&(entry.topic, entry.key.clone())];
                    entry.answer(hash, receipt)
                }
            },
            (None, None) => Err(restless()),
        };
        Ok(Some(entries.iter().enumerate().map(answer).collect()))
    }

    /// One unit in the caller's own transaction.
    pub(super) async fn emit_unit_in(&self, conn: &mut PgConnection, unit: Vec<Event>) -> Result<Emission> {
        if unit.is_empty() {
            return Err(Error::invalid("nothing to emit", "pass at least one event"));
        }
        for event in &unit {
            event.check()?;
        }
        self.create_topics(unit.iter().map(Event::topic)).await?;
        let units = vec![unit];
        // A cache of its own: what this transaction has changed does not exist for others until it is committed.
        let cache = super::session::CatalogCache::default();
        cache.set(self.cache.get());
        for _ in 0..TRIES {
            let mut session = Session::new(conn, &self.texts, &cache, Begin::default()).await?;
            let catalog = session.catalog.clone();
            if units[0][0].idempotency_key.is_some() {
                if let Some(mut answers) = self.emit_keyed_in(&mut session, &units).await? {
                    return answers.pop().unwrap_or_else(|| Err(restless()));
                }
            } else {
                let plan =
                    EmitPlan::new(&units, catalog.views(), self.spread.fetch_add(1, Ordering::Relaxed));
                if let Some(numbers) = self.store(session.conn, &plan, catalog.version, None, None).await?
                    && let Some(emission) = numbers.emissions(&plan, 1).pop()
                {
                    return Ok(emission);
                }
            }
            cache.set(Arc::default());
        }
        Err(restless())
    }

    /// Calls the function that writes a plan. `None` when the plan was made from another catalogue than the stored one.
    async fn store(
        &self,
        conn: &mut PgConnection,
        plan: &EmitPlan,
        version: i64,
        now: Option<Time>,
        wait: Option<Duration>,
    ) -> Result<Option<Stored>> {
        let sql = "SELECT stored_at, chunks, heads FROM tramline_emit_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, \
                   $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)";
        let topics: BTreeSet<i64> = plan.chunks.iter().map(|chunk| chunk.topic.0).collect();
        let (heads, chunks) = (&plan.heads, &plan.chunks);
        let (prev_chunks, prevs) = links(chunks.iter().map(|chunk| &chunk.prevs[..]));
        let (main_chunks, mains) = links(chunks.iter().map(|chunk| &chunk.mains[..]));
        let slices: Vec<_> = chunks
            .iter()
            .enumerate()
            .flat_map(|(at, chunk)| chunk.slices.iter().map(move |slice| (at as i32 + 1, slice)))
            .collect();
        let after = |due: Due| match due {
            Due::After(delay) => Some(millis(delay).min(LONGEST_DELAY)),
            Due::At(_) => None,
        };
        let at = |due: Due| match due {
            Due::After(_) => None,
            Due::At(time) => Some(time.0),
        };
        let query = self
            .texts
            .query(sql)
            .bind(version)
            .bind(now.map(|now| now.0))
            .bind(wait.map(millis))
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
            .bind(prev_chunks)
            .bind(prevs)
            .bind(main_chunks)
            .bind(mains)
            .bind(slices.iter().map(|(at, _)| *at).collect::<Vec<i32>>())
            .bind(slices.iter().map(|(_, slice)| slice.subscription.0).collect::<Vec<i64>>())
            .bind(slices.iter().map(|(_, slice)| slice.lane.0).collect::<Vec<i64>>())
            .bind(slices.iter().map(|(_, slice)| i64::from(slice.priority)).collect::<Vec<i64>>())
            .bind(slices.iter().map(|(_, slice)| after(slice.due)).collect::<Vec<Option<i64>>>())
            .bind(slices.iter().map(|(_, slice)| at(slice.due)).collect::<Vec<Option<i64>>>())
            .bind(slices.iter().map(|(_, slice)| slice.mask.to_i64()).collect::<Vec<i64>>());
        let row = query.fetch_one(conn).await?;
        if row.try_get::<Option<i64>, _>(0)?.is_none() {
            return Ok(None);
        }
        let chunks: Vec<i64> = row.try_get::<Option<Vec<i64>>, _>(1)?.unwrap_or_default();
        Ok(Some(Stored { chunks: chunks.into_iter().map(ChunkId).collect(), heads: row.try_get(2)? }))
    }

    /// Which keys of units somebody else has locked at this moment. Nothing stays locked.
    async fn locked_keys(&self, units: &Units) -> Result<HashSet<(TopicId, String)>> {
        let mut tx = self.begin().await?;
        let mut session = Session::new(&mut tx, &self.texts, &self.cache, Begin::default()).await?;
        let keys: BTreeSet<(TopicId, String)> =
            units.iter().flatten().filter_map(|event| named(event, &session.catalog)).collect();
        let all = "SELECT h.topic, h.key FROM unnest($1::bigint[], $2::text[]) AS u(topic, key) \
                   JOIN tramline_head h ON h.topic = u.topic AND h.key = u.key";
        let free = "SELECT h.topic, h.key FROM unnest($1::bigint[], $2::text[]) AS u(topic, key) \
                    JOIN tramline_head h ON h.topic = u.topic AND h.key = u.key FOR UPDATE OF h SKIP LOCKED";
        let mut found: Vec<HashSet<(TopicId, String)>> = Vec::new();
        for sql in [all, free] {
            let query = session
                .query(sql)
                .bind(keys.iter().map(|(topic, _)| topic.0).collect::<Vec<i64>>())
                .bind(keys.iter().map(|(_, key)| key.clone()).collect::<Vec<String>>());
            let mut set = HashSet::new();
            for row in session.all(query).await? {
                set.insert((TopicId(row.try_get(0)?), row.try_get(1)?));
            }
            found.push(set);
        }
        tx.rollback().await?;
        Ok(&found[0] - &found[1])
    }
}

/// Units that have to wait together: those of each locked key, and all others. If no lock is visible (a key that another
/// transaction is just creating), every first key is a family of its own.
fn families(units: &Units, locked: &HashSet<(TopicId, String)>) -> Vec<Vec<usize>> {
    let is_locked = |event: &Event| {
        event.key.as_ref().is_some_and(|key| locked.iter().any(|(_, locked)| locked == key))
            || locked.is_empty()
    };
    let mut families: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        let stuck = unit.iter().find(|event| is_locked(event)).and_then(|event| event.key.as_deref());
        families.entry(stuck).or_default().push(at);
    }
    families.into_values().collect()
}

fn named(event: &Event, catalog: &Catalog) -> Option<(TopicId, String)> {
    Some((catalog.topic(&event.topic)?.id, event.key.clone()?))
}

/// The numbers that a plan got.
struct Stored {
    chunks: Vec<ChunkId>,
    heads: Vec<i64>,
}

impl Stored {
    fn emissions(&self, plan: &EmitPlan, units: usize) -> Vec<Emission> {
        let numbers = Numbers { chunks: &self.chunks, heads: &self.heads };
        let emission = |at| Emission {
            events: plan.emitted(at, &numbers),
            wake: plan.wake(at).to_vec(),
            repeated: false,
        };
        (0..units).map(emission).collect()
    }
}

/// An event of a plan as the function names it.
fn number(place: Place) -> i64 {
    (place.chunk as i64 + 1) * 64 + i64::from(place.index)
}

/// Links of all chunks that have any, with the chunk that each belongs to.
fn links<'a>(chunks: impl Iterator<Item = &'a [Link]>) -> (Vec<i32>, Vec<i64>) {
    let encode = |link: &Link| match link {
        Link::None => 0,
        Link::Head(at) => -(*at as i64 + 1),
        Link::Event(place) => number(*place),
    };
    let linked = chunks.enumerate().filter(|(_, links)| links.iter().any(|link| *link != Link::None));
    linked.flat_map(|(at, links)| links.iter().map(move |link| (at as i32 + 1, encode(link)))).unzip()
}

async fn lock_topics(session: &mut Session<'_>, catalog: &Catalog, units: &[Vec<Event>]) -> Result<i64> {
    let topics: BTreeSet<i64> = units
        .iter()
        .flatten()
        .filter_map(|event| catalog.topic(&event.topic))
        .map(|topic| topic.id.0)
        .collect();
    let query =
        session.query("SELECT tramline_lock_topics($1)").bind(topics.into_iter().collect::<Vec<i64>>());
    Ok(query.fetch_one(&mut *session.conn).await?.try_get(0)?)
}

/// Takes idempotency keys, in sorted order, and gives what those had that were taken before. One that another transaction
/// is just taking is waited for.
async fn take_keys<'a>(
    session: &mut Session<'_>,
    entries: impl Iterator<Item = &'a Entry>,
) -> Result<BTreeMap<(TopicId, String), (Vec<u8>, String)>> {
    let keys: BTreeMap<(TopicId, &str), &Entry> =
        entries.map(|entry| ((entry.topic, entry.key.as_str()), entry)).collect();
    let (topics, names): (Vec<i64>, Vec<String>) =
        keys.keys().map(|(topic, key)| (topic.0, key.to_string())).unzip();
    let sql = "INSERT INTO tramline_idempotency AS i (topic, key, hash, receipt, expires_at) \
               SELECT u.topic, u.key, u.hash, '', $4 FROM unnest($1::bigint[], $2::text[], $3::bytea[]) \
               WITH ORDINALITY AS u(topic, key, hash, place) ORDER BY u.place \
               ON CONFLICT (topic, key) DO UPDATE SET hash = excluded.hash, receipt = '', \
               expires_at = excluded.expires_at WHERE i.expires_at <= $5 RETURNING i.topic, i.key";
    let query = session
        .query(sql)
        .bind(topics.clone())
        .bind(names.clone())
        .bind(keys.values().map(|entry| entry.hash.clone()).collect::<Vec<Vec<u8>>>())
        .bind(session.now.after(idempotency::KEPT_FOR).0)
        .bind(session.now.0);
    let mut taken: HashSet<(TopicId, String)> = HashSet::new();
    for row in session.all(query).await? {
        taken.insert((TopicId(row.try_get(0)?), row.try_get(1)?));
    }
    if taken.len() == keys.len() {
        return Ok(BTreeMap::new());
    }
    let sql = "SELECT i.topic, i.key, i.hash, i.receipt FROM tramline_idempotency i \
               JOIN unnest($1::bigint[], $2::text[]) AS u(topic, key) ON i.topic = u.topic AND i.key = u.key";
    let query = session.query(sql).bind(topics).bind(names);
    let mut known = BTreeMap::new();
    for row in session.all(query).await? {
        let key = (TopicId(row.try_get(0)?), row.try_get(1)?);
        if !taken.contains(&key) {
            known.insert(key, (row.try_get(2)?, row.try_get(3)?));
        }
    }
    Ok(known)
}

async fn write_receipts<'a>(
    session: &mut Session<'_>,
    emissions: impl Iterator<Item = (Option<&'a Entry>, &'a Emission)>,
) -> Result<()> {
    let (mut topics, mut keys, mut receipts) = (Vec::new(), Vec::new(), Vec::new());
    for (entry, emission) in emissions {
        let Some(entry) = entry else { continue };
        topics.push(entry.topic.0);
        keys.push(entry.key.clone());
        receipts.push(idempotency::receipt(&emission.events));
    }
    if topics.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE tramline_idempotency i SET receipt = u.receipt \
               FROM unnest($1::bigint[], $2::text[], $3::text[]) AS u(topic, key, receipt) \
               WHERE i.topic = u.topic AND i.key = u.key";
    let query = session.query(sql).bind(topics).bind(keys).bind(receipts);
    session.run(query).await.map(|_| ())
}

fn restless() -> Error {
    Error::unavailable("topics and subscriptions change too fast to emit", "try again when they have settled")
}

//! Emits with an idempotency key: the same key gives the first receipt.

use super::PostgresStore;
use super::emit::{TRIES, Units, With, restless};
use super::session::{Begin, Session};
use crate::error::Result;
use crate::model::event::Event;
use crate::model::id::TopicId;
use crate::model::time::{Time, millis};
use crate::store::catalog::Catalog;
use crate::store::idempotency::{self, Entry};
use crate::store::verbs::Emission;
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

impl PostgresStore {
    /// A group of units with idempotency keys, in one transaction.
    pub(super) async fn emit_keyed(
        &self,
        units: &[Vec<Event>],
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic)).await?;
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
    pub(super) async fn emit_keyed_in(
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
        let mut emissions = Vec::new();
        if !new.is_empty() {
            let Some(plan) = self.plan(&new, &catalog) else { return Ok(None) };
            // The topics are locked: what the plan was made from is still so.
            let now = Some(session.now);
            let Some(numbers) = self.store(session.conn, &plan, With { now, ..With::default() }).await?
            else {
                return Ok(None);
            };
            emissions = numbers.emissions(&plan, new.len());
        }
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

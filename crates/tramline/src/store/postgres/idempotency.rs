//! Emits that need more than one step: those with an idempotency key, where the same key gives the first receipt, those in tallies,
//! and those of unique events.

use super::PostgresStore;
use super::emit::With;
use super::session::{Begin, Session};
use super::step::Tries;
use super::tally::place::place;
use super::unique;
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::TopicId;
use crate::model::time::Time;
use crate::plan::emit::EmitPlan;
use crate::store::catalog::Catalog;
use crate::store::driver::answered;
use crate::store::emit::{Stored, TRIES, Units, restless};
use crate::store::idempotency::{self, Entry};
use crate::store::mend::cancel;
use crate::store::unique::{Sifted, Standings, entries as unique_entries, names, waves};
use crate::store::verbs::{Cancel, Emission};
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

impl PostgresStore {
    /// A group of units that need more than one step, in one transaction.
    pub(super) async fn emit_by_steps(
        &self,
        units: &[Vec<Event>],
        now: Option<Time>,
        wait: Duration,
    ) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic), Tries::few(), wait).await?;
            let mut tx = self.begin().await?;
            let emit = async {
                let mut session = self.hasty(&mut tx, Begin::reading(now), wait).await?;
                self.emit_by_steps_in(&mut session, units).await
            };
            let answers = answered(self.answer, emit).await?;
            if let Some(answers) = answers {
                tx.commit().await?;
                return Ok(answers);
            }
            tx.rollback().await?;
            self.cache.set(Arc::default());
        }
        Err(restless())
    }

    /// Units in which a unique key comes twice go one after the other. `None` when the catalogue has changed.
    pub(super) async fn emit_by_steps_in(
        &self,
        session: &mut Session<'_>,
        units: &[Vec<Event>],
    ) -> Result<Option<Vec<Result<Emission>>>> {
        let waves = waves(units);
        if waves.len() == 1 {
            return self.emit_wave(session, units).await;
        }
        let mut answers: BTreeMap<usize, Result<Emission>> = BTreeMap::new();
        for wave in waves {
            let some: Units = wave.iter().map(|at| units[*at].clone()).collect();
            let Some(answered) = self.emit_wave(session, &some).await? else { return Ok(None) };
            answers.extend(wave.into_iter().zip(answered));
        }
        Ok(Some(answers.into_values().collect()))
    }

    /// Locks topics, then idempotency keys, then unique keys, then tallies, then everything else. `None` when the catalogue has
    /// changed.
    async fn emit_wave(
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
        let mut new: Units = fresh.iter().map(|at| units[*at].clone()).collect();
        let names = names(new.iter().flatten(), &catalog);
        let standings = match names.is_empty() {
            true => Standings::new(),
            false => unique::standings(session, &names).await?,
        };
        let mut sifted = Sifted::new(&mut new, &standings, &catalog, session.now);
        let mut refused: BTreeMap<usize, Error> = BTreeMap::new();
        for (at, error) in place(session, &mut new).await?.refused.into_iter().rev() {
            new.remove(at);
            sifted.remove(at);
            refused.insert(fresh.remove(at), error);
        }
        give_back(session, refused.keys().filter_map(|at| entries[*at].as_ref())).await?;
        for id in sifted.replaced() {
            cancel(session, &Cancel { id, now: None }).await?;
        }
        let mut emissions = Vec::new();
        if !new.is_empty() {
            let Some(plan) = self.plan(&new, &catalog) else { return Ok(None) };
            // The topics are locked: what the plan was made from is still so.
            let now = Some(session.now);
            let Some(numbers) = self.store(session.conn, &plan, With { now, ..With::default() }).await?
            else {
                return Ok(None);
            };
            mark_tallied(session, &plan, &numbers).await?;
            emissions = numbers.emissions(&plan, new.len());
            let entries = unique_entries(&new, &emissions, &catalog, session.now);
            unique::keep(session, &entries).await?;
            sifted.complete(&mut emissions);
        }
        // What gave way may have been an item of a tally.
        session.finish().await?;
        write_receipts(session, fresh.iter().map(|at| entries[*at].as_ref()).zip(&emissions)).await?;
        let stored: BTreeMap<usize, Emission> = fresh.into_iter().zip(emissions).collect();
        let answer = |(at, entry): (usize, &Option<Entry>)| match (stored.get(&at), entry) {
            (Some(emission), _) => Ok(emission.clone()),
            (None, _) if refused.contains_key(&at) => Err(refused[&at].share()),
            (None, Some(entry)) => match first.get(&(entry.topic, entry.key.as_str())) {
                // Of two with one key, what refuses the first refuses the second.
                Some(one) if refused.contains_key(one) => Err(refused[one].share()),
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

/// Frees idempotency keys that were taken for units that are not stored.
async fn give_back<'a>(session: &mut Session<'_>, entries: impl Iterator<Item = &'a Entry>) -> Result<()> {
    let (topics, keys): (Vec<i64>, Vec<String>) =
        entries.map(|entry| (entry.topic.0, entry.key.clone())).unzip();
    if topics.is_empty() {
        return Ok(());
    }
    let sql = "DELETE FROM tramline_idempotency i USING unnest($1::bigint[], $2::text[]) AS u(topic, key) \
               WHERE i.topic = u.topic AND i.key = u.key";
    let query = session.query(sql).bind(topics).bind(keys);
    session.run(query).await.map(|_| ())
}

/// Marks the new slices that end items of tallies. Afterwards, so that emits without tallies need no parameter for it.
async fn mark_tallied(session: &mut Session<'_>, plan: &EmitPlan, stored: &Stored) -> Result<()> {
    let marked: BTreeSet<(i64, i64)> = plan
        .chunks
        .iter()
        .zip(&stored.chunks)
        .flat_map(|(plan, chunk)| plan.slices.iter().map(move |slice| (chunk, slice)))
        .filter(|(_, slice)| slice.tallied)
        .map(|(chunk, slice)| (chunk.0, slice.subscription.0))
        .collect();
    if marked.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE tramline_slice s SET tallied = true FROM unnest($1::bigint[], $2::bigint[]) AS u(chunk, subscription) \
               WHERE s.chunk = u.chunk AND s.subscription + 0 = u.subscription";
    let (chunks, subscriptions): (Vec<i64>, Vec<i64>) = marked.into_iter().unzip();
    let query = session.query(sql).bind(chunks).bind(subscriptions);
    session.run(query).await.map(|_| ())
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
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
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

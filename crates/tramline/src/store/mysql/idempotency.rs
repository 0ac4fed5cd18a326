//! Emits that need more than one step: those with an idempotency key, where the same key gives the first receipt, those in tallies,
//! and those of unique events.

use super::MysqlStore;
use super::emit::{Drawn, draw_sql, share_topics, write};
use super::mend::cancel;
use super::session::{Begin, Session, VERSION};
use super::sql::{Columns, LIST, bytes, insert, overwrite, text, texts};
use super::tally::place::place;
use super::unique;
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::TopicId;
use crate::model::time::Time;
use crate::store::emit::{TRIES, Units, restless};
use crate::store::idempotency::{self, Entry};
use crate::store::unique::{Sifted, Standings, entries as unique_entries, names, waves};
use crate::store::verbs::{Cancel, Emission};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What an idempotency key had: the digest of its unit, and the receipt.
type Known = BTreeMap<(TopicId, String), (Vec<u8>, String)>;

impl MysqlStore {
    /// A group of units that need more than one step, in one transaction.
    pub(super) async fn emit_by_steps(
        &self,
        units: &[Vec<Event>],
        now: Option<Time>,
    ) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic)).await?;
            let mut tx = self.begin().await?;
            match self.try_by_steps(&mut tx, units, now).await {
                Ok(Some(answers)) => {
                    tx.keep();
                    return Ok(answers);
                }
                Ok(None) => {
                    tx.rollback().await;
                    self.common.cache.set(Arc::default());
                }
                Err(error) => {
                    tx.rollback().await;
                    return Err(error);
                }
            }
        }
        Err(restless())
    }

    async fn try_by_steps(
        &self,
        tx: &mut super::Transaction<'_>,
        units: &[Vec<Event>],
        now: Option<Time>,
    ) -> Result<Option<Vec<Result<Emission>>>> {
        let mut session = self.session(tx.conn(), &Begin::reading(now)).await?;
        let answers = self.emit_by_steps_in(&mut session, units).await?;
        if answers.is_some() {
            session.commit(Vec::new()).await?;
        }
        Ok(answers)
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
        let topics: BTreeSet<TopicId> = units
            .iter()
            .flatten()
            .filter_map(|event| catalog.topic(&event.topic))
            .map(|topic| topic.id)
            .collect();
        let entries: Vec<Option<Entry>> = units.iter().map(|unit| Entry::of(unit, &catalog)).collect();
        let mut sql = share_topics(&topics);
        sql.push(VERSION.to_owned());
        sql.extend(take_keys_sql(session, &entries));
        let sets = session.sets(sql).await?;
        let (version, found) = (&sets[topics.len()], &sets[topics.len() + 1..]);
        if version.first().map_or(Ok(0), |row| row.int(0))? != catalog.version {
            return Ok(None);
        }
        let known = read_known(found, session.now)?;
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
        give_back(session, refused.keys().filter_map(|at| entries[*at].as_ref()));
        for id in sifted.replaced() {
            cancel(session, &Cancel { id, now: None }).await?;
        }
        let mut emissions = Vec::new();
        if !new.is_empty() {
            // The topics are locked: what the plan was made from is still so.
            let Some(plan) = self.plan(&new, &catalog) else { return Ok(None) };
            let drawn = match plan.chunks.is_empty() {
                true => Drawn::nothing(),
                false => Drawn::read(&plan, &session.sets(draw_sql(&plan, &self.common)).await?)?,
            };
            let now = Some(session.now);
            let stored = write(session, &plan, drawn, now);
            emissions = stored.emissions(&plan, new.len());
            let entries = unique_entries(&new, &emissions, &catalog, session.now);
            unique::keep(session, &entries);
            sifted.complete(&mut emissions);
        }
        // What gave way may have been an item of a tally.
        session.finish().await?;
        write_receipts(session, fresh.iter().map(|at| entries[*at].as_ref()).zip(&emissions));
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

/// Takes idempotency keys, in sorted order, and reads what those had that were taken before. One that another transaction is just
/// taking is waited for. Locked for good at once, as the heads of keys are.
fn take_keys_sql(session: &Session<'_>, entries: &[Option<Entry>]) -> Vec<String> {
    let keys: BTreeMap<(TopicId, &str), &Entry> =
        entries.iter().flatten().map(|entry| ((entry.topic, entry.key.as_str()), entry)).collect();
    let rows = keys
        .iter()
        .map(|((topic, key), entry)| format!("({},{},{},'',0)", topic.0, text(key), bytes(&entry.hash)));
    let head = "INSERT INTO tramline_idempotency (topic, `key`, hash, receipt, expires_at) VALUES ";
    let tail = " ON DUPLICATE KEY UPDATE expires_at = expires_at";
    let mut sql = insert(head, rows, tail, session.common.packet);
    let mut by_topic: BTreeMap<TopicId, Vec<&str>> = BTreeMap::new();
    for (topic, key) in keys.keys() {
        by_topic.entry(*topic).or_default().push(key);
    }
    for (topic, keys) in &by_topic {
        sql.extend(keys.chunks(LIST).map(|keys| {
            format!(
                "SELECT topic, `key`, hash, receipt, expires_at FROM tramline_idempotency \
                 WHERE topic = {} AND `key` IN ({})",
                topic.0,
                texts(keys.iter().copied())
            )
        }));
    }
    sql
}

/// An entry without a receipt is ours, and so is one whose time is over.
fn read_known(sets: &[super::Rows], now: Time) -> Result<Known> {
    let mut known = Known::new();
    for row in sets.iter().flatten() {
        let receipt = row.text(3)?;
        if !receipt.is_empty() && row.time(4)? > now {
            known.insert((TopicId(row.int(0)?), row.text(1)?), (row.blob(2)?, receipt));
        }
    }
    Ok(known)
}

/// Frees idempotency keys that were taken for units that are not stored.
fn give_back<'a>(session: &mut Session<'_>, entries: impl Iterator<Item = &'a Entry>) {
    for entry in entries {
        session.write(format!(
            "DELETE FROM tramline_idempotency WHERE topic = {} AND `key` = {}",
            entry.topic.0,
            text(&entry.key)
        ));
    }
}

fn write_receipts<'a>(
    session: &mut Session<'_>,
    emissions: impl Iterator<Item = (Option<&'a Entry>, &'a Emission)>,
) {
    let expires_at = session.now.after(idempotency::KEPT_FOR).0;
    let rows = emissions.filter_map(|(entry, emission)| {
        let entry = entry?;
        let receipt = text(&idempotency::receipt(&emission.events));
        Some(format!(
            "({},{},{},{receipt},{expires_at})",
            entry.topic.0,
            text(&entry.key),
            bytes(&entry.hash)
        ))
    });
    let head = "INSERT INTO tramline_idempotency (topic, `key`, hash, receipt, expires_at) VALUES ";
    let tail = overwrite(&["hash", "receipt", "expires_at"]);
    session.write_all(insert(head, rows, &tail, session.common.packet));
}

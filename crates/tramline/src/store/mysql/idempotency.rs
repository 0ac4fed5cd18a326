//! Emits that need more than one step: those with an idempotency key, where the same key gives the first receipt, those in tallies,
//! and those of unique events.

use super::MysqlStore;
use super::emit::{Drawn, draw_sql, share_topics, write};
use super::hoped::{Answered, Fresh, Hoped};
use super::session::{Begin, Rows, Session, VERSION};
use super::sql::{Columns, bytes, insert, overwrite, text};
use super::tally::place::place;
use super::unique;
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::emit::{TRIES, Units, restless};
use crate::store::idempotency::{self, Entry};
use crate::store::mend::cancel;
use crate::store::unique::{Sifted, Standings, entries as unique_entries, names, waves};
use crate::store::verbs::{Cancel, Emission};
use std::collections::BTreeMap;
use std::sync::Arc;

impl MysqlStore {
    /// A group of units that need more than one step, in one transaction.
    pub(super) async fn emit_by_steps(
        &self,
        units: &[Vec<Event>],
        now: Option<Time>,
    ) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic)).await?;
            let catalog = self.catalog().await?;
            let mut tx = self.begin().await?;
            match self.try_by_steps(&mut tx, units, &catalog, now).await {
                Ok(Some(answers)) => {
                    tx.keep();
                    return Ok(answers);
                }
                Ok(None) => {
                    tx.rollback().await;
                    self.common.cache.set(Arc::default());
                }
                Err(error) => {
                    tx.fail(&error).await;
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
        catalog: &Catalog,
        now: Option<Time>,
    ) -> Result<Option<Vec<Result<Emission>>>> {
        if waves(units).len() > 1 {
            let mut session = self.session(tx.conn(), &Begin::reading(now)).await?;
            let answers = self.emit_by_steps_in(&mut session, units).await?;
            if answers.is_some() {
                session.commit(Vec::new()).await?;
            }
            return Ok(answers);
        }
        let Some(hoped) = self.hope(units, catalog) else { return Ok(None) };
        let begin = Begin { now, locks: share_topics(&hoped.topics), ..Begin::default() };
        let (mut session, found) =
            Session::reading(tx.conn(), &self.common, &begin, hoped.statements()).await?;
        let Some(found) = found.filter(|_| session.catalog.version == catalog.version) else {
            return Ok(None);
        };
        let answers = self.emit_wave(&mut session, units, hoped, &found).await?;
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
        let mut answers: BTreeMap<usize, Result<Emission>> = BTreeMap::new();
        for wave in waves(units) {
            let some: Units = wave.iter().map(|at| units[*at].clone()).collect();
            let Some(hoped) = self.hope(&some, &session.catalog) else { return Ok(None) };
            let mut sql = share_topics(&hoped.topics);
            sql.push(VERSION.to_owned());
            sql.extend(hoped.statements());
            let mut sets = session.sets(sql).await?;
            let found = sets.split_off(hoped.topics.len() + 1);
            let version = sets.last().and_then(|rows| rows.first()).map_or(Ok(0), |row| row.int(0))?;
            if version != session.catalog.version {
                return Ok(None);
            }
            let Some(answered) = self.emit_wave(session, &some, hoped, &found).await? else {
                return Ok(None);
            };
            answers.extend(wave.into_iter().zip(answered));
        }
        Ok(Some(answers.into_values().collect()))
    }

    /// Locks topics, then idempotency keys, then unique keys, then tallies, then everything else. Topics are locked, and what was hoped
    /// for is found. `None` when the catalogue has changed.
    async fn emit_wave(
        &self,
        session: &mut Session<'_>,
        units: &[Vec<Event>],
        hoped: Hoped,
        found: &[Rows],
    ) -> Result<Option<Vec<Result<Emission>>>> {
        let catalog = session.catalog.clone();
        let Answered { known, standings, drawn } = hoped.read(found, session.now)?;
        let Hoped { entries, plan, .. } = hoped;
        let Fresh { units: mut fresh, first } = Fresh::of(&entries, &known);
        let mut new: Units = fresh.iter().map(|at| units[*at].clone()).collect();
        let names = names(new.iter().flatten(), &catalog);
        let standings = match standings {
            Some(standings) => standings,
            None if names.is_empty() => Standings::new(),
            None => unique::standings(session, &names).await?,
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
            let (plan, drawn) = match (plan, drawn) {
                (Some(plan), Some(drawn)) => (plan, drawn),
                _ => {
                    let Some(plan) = self.plan(&new, &catalog) else { return Ok(None) };
                    let drawn = match plan.chunks.is_empty() {
                        true => Drawn::nothing(),
                        false => Drawn::read(&plan, &session.sets(draw_sql(&plan, &self.common)).await?)?,
                    };
                    (plan, drawn)
                }
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

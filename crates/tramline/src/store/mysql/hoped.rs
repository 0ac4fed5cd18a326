//! What an emit by steps asks in its first round trip: it locks its idempotency keys and unique keys, and then draws numbers, in the
//! hope that nothing of it is known. If something is, the server locks and draws no more, and the emit goes on step by step: who only
//! repeats an emit must not wait for keys that others have locked.

use super::MysqlStore;
use super::emit::{Drawn, draw_hoped_sql};
use super::session::Rows;
use super::sql::{Columns, LIST, bytes, insert, text, texts};
use super::unique;
use crate::error::Result;
use crate::model::event::Event;
use crate::model::id::TopicId;
use crate::model::time::Time;
use crate::plan::emit::EmitPlan;
use crate::plan::tally::wanted;
use crate::store::catalog::Catalog;
use crate::store::emit::Units;
use crate::store::idempotency::Entry;
use crate::store::unique::{Standings, names};
use std::collections::{BTreeMap, BTreeSet};

/// What an idempotency key had: the digest of its unit, and the receipt.
pub(super) type Known = BTreeMap<(TopicId, String), (Vec<u8>, String)>;

/// How many idempotency and unique keys are in the way. Counted by the server, between the statements of a round trip.
pub(super) const IN_THE_WAY: &str = "@tramline_known";

/// What is asked.
pub(super) struct Hoped {
    pub(super) topics: BTreeSet<TopicId>,
    /// The idempotency keys of the units.
    pub(super) entries: Vec<Option<Entry>>,
    /// The plan of all of them, unless it depends on tallies.
    pub(super) plan: Option<EmitPlan>,
    keys: Vec<String>,
    unique: Vec<String>,
    draw: Vec<String>,
}

/// What was answered.
pub(super) struct Answered {
    pub(super) known: Known,
    /// Of the unique keys, if no idempotency key is known.
    pub(super) standings: Option<Standings>,
    /// For the plan, if nothing was in the way.
    pub(super) drawn: Option<Drawn>,
}

impl MysqlStore {
    /// `None` when a topic is not known.
    pub(super) fn hope(&self, units: &[Vec<Event>], catalog: &Catalog) -> Option<Hoped> {
        let entries: Vec<Option<Entry>> = units.iter().map(|unit| Entry::of(unit, catalog)).collect();
        let all: Units =
            Fresh::of(&entries, &Known::new()).units.iter().map(|at| units[*at].clone()).collect();
        let plan = self.plan(&all, catalog)?;
        let topics = units.iter().flatten().filter_map(|event| catalog.topic(&event.topic));
        let topics = topics.map(|topic| topic.id).collect();
        // Events that are items of tallies are numbered before they are planned.
        let plan = Some(plan).filter(|plan| !plan.chunks.is_empty() && wanted(&all).is_empty());
        let keys = take_keys_sql(&entries, self.common.packet);
        let unique = unique::hoped_sql(&names(all.iter().flatten(), catalog), catalog);
        let draw = plan.as_ref().map_or_else(Vec::new, draw_hoped_sql);
        Some(Hoped { topics, entries, plan, keys, unique, draw })
    }
}

impl Hoped {
    pub(super) fn statements(&self) -> Vec<String> {
        let all = self.keys.iter().chain(&self.unique).chain(&self.draw).cloned();
        all.chain([format!("SELECT {IN_THE_WAY}")]).collect()
    }

    pub(super) fn read(&self, sets: &[Rows], now: Time) -> Result<Answered> {
        let (keys, rest) = sets.split_at(self.keys.len());
        let (unique, rest) = rest.split_at(self.unique.len());
        let (draw, last) = rest.split_at(self.draw.len());
        let known = read_known(keys, now)?;
        let standings = if known.is_empty() { Some(unique::standings_of(unique)?) } else { None };
        let in_the_way = last.first().and_then(|rows| rows.first()).map_or(Ok(true), |row| row.flag(0))?;
        let drawn = match self.plan.as_ref().filter(|_| !in_the_way) {
            Some(plan) => Some(Drawn::read(plan, draw)?),
            None => None,
        };
        Ok(Answered { known, standings, drawn })
    }
}

/// The units that are to be stored: of those with one idempotency key the first, if that is not known.
pub(super) struct Fresh<'e> {
    pub(super) units: Vec<usize>,
    /// Whose each idempotency key is.
    pub(super) first: BTreeMap<(TopicId, &'e str), usize>,
}

impl Fresh<'_> {
    pub(super) fn of<'e>(entries: &'e [Option<Entry>], known: &Known) -> Fresh<'e> {
        let mut fresh = Fresh { units: Vec::new(), first: BTreeMap::new() };
        for (at, entry) in entries.iter().enumerate() {
            let Some(entry) = entry else {
                fresh.units.push(at);
                continue;
            };
            let name = (entry.topic, entry.key.as_str());
            if !known.contains_key(&(entry.topic, entry.key.clone())) && !fresh.first.contains_key(&name) {
                fresh.first.insert(name, at);
                fresh.units.push(at);
            }
        }
        fresh
    }
}

/// Takes idempotency keys, in sorted order, and reads what those had that were taken before. One that another transaction is just
/// taking is waited for. Locked for good at once, as the heads of keys are.
fn take_keys_sql(entries: &[Option<Entry>], packet: usize) -> Vec<String> {
    let keys: BTreeMap<(TopicId, &str), &Entry> =
        entries.iter().flatten().map(|entry| ((entry.topic, entry.key.as_str()), entry)).collect();
    let rows = keys
        .iter()
        .map(|((topic, key), entry)| format!("({},{},{},'',0)", topic.0, text(key), bytes(&entry.hash)));
    let head = "INSERT INTO tramline_idempotency (topic, `key`, hash, receipt, expires_at) VALUES ";
    let tail = " ON DUPLICATE KEY UPDATE expires_at = expires_at";
    let mut sql = insert(head, rows, tail, packet);
    sql.push(format!("SET {IN_THE_WAY} = 0"));
    let mut by_topic: BTreeMap<TopicId, Vec<&str>> = BTreeMap::new();
    for (topic, key) in keys.keys() {
        by_topic.entry(*topic).or_default().push(key);
    }
    for (TopicId(topic), keys) in &by_topic {
        for some in keys.chunks(LIST) {
            let these = format!(
                "FROM tramline_idempotency WHERE topic = {topic} AND `key` IN ({})",
                texts(some.iter().copied())
            );
            sql.push(format!("SELECT topic, `key`, hash, receipt, expires_at {these}"));
            // Not SET .. = (SELECT ..), which would lock what it reads.
            sql.push(format!(
                "SELECT {IN_THE_WAY} + COUNT(*) INTO {IN_THE_WAY} {these} \
                 AND receipt <> '' AND expires_at > @tramline_now"
            ));
        }
    }
    sql
}

/// An entry without a receipt is ours, and so is one whose time is over.
fn read_known(sets: &[Rows], now: Time) -> Result<Known> {
    let mut known = Known::new();
    for row in sets.iter().flatten() {
        let receipt = row.text(3)?;
        if !receipt.is_empty() && row.time(4)? > now {
            known.insert((TopicId(row.int(0)?), row.text(1)?), (row.blob(2)?, receipt));
        }
    }
    Ok(known)
}

//! Emits that have to wait for somebody's open transaction, and how the others go on meanwhile.

use super::PostgresStore;
use super::catalog;
use super::emit::{GROUP_WAIT, LONG_WAIT};
use super::session::{Begin, Session};
use super::step::{Tries, lost_against_another, step, waited_too_long};
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::TopicId;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::driver::answered;
use crate::store::emit::{Answers, busy, families, named};
use futures_util::future::join_all;
use sqlx::Row;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use tokio::time::Instant;

impl PostgresStore {
    /// Units with a new topic may have to wait until it can be created: the others go on at once.
    pub(super) async fn emit_all(
        &self,
        units: &[Vec<Event>],
        group: Vec<usize>,
        now: Option<Time>,
    ) -> Answers {
        let known = match self.catalog_for(units, &group).await {
            Ok(known) => known,
            Err(error) => return refused(group, &error),
        };
        let (old, new): (Vec<usize>, Vec<usize>) =
            group.into_iter().partition(|at| knows(&known, &units[*at]));
        if new.is_empty() {
            return self.emit_known(units, old, now).await;
        }
        let (mut answers, new) =
            tokio::join!(self.emit_known(units, old, now), self.emit_new(units, new, now));
        answers.extend(new);
        answers
    }

    /// Units with topics that have to be created first. That waits for every open transaction that has created one.
    async fn emit_new(&self, units: &[Vec<Event>], group: Vec<usize>, now: Option<Time>) -> Answers {
        let topics = || group.iter().flat_map(|at| &units[*at]).map(Event::topic);
        // One at a time, so that connections are left for all others.
        let created = match tokio::time::timeout(LONG_WAIT, self.creating.acquire()).await {
            Ok(_permit) => self.create_topics(topics(), Tries::few(), LONG_WAIT).await,
            Err(_) => Err(creating()),
        };
        match created {
            Ok(()) => self.emit_known(units, group, now).await,
            Err(error) if waited_too_long(&error) => refused(group, &creating()),
            Err(error) => refused(group, &error),
        }
    }

    /// Together if possible. Units whose keys are locked by somebody else's open transaction are set aside: the others go
    /// on at once, and those wait for longer, each key for itself.
    async fn emit_known(&self, units: &[Vec<Event>], group: Vec<usize>, now: Option<Time>) -> Answers {
        let error = match self.emit_together(units, &group, now, GROUP_WAIT).await {
            Ok(answers) => return group.into_iter().zip(answers).collect(),
            Err(error) => error,
        };
        if !waited_too_long(&error) && !lost_against_another(&error) {
            return refused(group, &error);
        }
        tracing::debug!(units = group.len(), "keys are locked by another transaction; emits are set aside");
        let looked = self.locked_keys(group.iter().flat_map(|at| &units[*at]));
        let locked = answered(self.answer, looked).await.unwrap_or_default();
        let (free, stuck) = families(units, group, &locked);
        let (mut answers, stuck) =
            tokio::join!(self.emit_free(units, free, now), self.emit_families(units, stuck, now));
        answers.extend(stuck);
        answers
    }

    /// Units whose keys nobody had locked a moment ago. If one is locked all the same, nobody knows which: each key takes its turn
    /// like those that are known to be locked, so that the others do not wait for it.
    async fn emit_free(&self, units: &[Vec<Event>], free: Vec<usize>, now: Option<Time>) -> Answers {
        match self.emit_together(units, &free, now, GROUP_WAIT).await {
            Ok(answers) => free.into_iter().zip(answers).collect(),
            Err(error) if waited_too_long(&error) => {
                let (keyless, mut all) = families(units, free, &HashSet::new());
                if !keyless.is_empty() {
                    all.push(keyless);
                }
                self.emit_families(units, all, now).await
            }
            Err(error) => refused(free, &error),
        }
    }

    /// Each family for itself, all at the same time.
    async fn emit_families(
        &self,
        units: &[Vec<Event>],
        families: Vec<Vec<usize>>,
        now: Option<Time>,
    ) -> Answers {
        let all = families.into_iter().map(|family| self.emit_family(units, family, now));
        join_all(all).await.into_iter().flatten().collect()
    }

    /// Units that wait for the same key. Only so many connections may wait that others are left.
    async fn emit_family(&self, units: &[Vec<Event>], family: Vec<usize>, now: Option<Time>) -> Answers {
        let result = match tokio::time::timeout(LONG_WAIT, self.waiting.acquire()).await {
            Ok(_permit) => self.emit_together(units, &family, now, LONG_WAIT).await,
            Err(_) => Err(busy()),
        };
        match result {
            Ok(answers) => family.into_iter().zip(answers).collect(),
            Err(error) if waited_too_long(&error) => refused(family, &busy()),
            Err(error) => refused(family, &error),
        }
    }

    /// The catalogue, read anew if it lacks a topic: another node may have created it.
    async fn catalog_for(&self, units: &[Vec<Event>], group: &[usize]) -> Result<Arc<Catalog>> {
        let known = self.cache.get();
        if group.iter().all(|at| knows(&known, &units[*at])) {
            return Ok(known);
        }
        step!(self, Tries::few(), |tx| self.session(tx, Begin::reading(None)), |session| async {
            Ok(session.catalog.clone())
        })
    }

    /// Creates topics for a transaction that is not ours: on a connection of our own, so that nobody has to wait for its end.
    /// Unless it has created topics itself; then it is the only one that can create others now.
    pub(super) async fn create_topics_for<'a>(
        &self,
        session: &mut Session<'_>,
        names: impl Iterator<Item = &'a str> + Clone + Send,
    ) -> Result<()> {
        let give_up = Instant::now() + LONG_WAIT;
        loop {
            match self.create_topics(names.clone(), Tries::few(), GROUP_WAIT).await {
                Err(error) if waited_too_long(&error) => {}
                result => return result,
            }
            if catalog::try_lock_catalog(session).await? {
                return catalog::create_missing(session, &names.collect::<Vec<_>>()).await.map(|_| ());
            }
            if Instant::now() >= give_up {
                return Err(creating());
            }
        }
    }

    /// Which keys of events somebody else has locked at this moment. Nothing stays locked.
    async fn locked_keys(
        &self,
        events: impl Iterator<Item = &Event> + Send,
    ) -> Result<HashSet<(TopicId, String)>> {
        let mut tx = self.begin().await?;
        let mut session = Session::new(&mut tx, &self.texts, &self.cache, Begin::default()).await?;
        let keys: BTreeSet<(TopicId, String)> =
            events.filter_map(|event| named(event, &session.catalog)).collect();
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

/// True if a catalogue has all topics of a unit.
fn knows(catalog: &Catalog, unit: &[Event]) -> bool {
    unit.iter().all(|event| catalog.topic(&event.topic).is_some())
}

/// The same answer for all of them.
fn refused(group: Vec<usize>, error: &Error) -> Answers {
    group.into_iter().map(|at| (at, Err(error.share()))).collect()
}

/// Somebody keeps others from creating topics.
fn creating() -> Error {
    Error::unavailable(
        "another transaction has created a topic and is still open, so no other topic can be created",
        "end that transaction, or create topics before they are used; then emit again",
    )
}

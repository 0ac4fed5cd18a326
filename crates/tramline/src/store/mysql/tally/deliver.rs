//! Delivery: news leave the outbox in the transaction that emits them, so each is told exactly once.

use super::ack;
use crate::error::{Kind, Result};
use crate::model::event::Event;
use crate::model::id::{SubscriptionId, TallyId};
use crate::model::tally::Ack;
use crate::model::tally::news::Outgoing;
use crate::store::emit::{TRIES, restless};
use crate::store::mysql::MysqlStore;
use crate::store::mysql::session::{Begin, Session};
use crate::store::mysql::sql::{Columns, list};
use crate::store::mysql::step::{Transaction, Tries, step};
use crate::store::tally::news;
use crate::store::verbs::Emission;
use crate::store::verbs_tally::{Deliver, Delivered};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What waits in the outbox: its number, the news, and the event that was kept for the occasion.
struct Waiting {
    id: i64,
    out: Outgoing,
    kept: Option<String>,
}

impl MysqlStore {
    /// Events and parents in steps of their own: whoever holds the head of a key must not wait for a tally.
    pub(in crate::store::mysql) async fn deliver_news(&self, deliver: Deliver) -> Result<Delivered> {
        let mut delivered = self.deliver_events(deliver).await?;
        let begin = Begin { now: deliver.now, ..Begin::default() };
        let parents = step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
            tell_parents(session, deliver.limit)
        })?;
        delivered.count += parents.count;
        delivered.completed = parents.completed;
        delivered.more |= parents.more;
        Ok(delivered)
    }

    async fn deliver_events(&self, deliver: Deliver) -> Result<Delivered> {
        let mut tries = Tries::few();
        for _ in 0..TRIES {
            let mut tx = self.begin().await?;
            match self.try_deliver(&mut tx, deliver).await {
                Ok(Attempt::Delivered(delivered)) => {
                    tx.keep();
                    return Ok(delivered);
                }
                Ok(Attempt::UnknownTopics(events)) => {
                    tx.rollback().await;
                    self.create_topics(events.iter().map(Event::topic)).await?;
                }
                Ok(Attempt::OldCatalog) => {
                    tx.rollback().await;
                    self.common.cache.set(Arc::default());
                }
                Err(error) => {
                    if let Some(result) = tries.end(tx, Err(error)).await {
                        return result;
                    }
                }
            }
        }
        Err(restless())
    }

    async fn try_deliver(&self, tx: &mut Transaction<'_>, deliver: Deliver) -> Result<Attempt> {
        let mut session = self.session(tx.conn(), &Begin::reading(deliver.now)).await?;
        let waiting = waiting(&mut session, deliver.limit).await?;
        let events: Vec<Event> = waiting
            .iter()
            .filter_map(|waiting| Some(waiting.out.event(waiting.kept.as_deref()?)))
            .collect::<Result<_>>()?;
        if events.iter().any(|event| session.catalog.topic(&event.topic).is_none()) {
            return Ok(Attempt::UnknownTopics(events));
        }
        let units: Vec<Vec<Event>> = events.into_iter().map(|event| vec![event]).collect();
        let mut wake = Vec::new();
        if !units.is_empty() {
            let Some(answers) = self.emit_by_steps_in(&mut session, &units).await? else {
                return Ok(Attempt::OldCatalog);
            };
            wake = woken(answers)?;
        }
        remove(&mut session, waiting.iter().map(|waiting| waiting.id));
        session.commit(Vec::new()).await?;
        let count = waiting.len() as u64;
        let more = count >= u64::from(deliver.limit);
        Ok(Attempt::Delivered(Delivered { count, wake, more, ..Delivered::default() }))
    }
}

/// What became of an attempt to deliver.
enum Attempt {
    Delivered(Delivered),
    /// Topics have to be created first.
    UnknownTopics(Vec<Event>),
    /// The catalogue has changed meanwhile.
    OldCatalog,
}

/// One that is refused will never be taken: its key was used by somebody else.
fn woken(answers: Vec<Result<Emission>>) -> Result<Vec<SubscriptionId>> {
    let mut wake = BTreeSet::new();
    for answer in answers {
        match answer {
            Ok(emission) => wake.extend(emission.wake),
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => tracing::error!(error = %error, "the event of a tally was refused and is lost"),
        }
    }
    Ok(wake.into_iter().collect())
}

/// News that emit an event, locked; those that another node is just delivering are left to it.
async fn waiting(session: &mut Session<'_>, limit: u32) -> Result<Vec<Waiting>> {
    let sql = format!(
        "SELECT id, tally, news, total, done, failed, item FROM tramline_tally_outbox FORCE INDEX (PRIMARY) \
         WHERE news < 3 ORDER BY id LIMIT {limit} FOR UPDATE SKIP LOCKED"
    );
    let rows = session.rows(sql).await?;
    let mut found = Vec::new();
    for row in &rows {
        let out = Outgoing {
            tally: TallyId(row.int(1)?),
            news: news(row.small(2)?)?,
            total: row.count(3)?,
            done: row.count(4)?,
            failed: row.count(5)?,
            item: row.maybe_int(6)?.map(i64::cast_unsigned),
        };
        found.push(Waiting { id: row.int(0)?, out, kept: None });
    }
    if found.is_empty() {
        return Ok(found);
    }
    let tallies = list(found.iter().map(|waiting| waiting.out.tally.0));
    let sql =
        format!("SELECT tally, kind, body FROM tramline_tally_note WHERE tally IN ({tallies}) AND kind >= 0");
    let mut notes = BTreeMap::new();
    for row in session.rows(sql).await? {
        notes.insert((row.int(0)?, row.int(1)?), row.text(2)?);
    }
    for waiting in &mut found {
        waiting.kept = notes.get(&(waiting.out.tally.0, waiting.out.news as i64)).cloned();
    }
    Ok(found)
}

fn remove(session: &mut Session<'_>, ids: impl Iterator<Item = i64>) {
    session.write(format!("DELETE FROM tramline_tally_outbox WHERE id IN ({})", list(ids)));
}

/// Ends the items that tallies stand for.
async fn tell_parents(session: &mut Session<'_>, limit: u32) -> Result<Delivered> {
    let sql = format!(
        "SELECT id, news, tally FROM tramline_tally_outbox FORCE INDEX (PRIMARY) WHERE news >= 3 ORDER BY id LIMIT {limit} \
         FOR UPDATE SKIP LOCKED"
    );
    let rows = session.rows(sql).await?;
    if rows.is_empty() {
        return Ok(Delivered::default());
    }
    let tallies: Vec<i64> = rows.iter().map(|row| row.int(2)).collect::<Result<_>>()?;
    let sql = format!(
        "SELECT id, parent_tally, parent_item FROM tramline_tally WHERE id IN ({}) AND parent_tally IS NOT NULL",
        list(tallies)
    );
    let mut parents = BTreeMap::new();
    for row in session.rows(sql).await? {
        parents.insert(row.int(0)?, (TallyId(row.int(1)?), row.count(2)?));
    }
    let (mut acks, mut told) = (Vec::new(), Vec::new());
    for row in &rows {
        let Some((tally, item)) = parents.get(&row.int(2)?) else { continue };
        told.push(row.int(0)?);
        if let Some(ending) = news(row.small(1)?)?.for_parent() {
            acks.push(Ack { tally: *tally, items: vec![(*item).into()], ending });
        }
    }
    remove(session, told.into_iter());
    let acked = ack::end(session, &acks, false, 0).await?;
    let count = acks.len() as u64;
    Ok(Delivered {
        count,
        wake: Vec::new(),
        completed: acked.completed.into_iter().map(|completed| completed.id).collect(),
        more: count >= u64::from(limit) || !acked.news.is_empty(),
    })
}

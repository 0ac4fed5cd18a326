//! Delivery: news leave the outbox in the transaction that emits them, so each is told exactly once.

use super::ack;
use crate::error::{Kind, Result};
use crate::model::event::Event;
use crate::model::id::{SubscriptionId, TallyId};
use crate::model::tally::Ack;
use crate::model::tally::news::Outgoing;
use crate::store::driver::answered;
use crate::store::emit::{TRIES, restless};
use crate::store::postgres::session::{Begin, Session};
use crate::store::postgres::step::{Tries, step};
use crate::store::postgres::{PATIENCE, PostgresStore};
use crate::store::tally::news;
use crate::store::verbs::Emission;
use crate::store::verbs_tally::{Deliver, Delivered};
use sqlx::Row;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What waits in the outbox: its number, the news, and the event that was kept for the occasion.
struct Waiting {
    id: i64,
    out: Outgoing,
    kept: Option<String>,
}

impl PostgresStore {
    /// Events and parents in steps of their own: whoever holds the head of a key must not wait for a tally.
    pub(in crate::store::postgres) async fn deliver_news(&self, deliver: Deliver) -> Result<Delivered> {
        let mut delivered = answered(self.answer, self.deliver_events(deliver)).await?;
        let begin = Begin { now: deliver.now, ..Begin::default() };
        let parents = step!(self, Tries::few(), |tx| self.session(tx, begin), |session| {
            tell_parents(session, deliver.limit)
        })?;
        delivered.count += parents.count;
        delivered.completed = parents.completed;
        delivered.more |= parents.more;
        Ok(delivered)
    }

    async fn deliver_events(&self, deliver: Deliver) -> Result<Delivered> {
        for _ in 0..TRIES {
            let mut tx = self.begin().await?;
            let begin = Begin { now: deliver.now, ..Begin::default() };
            let mut session = self.session(&mut tx, begin).await?;
            let waiting = waiting(&mut session, deliver.limit).await?;
            let events: Vec<Event> = waiting
                .iter()
                .filter_map(|waiting| Some(waiting.out.event(waiting.kept.as_deref()?)))
                .collect::<Result<_>>()?;
            if events.iter().any(|event| session.catalog.topic(&event.topic).is_none()) {
                tx.rollback().await?;
                self.create_topics(events.iter().map(Event::topic), Tries::few(), PATIENCE).await?;
                continue;
            }
            let units: Vec<Vec<Event>> = events.into_iter().map(|event| vec![event]).collect();
            let mut wake = Vec::new();
            if !units.is_empty() {
                let Some(answers) = self.emit_by_steps_in(&mut session, &units).await? else {
                    tx.rollback().await?;
                    self.cache.set(Arc::default());
                    continue;
                };
                wake = woken(answers)?;
            }
            remove(&mut session, &waiting).await?;
            tx.commit().await?;
            let count = waiting.len() as u64;
            return Ok(Delivered {
                count,
                wake,
                more: count >= u64::from(deliver.limit),
                ..Delivered::default()
            });
        }
        Err(restless())
    }
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
    let sql = "SELECT o.id, o.tally, o.news, o.total, o.done, o.failed, o.item, n.body FROM tramline_tally_outbox o \
               LEFT JOIN tramline_tally_note n ON n.tally = o.tally AND n.kind = o.news \
               WHERE o.news < 3 ORDER BY o.id LIMIT $1 FOR UPDATE OF o SKIP LOCKED";
    let query = session.query(sql).bind(i64::from(limit));
    let mut found = Vec::new();
    for row in session.all(query).await? {
        let count = |at: usize| row.try_get::<i64, _>(at).map(i64::cast_unsigned);
        let out = Outgoing {
            tally: TallyId(row.try_get(1)?),
            news: news(row.try_get(2)?)?,
            total: count(3)?,
            done: count(4)?,
            failed: count(5)?,
            item: row.try_get::<Option<i64>, _>(6)?.map(i64::cast_unsigned),
        };
        found.push(Waiting { id: row.try_get(0)?, out, kept: row.try_get(7)? });
    }
    Ok(found)
}

async fn remove(session: &mut Session<'_>, waiting: &[Waiting]) -> Result<()> {
    let ids: Vec<i64> = waiting.iter().map(|waiting| waiting.id).collect();
    let query = session.query("DELETE FROM tramline_tally_outbox WHERE id = ANY($1)").bind(ids);
    session.run(query).await.map(|_| ())
}

/// Ends the items that tallies stand for.
async fn tell_parents(session: &mut Session<'_>, limit: u32) -> Result<Delivered> {
    let sql = "DELETE FROM tramline_tally_outbox d USING (SELECT o.id, o.news, t.parent_tally, t.parent_item \
               FROM tramline_tally_outbox o JOIN tramline_tally t ON t.id = o.tally \
               WHERE o.news >= 3 AND t.parent_tally IS NOT NULL ORDER BY o.id LIMIT $1 FOR UPDATE OF o SKIP LOCKED) o \
               WHERE d.id = o.id RETURNING o.news, o.parent_tally, o.parent_item";
    let query = session.query(sql).bind(i64::from(limit));
    let mut acks = Vec::new();
    for row in session.all(query).await? {
        let Some(ending) = news(row.try_get(0)?)?.for_parent() else { continue };
        let items = vec![row.try_get::<i64, _>(2)?.cast_unsigned().into()];
        acks.push(Ack { tally: TallyId(row.try_get(1)?), items, ending });
    }
    let acked = ack::end(session, &acks, false, 0).await?;
    let count = acks.len() as u64;
    Ok(Delivered {
        count,
        wake: Vec::new(),
        completed: acked.completed.into_iter().map(|completed| completed.id).collect(),
        more: count >= u64::from(limit) || !acked.news.is_empty(),
    })
}

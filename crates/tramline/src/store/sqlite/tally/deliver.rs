//! Delivery: news leave the outbox in the transaction that emits them, so each is told exactly once.

use super::{ack, rows};
use crate::error::{Kind, Result};
use crate::model::event::Event;
use crate::model::id::{SubscriptionId, TallyId};
use crate::model::tally::Ack;
use crate::model::tally::news::Outgoing;
use crate::store::sqlite::emit;
use crate::store::sqlite::session::{CatalogCache, Session};
use crate::store::tally::news;
use crate::store::verbs_tally::{Deliver, Delivered};
use rusqlite::Connection;
use std::collections::BTreeSet;

pub(in crate::store::sqlite) fn deliver(
    session: &Session<'_>,
    deliver: Deliver,
    cache: &CatalogCache,
) -> Result<Delivered> {
    let waiting = waiting(session.conn, deliver.limit)?;
    let mut delivered = Delivered { count: waiting.len() as u64, ..Delivered::default() };
    let (mut events, mut acks): (Vec<Event>, Vec<Ack>) = (Vec::new(), Vec::new());
    for (_, out) in &waiting {
        match out.news.for_parent() {
            Some(ending) => {
                let sql = "SELECT parent_tally, parent_item FROM tramline_tally WHERE id = ?";
                let (tally, item): (i64, i64) = session
                    .conn
                    .prepare_cached(sql)?
                    .query_row([out.tally.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let items = vec![item.cast_unsigned().into()];
                acks.push(Ack { tally: TallyId(tally), items, ending });
            }
            None => {
                if let Some(kept) = rows::note(session.conn, out.tally, out.news as i16)? {
                    events.push(out.event(&kept)?);
                }
            }
        }
    }
    for (id, _) in &waiting {
        session.conn.prepare_cached("DELETE FROM tramline_tally_outbox WHERE id = ?")?.execute([id])?;
    }
    delivered.wake = emit_all(session, events, cache)?;
    let acked = ack::end(session, &acks, false, 0)?;
    delivered.completed = acked.completed.into_iter().map(|completed| completed.id).collect();
    delivered.more = delivered.count >= u64::from(deliver.limit) || !acked.news.is_empty();
    Ok(delivered)
}

fn waiting(conn: &Connection, limit: u32) -> Result<Vec<(i64, Outgoing)>> {
    let sql =
        "SELECT id, tally, news, total, done, failed, item FROM tramline_tally_outbox ORDER BY id LIMIT ?";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([i64::from(limit)])?;
    let mut waiting = Vec::new();
    while let Some(row) = rows.next()? {
        let count = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let out = Outgoing {
            tally: TallyId(row.get(1)?),
            news: news(row.get(2)?)?,
            total: count(3)?,
            done: count(4)?,
            failed: count(5)?,
            item: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
        };
        waiting.push((row.get(0)?, out));
    }
    Ok(waiting)
}

/// Emits each event for itself. One that is refused will never be taken: its key was used by somebody else.
fn emit_all(session: &Session<'_>, events: Vec<Event>, cache: &CatalogCache) -> Result<Vec<SubscriptionId>> {
    let mut wake = BTreeSet::new();
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let units = events.into_iter().map(|event| vec![event]).collect();
    for emission in emit::emit(session.conn, units, Some(session.now), cache)? {
        match emission {
            Ok(emission) => wake.extend(emission.wake),
            Err(error) if error.kind() == Kind::Unavailable => return Err(error),
            Err(error) => tracing::error!(error = %error, "the event of a tally was refused and is lost"),
        }
    }
    Ok(wake.into_iter().collect())
}

//! The inbox: a table into which programs in other languages insert, in their own transactions, and from which any node emits.
//!
//! A stored procedure would have to hold the locks of an emit in transactions that it does not know, read the catalogue as it was when
//! a REPEATABLE READ transaction began, and decide filters in SQL. An insert needs none of that, and no right but to insert.

use super::MysqlStore;
use super::session::{Begin, Session};
use super::sql::{Columns, numbered, text};
use super::step::{Transaction, lost_against_another, pause, waited_too_long};
use crate::error::{Error, Result};
use crate::model::event::{Event, Headers};
use crate::model::id::SubscriptionId;
use crate::store::emit::{TRIES, restless};
use crate::store::verbs::Emission;
use sqlx::mysql::MySqlRow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How many rows one step emits at most, and how many bytes of payload.
const ROWS: usize = 64;
const BYTES: u64 = 4 << 20;
/// How many steps one call takes at most, so that whoever calls gets on.
const STEPS: u32 = 64;

/// Who has it is the only one to emit from the inbox: two at once would change the order.
const LOCK: &str = "SELECT value FROM tramline_meta WHERE name = 'inbox' FOR UPDATE SKIP LOCKED";
/// Uses `tramline_inbox_refused`. Rows of open transactions are not seen, and not waited for.
const WAITING: &str =
    "SELECT id, LENGTH(payload), topic, `key` FROM tramline_inbox WHERE refused = 0 ORDER BY id LIMIT 64";

/// A row that waits.
struct Waiting {
    id: i64,
    bytes: u64,
    about: (String, Option<String>),
}

/// What became of a step.
enum Step {
    /// Another node is at it, or there is nothing.
    Idle,
    /// Some rows were emitted or refused.
    Took(Vec<SubscriptionId>),
    UnknownTopics(Vec<Event>),
    /// The catalogue has changed meanwhile.
    OldCatalog,
}

/// Which rows a step takes.
#[derive(Clone, Copy)]
enum Which {
    First,
    Only(i64),
}

impl MysqlStore {
    /// Emits what waits in the inbox. Gives the subscriptions that have something to do by it.
    pub(crate) async fn take_in(&self) -> Result<BTreeSet<SubscriptionId>> {
        let mut wake = BTreeSet::new();
        for _ in 0..STEPS {
            match self.take_step(Which::First).await {
                Ok(Some(woken)) => wake.extend(woken),
                Ok(None) => break,
                // Somebody's open transaction has a key: all others go on, each row for itself.
                Err(error) if waited_too_long(&error) => {
                    wake.extend(self.take_each().await?);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(wake)
    }

    /// One by one. What follows a row that has to wait, of the same key, waits with it.
    async fn take_each(&self) -> Result<BTreeSet<SubscriptionId>> {
        let mut conn = self.begin().await?;
        let mut session = self.session(conn.conn(), &Begin::default()).await?;
        let rows = waiting(&session.rows(WAITING).await?)?;
        conn.rollback().await;
        let (mut wake, mut stuck) = (BTreeSet::new(), BTreeSet::new());
        for row in rows {
            if stuck.contains(&row.about) {
                continue;
            }
            match self.take_step(Which::Only(row.id)).await {
                Ok(woken) => wake.extend(woken.into_iter().flatten()),
                Err(error) if waited_too_long(&error) => {
                    stuck.insert(row.about);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(wake)
    }

    /// `None`: nothing is left for this node to do.
    async fn take_step(&self, which: Which) -> Result<Option<Vec<SubscriptionId>>> {
        for tried in 1..=TRIES {
            let mut tx = self.begin().await?;
            match self.try_take(&mut tx, which).await {
                Ok(Step::Took(wake)) => {
                    tx.keep();
                    return Ok(Some(wake));
                }
                Ok(Step::Idle) => {
                    tx.rollback().await;
                    return Ok(None);
                }
                Ok(Step::UnknownTopics(events)) => {
                    tx.rollback().await;
                    self.create_topics(events.iter().map(Event::topic)).await?;
                }
                Ok(Step::OldCatalog) => {
                    tx.rollback().await;
                    self.common.cache.set(Arc::default());
                }
                Err(error) => {
                    tx.fail(&error).await;
                    if !lost_against_another(&error) {
                        return Err(error);
                    }
                    pause(tried, &error).await;
                }
            }
        }
        Err(restless())
    }

    async fn try_take(&self, tx: &mut Transaction<'_>, which: Which) -> Result<Step> {
        let mut session = self.session(tx.conn(), &Begin::default()).await?;
        let sets = session.sets(vec![LOCK.to_owned(), WAITING.to_owned()]).await?;
        let mut rows = waiting(&sets[1])?;
        if let Which::Only(id) = which {
            rows.retain(|row| row.id == id);
        }
        if sets[0].is_empty() || rows.is_empty() {
            return Ok(Step::Idle);
        }
        let (ids, parsed) = read(&mut session, &within_a_step(&rows)).await?;
        let units: Vec<Vec<Event>> = parsed.iter().flatten().map(|event| vec![event.clone()]).collect();
        let is_unknown = |event: &Event| session.catalog.topic(event.topic()).is_none();
        if units.iter().flatten().any(is_unknown) {
            return Ok(Step::UnknownTopics(units.into_iter().flatten().collect()));
        }
        let mut answers = match units.is_empty() {
            true => Vec::new(),
            false => match self.emit_by_steps_in(&mut session, &units).await? {
                Some(answers) => answers,
                None => return Ok(Step::OldCatalog),
            },
        }
        .into_iter();
        let ended = parsed
            .into_iter()
            .map(|event| event.and_then(|_| answers.next().unwrap_or_else(|| Err(restless()))));
        let wake = write(&mut session, ids.into_iter().zip(ended));
        session.commit(Vec::new()).await?;
        Ok(Step::Took(wake))
    }
}

fn waiting(rows: &[MySqlRow]) -> Result<Vec<Waiting>> {
    let one = |row: &MySqlRow| {
        Ok(Waiting { id: row.int(0)?, bytes: row.count(1)?, about: (row.text(2)?, row.maybe_text(3)?) })
    };
    rows.iter().map(one).collect()
}

/// The first ones, and not beyond the bytes that a step may have; one at least.
fn within_a_step(rows: &[Waiting]) -> Vec<i64> {
    let mut sum = 0;
    let fits = |row: &&Waiting| {
        sum += row.bytes;
        sum <= BYTES
    };
    let count = rows.iter().take(ROWS).take_while(fits).count().max(1);
    rows.iter().take(count).map(|row| row.id).collect()
}

/// Rows as events, or why they are none.
async fn read(session: &mut Session<'_>, ids: &[i64]) -> Result<(Vec<i64>, Vec<Result<Event>>)> {
    let sql = format!(
        "SELECT i.id, i.topic, i.type, i.`key`, i.payload, i.content_type, i.headers, i.priority, i.delay_ms, i.idempotency_key \
         FROM {} STRAIGHT_JOIN tramline_inbox i ON i.id = n.a",
        numbered(ids.iter().copied())
    );
    let rows = session.rows(sql).await?;
    let ids = rows.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
    Ok((ids, rows.iter().map(event).collect()))
}

fn event(row: &MySqlRow) -> Result<Event> {
    let mut event = Event::new(row.text(1)?, row.blob(4)?).kind(row.text(2)?).content_type(row.text(5)?);
    event.key = row.maybe_text(3)?;
    event.idempotency_key = row.maybe_text(9)?;
    if let Some(headers) = row.maybe_text(6)? {
        event.headers = serde_json::from_str::<Headers>(&headers).map_err(|error| {
            Error::invalid("the headers are no object of texts", "insert it again with such").because(error)
        })?;
    }
    let event = event
        .priority(row.int(7)?.clamp(0, 255) as u8)
        .delay(Duration::from_millis(row.int(8)?.max(0).cast_unsigned()));
    event.check()?;
    Ok(event)
}

/// Removes what was emitted, and marks what cannot be.
fn write(
    session: &mut Session<'_>,
    ended: impl Iterator<Item = (i64, Result<Emission>)>,
) -> Vec<SubscriptionId> {
    let (mut wake, mut gone) = (Vec::new(), Vec::new());
    for (id, ended) in ended {
        match ended {
            Ok(emission) => {
                wake.extend(emission.wake);
                gone.push(id);
            }
            Err(error) => {
                tracing::warn!(inbox.id = id, %error, "a row of tramline_inbox cannot be emitted");
                let why = text(&format!("{}; {}", error.message(), error.remedy()));
                session.write(format!(
                    "UPDATE tramline_inbox SET refused = 1, error = CONVERT({why} USING utf8mb4) WHERE id = {id}"
                ));
            }
        }
    }
    session.write(format!("DELETE i FROM {} STRAIGHT_JOIN tramline_inbox i ON i.id = n.a", numbered(gone)));
    wake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_what_fits_and_one_row_at_least() {
        let row = |id, bytes| Waiting { id, bytes, about: (String::new(), None) };
        assert_eq!(within_a_step(&[row(1, BYTES * 2), row(2, 1)]), [1]);
        assert_eq!(within_a_step(&[row(1, BYTES), row(2, 1)]), [1]);
        assert_eq!(within_a_step(&[row(1, 1), row(2, 1)]), [1, 2]);
    }
}

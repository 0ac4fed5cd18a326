//! The outbox: what tallies have to tell, until it is delivered.

use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::news::Outgoing;
use crate::store::redis::catalog::written;
use crate::store::redis::pack::damaged;
use crate::store::redis::session::Session;
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::tally::news;

/// News as they wait, by number: tally, news, total, done, failed, item.
type Waiting = (i64, i16, u64, u64, u64, Option<u64>);

/// Puts news into the outbox.
pub(super) fn put_out(session: &Session<'_>, outbox: &[Outgoing]) -> Result<()> {
    for out in outbox {
        let number = session.draw("outbox", 1)?;
        let row: Waiting = (out.tally.0, out.news as i16, out.total, out.done, out.failed, out.item);
        session.enter(session.key("outbox"), Tuple::new().with(&[number]).carrying(&written(&row)));
        session.enter(session.key("outbox_tallies"), Tuple::new().with(&[out.tally.0, number]).bytes());
    }
    Ok(())
}

/// The first news in the outbox, each with its entry.
pub(super) fn waiting(session: &Session<'_>, limit: u32) -> Result<Vec<(Vec<u8>, Outgoing)>> {
    let mut waiting = Vec::new();
    for member in session.range(&session.key("outbox"), Tuple::new().all(), limit as usize)? {
        let mut columns = Columns(&member);
        columns.number();
        let (tally, of, total, done, failed, item): Waiting =
            serde_json::from_slice(columns.load()).map_err(|error| damaged().because(error))?;
        let out = Outgoing { tally: TallyId(tally), news: news(of)?, total, done, failed, item };
        waiting.push((member, out));
    }
    Ok(waiting)
}

pub(super) fn take_out(session: &Session<'_>, member: Vec<u8>, tally: TallyId) {
    let number = Columns(&member).number();
    session.withdraw(session.key("outbox_tallies"), Tuple::new().with(&[tally.0, number]).bytes());
    session.withdraw(session.key("outbox"), member);
}

/// True if a tally has something to tell.
pub(super) fn has_news(session: &Session<'_>, tally: TallyId) -> Result<bool> {
    let of_tally = Tuple::new().with(&[tally.0]).all();
    Ok(!session.range(&session.key("outbox_tallies"), of_tally, 1)?.is_empty())
}

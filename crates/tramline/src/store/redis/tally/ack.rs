//! Acks: parts first, then the rows of their tallies.

use super::{parts, rows};
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::Ack;
use crate::model::tally::part::{Part, PartId};
use crate::plan::tally::{Acks, gather};
use crate::store::redis::Role;
use crate::store::redis::rows::{expect_chunks, one_chunk};
use crate::store::redis::session::Session;
use crate::store::redis::spread::owed::owe;
use crate::store::tally::Ended;
use crate::store::verbs_tally::{AckItems, AckedItems, CompletedTally};
use std::collections::{BTreeMap, HashMap};

pub(in crate::store::redis) fn ack(session: &Session<'_>, ack: &AckItems) -> Result<AckedItems> {
    end(session, &ack.acks, false, ack.by)
}

/// Events that are items of tallies have ended: so have the items.
pub(in crate::store::redis) fn events_ended(session: &Session<'_>, ended: &[Ended]) -> Result<Vec<TallyId>> {
    expect_chunks(session, ended.iter().map(|ended| ended.chunk))?;
    let mut items = Vec::new();
    for of_chunk in ended.chunk_by(|a, b| a.chunk == b.chunk) {
        let Some(row) = one_chunk(session, of_chunk[0].chunk)? else { continue };
        for Ended { subscription, mask, ending, .. } in of_chunk {
            items.extend(row.items(*subscription, *mask)?.into_iter().map(|item| (item, *ending)));
        }
    }
    let acks = gather(items);
    if session.role == Role::Site {
        return owe(session, &acks).map(|()| Vec::new());
    }
    Ok(end(session, &acks, true, 0)?.news)
}

/// Ends items. With `amend`, failed ones become done.
pub(in crate::store::redis) fn end(
    session: &Session<'_>,
    acks: &[Ack],
    amend: bool,
    by: i64,
) -> Result<AckedItems> {
    let acks = Acks::new(acks, amend);
    rows::expect(session, acks.tallies().into_iter())?;
    let mut standings = HashMap::new();
    let mut acked = AckedItems::default();
    for tally in acks.tallies() {
        let Some(row) = rows::one(session, tally)? else { continue };
        if row.was_completed_by(by) {
            acked.completed.push(CompletedTally { id: tally, user_key: row.user_key.clone() });
        }
        standings.insert(tally, row.standing(session.now));
    }
    let mut parts: BTreeMap<PartId, Part> = BTreeMap::new();
    let wanted = acks.parts();
    let known = parts::expect_parts(session, wanted.iter())?;
    for id in wanted {
        if let Some(part) = parts::part(session, id, &known)? {
            parts.insert(id, part);
        }
    }
    let outcome = acks.apply(&standings, &mut parts);
    for id in &outcome.changed {
        parts::write_part(session, *id, &parts[id], session.now)?;
    }
    acked.results = outcome.results;
    for (tally, delta) in outcome.deltas {
        let mut row = rows::require(session, tally)?;
        if !delta.concerns(row.tells.awaits_failure()) {
            continue;
        }
        let mut outbox = Vec::new();
        let completed = row.take(&delta, by, session.now, &mut outbox);
        rows::write(session, &row, &outbox)?;
        if completed {
            acked.completed.push(CompletedTally { id: tally, user_key: row.user_key });
        }
        if completed || !outbox.is_empty() {
            acked.news.push(tally);
        }
    }
    Ok(acked)
}

//! Acks: parts first, then the rows of their tallies.

use super::rows;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::Ack;
use crate::plan::tally::{Acks, gather};
use crate::store::postgres::rows::metas;
use crate::store::postgres::session::{Ended, Session};
use crate::store::verbs_tally::{AckItems, AckedItems, CompletedTally};
use std::collections::BTreeSet;

pub(in crate::store::postgres) async fn ack(session: &mut Session<'_>, ack: &AckItems) -> Result<AckedItems> {
    end(session, &ack.acks, false, ack.by).await
}

/// Events that are items of tallies have ended: so have the items.
pub(in crate::store::postgres) async fn events_ended(
    session: &mut Session<'_>,
    ended: &[Ended],
) -> Result<Vec<TallyId>> {
    let chunks = metas(session, ended.iter().map(|ended| ended.chunk)).await?;
    let mut items = Vec::new();
    for Ended { subscription, chunk, mask, ending } in ended {
        let Some(row) = chunks.get(chunk) else { continue };
        items.extend(row.items(*subscription, *mask)?.into_iter().map(|item| (item, *ending)));
    }
    Ok(end(session, &gather(items), true, 0).await?.news)
}

/// Ends items. With `amend`, failed ones become done.
///
/// Tallies are looked at after their parts are locked: a call that is repeated because its answer was lost may meet itself, and
/// learns here that it was the one that completed. Rows of tallies are locked after all parts, and only if a part was finished
/// or a first failure is to be told: two calls that each finish one of the last two parts meet there, and the second one sees
/// what the first one did.
pub(super) async fn end(session: &mut Session<'_>, acks: &[Ack], amend: bool, by: i64) -> Result<AckedItems> {
    let acks = Acks::new(acks, amend);
    let mut parts = rows::lock_parts(session, &acks.parts()).await?;
    let known = rows::look(session, &acks.tallies()).await?;
    let mut acked = AckedItems::default();
    for row in known.values().filter(|row| row.was_completed_by(by)) {
        acked.completed.push(CompletedTally { id: row.id, user_key: row.user_key.clone() });
    }
    let standings = known.iter().map(|(id, row)| (*id, row.standing(session.now))).collect();
    let outcome = acks.apply(&standings, &mut parts);
    let changed: Vec<_> = outcome.changed.iter().map(|id| (*id, &parts[id])).collect();
    rows::write_parts(session, &changed).await?;
    acked.results = outcome.results;
    let concerned: BTreeSet<TallyId> = outcome
        .deltas
        .iter()
        .filter(|(id, delta)| delta.concerns(known.get(id).is_some_and(|row| row.tells.awaits_failure())))
        .map(|(id, _)| *id)
        .collect();
    let mut locked = rows::lock(session, &concerned).await?;
    let mut outbox = Vec::new();
    for (id, row) in &mut locked {
        let before = outbox.len();
        let completed = row.take(&outcome.deltas[id], by, session.now, &mut outbox);
        if completed {
            acked.completed.push(CompletedTally { id: *id, user_key: row.user_key.clone() });
        }
        if completed || outbox.len() > before {
            acked.news.push(*id);
        }
    }
    rows::write(session, &locked.values().collect::<Vec<_>>(), &outbox).await?;
    Ok(acked)
}

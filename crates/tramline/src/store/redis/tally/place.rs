//! Events that are emitted as items of tallies.

use super::{ack, extents, parts, rows};
use crate::error::Result;
use crate::model::event::Event;
use crate::model::id::TallyId;
use crate::model::tally::part::PART;
use crate::model::tally::{Ack, Added, Ending, Items};
use crate::plan::tally::{Placement, origins, place as plan_place, wanted};
use crate::store::redis::Role;
use crate::store::redis::session::Session;
use crate::store::tally::Of;
use std::collections::BTreeMap;

/// Takes back an addition of which nobody has heard. If somebody acks numbers that he was not given, they end like all others.
pub(in crate::store::redis) fn take_back(session: &Session<'_>, tally: TallyId, added: Added) -> Result<()> {
    let Some(mut row) = rows::one(session, tally)? else { return Ok(()) };
    let parts = added.first / PART..(added.first + added.count).div_ceil(PART);
    if parts::are_touched(session, tally, parts)? {
        let items = vec![Items { first: added.first, last: added.first + added.count - 1 }];
        return ack::end(session, &[Ack { tally, items, ending: Ending::Done }], false, 0).map(drop);
    }
    if extents::take_back(session, tally, added)? {
        let mut outbox = Vec::new();
        row.take_back(added, session.now, &mut outbox);
        rows::write(session, &row, &outbox)?;
    }
    Ok(())
}

/// Adds an item for each event that shall be one, and numbers it. Gives the units that cannot be stored.
pub(in crate::store::redis) fn place(session: &Session<'_>, units: &mut [Vec<Event>]) -> Result<Placement> {
    let wanted = wanted(units);
    // Where a store is spread its tallies are elsewhere, and what comes here has its items.
    if wanted.is_empty() || session.role == Role::Site {
        return Ok(Placement::default());
    }
    rows::expect(session, wanted.iter().copied())?;
    let mut found = BTreeMap::new();
    for tally in wanted {
        if let Some(row) = rows::one(session, tally)? {
            found.insert(tally, row);
        }
    }
    let mut items = BTreeMap::new();
    for item in origins(units) {
        items.extend(parts::item(session, item)?.map(|row| (item, row)));
    }
    let placement = plan_place(units, &session.catalog(), &mut found, &items, session.now);
    for (tally, added) in &placement.added {
        extents::extend(session, *tally, *added, Of::Events);
        rows::write(session, &found[tally], &[])?;
    }
    Ok(placement)
}

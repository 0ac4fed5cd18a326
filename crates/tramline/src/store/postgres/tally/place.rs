//! Events that are emitted as items of tallies.

use super::rows;
use crate::error::Result;
use crate::model::event::Event;
use crate::plan::tally::{Placement, origins, place as plan_place, wanted};
use crate::store::postgres::session::Session;
use crate::store::tally::Of;

/// Adds an item for each event that shall be one, and numbers it. Gives the units that cannot be stored.
pub(in crate::store::postgres) async fn place(
    session: &mut Session<'_>,
    units: &mut [Vec<Event>],
) -> Result<Placement> {
    let wanted = wanted(units);
    if wanted.is_empty() {
        return Ok(Placement::default());
    }
    let mut locked = rows::lock(session, &wanted).await?;
    let items = rows::items(session, &origins(units)).await?;
    let placement = plan_place(units, &session.catalog, &mut locked, &items, session.now);
    if !placement.added.is_empty() {
        rows::extend(session, &placement.added, Of::Events).await?;
        let changed: Vec<_> = placement.added.keys().map(|tally| &locked[tally]).collect();
        rows::write(session, &changed, &[]).await?;
    }
    Ok(placement)
}

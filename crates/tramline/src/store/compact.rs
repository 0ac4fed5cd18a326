//! What all stores need to know for compaction.

use crate::model::id::{EventId, LaneId};
use crate::plan::LaneView;
use crate::plan::compact::Object;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use std::collections::BTreeMap;

/// How far back the chain of a key is searched for a pending event.
pub(crate) const STEPS: i64 = 256;
/// How often one claim looks again when all that it took gave way.
pub(crate) const ROUNDS: u32 = 8;

/// The object of a taken event, if it has a key. Its chunk is decoded.
pub(crate) fn object(raw: &RawClaim, catalog: &Catalog, event: EventId) -> Option<Object> {
    let event = raw.decoded.get(&event.chunk())?.get(event.index() as usize)?;
    Some((catalog.topic(&event.topic)?.id, event.key.clone()?))
}

impl RawClaim {
    /// Names the gaps before the taken events anew, as far as these lanes know them.
    pub(crate) fn name_gaps(&mut self, views: &BTreeMap<LaneId, LaneView>) {
        for slice in self.slices.iter().filter(|slice| !slice.replayed) {
            let Some(view) = views.get(&slice.lane) else { continue };
            let skipped = slice.events().map(|event| (event, view.skipped(event)));
            self.skipped.extend(skipped.filter(|(_, skipped)| !skipped.is_empty()));
        }
    }
}

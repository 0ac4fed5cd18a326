//! Rows and values: how slices, lanes and chunks are read and written.
//!
//! - `slices`, `index`: slices, and where they are found
//! - `chunks`: chunks, and the logs of topics
//! - `lanes`, `marks`: who has a lane, and what is known of the keys in it

mod chunks;
mod index;
mod lanes;
mod marks;
mod slices;

pub(super) use chunks::{
    Logged, chunk_key_in, expect_chunks, is_logged, logged, metas, one_chunk, remove_chunks, unpack_chunk,
    write_chunk,
};
pub(super) use index::{
    Entry, FIRST_CHUNKS, dead_index, dead_slices, died_index, entries, expect_all, expect_entries, load,
    slices_with,
};
pub(super) use lanes::{lanes, lanes_key, one_lane, write_lane};
pub(super) use marks::{expect_marks, gaps, gaps_index, parked, parked_index, remove_parked, write_gaps};
pub(super) use slices::{
    SLICE_BYTES, STEP_SLICES, delete_slice, expect_slices, free_among, insert, one_slice, pack, slice_read,
    slice_row, slices_at, slices_key, slices_of_chunk, unpack, within_step_slices, write_slice,
};

use super::pack::Packer;
use super::session::Session;
use super::tuple::Tuple;
use super::{failures, unpark};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::plan::Changes;
use crate::store::tally::Ended;
use marks::{change_gaps, mark_field, parked_key};

/// Writes what a plan decided about one subscription.
pub(super) fn apply(session: &Session<'_>, subscription: SubscriptionId, changes: &Changes) -> Result<()> {
    session.end(changes.ended.iter().map(|&(chunk, mask, ending)| Ended {
        subscription,
        chunk,
        mask,
        ending,
    }));
    session.drop(subscription, &changes.dropped);
    failures::write(session, subscription, changes)?;
    unpark::unpark(session, subscription, &changes.unpark)?;
    session.for_each(&changes.park, |park| {
        remove_parked(session, subscription, park.lane, &park.key)?;
        let row = Packer::new().number(park.blocked_by.0).number(park.since.0).done();
        session.put(parked_key(session, subscription), mark_field(park.lane, &park.key), row);
        let member = Tuple::new().with(&[park.blocked_by.0, park.lane.0]).text(&park.key).bytes();
        session.enter(parked_index(session, subscription), member);
        Ok(())
    })?;
    change_gaps(session, subscription, changes)?;
    session.for_each(&changes.delete, |(chunk, id)| delete_slice(session, *chunk, *id))?;
    session.for_each(&changes.update, |slice| write_slice(session, slice))?;
    insert(session, &changes.insert)
}

/// Counts what the store weighs.
fn grow(session: &Session<'_>, bytes: i64) {
    session.sum(session.key("size"), "bytes", bytes);
}

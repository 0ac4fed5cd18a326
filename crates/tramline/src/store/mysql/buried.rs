//! Where dead and held slices are: in the order of their chunks, which no index has. One that had would have an entry for every slice
//! that lives, too, as there are no partial ones.

use super::session::Session;
use super::sql::Columns;
use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::store::verbs::REVIVE_STEP;

/// How many dead slices of a subscription are sorted for each step, and how many slices of all subscriptions a step passes over instead.
const SORTED: u32 = 20_000;

/// The chunks of dead and held slices after one, ascending, a step of them; and up to where was looked, if that is not the end.
///
/// Few are all read from `tramline_slice_claim`, which has the chunk of each, and sorted. Many would be read again for every step: then
/// the primary key is read from chunk to chunk, whoever the slices belong to, so that each is passed over once.
pub(super) async fn chunks(
    session: &mut Session<'_>,
    SubscriptionId(id): SubscriptionId,
    ChunkId(after): ChunkId,
) -> Result<(Vec<i64>, Option<ChunkId>)> {
    let which = format!("s.subscription = {id} AND s.state IN (5, 6) AND s.chunk > {after}");
    let count = format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE {which} LIMIT {SORTED}) d"
    );
    let count = session.rows(count).await?.first().map_or(Ok(0), |row| row.int(0))?;
    if count < i64::from(SORTED) {
        let sql = format!(
            "SELECT s.chunk FROM tramline_slice s FORCE INDEX (tramline_slice_claim) WHERE {which} \
             ORDER BY s.chunk LIMIT {REVIVE_STEP}"
        );
        return Ok((numbers(session, sql).await?, None));
    }
    let until = format!(
        "SELECT chunk FROM tramline_slice FORCE INDEX (PRIMARY) WHERE chunk > {after} ORDER BY chunk LIMIT 1 OFFSET {SORTED}"
    );
    let until = numbers(session, until).await?.first().copied();
    let sql = format!(
        "SELECT s.chunk FROM tramline_slice s FORCE INDEX (PRIMARY) WHERE {which} AND s.chunk <= {} \
         ORDER BY s.chunk LIMIT {REVIVE_STEP}",
        until.unwrap_or(i64::MAX)
    );
    Ok((numbers(session, sql).await?, until.map(ChunkId)))
}

async fn numbers(session: &mut Session<'_>, sql: String) -> Result<Vec<i64>> {
    session.rows(sql).await?.iter().map(|row| row.int(0)).collect()
}

//! Whether something has happened, for those who wait. The server cannot call anybody.

use super::MysqlStore;
use super::session::{Rows, exchange};
use super::sql::Columns;
use crate::error::{Error, Result};
use crate::model::id::{ChunkId, SubscriptionId, TopicId};
use crate::store::driver::answered;
use std::collections::BTreeSet;

/// What one look finds: the ends of three indexes, what was emitted after a chunk, and the inbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beat {
    /// The last chunk.
    pub(crate) last: ChunkId,
    /// The last change of a rule.
    pub(crate) rules: Option<i64>,
    /// The version of the catalogue.
    pub(crate) catalog: i64,
    /// The chunks after the one that was named, the first ones if there are many, and their topics.
    pub(crate) chunks: Vec<(ChunkId, TopicId)>,
    /// There is something in the inbox.
    pub(crate) inbox: bool,
}

impl MysqlStore {
    /// One round trip. Chunks are found by the primary key, no more than `many`; their rows carry payloads.
    pub(crate) async fn pulse(&self, after: Option<ChunkId>, many: usize) -> Result<Beat> {
        let after = after.map_or(i64::MAX, |chunk| chunk.0);
        let sql = format!(
            "SELECT COALESCE((SELECT MAX(chunk) FROM tramline_chunk), 0), (SELECT MAX(id) FROM tramline_audit), \
             (SELECT value FROM tramline_meta WHERE name = 'catalog'), \
             EXISTS (SELECT 1 FROM tramline_inbox WHERE refused = 0); \
             SELECT chunk, topic FROM tramline_chunk FORCE INDEX (PRIMARY) WHERE chunk > {after} ORDER BY chunk LIMIT {many}"
        );
        let mut conn = self.connection().await?;
        let mut sets: Vec<Rows> = Vec::new();
        answered(self.common.answer, exchange(&mut conn, sql, &mut sets)).await?;
        conn.keep();
        let ends = sets.first().and_then(|rows| rows.first());
        let ends = ends.ok_or_else(|| Error::unavailable("the server gave no answer", "try again"))?;
        let mut chunks = Vec::new();
        for row in sets.iter().skip(1).flatten() {
            chunks.push((ChunkId(row.int(0)?), TopicId(row.int(1)?)));
        }
        let (last, rules, catalog) = (ChunkId(ends.int(0)?), ends.maybe_int(1)?, ends.int(2)?);
        Ok(Beat { last, rules, catalog, chunks, inbox: ends.flag(3)? })
    }

    /// True if this process has emitted the chunk lately, and so has told everybody in it.
    pub(crate) fn has_told_of(&self, chunk: ChunkId) -> bool {
        self.common.is_own(chunk)
    }

    /// The subscriptions of topics, as of a version of the catalogue; `None` if this process does not know that one.
    pub(crate) fn concerned(&self, topics: &BTreeSet<TopicId>, version: i64) -> Option<Vec<SubscriptionId>> {
        let catalog = self.common.cache.get();
        let views = topics.iter().filter_map(|id| catalog.views().get(&*catalog.topic_name(*id)));
        let all = views.flat_map(|view| &view.subscriptions).map(|subscription| subscription.id).collect();
        (catalog.version == version).then_some(all)
    }
}

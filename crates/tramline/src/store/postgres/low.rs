//! Where ordered claims begin to look in a lane.
//!
//! While an old transaction of anybody stays open, PostgreSQL keeps the index entries of everything that was taken since, and a claim passes
//! over all of them, in every lane, also in those that are empty. So the row of a lane tells where its ready slices begin. Order hangs on
//! that: what is ready below `low` is not seen (it counts as taken, see `taken.rs`), and what comes after it would be taken first. A margin
//! of time, as claims without order have it (`floor.rs`), would not do; `low` is exact:
//!
//! - Who makes something ready in a lane again has locked the lane, and sets `low` back if that is below it ([`lower`]).
//! - Emits lock no lane. But they draw numbers under the lock of their topic, so `low` is never raised beyond a number that an open
//!   transaction may have drawn ([`Proofs`]).
//! - Who takes from a lane has locked it and writes its row anyway, and raises `low` with that (`write_taken` in `rows.rs`).
//!
//! A server that crashes takes numbers back that were drawn and are not on its disk, and they are drawn again. A raised `low` never outlives
//! such a number: what is read of a sequence is in the server's log before, so whatever brings the one back after a crash brings back the
//! other. But what a process remembers outlives both, also where only a backend was killed and the server has begun anew without a new
//! start. So who looks waits with his commit for the disk, and only then it is remembered.

use super::look::writers;
use super::session::Session;
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::slice::State;
use crate::model::time::Time;
use crate::plan::Changes;
use sqlx::Row;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often somebody looks how far logs are complete.
const EVERY: Duration = Duration::from_secs(1);
/// Below all chunks.
const NOTHING: ChunkId = ChunkId(-1);

/// What is made ready in lanes by these changes.
pub(super) fn made_ready(changes: &Changes) -> impl Iterator<Item = (LaneId, ChunkId)> {
    let written = changes.update.iter().chain(&changes.insert);
    let ready = written.filter(|slice| slice.state == State::Ready && slice.is_ordered());
    ready.map(|slice| (slice.lane, slice.chunk))
}

/// Sets the beginning of lanes back to what became ready in them.
pub(super) async fn lower(
    session: &mut Session<'_>,
    id: SubscriptionId,
    ready: impl Iterator<Item = (LaneId, ChunkId)>,
) -> Result<()> {
    let mut first: BTreeMap<LaneId, i64> = BTreeMap::new();
    for (lane, chunk) in ready.filter(|(lane, _)| *lane != LaneId::UNORDERED) {
        if session.starts.get(&(id, lane)).is_none_or(|start| chunk.0 < start.low) {
            let low = first.entry(lane).or_insert(chunk.0);
            *low = chunk.0.min(*low);
        }
    }
    if first.is_empty() {
        return Ok(());
    }
    let sql = "WITH n AS (SELECT * FROM unnest($2::bigint[], $3::bigint[]) AS n(lane, low)), {newest} \
               UPDATE tramline_lane l SET low = least(l.low, n.low) FROM h JOIN n ON n.lane = h.lane \
               WHERE l.subscription = h.subscription AND l.lane = h.lane AND l.epoch >= h.epoch RETURNING l.lane, l.low";
    let query = session
        .query(sql)
        .bind(id.0)
        .bind(first.keys().map(|lane| lane.0).collect::<Vec<i64>>())
        .bind(first.into_values().collect::<Vec<i64>>());
    for row in session.all(query).await? {
        if let Some(start) = session.starts.get_mut(&(id, LaneId(row.try_get(0)?))) {
            start.low = row.try_get(1)?;
        }
    }
    Ok(())
}

/// Up to where the lanes that a claim has locked may be raised. One look is enough for a step, which must have written or locked something: a
/// commit waits for the disk only then. That a snapshot may be older than what is known is ruled out, and so is that it is known of
/// another server.
pub(super) async fn prove(session: &mut Session<'_>, id: SubscriptionId) -> Result<ChunkId> {
    if let Some(proven) = session.proven {
        return Ok(proven);
    }
    let Some(proofs) = session.proofs.filter(|_| session.is_fresh) else { return Ok(NOTHING) };
    let (proven, look) = proofs.prove(session, id).await?;
    let proven = if proven.server == session.server { proven.chunk } else { NOTHING };
    (session.proven, session.look) = (Some(proven), look);
    Ok(proven)
}

/// Up to which chunk all that can come into the lanes of a subscription by emits has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Proven {
    pub(super) chunk: ChunkId,
    /// The server of which this is true ([`Session::server`]).
    pub(super) server: i64,
}

/// What is known of the topics of subscriptions.
#[derive(Debug, Default)]
pub(super) struct Proofs(Mutex<HashMap<SubscriptionId, Proof>>);

#[derive(Clone, Debug, Default)]
struct Proof {
    proven: Proven,
    /// When somebody looked last, and which look that was.
    at: Time,
    turn: u64,
    /// The last number that was drawn at an earlier look, and who of those that wrote then still does. When they have ended, all up to
    /// this number has come, as in [`super::look`].
    drawn: ChunkId,
    writing: HashSet<String>,
}

/// What somebody saw.
struct Seen {
    server: i64,
    drawn: ChunkId,
    writing: HashSet<String>,
}

/// A look that is remembered once its transaction is on the disk.
pub(super) struct Look {
    id: SubscriptionId,
    turn: u64,
    seen: Seen,
}

impl Proofs {
    /// Looks once a second, and always where a test tells the time. Waits for nobody: a transaction that writes for long only keeps lanes
    /// from being cleared. What it saw counts for this transaction at once, and for others when it was committed and [`Proofs::keep`] is
    /// told.
    pub(super) async fn prove(
        &self,
        session: &mut Session<'_>,
        id: SubscriptionId,
    ) -> Result<(Proven, Option<Look>)> {
        let every = if session.is_test { Duration::ZERO } else { EVERY };
        let turn = match self.begin(id, session.now, every) {
            Ok(turn) => turn,
            Err(known) => return Ok((known, None)),
        };
        let look = look(session, id).await?.map(|seen| Look { id, turn, seen });
        Ok((self.with(id, look.as_ref()), look))
    }

    /// What is known for everybody: it will be true after any crash of the server.
    pub(super) fn known(&self, id: SubscriptionId) -> Proven {
        self.proofs().get(&id).map_or_else(Proven::default, |proof| proof.proven)
    }

    /// Remembers a look whose transaction was committed.
    pub(super) fn keep(&self, look: &Look) {
        if let Some(proof) = self.proofs().get_mut(&look.id) {
            proof.add(look);
        }
    }

    /// The number of the look that is to be taken now, or what is known if none is.
    fn begin(&self, id: SubscriptionId, now: Time, every: Duration) -> std::result::Result<u64, Proven> {
        let mut proofs = self.proofs();
        let proof = proofs.entry(id).or_default();
        if proof.turn > 0 && proof.at <= now && now < proof.at.after(every) {
            return Err(proof.proven);
        }
        (proof.at, proof.turn) = (now, proof.turn + 1);
        Ok(proof.turn)
    }

    /// What is known, with what a look saw.
    fn with(&self, id: SubscriptionId, look: Option<&Look>) -> Proven {
        let mut proof = self.proofs().get(&id).cloned().unwrap_or_default();
        look.into_iter().for_each(|look| proof.add(look));
        proof.proven
    }

    fn proofs(&self) -> MutexGuard<'_, HashMap<SubscriptionId, Proof>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proof {
    /// Of looks that overlap only the last one counts: an earlier one does not know who began to write since.
    fn add(&mut self, Look { turn, seen, .. }: &Look) {
        if self.turn != *turn {
            return;
        }
        if self.proven.server != seen.server {
            let proven = Proven { server: seen.server, ..Proven::default() };
            *self = Proof { proven, at: self.at, turn: self.turn, ..Proof::default() };
        }
        self.writing.retain(|writer| seen.writing.contains(writer));
        // A transaction that was prepared meanwhile has another name, and no backend.
        let renamed = seen.writing.iter().any(|writer| writer.starts_with("-1/"));
        if self.writing.is_empty() && !renamed {
            let all = if seen.writing.is_empty() { seen.drawn } else { self.drawn };
            self.proven.chunk = self.proven.chunk.max(all);
            (self.drawn, self.writing) = (seen.drawn, seen.writing.clone());
        }
    }
}

/// The last number that was drawn, and after that who writes to the topics of a subscription. Nothing if it may have other topics by now. From
/// here on the transaction is one that waits for the disk, of this server at least.
async fn look(session: &mut Session<'_>, id: SubscriptionId) -> Result<Option<Seen>> {
    // Not as a table: its row is changed in place, and has a number 32 higher for a moment.
    let sql = "SELECT coalesce(pg_sequence_last_value('tramline_chunk_number'::regclass), 0), \
               CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'local', true) END";
    let row = session.query(sql).fetch_one(&mut *session.conn).await?;
    let (drawn, server) = (ChunkId(row.try_get(0)?), session.server);
    let catalog = session.catalog.clone();
    let names = catalog.require_subscription(id)?.topics.iter();
    let topics: Vec<TopicId> = names.filter_map(|name| catalog.topic(name)).map(|topic| topic.id).collect();
    let writing = writers(session, &topics).await?;
    let sql = "SELECT value FROM tramline_meta WHERE name = 'catalog'";
    let version: i64 = session.query(sql).fetch_one(&mut *session.conn).await?.try_get(0)?;
    Ok((version == catalog.version).then_some(Seen { server, drawn, writing }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SubscriptionId = SubscriptionId(1);

    fn look(proofs: &Proofs, now: i64, drawn: i64, writing: &[&str]) -> i64 {
        let turn = proofs.begin(ID, Time(now), EVERY).unwrap();
        kept(proofs, turn, seen(1, drawn, writing)).chunk.0
    }

    fn kept(proofs: &Proofs, turn: u64, seen: Seen) -> Proven {
        proofs.keep(&Look { id: ID, turn, seen });
        proofs.with(ID, None)
    }

    fn seen(server: i64, drawn: i64, writing: &[&str]) -> Seen {
        let writing = writing.iter().map(|writer| (*writer).to_owned()).collect();
        Seen { server, drawn: ChunkId(drawn), writing }
    }

    #[test]
    fn what_was_drawn_counts_when_those_who_wrote_then_have_ended() {
        let proofs = Proofs::default();
        assert_eq!(look(&proofs, 0, 10, &["a", "b"]), 0);
        assert_eq!(look(&proofs, 1_000, 20, &["b", "c"]), 0);
        assert_eq!(look(&proofs, 2_000, 30, &["c", "d"]), 10);
        assert_eq!(look(&proofs, 3_000, 40, &["d"]), 10);
        assert_eq!(look(&proofs, 4_000, 50, &[]), 50);
    }

    #[test]
    fn who_was_prepared_meanwhile_still_writes() {
        let proofs = Proofs::default();
        assert_eq!(look(&proofs, 0, 10, &["3/7"]), 0);
        assert_eq!(look(&proofs, 1_000, 20, &["-1/801"]), 0);
        assert_eq!(look(&proofs, 2_000, 30, &[]), 30);
    }

    #[test]
    fn nobody_looks_twice_in_a_second() {
        let proofs = Proofs::default();
        assert_eq!(look(&proofs, 5_000, 10, &[]), 10);
        assert_eq!(proofs.begin(ID, Time(5_999), EVERY), Err(Proven { chunk: ChunkId(10), server: 1 }));
        assert_eq!(look(&proofs, 6_000, 20, &[]), 20);
    }

    #[test]
    fn of_two_looks_at_once_the_earlier_one_proves_nothing() {
        let proofs = Proofs::default();
        let early = proofs.begin(ID, Time(0), EVERY).unwrap();
        assert_eq!(look(&proofs, 1_000, 20, &["b"]), 0);
        // It ended late, and knows nothing of the one who has begun since.
        assert_eq!(kept(&proofs, early, seen(1, 10, &[])).chunk.0, 0);
        assert_eq!(look(&proofs, 2_000, 30, &["b"]), 0);
    }

    #[test]
    fn nothing_is_known_of_another_server() {
        let proofs = Proofs::default();
        assert_eq!(look(&proofs, 0, 10, &[]), 10);
        let turn = proofs.begin(ID, Time(1_000), EVERY).unwrap();
        assert_eq!(kept(&proofs, turn, seen(2, 7, &["a"])), Proven { chunk: ChunkId(0), server: 2 });
    }

    /// Its transaction may still be lost, and what it saw with it.
    #[test]
    fn what_a_look_saw_counts_for_itself_until_it_is_kept() {
        let proofs = Proofs::default();
        let turn = proofs.begin(ID, Time(0), EVERY).unwrap();
        let look = Look { id: ID, turn, seen: seen(1, 10, &[]) };
        assert_eq!(proofs.with(ID, Some(&look)).chunk, ChunkId(10));
        assert_eq!(proofs.with(ID, None).chunk, ChunkId(0));
        proofs.keep(&look);
        assert_eq!(proofs.with(ID, None).chunk, ChunkId(10));
    }
}

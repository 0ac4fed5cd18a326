//! Emit: heads, then numbers, then chunks, slices and heads. One round trip locks and draws, another one writes and commits.

use super::MysqlStore;
use super::hoped::IN_THE_WAY;
use super::rows::{INSERT_SLICES, values};
use super::session::{Begin, Rows, Session};
use super::sql::{self, Columns, LIST, NOW, bytes, insert, maybe_bytes, maybe_text, text, texts};
use super::step::{lost_against_another, pause, waited_too_long};
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::{ChunkId, LaneId, TopicId};
use crate::model::slice::{Slice, State};
use crate::model::time::Time;
use crate::model::unique::check_unit;
use crate::plan::emit::{ChunkPlan, EmitPlan, HeadPlan, Numbers};
use crate::plan::slices::SlicePlan;
use crate::store::catalog::Catalog;
use crate::store::emit::{Answers, Stored, TRIES, busy, families, named, needs_steps, restless};
use crate::store::verbs::{Emission, Emit};
use futures_util::future::join_all;
use sqlx::MySqlConnection;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often an emit waits for a key that is known to be locked, a second each.
pub(super) const LONG_WAIT: u32 = 5;
/// How often what the server undid is tried again.
const DEADLOCKS: u32 = 20;

impl MysqlStore {
    /// Stores units. Each gets an answer of its own.
    pub(super) async fn emit_units(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        let Emit { units, now } = emit;
        let mut answers: Vec<Option<Result<Emission>>> = units.iter().map(|_| None).collect();
        // Units that need more steps: the others do not wait for them.
        let (with, without): (Vec<usize>, Vec<usize>) =
            (0..units.len()).partition(|at| needs_steps(&units[*at]));
        let (with, without) =
            tokio::join!(self.emit_all(&units, with, now), self.emit_all(&units, without, now));
        for (at, answer) in with.into_iter().chain(without) {
            answers[at] = Some(answer);
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(restless()))).collect())
    }

    /// Together if possible. Units whose keys are locked by somebody else's open transaction are set aside: the others go
    /// on at once, and those wait for longer, each key for itself.
    async fn emit_all(&self, units: &[Vec<Event>], group: Vec<usize>, now: Option<Time>) -> Answers {
        let error = match self.emit_together(units, &group, now, 1).await {
            Ok(answers) => return group.into_iter().zip(answers).collect(),
            Err(error) => error,
        };
        if !waited_too_long(&error) && !lost_against_another(&error) {
            return group.into_iter().map(|at| (at, Err(error.share()))).collect();
        }
        tracing::debug!(units = group.len(), "keys are locked by another transaction; emits are set aside");
        let locked = self.locked_keys(group.iter().flat_map(|at| &units[*at])).await.unwrap_or_default();
        let (free, stuck) = families(units, group, &locked);
        let (mut answers, stuck) =
            tokio::join!(self.emit_free(units, free, now), self.emit_families(units, stuck, now));
        answers.extend(stuck);
        answers
    }

    /// Units whose keys nobody had locked a moment ago. If one is locked all the same, nobody knows which: each key takes its turn
    /// like those that are known to be locked, so that the others do not wait for it.
    async fn emit_free(&self, units: &[Vec<Event>], free: Vec<usize>, now: Option<Time>) -> Answers {
        match self.emit_together(units, &free, now, 1).await {
            Ok(answers) => free.into_iter().zip(answers).collect(),
            Err(error) if waited_too_long(&error) => {
                let (keyless, mut all) = families(units, free, &HashSet::new());
                if !keyless.is_empty() {
                    all.push(keyless);
                }
                self.emit_families(units, all, now).await
            }
            Err(error) => free.into_iter().map(|at| (at, Err(error.share()))).collect(),
        }
    }

    /// Each family for itself, all at the same time.
    async fn emit_families(
        &self,
        units: &[Vec<Event>],
        families: Vec<Vec<usize>>,
        now: Option<Time>,
    ) -> Answers {
        let all = families.into_iter().map(|family| self.emit_family(units, family, now));
        join_all(all).await.into_iter().flatten().collect()
    }

    /// Units that wait for the same key. Only so many connections may wait that others are left.
    async fn emit_family(&self, units: &[Vec<Event>], family: Vec<usize>, now: Option<Time>) -> Answers {
        let patience = Duration::from_secs(u64::from(LONG_WAIT));
        let result = match tokio::time::timeout(patience, self.waiting.acquire()).await {
            Ok(_permit) => self.emit_together(units, &family, now, LONG_WAIT).await,
            Err(_) => Err(busy()),
        };
        match result {
            Ok(answers) => family.into_iter().zip(answers).collect(),
            Err(error) if waited_too_long(&error) => family.into_iter().map(|at| (at, Err(busy()))).collect(),
            Err(error) => family.into_iter().map(|at| (at, Err(error.share()))).collect(),
        }
    }

    /// A group in one transaction, or an error and none of it. A connection that is lost leaves open whether it was stored;
    /// that is for the caller to decide, so nothing is repeated here but what the server undid or refused to wait for.
    async fn emit_together(
        &self,
        units: &[Vec<Event>],
        group: &[usize],
        now: Option<Time>,
        waits: u32,
    ) -> Result<Vec<Result<Emission>>> {
        let group: Cow<'_, [Vec<Event>]> = match group.len() == units.len() {
            true => Cow::Borrowed(units),
            false => Cow::Owned(group.iter().map(|at| units[*at].clone()).collect()),
        };
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let by_steps = needs_steps(first);
        let (mut waited, mut undone) = (0, 0);
        loop {
            let result = match by_steps {
                true => self.emit_by_steps(&group, now).await,
                false => self.emit_plain(&group, now).await,
            };
            match result {
                Err(error) if lost_against_another(&error) && undone < DEADLOCKS => {
                    undone += 1;
                    pause(undone, &error).await;
                }
                Err(error) if waited_too_long(&error) && waited + 1 < waits => {
                    waited += 1;
                    pause(waited, &error).await;
                }
                result => return result,
            }
        }
    }

    async fn emit_plain(&self, units: &[Vec<Event>], now: Option<Time>) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic)).await?;
            let catalog = self.catalog().await?;
            let Some(plan) = self.plan(units, &catalog) else { continue };
            let mut tx = self.begin().await?;
            let begin = Begin { now, locks: share_topics(&plan.topics()), ..Begin::default() };
            let stored = self.store(tx.conn(), &plan, &catalog, &begin).await;
            match stored {
                Ok(Some(numbers)) => {
                    tx.keep();
                    return Ok(numbers.emissions(&plan, units.len()).into_iter().map(Ok).collect());
                }
                Ok(None) => tx.rollback().await,
                Err(error) => {
                    tx.fail(&error).await;
                    return Err(error);
                }
            }
        }
        Err(restless())
    }

    /// `None` when the plan was made from another version of the catalogue than the stored one.
    async fn store(
        &self,
        conn: &mut MySqlConnection,
        plan: &EmitPlan,
        catalog: &Arc<Catalog>,
        begin: &Begin,
    ) -> Result<Option<Stored>> {
        let (mut session, drawn) =
            Session::reading(conn, &self.common, begin, draw_sql(plan, &self.common)).await?;
        let Some(drawn) = drawn.filter(|_| session.catalog.version == catalog.version) else {
            return Ok(None);
        };
        let drawn = Drawn::read(plan, &drawn)?;
        let stored = write(&mut session, plan, drawn, begin.now);
        session.commit(Vec::new()).await?;
        Ok(Some(stored))
    }

    /// One unit in the caller's own transaction.
    pub(super) async fn emit_unit_in(
        &self,
        conn: &mut MySqlConnection,
        unit: Vec<Event>,
    ) -> Result<Emission> {
        if unit.is_empty() {
            return Err(Error::invalid("nothing to emit", "pass at least one event"));
        }
        for event in &unit {
            event.check()?;
        }
        check_unit(&unit)?;
        self.check_isolation(conn).await?;
        let units = [unit];
        for _ in 0..TRIES {
            self.create_topics(units.iter().flatten().map(Event::topic)).await?;
            let catalog = self.catalog().await?;
            let Some(plan) = self.plan(&units, &catalog) else { continue };
            let begin = Begin { bare: true, ..Begin::default() };
            if needs_steps(&units[0]) {
                let mut session = self.session(conn, &begin).await?;
                if let Some(mut answers) = self.emit_by_steps_in(&mut session, &units).await? {
                    session.commit(Vec::new()).await?;
                    return answers.pop().unwrap_or_else(|| Err(restless()));
                }
            } else {
                let begin = Begin { locks: share_topics(&plan.topics()), ..begin };
                if let Some(stored) = self.store(conn, &plan, &catalog, &begin).await?
                    && let Some(emission) = stored.emissions(&plan, 1).pop()
                {
                    return Ok(emission);
                }
            }
        }
        Err(restless())
    }

    /// `None` when a topic is not known: its events would not be in the plan.
    pub(super) fn plan(&self, units: &[Vec<Event>], catalog: &Catalog) -> Option<EmitPlan> {
        let known = units.iter().flatten().all(|event| catalog.topic(&event.topic).is_some());
        known.then(|| EmitPlan::new(units, catalog.views(), self.spread.fetch_add(1, Ordering::Relaxed)))
    }

    /// Which keys of events somebody else has locked at this moment. Nothing stays locked.
    async fn locked_keys(
        &self,
        events: impl Iterator<Item = &Event> + Send,
    ) -> Result<HashSet<(TopicId, String)>> {
        let mut tx = self.begin().await?;
        let mut session = self.session(tx.conn(), &Begin::default()).await?;
        let mut by_topic: BTreeMap<TopicId, BTreeSet<String>> = BTreeMap::new();
        for (topic, key) in events.filter_map(|event| named(event, &session.catalog)) {
            by_topic.entry(topic).or_default().insert(key);
        }
        let keys: Vec<(TopicId, Vec<&str>)> = by_topic
            .iter()
            .map(|(topic, keys)| (*topic, keys.iter().map(String::as_str).collect()))
            .collect();
        let mut found: Vec<HashSet<(TopicId, String)>> = Vec::new();
        for lock in ["", " FOR UPDATE SKIP LOCKED"] {
            let mut set = HashSet::new();
            for row in session.sets(heads_sql(&keys, lock)).await?.iter().flatten() {
                set.insert((TopicId(row.int(0)?), row.text(1)?));
            }
            found.push(set);
        }
        tx.rollback().await;
        Ok(&found[0] - &found[1])
    }
}

/// Locks topics against changes of their subscriptions, in sorted order: the side of each that is open. The other one is not even
/// looked at, because somebody may wait for the last emits on it.
pub(super) fn share_topics(topics: &BTreeSet<TopicId>) -> Vec<String> {
    let share = |TopicId(id): &TopicId| {
        format!(
            "SELECT id FROM tramline_gate WHERE kind = 0 AND id = {id} AND side = \
             (SELECT o.`open` FROM tramline_gate o WHERE o.kind = 0 AND o.id = {id} AND o.side = 2) LOCK IN SHARE MODE"
        )
    };
    topics.iter().map(share).collect()
}

fn heads_sql(keys: &[(TopicId, Vec<&str>)], lock: &str) -> Vec<String> {
    let select = |topic: &TopicId, keys: &[&str]| {
        let keys = texts(keys.iter().copied());
        format!(
            "SELECT topic, `key`, last_id FROM tramline_head WHERE topic = {} AND `key` IN ({keys}) \
             ORDER BY topic, `key`{lock}",
            topic.0
        )
    };
    keys.iter().flat_map(|(topic, keys)| keys.chunks(LIST).map(|keys| select(topic, keys))).collect()
}

/// Locks the keys of a plan in sorted order, and then draws numbers for its chunks.
///
/// Keys are inserted with ON DUPLICATE KEY, which locks those that exist for good; INSERT IGNORE would only share them, and two that
/// want more after that wait for each other for ever. What is locked so is read without locks, or the server might wait for other
/// keys of the topic on its way to these.
pub(super) fn draw_sql(plan: &EmitPlan, common: &super::Common) -> Vec<String> {
    let head = "INSERT INTO tramline_head (topic, `key`, last_id) VALUES ";
    let rows = plan.heads.iter().map(|head| format!("({},{},0)", head.topic.0, text(&head.key)));
    let tail = " ON DUPLICATE KEY UPDATE last_id = last_id";
    drawn_behind(plan, insert(head, rows, tail, common.packet))
}

/// The same, if nothing is in the way; otherwise no key is locked. Numbers are drawn in any case: of a SELECT the server would not give
/// them in a row.
pub(super) fn draw_hoped_sql(plan: &EmitPlan) -> Vec<String> {
    let lock = |some: &[HeadPlan]| {
        format!(
            "INSERT INTO tramline_head (topic, `key`, last_id) SELECT n.a, n.b, 0 FROM {} WHERE {IN_THE_WAY} = 0 \
             ON DUPLICATE KEY UPDATE last_id = tramline_head.last_id",
            sql::named(some.iter().map(|head| (head.topic.0, head.key.as_str())))
        )
    };
    drawn_behind(plan, plan.heads.chunks(LIST).map(lock).collect())
}

fn drawn_behind(plan: &EmitPlan, locks: Vec<String>) -> Vec<String> {
    let mut sql = locks;
    let mut keys: Vec<(TopicId, Vec<&str>)> = Vec::new();
    for head in &plan.heads {
        match keys.last_mut().filter(|(topic, _)| *topic == head.topic) {
            Some((_, keys)) => keys.push(&head.key),
            None => keys.push((head.topic, vec![&head.key])),
        }
    }
    sql.extend(heads_sql(&keys, ""));
    let numbers = vec!["(NULL)"; plan.chunks.len()].join(",");
    sql.extend([
        "SAVEPOINT tramline_draw".to_owned(),
        format!("INSERT INTO tramline_chunk_number (chunk) VALUES {numbers}"),
        "ROLLBACK TO SAVEPOINT tramline_draw".to_owned(),
        format!("SELECT LAST_INSERT_ID(), @@auto_increment_increment, {NOW}"),
    ]);
    sql
}

/// What was locked and drawn.
pub(super) struct Drawn {
    stored: Stored,
    at: Time,
}

impl Drawn {
    /// For a plan without events: all of them were there already.
    pub(super) fn nothing() -> Drawn {
        Drawn { stored: Stored { chunks: Vec::new(), heads: Vec::new() }, at: Time(0) }
    }

    pub(super) fn read(plan: &EmitPlan, sets: &[Rows]) -> Result<Drawn> {
        let mut last: HashMap<(i64, String), i64> = HashMap::new();
        let (numbers, sets) = sets.split_last().ok_or_else(restless)?;
        for row in sets.iter().flatten() {
            last.insert((row.int(0)?, row.text(1)?), row.int(2)?);
        }
        let heads = plan.heads.iter().map(|head| {
            last.get(&(head.topic.0, head.key.clone())).copied().ok_or_else(|| {
                Error::unavailable("a key was removed while it was being written", "try again")
            })
        });
        let row = numbers.first().ok_or_else(restless)?;
        let (first, by) = (row.int(0)?, row.int(1)?.max(1));
        let chunks = (0..plan.chunks.len() as i64).map(|at| ChunkId(first + at * by)).collect();
        Ok(Drawn { stored: Stored { chunks, heads: heads.collect::<Result<_>>()? }, at: row.time(2)? })
    }
}

/// Writes a plan under the numbers that it got.
pub(super) fn write(session: &mut Session<'_>, plan: &EmitPlan, drawn: Drawn, now: Option<Time>) -> Stored {
    let Drawn { stored, at } = drawn;
    let now = now.unwrap_or(at);
    let numbers = Numbers { chunks: &stored.chunks, heads: &stored.heads };
    let most = session.common.packet;
    let chunks =
        plan.chunks.iter().zip(numbers.chunks).map(|(chunk, id)| chunk_values(chunk, *id, &numbers, now));
    let head = "INSERT INTO tramline_chunk (chunk, topic, emitted_at, count, bytes, meta, prevs, mains, body) VALUES ";
    let chunks = insert(head, chunks, "", most);
    session.write_all(chunks);
    let common = session.common;
    let slices = plan.chunks.iter().zip(numbers.chunks).flat_map(|(chunk, id)| {
        chunk.slices.iter().map(move |slice| {
            values(&Slice { id: common.slice_id(), ..new_slice(slice, *id, chunk.bytes, now) })
        })
    });
    session.write_all(insert(INSERT_SLICES, slices, "", most));
    let head = "INSERT INTO tramline_head (topic, `key`, last_id, state) VALUES ";
    let heads = plan.heads.iter().map(|head| {
        let state = maybe_bytes(head.state.as_deref());
        format!("({},{},{},{state})", head.topic.0, text(&head.key), numbers.id(head.last).0)
    });
    let tail = " ON DUPLICATE KEY UPDATE last_id = VALUES(last_id), state = COALESCE(VALUES(state), state)";
    session.write_all(insert(head, heads, tail, most));
    stored
}

fn chunk_values(chunk: &ChunkPlan, id: ChunkId, numbers: &Numbers<'_>, now: Time) -> String {
    let links =
        |links: &[crate::plan::emit::Link]| maybe_text(numbers_text(&numbers.resolve_all(links)).as_deref());
    format!(
        "({},{},{},{},{},{},{},{},{})",
        id.0,
        chunk.topic.0,
        now.0,
        chunk.count,
        chunk.bytes,
        text(&chunk.encoded.meta),
        links(&chunk.prevs),
        links(&chunk.mains),
        bytes(&chunk.encoded.body),
    )
}

/// Numbers as they are stored: NULL where all are zero.
fn numbers_text(numbers: &[i64]) -> Option<String> {
    if numbers.iter().all(|number| *number == 0) {
        return None;
    }
    serde_json::to_string(numbers).ok()
}

fn new_slice(plan: &SlicePlan, chunk: ChunkId, weight: u32, now: Time) -> Slice {
    let ordered = plan.lane != LaneId::UNORDERED;
    Slice {
        id: Default::default(),
        chunk,
        subscription: plan.subscription,
        lane: plan.lane,
        state: State::Ready,
        mask: plan.mask,
        due_at: plan.due.from(now),
        rank: if ordered { 0 } else { i64::from(plan.priority) },
        attempts: 0,
        crashes: 0,
        alone: 0,
        epoch: 0,
        owner: Default::default(),
        replayed: false,
        tallied: plan.tallied,
        bytes: weight,
        error: None,
    }
}

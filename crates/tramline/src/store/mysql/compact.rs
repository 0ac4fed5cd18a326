//! Compaction: what was claimed gives way to newer events of the same key.

use super::lanes::{load_keys, load_marks, lock};
use super::rows::{apply, chunks, numbers, write_lanes};
use super::session::Session;
use super::sql::{Columns, LIST, list, texts};
use crate::error::Result;
use crate::model::id::{EventId, LaneId, SubscriptionId, TopicId};
use crate::model::lane::Lane;
use crate::model::slice::Slice;
use crate::plan::Changes;
use crate::plan::LaneView;
use crate::plan::compact::{Object, give_way, newest, superseded};
use crate::store::claimed::RawClaim;
use crate::store::compact::{STEPS, object};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Takes out of a claim what has a newer event of its key behind it. True if there was something.
pub(super) async fn compact(
    session: &mut Session<'_>,
    id: SubscriptionId,
    raw: &mut RawClaim,
) -> Result<bool> {
    let catalog = session.catalog.clone();
    let read = chunks(session, raw.missing().into_iter()).await?;
    raw.chunks.extend(read);
    raw.decode_chunks(&catalog)?;
    let mut newest = newest(&raw.slices, |event| object(raw, &catalog, event));
    find_pending(session, id, &mut newest).await?;
    let gone = |slice: &Slice| superseded(slice, &newest, |event| object(raw, &catalog, event));
    let masks: Vec<_> = raw.slices.iter().map(gone).collect();
    if masks.iter().all(|mask| mask.is_empty()) {
        return Ok(false);
    }
    let mut views = load_lanes(session, id, &raw.slices).await?;
    let mut changes = Changes::default();
    let taken = std::mem::take(&mut raw.slices);
    for (slice, mask) in taken.into_iter().zip(masks) {
        match mask.is_empty() {
            true => raw.slices.push(slice),
            false => {
                raw.slices.extend(give_way(slice.clone(), mask, views.get_mut(&slice.lane), &mut changes))
            }
        }
    }
    apply(session, id, &changes);
    let lanes: Vec<&Lane> = views.values().map(|view| &view.lane).collect();
    write_lanes(session, &lanes);
    raw.name_gaps(&views);
    Ok(true)
}

/// Replaces each event by the last one of its object after it that is pending in the subscription: found along the chain of its
/// key, from its head back, all chains one step at a time. Mostly the head is the event itself, or pending. Filters may leave out
/// many; where the chain is longer than that, or was removed already, the event is given out.
async fn find_pending(
    session: &mut Session<'_>,
    id: SubscriptionId,
    newest: &mut BTreeMap<Object, EventId>,
) -> Result<()> {
    let mut open = heads(session, newest).await?;
    for _ in 0..STEPS {
        open.retain(|object, at| newest.get(object).is_some_and(|event| *at > *event));
        if open.is_empty() {
            return Ok(());
        }
        let seen = look(session, id, open.values().copied()).await?;
        let mut back = BTreeMap::new();
        for (object, at) in open {
            if seen.pending.contains(&at) {
                newest.insert(object, at);
            } else if let Some(before) = seen.before(at) {
                back.insert(object, before);
            }
        }
        open = back;
    }
    Ok(())
}

/// The last event of each object.
async fn heads(
    session: &mut Session<'_>,
    objects: &BTreeMap<Object, EventId>,
) -> Result<BTreeMap<Object, EventId>> {
    let mut by_topic: BTreeMap<TopicId, Vec<&str>> = BTreeMap::new();
    for (topic, key) in objects.keys() {
        by_topic.entry(*topic).or_default().push(key);
    }
    let select = |topic: &TopicId, keys: &[&str]| {
        format!(
            "SELECT topic, `key`, last_id FROM tramline_head WHERE topic = {} AND `key` IN ({})",
            topic.0,
            texts(keys.iter().copied())
        )
    };
    let sql = by_topic.iter().flat_map(|(topic, keys)| keys.chunks(LIST).map(|keys| select(topic, keys)));
    let sql: Vec<String> = sql.collect();
    let mut found = BTreeMap::new();
    if sql.is_empty() {
        return Ok(found);
    }
    for row in session.sets(sql).await?.iter().flatten() {
        found.insert((TopicId(row.int(0)?), row.text(1)?.into()), EventId(row.int(2)?));
    }
    Ok(found)
}

/// What is known of some events.
struct Seen {
    pending: BTreeSet<EventId>,
    links: HashMap<i64, Vec<i64>>,
}

impl Seen {
    /// The event of the same key before this one, if there is one.
    fn before(&self, event: EventId) -> Option<EventId> {
        let before = *self.links.get(&event.chunk().0)?.get(event.index() as usize)?;
        (before > 0).then_some(EventId(before))
    }
}

/// Which of these events are pending, and what comes before each.
async fn look(
    session: &mut Session<'_>,
    SubscriptionId(id): SubscriptionId,
    events: impl Iterator<Item = EventId>,
) -> Result<Seen> {
    let events: BTreeSet<EventId> = events.collect();
    let chunks: BTreeSet<i64> = events.iter().map(|event| event.chunk().0).collect();
    let chunks: Vec<i64> = chunks.into_iter().collect();
    let sql = chunks.chunks(LIST).flat_map(|some| {
        let some = list(some.iter().copied());
        [
            format!(
                "SELECT s.chunk, s.mask FROM tramline_slice s FORCE INDEX (PRIMARY) WHERE s.chunk IN ({some}) \
                 AND s.subscription = {id} AND s.state IN (0, 2, 3, 4, 8)"
            ),
            format!("SELECT chunk, prevs FROM tramline_chunk WHERE chunk IN ({some})"),
        ]
    });
    let sql: Vec<String> = sql.collect();
    let mut masks: HashMap<i64, i64> = HashMap::new();
    let mut links = HashMap::new();
    for pair in session.sets(sql).await?.chunks(2) {
        for row in &pair[0] {
            *masks.entry(row.int(0)?).or_default() |= row.int(1)?;
        }
        for row in &pair[1] {
            links.insert(row.int(0)?, numbers(row, 1)?);
        }
    }
    let has =
        |event: &EventId| masks.get(&event.chunk().0).is_some_and(|mask| mask >> event.index() & 1 == 1);
    Ok(Seen { pending: events.into_iter().filter(has).collect(), links })
}

/// The lanes of what was taken, which this step has locked already, with its keys and what they wait for and miss.
async fn load_lanes(
    session: &mut Session<'_>,
    id: SubscriptionId,
    taken: &[Slice],
) -> Result<BTreeMap<LaneId, LaneView>> {
    let taken: Vec<Slice> = taken.iter().filter(|slice| slice.is_ordered()).cloned().collect();
    if taken.is_empty() {
        return Ok(BTreeMap::new());
    }
    let lanes: BTreeSet<LaneId> = taken.iter().map(|slice| slice.lane).collect();
    let mut views = lock(session, id, &lanes).await?;
    load_keys(session, &mut views, &taken).await?;
    load_marks(session, &mut views, &taken).await?;
    Ok(views)
}

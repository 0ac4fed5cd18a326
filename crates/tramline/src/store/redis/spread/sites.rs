//! The slots of topics. A topic's number is that of its slot, and begins the numbers of its chunks, so every event tells where it is.

use super::owed::is_paid;
use super::{SpreadStore, copies};
use crate::error::{Error, Result};
use crate::model::id::{ChunkId, EventId, TopicId};
use crate::model::lease::Lease;
use crate::model::mask::Mask;
use crate::model::subscription::{Topic, TopicSettings};
use crate::model::time::Time;
use crate::store::redis::options::RedisOptions;
use crate::store::redis::session::{Session, number};
use crate::store::redis::{RedisStore, Role, catalog, erase, opening};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many bits of the number of a chunk count the chunks of its topic, and how many topics there can be with what is left.
const CHUNK_BITS: u32 = 40;
const MOST_TOPICS: i64 = (1 << 17) - 1;
/// How often a number for a new topic is drawn until one is free: only what a fail-over has forgotten can be in the way.
const DRAWS: u32 = 100;
/// Stands in a slot that was given up, in place of the change that was copied last: it is later than all.
pub(super) const VACATED: i64 = i64::MAX;
/// So many numbers of a topic are left alone: more than one emit takes.
const RESERVE: i64 = 1 << 20;

/// The sites that this process has met.
#[derive(Debug, Default)]
pub(super) struct Sites(Mutex<HashMap<TopicId, Arc<RedisStore>>>);

impl Sites {
    fn known(&self) -> MutexGuard<'_, HashMap<TopicId, Arc<RedisStore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what was remembered of a site.
    pub(super) fn forget(&self, topic: TopicId) {
        self.known().remove(&topic);
    }
}

/// The topic of a chunk.
pub(super) fn topic_of(chunk: ChunkId) -> TopicId {
    TopicId(chunk.0 >> CHUNK_BITS)
}

/// The topic of what is leased.
pub(super) fn topic_leased(lease: &Lease) -> TopicId {
    topic_of(lease.chunk)
}

/// The number before all that are given in the site of a topic.
fn base(topic: TopicId) -> i64 {
    topic.0 << CHUNK_BITS
}

/// The number of no event, before those of all events of a topic.
pub(super) fn before(topic: TopicId) -> EventId {
    EventId::at(ChunkId(base(topic)), Mask::CAPACITY - 1)
}

impl SpreadStore {
    /// The site of a topic.
    pub(super) fn site(&self, topic: TopicId) -> Arc<RedisStore> {
        let open = || {
            let name = format!("{}/{topic}", self.options().name);
            let options = RedisOptions { name, ..self.options().clone() };
            Arc::new(RedisStore::over(self.home.link.clone(), Role::Site, options))
        };
        self.sites.known().entry(topic).or_insert_with(open).clone()
    }

    /// Makes a topic, and its slot before anybody knows of it.
    pub(super) async fn create_topic(
        &self,
        name: &str,
        settings: &TopicSettings,
        now: Option<Time>,
    ) -> Result<Topic> {
        crate::model::name::check("topic", name)?;
        settings.check()?;
        // Somebody may still know the topic that had the name, and must not emit to it when there is another one.
        for (old, left) in self.home.read(None, leaving).await? {
            if left == name {
                self.bring_up(old).await?;
            }
        }
        let id = self.draw_topic(now).await?;
        let insert = |session: &Session<'_>| {
            if let Some(there) = session.catalog().topic(name) {
                return Ok(there.clone());
            }
            let topic = catalog::insert_topic(session, id, name, settings)?;
            catalog::changed(session)?;
            copies::mark(session, [id])?;
            Ok(topic)
        };
        let topic = self.home.write(now, insert).await?;
        self.bring_up(topic.id).await?;
        // Somebody else was quicker.
        if topic.id != id {
            self.leave(id).await?;
        }
        Ok(topic)
    }

    /// A number for a new topic, of which the slot is free and taken now.
    async fn draw_topic(&self, now: Option<Time>) -> Result<TopicId> {
        for _ in 0..DRAWS {
            let id = TopicId(self.home.add(now, |session| session.draw("topic", 1)).await?);
            if id.0 > MOST_TOPICS {
                return Err(Error::invalid(
                    format!("a store that is spread numbers {MOST_TOPICS} topics in its life"),
                    "use topics that are there, or a new store under another name",
                ));
            }
            if self.site(id).add(now, |session| take(session, id)).await? {
                return Ok(id);
            }
            // Home has forgotten that there was such a topic; what is left of it goes.
            self.home.write(now, |session: &Session<'_>| abandon(session, id, "")).await?;
        }
        Err(Error::unavailable("the slots of new topics are taken", "try again"))
    }

    /// Removes the last of a site, if nothing is left in it.
    pub(super) async fn leave(&self, topic: TopicId) -> Result<bool> {
        let step = |session: &Session<'_>| {
            let is_empty =
                session.catalog().topics().is_empty() && erase::is_clear(session)? && is_paid(session)?;
            if is_empty {
                vacate(session)?;
            }
            Ok(is_empty)
        };
        let has_left = self.site(topic).write(None, step).await?;
        if has_left {
            self.sites.forget(topic);
        }
        Ok(has_left)
    }
}

/// Says that a topic is gone, and that something may be left where it was.
pub(super) fn abandon(session: &Session<'_>, topic: TopicId, name: &str) -> Result<()> {
    session.put(session.key("leaving"), topic.to_string(), name.into());
    copies::mark(session, [topic]).map(drop)
}

/// Topics that are gone, and have something left in their sites, with their names.
pub(super) fn leaving(session: &Session<'_>) -> Result<BTreeMap<TopicId, String>> {
    let left = session.all(&session.key("leaving"))?.into_iter();
    let read = |(id, name): (Vec<u8>, Vec<u8>)| {
        (TopicId(number(Some(id))), String::from_utf8_lossy(&name).into_owned())
    };
    Ok(left.map(read).collect())
}

/// Begins to number what is in the slot. False if the slot is taken, or was.
fn take(session: &Session<'_>, topic: TopicId) -> Result<bool> {
    let meta = session.key("meta");
    if session.get(&meta, b"layout")?.is_some() || session.get(&meta, b"copied")?.is_some() {
        return Ok(false);
    }
    number_from_base(session, topic, 0)?;
    Ok(true)
}

/// Sees to it that what is in the slot gets numbers of the topic: the first, but for some if the slot may have lost that it had any.
pub(super) fn number_from_base(session: &Session<'_>, topic: TopicId, leap: i64) -> Result<()> {
    opening::mark(session)?;
    let meta = session.key("meta");
    for counter in ["chunk", "drop"] {
        if number(session.get(&meta, counter.as_bytes())?) < base(topic) {
            session.put(meta.clone(), counter, (base(topic) + leap).to_string().into_bytes());
        }
    }
    Ok(())
}

/// True unless all numbers of a topic are used up.
pub(in crate::store::redis) fn has_numbers(last: ChunkId) -> bool {
    let left = (1 << CHUNK_BITS) - 1 - (last.0 & ((1 << CHUNK_BITS) - 1));
    left > RESERVE
}

/// What a site has however little is in it. What stays says that the slot was used: whoever is late with an old copy changes nothing.
fn vacate(session: &Session<'_>) -> Result<()> {
    let tables =
        ["slices", "size", "totals", "once", "unique", "deleted", "joined", "fates", "fates_by_expiry"];
    let records = ["drops", "dropped", "drop_totals", "drop_last"];
    for what in tables.into_iter().chain(records) {
        session.forget(session.key(what));
    }
    let meta = session.key("meta");
    for field in session.all(&meta)?.into_keys() {
        session.remove(meta.clone(), field);
    }
    session.put(meta, "copied", VACATED.to_string().into_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_topic_tells_the_topic() {
        for topic in [TopicId(1), TopicId(2), TopicId(MOST_TOPICS)] {
            let last = ChunkId(base(topic) + (1 << CHUNK_BITS) - 1);
            assert_eq!(topic_of(ChunkId(base(topic) + 1)), topic);
            assert_eq!(topic_of(last), topic);
            let event = EventId::at(last, Mask::CAPACITY - 1);
            assert_eq!(topic_of(event.chunk()), topic);
            assert!(before(topic) < EventId::at(ChunkId(base(topic) + 1), 0) && before(topic) < event);
            assert_eq!(topic_of(before(topic).chunk()), topic);
        }
    }
}

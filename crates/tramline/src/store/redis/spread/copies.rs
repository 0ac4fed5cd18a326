//! What the slot of a topic knows of the catalogue: the topic, who consumes it, and the rules that stop them.
//!
//! Home decides. A change marks at home, in the step that makes it, the topics that it is about; then each of them is brought up to date,
//! and only then the change is answered. If nobody is left to do that, a sweep finds the marks. Changes are counted, and a copy never
//! takes the place of a newer one.

use super::{SpreadStore, sites};
use crate::error::{Error, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::subscription::{Start, Subscription, Topic};
use crate::model::time::Time;
use crate::store::deleted::{Deleted, InTheWay};
use crate::store::emit::{TRIES, restless};
use crate::store::redis::catalog::{filling_field, read, written};
use crate::store::redis::rules::rules_key;
use crate::store::redis::session::{Session, number};
use crate::store::redis::{RedisStore, catalog, drops, erase, limit, renumber};
use std::collections::{BTreeMap, BTreeSet};

/// What a topic's slot has to know.
struct Copy {
    version: i64,
    /// `None`: it was deleted.
    topic: Option<Topic>,
    consumers: Vec<Consumer>,
    /// All subscriptions there are: who no longer consumes the topic may have been deleted, or not.
    alive: BTreeSet<SubscriptionId>,
    /// How many numbers are left out where a slot has lost that it had any.
    leap: i64,
}

/// Who consumes a topic, how it came to it, and the rules that stop it as they are stored.
struct Consumer {
    subscription: Subscription,
    joined: Joined,
    rules: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// By which change a subscription came to a topic, and where it starts there. Whoever leaves and joins again does so by another one.
#[derive(Clone, Copy)]
struct Joined {
    change: i64,
    start: Start,
}

/// How far a copy came.
enum Installed {
    Whole,
    /// What somebody has left of the topic has to go first.
    ClearFirst,
}

/// Topics of which the slots are behind, and by which change.
fn behind(session: &Session<'_>) -> Vec<u8> {
    session.key("behind")
}

/// Says that something has changed of which the slots of these topics have to hear. Gives the number of the change.
pub(super) fn mark(session: &Session<'_>, topics: impl IntoIterator<Item = TopicId>) -> Result<i64> {
    let change = session.draw("changes", 1)?;
    for topic in topics {
        session.put(behind(session), topic.to_string(), change.to_string().into_bytes());
    }
    Ok(change)
}

/// The same for the topics that some subscriptions consume. Gives the topics.
pub(super) fn mark_those_of(
    session: &Session<'_>,
    subscriptions: &[SubscriptionId],
) -> Result<BTreeSet<TopicId>> {
    let catalog = session.catalog();
    let known = subscriptions.iter().filter_map(|id| catalog.require_subscription(*id).ok());
    let topics: BTreeSet<TopicId> =
        known.flat_map(|one| &one.topics).filter_map(|name| Some(catalog.topic(name)?.id)).collect();
    mark(session, topics.iter().copied())?;
    Ok(topics)
}

/// How subscriptions came to their topics.
fn joins(session: &Session<'_>) -> Vec<u8> {
    session.key("joins")
}

pub(super) fn put_join(session: &Session<'_>, id: SubscriptionId, topic: TopicId, change: i64, start: Start) {
    let from: Option<i64> = match start {
        Start::Beginning => Some(i64::MIN),
        Start::Now => None,
        Start::At(time) => Some(time.0),
    };
    session.put(joins(session), filling_field(id, topic), written(&(change, from)));
}

pub(super) fn remove_join(session: &Session<'_>, id: SubscriptionId, topic: TopicId) {
    session.remove(joins(session), filling_field(id, topic));
}

fn join(session: &Session<'_>, id: SubscriptionId, topic: TopicId) -> Result<Joined> {
    let row = session.get(&joins(session), &filling_field(id, topic))?;
    let (change, from): (i64, Option<i64>) = row.map_or(Ok((0, None)), |row| read(&row))?;
    let start = match from {
        None => Start::Now,
        Some(i64::MIN) => Start::Beginning,
        Some(time) => Start::At(Time(time)),
    };
    Ok(Joined { change, start })
}

/// What home knows of a topic, and by which change its slot is behind.
fn copy(session: &Session<'_>, topic: TopicId, leap: i64) -> Result<(Copy, Option<Vec<u8>>)> {
    let catalog = session.catalog();
    let found = catalog.topic_by_id(topic).cloned();
    let mut consumers = Vec::new();
    for one in catalog.subscriptions() {
        if found.as_ref().is_some_and(|topic| one.topics.contains(&topic.name)) {
            consumers.push(Consumer {
                subscription: one.clone(),
                joined: join(session, one.id, topic)?,
                rules: session.all(&rules_key(session, one.id))?,
            });
        }
    }
    let copy = Copy {
        version: number(session.get(&session.key("meta"), b"changes")?),
        topic: found,
        consumers,
        alive: catalog.subscriptions().iter().map(|one| one.id).collect(),
        leap,
    };
    let change = session.get(&behind(session), topic.to_string().as_bytes())?;
    Ok((copy, change))
}

/// Brings the slot of a topic up to date, unless it knows more already.
fn install(session: &Session<'_>, id: TopicId, copy: &Copy) -> Result<Installed> {
    let meta = session.key("meta");
    let copied = number(session.get(&meta, b"copied")?);
    if copied == sites::VACATED && copy.topic.is_some() {
        return Err(Error::conflict(
            format!("the slot of topic {id} was given up when the topic was deleted"),
            "delete the topic, and create it again",
        ));
    }
    if copied >= copy.version {
        let is_untold = session.is_untold() && copied != sites::VACATED;
        return if is_untold { catalog::told(session) } else { Ok(()) }.map(|()| Installed::Whole);
    }
    if part_with_leavers(session, id, copy)? {
        catalog::changed(session)?;
        return Ok(Installed::ClearFirst);
    }
    if erase::is_left(session, id)? && needs_clear(session, copy) {
        return Ok(Installed::ClearFirst);
    }
    session.put(meta, "copied", copy.version.to_string().into_bytes());
    let Some(topic) = &copy.topic else {
        let known = session.catalog();
        known.topics().iter().try_for_each(|old| catalog::delete_topic(session, &old.name))?;
        return Ok(Installed::Whole);
    };
    // Also where a fail-over has lost that the slot was taken, or home that the topic was deleted.
    sites::number_from_base(session, id, copy.leap)?;
    erase::unmark(session, Deleted::Topic(id));
    catalog::write_topic(session, topic);
    for consumer in &copy.consumers {
        consume(session, topic, consumer)?;
    }
    catalog::told(session)?;
    Ok(Installed::Whole)
}

/// The changes by which the slot knows that subscriptions came.
fn joined(session: &Session<'_>) -> Vec<u8> {
    session.key("joined")
}

/// Who no longer consumes the topic, or has left it and joined it again, leaves it. True if there was somebody.
fn part_with_leavers(session: &Session<'_>, topic: TopicId, copy: &Copy) -> Result<bool> {
    let mut some = false;
    for old in session.catalog().subscriptions() {
        let field = old.id.to_string();
        let by = number(session.get(&joined(session), field.as_bytes())?);
        let stays = |one: &Consumer| one.subscription.id == old.id && one.joined.change == by;
        if copy.consumers.iter().any(stays) {
            continue;
        }
        some = true;
        session.remove(joined(session), field);
        if !copy.alive.contains(&old.id) {
            catalog::remove_subscription(session, old.id)?;
            continue;
        }
        catalog::leave_topic(session, old.id, topic)?;
        session.forget(rules_key(session, old.id));
        session.remove(session.key("subscriptions"), old.id.to_string());
        limit::forget(session, old.id);
        drops::forget(session, old.id)?;
    }
    Ok(some)
}

/// What was left of the topic is in the way of whoever joins it, and of deleting it.
fn needs_clear(session: &Session<'_>, copy: &Copy) -> bool {
    let known = session.catalog();
    let is_new = |one: &Consumer| known.require_subscription(one.subscription.id).is_err();
    copy.topic.is_none() || copy.consumers.iter().any(is_new)
}

fn consume(session: &Session<'_>, topic: &Topic, consumer: &Consumer) -> Result<()> {
    let Subscription { id, name, policy, created_at, .. } = &consumer.subscription;
    let is_new = session.catalog().require_subscription(*id).is_err();
    catalog::write_subscription(session, *id, name, policy, *created_at);
    write_rules(session, *id, &consumer.rules)?;
    if is_new {
        let Joined { change, start } = consumer.joined;
        session.put(joined(session), id.to_string(), change.to_string().into_bytes());
        catalog::join_topic(session, *id, topic, policy.ordering, start)?;
    }
    Ok(())
}

fn write_rules(session: &Session<'_>, id: SubscriptionId, rules: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
    let table = rules_key(session, id);
    for field in session.all(&table)?.into_keys().filter(|field| !rules.contains_key(field)) {
        session.remove(table.clone(), field);
    }
    for (field, rule) in rules {
        session.put(table.clone(), field.clone(), rule.clone());
    }
    Ok(())
}

impl SpreadStore {
    /// Lets the slot of a topic know what home knows.
    pub(super) async fn bring_up(&self, topic: TopicId) -> Result<()> {
        // Checked at its end like what writes, so that it is of one piece.
        let leap = renumber::leap();
        let (copy, change) = self.home.write(None, |session| copy(session, topic, leap)).await?;
        let (site, mut tries) = (self.site(topic), 0);
        while let Installed::ClearFirst = site.write(None, |session| install(session, topic, &copy)).await? {
            clear(&site).await?;
            tries += 1;
            if tries == TRIES {
                return Err(restless());
            }
        }
        // What was left may have been items of tallies.
        self.pay(topic, None).await;
        let Some(change) = change else { return Ok(()) };
        let tick_off = |session: &Session<'_>| {
            let field = topic.to_string();
            if session.get(&behind(session), field.as_bytes())?.as_ref() == Some(&change) {
                session.remove(behind(session), field);
            }
            Ok(())
        };
        self.home.write(None, tick_off).await
    }

    /// The same for several topics.
    pub(super) async fn bring_all_up(&self, topics: impl IntoIterator<Item = TopicId>) -> Result<()> {
        self.each(topics, |topic| self.bring_up(topic)).await.map(drop)
    }

    /// Brings up what somebody left behind. After a loss home may not know what it told its topics: then all of them hear from it again.
    pub(super) async fn catch_up(&self) -> Result<()> {
        let begin_anew = |session: &Session<'_>| {
            let meta = session.key("meta");
            let (history, told) = (session.get(&meta, b"history")?, session.get(&meta, b"told")?);
            if let Some(history) = history.filter(|history| told.as_ref() != Some(history)) {
                mark(session, session.catalog().topics().iter().map(|topic| topic.id))?;
                session.put(meta, "told", history);
            }
            session.all(&behind(session))
        };
        let left = self.home.write(None, begin_anew).await?;
        let topics = left.into_keys().map(|id| TopicId(number(Some(id))));
        for brought in self.side_by_side(topics, |topic| self.bring_up(topic)).await {
            super::warn_of(brought);
        }
        Ok(())
    }
}

async fn clear(site: &RedisStore) -> Result<()> {
    let topics = site.read(None, |session| Ok(session.catalog().topics().to_vec())).await?;
    for topic in topics {
        site.clear(InTheWay::LeftOf(topic.name)).await?;
    }
    Ok(())
}

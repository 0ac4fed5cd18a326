//! What the slot of a topic knows of the catalogue: the topic, who consumes it, and the rules that stop them.
//!
//! Home decides. A change marks at home, in the step that makes it, the topics that it is about; then each of them is brought up to date,
//! and only then the change is answered. If nobody is left to do that, a sweep finds the marks. Changes are counted, and a copy never
//! takes the place of a newer one.

use super::SpreadStore;
use crate::error::Result;
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::subscription::{Start, Subscription, Topic};
use crate::model::time::Time;
use crate::store::deleted::InTheWay;
use crate::store::redis::catalog::{filling_field, read, written};
use crate::store::redis::rules::rules_key;
use crate::store::redis::session::{Session, number};
use crate::store::redis::{RedisStore, catalog};
use std::collections::{BTreeMap, BTreeSet};

/// What a topic's slot has to know.
struct Copy {
    version: i64,
    /// `None`: it was deleted.
    topic: Option<Topic>,
    consumers: Vec<Consumer>,
    /// All subscriptions there are: who no longer consumes the topic may have been deleted, or not.
    alive: BTreeSet<SubscriptionId>,
}

/// Who consumes a topic, from where on, and the rules that stop it as they are stored.
struct Consumer {
    subscription: Subscription,
    start: Start,
    rules: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Topics of which the slots are behind, and by which change.
fn behind(session: &Session<'_>) -> Vec<u8> {
    session.key("behind")
}

/// Says that something has changed of which the slots of these topics have to hear.
pub(super) fn mark(session: &Session<'_>, topics: impl IntoIterator<Item = TopicId>) -> Result<()> {
    let change = session.draw("changes", 1)?.to_string();
    for topic in topics {
        session.put(behind(session), topic.to_string(), change.clone().into_bytes());
    }
    Ok(())
}

/// The topics that some subscriptions consume.
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

/// Where a subscription starts in topics that are new to it.
fn starts(session: &Session<'_>) -> Vec<u8> {
    session.key("starts")
}

pub(super) fn put_start(session: &Session<'_>, id: SubscriptionId, topic: TopicId, start: Start) {
    let from: Option<i64> = match start {
        Start::Beginning => Some(i64::MIN),
        Start::Now => None,
        Start::At(time) => Some(time.0),
    };
    session.put(starts(session), filling_field(id, topic), written(&from));
}

pub(super) fn remove_start(session: &Session<'_>, id: SubscriptionId, topic: TopicId) {
    session.remove(starts(session), filling_field(id, topic));
}

fn start(session: &Session<'_>, id: SubscriptionId, topic: TopicId) -> Result<Start> {
    let Some(row) = session.get(&starts(session), &filling_field(id, topic))? else {
        return Ok(Start::Now);
    };
    Ok(match read::<Option<i64>>(&row)? {
        None => Start::Now,
        Some(i64::MIN) => Start::Beginning,
        Some(time) => Start::At(Time(time)),
    })
}

/// What home knows of a topic, and by which change its slot is behind.
fn copy(session: &Session<'_>, topic: TopicId) -> Result<(Copy, Option<Vec<u8>>)> {
    let catalog = session.catalog();
    let found = catalog.topic_by_id(topic).cloned();
    let mut consumers = Vec::new();
    for one in catalog.subscriptions() {
        if found.as_ref().is_some_and(|topic| one.topics.contains(&topic.name)) {
            consumers.push(Consumer {
                subscription: one.clone(),
                start: start(session, one.id, topic)?,
                rules: session.all(&rules_key(session, one.id))?,
            });
        }
    }
    let copy = Copy {
        version: number(session.get(&session.key("meta"), b"changes")?),
        topic: found,
        consumers,
        alive: catalog.subscriptions().iter().map(|one| one.id).collect(),
    };
    let change = session.get(&behind(session), topic.to_string().as_bytes())?;
    Ok((copy, change))
}

/// Brings the slot up to date, unless it knows more already. False if somebody has left it for which something has to go first.
fn install(session: &Session<'_>, copy: &Copy) -> Result<bool> {
    let (meta, known) = (session.key("meta"), session.catalog());
    if number(session.get(&meta, b"copied")?) >= copy.version {
        return Ok(true);
    }
    let wanted: BTreeSet<SubscriptionId> = copy.consumers.iter().map(|one| one.subscription.id).collect();
    let leaving: Vec<&Subscription> =
        known.subscriptions().iter().filter(|old| !wanted.contains(&old.id)).collect();
    if !leaving.is_empty() {
        leaving.into_iter().try_for_each(|old| part(session, old, copy))?;
        return catalog::changed(session).map(|()| false);
    }
    session.put(meta, "copied", copy.version.to_string().into_bytes());
    let Some(topic) = &copy.topic else {
        return known.topics().iter().try_for_each(|old| catalog::delete_topic(session, &old.name)).map(|()| true);
    };
    catalog::write_topic(session, topic);
    for Consumer { subscription, start, rules } in &copy.consumers {
        let Subscription { id, name, policy, created_at, .. } = subscription;
        catalog::write_subscription(session, *id, name, policy, *created_at);
        write_rules(session, *id, rules)?;
        if known.require_subscription(*id).is_err() {
            catalog::join_topic(session, *id, topic, policy.ordering, *start)?;
        }
    }
    catalog::changed(session).map(|()| true)
}

/// Somebody no longer consumes the topic, or is gone altogether.
fn part(session: &Session<'_>, old: &Subscription, copy: &Copy) -> Result<()> {
    if !copy.alive.contains(&old.id) {
        return catalog::remove_subscription(session, old.id);
    }
    if let Some(topic) = session.catalog().topics().first() {
        catalog::leave_topic(session, old.id, topic.id)?;
    }
    session.forget(rules_key(session, old.id));
    session.remove(session.key("subscriptions"), old.id.to_string());
    Ok(())
}

fn write_rules(
    session: &Session<'_>,
    id: SubscriptionId,
    rules: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<()> {
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
        let (copy, change) = self.home.write(None, |session| copy(session, topic)).await?;
        let site = self.site(topic);
        clear(&site).await?;
        while !site.write(None, |session| install(session, &copy)).await? {
            clear(&site).await?;
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

    /// Brings up what somebody left behind.
    pub(super) async fn catch_up(&self) -> Result<()> {
        let left = self.home.read(None, |session| session.all(&behind(session))).await?;
        self.bring_all_up(left.into_keys().map(|id| TopicId(number(Some(id))))).await
    }

    /// After a loss home may not know what it told its topics: all of them hear from it again.
    pub(super) async fn begin_anew(&self) -> Result<()> {
        let compare = |session: &Session<'_>| {
            let meta = session.key("meta");
            let (history, told) = (session.get(&meta, b"history")?, session.get(&meta, b"told")?);
            if let Some(history) = history.filter(|history| told.as_ref() != Some(history)) {
                mark(session, session.catalog().topics().iter().map(|topic| topic.id))?;
                session.put(meta, "told", history);
            }
            Ok(())
        };
        self.home.write(None, compare).await
    }
}

/// What was left of the topic is in the way of whoever joins it again, or deletes it.
async fn clear(site: &RedisStore) -> Result<()> {
    let topics = site.read(None, |session| Ok(session.catalog().topics().to_vec())).await?;
    for topic in topics {
        site.clear(InTheWay::LeftOf(topic.name)).await?;
    }
    Ok(())
}

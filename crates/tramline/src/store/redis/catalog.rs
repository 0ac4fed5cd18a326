//! Topics, subscriptions and rules, and the copy of them that every process keeps.

use super::link::{Command, text};
use super::pack::damaged;
use super::rows::{Logged, lanes, lanes_key, logged, write_lane};
use super::rules;
use super::session::{Session, hget, key, number};
use super::tuple::{Columns, Tuple};
use super::{Role, erase};
use crate::error::Result;
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::lane::{self, DEFAULT_LANES, Lane};
use crate::model::name;
use crate::model::subscription::{
    DEFAULT_RETENTION, Ordering, Policy, Start, Subscription, Topic, TopicSettings,
};
use crate::model::time::{Time, millis};
use crate::store::catalog::{Catalog, still_left};
use crate::store::deleted::{Deleted, lanes_of};
use crate::store::verbs::{PutSubscription, PutTopic};
use redis::Value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A topic as it is stored.
#[derive(Serialize, Deserialize)]
struct TopicRow {
    name: String,
    lanes: u32,
    retention_ms: i64,
    created_at: i64,
    owner: Option<String>,
}

/// A subscription as it is stored.
#[derive(Serialize, Deserialize)]
struct SubscriptionRow {
    name: String,
    policy: Policy,
    created_at: i64,
}

/// What a subscription has of a topic: chunks from `next` to `until` were emitted before it and are still to be written into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) subscription: SubscriptionId,
    pub(super) topic: TopicId,
    pub(super) next: i64,
    pub(super) until: i64,
}

impl Filling {
    pub(super) fn is_open(&self) -> bool {
        self.next <= self.until
    }
}

/// The number that every change of topics and subscriptions raises.
pub(super) fn version_of(stored: Option<&Value>) -> i64 {
    stored.and_then(text).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What the catalogue is made of, looked at loosely: the version, which is checked, says whether it is still so.
pub(super) fn parts(name: &str) -> impl Iterator<Item = Command> {
    ["topics", "subscriptions", "consumed"].map(|part| vec![b"hgetall".to_vec(), key(name, part)]).into_iter()
}

pub(super) fn changed(session: &Session<'_>) -> Result<()> {
    session.draw("catalog", 1)?;
    session.refresh()
}

/// The same where a site has heard what it may have lost: see [`Session::is_untold`].
pub(super) fn told(session: &Session<'_>) -> Result<()> {
    let version = session.draw("catalog", 0)?.unsigned_abs() + 1;
    session.put(session.key("meta"), "catalog", version.to_string().into_bytes());
    session.refresh()
}

/// Reads all topics and subscriptions.
pub(super) fn load(session: &Session<'_>) -> Result<Catalog> {
    session.expect(parts_of(session))?;
    let topics = topics(session)?;
    let names: BTreeMap<TopicId, Arc<str>> =
        topics.iter().map(|topic| (topic.id, topic.name.clone())).collect();
    let mut consumed: BTreeMap<SubscriptionId, Vec<Arc<str>>> = BTreeMap::new();
    for filling in fillings(session)? {
        if let Some(name) = names.get(&filling.topic) {
            consumed.entry(filling.subscription).or_default().push(name.clone());
        }
    }
    let mut subscriptions = Vec::new();
    for (id, row) in session.all(&session.key("subscriptions"))? {
        let id = SubscriptionId(number(Some(id)));
        let row: SubscriptionRow = read(&row)?;
        let mut topics = consumed.remove(&id).unwrap_or_default();
        topics.sort();
        let created_at = Time(row.created_at);
        subscriptions.push(Subscription {
            id,
            name: row.name.into(),
            topics,
            policy: row.policy,
            created_at,
        });
    }
    subscriptions.sort_by(|a, b| a.name.cmp(&b.name));
    let version = number(session.get(&session.key("meta"), b"catalog")?);
    Ok(Catalog::new(version, topics, subscriptions))
}

fn parts_of(session: &Session<'_>) -> impl Iterator<Item = Command> {
    ["topics", "subscriptions", "consumed"]
        .map(|part| vec![b"HGETALL".to_vec(), session.key(part)])
        .into_iter()
}

fn topics(session: &Session<'_>) -> Result<Vec<Topic>> {
    let mut topics = Vec::new();
    for (id, row) in session.all(&session.key("topics"))? {
        let row: TopicRow = read(&row)?;
        topics.push(Topic {
            id: TopicId(number(Some(id))),
            name: row.name.into(),
            lanes: row.lanes,
            retention: Duration::from_millis(row.retention_ms.max(0).cast_unsigned()),
            created_at: Time(row.created_at),
            owner: row.owner.map(Arc::from),
        });
    }
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(topics)
}

pub(super) fn read<T: DeserializeOwned>(row: &[u8]) -> Result<T> {
    serde_json::from_slice(row).map_err(|error| damaged().because(error))
}

/// Plain values always serialise.
pub(super) fn written<T: Serialize>(row: &T) -> Vec<u8> {
    serde_json::to_vec(row).unwrap_or_default()
}

/// Which topics every subscription consumes, by subscription and topic.
pub(super) fn fillings(session: &Session<'_>) -> Result<Vec<Filling>> {
    let mut all = Vec::new();
    for (field, row) in session.all(&session.key("consumed"))? {
        let mut columns = Columns(&field);
        let (subscription, topic) = (SubscriptionId(columns.number()), TopicId(columns.number()));
        let (next, until) = read(&row)?;
        all.push(Filling { subscription, topic, next, until });
    }
    all.sort_by_key(|one| (one.subscription, one.topic));
    Ok(all)
}

/// What one subscription has of its topics, as far as it consumes them now. Others' are not read: every claim does this.
pub(super) fn fillings_of(session: &Session<'_>, id: SubscriptionId) -> Result<Vec<Filling>> {
    some_fillings(session, consumed_topics(session, id).into_iter().map(|topic| (id, topic)))
}

/// What is had of one topic. Others' are not read: whoever looks at topic after topic would read the square of all of them.
pub(super) fn fillings_in(session: &Session<'_>, topic: TopicId) -> Result<Vec<Filling>> {
    let catalog = session.catalog();
    let Some(topic) = catalog.topic_by_id(topic) else { return Ok(Vec::new()) };
    let consumes = |one: &&Subscription| one.topics.contains(&topic.name);
    some_fillings(session, catalog.subscriptions().iter().filter(consumes).map(|one| (one.id, topic.id)))
}

fn some_fillings(
    session: &Session<'_>,
    wanted: impl Iterator<Item = (SubscriptionId, TopicId)> + Clone,
) -> Result<Vec<Filling>> {
    let table = session.key("consumed");
    session.expect(wanted.clone().map(|(id, topic)| hget(&table, &filling_field(id, topic))))?;
    let mut found = Vec::new();
    for (subscription, topic) in wanted {
        if let Some(row) = session.get(&table, &filling_field(subscription, topic))? {
            let (next, until) = read(&row)?;
            found.push(Filling { subscription, topic, next, until });
        }
    }
    Ok(found)
}

/// Says what a claim reads to know whether something is still being written into a subscription.
pub(super) fn filling_reads(session: &Session<'_>, id: SubscriptionId) -> Vec<Command> {
    let table = session.key("consumed");
    consumed_topics(session, id).iter().map(|topic| hget(&table, &filling_field(id, *topic))).collect()
}

fn consumed_topics(session: &Session<'_>, id: SubscriptionId) -> Vec<TopicId> {
    let catalog = session.catalog();
    let Ok(subscription) = catalog.require_subscription(id) else { return Vec::new() };
    subscription.topics.iter().filter_map(|name| Some(catalog.topic(name)?.id)).collect()
}

pub(super) fn filling_field(id: SubscriptionId, topic: TopicId) -> Vec<u8> {
    Tuple::new().with(&[id.0, topic.0]).bytes()
}

pub(super) fn write_filling(session: &Session<'_>, filling: &Filling) {
    let field = filling_field(filling.subscription, filling.topic);
    session.put(session.key("consumed"), field, written(&(filling.next, filling.until)));
}

/// True while retained events are still being written into a subscription.
pub(super) fn is_filling(session: &Session<'_>, id: SubscriptionId) -> Result<bool> {
    Ok(fillings_of(session, id)?.iter().any(Filling::is_open))
}

/// Creates the topics that do not exist yet.
pub(super) fn create_missing<'a>(session: &Session<'_>, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let catalog = session.catalog();
    let missing: BTreeSet<&str> = names.filter(|name| catalog.topic(name).is_none()).collect();
    for name in &missing {
        // A topic of a store that is spread needs a slot, which is made before anybody knows of it.
        if session.role != Role::Whole {
            catalog.require_topic(name)?;
        }
        let id = TopicId(session.draw("topic", 1)?);
        insert_topic(session, id, name, &TopicSettings::default())?;
    }
    if missing.is_empty() { Ok(()) } else { changed(session) }
}

pub(super) fn insert_topic(
    session: &Session<'_>,
    id: TopicId,
    name: &str,
    settings: &TopicSettings,
) -> Result<Topic> {
    name::check("topic", name)?;
    let topic = Topic {
        id,
        name: Arc::from(name),
        lanes: settings.lanes.unwrap_or(DEFAULT_LANES),
        retention: settings.retention.unwrap_or(DEFAULT_RETENTION),
        owner: settings.owner(None)?,
        created_at: session.now,
    };
    write_topic(session, &topic);
    Ok(topic)
}

pub(super) fn write_topic(session: &Session<'_>, topic: &Topic) {
    let row = TopicRow {
        name: topic.name.to_string(),
        lanes: topic.lanes,
        retention_ms: millis(topic.retention),
        created_at: topic.created_at.0,
        owner: topic.owner.as_deref().map(str::to_owned),
    };
    session.put(session.key("topics"), topic.id.to_string(), written(&row));
}

pub(super) fn put_topic(session: &Session<'_>, put: &PutTopic) -> Result<Topic> {
    put.settings.check()?;
    let topic = match session.catalog().topic(&put.name) {
        None => insert_topic(session, TopicId(session.draw("topic", 1)?), &put.name, &put.settings)?,
        Some(old) => {
            let topic = old.changed(&put.settings)?;
            write_topic(session, &topic);
            topic
        }
    };
    changed(session)?;
    Ok(topic)
}

pub(super) fn delete_topic(session: &Session<'_>, name: &str) -> Result<()> {
    let catalog = session.catalog();
    let topic = catalog.require_topic(name)?;
    catalog.check_unused(name)?;
    if erase::is_left(session, topic.id)? {
        return Err(still_left(name));
    }
    erase::mark(session, Deleted::Topic(topic.id))?;
    session.remove(session.key("topics"), topic.id.to_string());
    session.remove(session.key("totals"), topic.id.to_string());
    changed(session)
}

/// The topics have been created.
pub(super) fn put_subscription(session: &Session<'_>, put: &PutSubscription) -> Result<Subscription> {
    put.check()?;
    create_missing(session, put.topics.iter().map(String::as_str))?;
    let catalog = session.catalog();
    let old = catalog.subscription_named(&put.name);
    put.check_change(old)?;
    let (id, created_at) = match old {
        Some(old) => (old.id, old.created_at),
        None => (SubscriptionId(session.draw("subscription", 1)?), session.now),
    };
    write_subscription(session, id, &put.name, &put.policy, created_at);
    let wanted: BTreeSet<&str> = put.topics.iter().map(String::as_str).collect();
    let had: BTreeSet<&str> = old.iter().flat_map(|old| old.topics.iter().map(|topic| &**topic)).collect();
    for name in wanted.difference(&had) {
        join_topic(session, id, catalog.require_topic(name)?, put.policy.ordering, put.start)?;
    }
    for name in had.difference(&wanted) {
        leave_topic(session, id, catalog.require_topic(name)?.id)?;
    }
    changed(session)?;
    let topics = wanted.into_iter().map(Arc::from).collect();
    let name = Arc::from(put.name.as_str());
    let subscription = Subscription { id, name, topics, policy: put.policy.clone(), created_at };
    rules::resolve(session, &subscription)?;
    Ok(subscription)
}

pub(super) fn write_subscription(
    session: &Session<'_>,
    id: SubscriptionId,
    name: &str,
    policy: &Policy,
    created_at: Time,
) {
    let row = SubscriptionRow { name: name.to_owned(), policy: policy.clone(), created_at: created_at.0 };
    session.put(session.key("subscriptions"), id.to_string(), written(&row));
}

pub(super) fn join_topic(
    session: &Session<'_>,
    id: SubscriptionId,
    topic: &Topic,
    ordering: Ordering,
    start: Start,
) -> Result<()> {
    if erase::is_marked(session, Deleted::Left(id, topic.id))? {
        return Err(still_left(&topic.name));
    }
    let until = session.draw("chunk", 0)? - 1;
    let next = match start {
        Start::Now => None,
        Start::Beginning => first_at(session, topic.id, Time(i64::MIN))?,
        Start::At(time) => first_at(session, topic.id, time)?,
    };
    let next = next.unwrap_or(until + 1);
    write_filling(session, &Filling { subscription: id, topic: topic.id, next, until });
    // Lanes are where the events are.
    if session.role == Role::Home {
        return Ok(());
    }
    let (first, count) = lane::all(ordering, topic);
    let there: BTreeSet<LaneId> = lanes(session, id)?.into_iter().map(|lane| lane.lane).collect();
    for number in 0..i64::from(count) {
        let lane = LaneId(first.0 + number);
        if !there.contains(&lane) {
            write_lane(session, &free(id, lane));
        }
    }
    Ok(())
}

fn free(subscription: SubscriptionId, lane: LaneId) -> Lane {
    let zero = Time(0);
    Lane { subscription, lane, owner: None, epoch: 0, until: zero, halted_until: zero, leased: 0, marks: 0 }
}

/// The first chunk of a topic that was emitted at a time or later. Chunks ascend in time, so halving finds it in a few looks however
/// many there are.
fn first_at(session: &Session<'_>, topic: TopicId, time: Time) -> Result<Option<i64>> {
    let next = |from: i64| -> Result<Option<Logged>> { Ok(logged(session, topic, from, i64::MAX, 1)?.pop()) };
    let Some(first) = next(0)? else { return Ok(None) };
    if first.emitted_at >= time {
        return Ok(Some(first.chunk.0));
    }
    // What is at `early` was emitted before; nothing from `late` on was.
    let (mut early, mut late) = (first.chunk.0, session.draw("chunk", 0)?);
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        match next(middle)? {
            Some(found) if found.emitted_at < time => early = found.chunk.0,
            _ => late = middle,
        }
    }
    Ok(next(late)?.map(|found| found.chunk.0))
}

/// All that a subscription still had to do of a topic is to go.
pub(super) fn leave_topic(session: &Session<'_>, id: SubscriptionId, topic: TopicId) -> Result<()> {
    erase::mark(session, Deleted::Left(id, topic))?;
    let [first, end] = lanes_of(topic);
    for lane in lanes(session, id)?.into_iter().filter(|lane| (first..end).contains(&lane.lane.0)) {
        session.remove(lanes_key(session, id), lane.lane.to_string());
    }
    session.remove(session.key("consumed"), filling_field(id, topic));
    Ok(())
}

pub(super) fn delete_subscription(session: &Session<'_>, name: &str) -> Result<()> {
    let catalog = session.catalog();
    remove_subscription(session, catalog.require_subscription_named(name)?.id)?;
    changed(session)
}

/// It is gone; its rows go later.
pub(super) fn remove_subscription(session: &Session<'_>, id: SubscriptionId) -> Result<()> {
    erase::mark(session, Deleted::Subscription(id))?;
    for filling in fillings(session)?.into_iter().filter(|one| one.subscription == id) {
        session.remove(session.key("consumed"), filling_field(id, filling.topic));
    }
    for table in ["lanes", "rules", "audit", "remote", "attempts", "unparking"] {
        session.forget(session.key(&format!("{table}:{id}")));
    }
    session.remove(session.key("push"), id.to_string());
    super::limit::forget(session, id);
    super::drops::forget(session, id)?;
    session.remove(session.key("subscriptions"), id.to_string());
    Ok(())
}

/// Below which chunk claims of a lane have to stay while retained events are still being written.
pub(super) fn backfill_cursor(
    session: &Session<'_>,
    id: SubscriptionId,
    lane: LaneId,
) -> Result<Option<ChunkId>> {
    let of_lane = |one: &Filling| (lane == LaneId::WHOLE || one.topic == lane.topic()) && one.is_open();
    Ok(fillings_of(session, id)?.into_iter().filter(of_lane).map(|one| ChunkId(one.next)).min())
}

//! Topics, subscriptions and rules, and the copy of them that every process keeps.

use super::erase;
use super::rules;
use super::session::{Session, VERSION};
use super::sql::{Columns, insert, maybe_text, paired, text};
use crate::error::{Error, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::lane::{self, DEFAULT_LANES};
use crate::model::name;
use crate::model::subscription::{DEFAULT_RETENTION, Policy, Start, Subscription, Topic, TopicSettings};
use crate::model::time::{Time, millis};
use crate::store::catalog::{Catalog, still_left};
use crate::store::deleted::{Deleted, lanes_of};
use crate::store::verbs::{PutSubscription, PutTopic};
use sqlx::mysql::MySqlRow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Reads all topics and subscriptions. The version comes first: what is read later may be newer, never older.
pub(super) async fn load(session: &mut Session<'_>) -> Result<Catalog> {
    let sets = session
        .sets(vec![
            VERSION.to_owned(),
            "SELECT id, name, lanes, retention_ms, created_at, owner FROM tramline_topic ORDER BY name"
                .to_owned(),
            "SELECT id, name, policy, created_at FROM tramline_subscription ORDER BY name".to_owned(),
            "SELECT subscription, topic FROM tramline_subscription_topic".to_owned(),
        ])
        .await?;
    let version = sets[0].first().map_or(Ok(0), |row| row.int(0))?;
    let topics: Vec<Topic> = sets[1].iter().map(topic).collect::<Result<_>>()?;
    let names: BTreeMap<TopicId, Arc<str>> =
        topics.iter().map(|topic| (topic.id, topic.name.clone())).collect();
    let mut consumed: BTreeMap<SubscriptionId, BTreeSet<Arc<str>>> = BTreeMap::new();
    for row in &sets[3] {
        let of = consumed.entry(SubscriptionId(row.int(0)?)).or_default();
        of.extend(names.get(&TopicId(row.int(1)?)).cloned());
    }
    let mut subscriptions = Vec::new();
    for row in &sets[2] {
        let id = SubscriptionId(row.int(0)?);
        subscriptions.push(Subscription {
            id,
            name: row.text(1)?.into(),
            topics: consumed.remove(&id).unwrap_or_default().into_iter().collect(),
            policy: policy(&row.text(2)?)?,
            created_at: row.time(3)?,
        });
    }
    Ok(Catalog::new(version, topics, subscriptions))
}

fn topic(row: &MySqlRow) -> Result<Topic> {
    Ok(Topic {
        id: TopicId(row.int(0)?),
        name: row.text(1)?.into(),
        lanes: row.int(2)? as u32,
        retention: Duration::from_millis(row.int(3)?.max(0).cast_unsigned()),
        created_at: row.time(4)?,
        owner: row.maybe_text(5)?.map(Arc::from),
    })
}

fn policy(text: &str) -> Result<Policy> {
    serde_json::from_str(text).map_err(|error| {
        Error::invalid("a stored policy cannot be read", "upgrade: it was written by a newer version")
            .because(error)
    })
}

/// Raises the version. Changes of the catalogue wait for each other here, until they are committed.
fn changed(session: &mut Session<'_>) {
    session.write("UPDATE tramline_meta SET value = value + 1 WHERE name = 'catalog'");
}

/// Waits for other changes of the catalogue, and keeps them away until the transaction ends.
pub(super) async fn lock_catalog(session: &mut Session<'_>) -> Result<()> {
    session.rows("SELECT value FROM tramline_meta WHERE name = 'catalog' FOR UPDATE").await.map(|_| ())
}

/// Keeps emits away from topics until the transaction ends; waits for those under way. Sorted, so that two changes
/// never wait in a circle. New emits queue behind a waiting change, so it must not wait long: see [`super::SETUP`].
pub(super) async fn lock_topics(session: &mut Session<'_>, topics: &BTreeSet<TopicId>) -> Result<()> {
    if topics.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT g.id FROM {} STRAIGHT_JOIN tramline_gate g ON g.kind = 0 AND g.id = n.a AND g.side = n.b FOR UPDATE",
        paired(topics.iter().flat_map(|topic| [(topic.0, 0), (topic.0, 1)]))
    );
    session.rows(sql).await.map(|_| ())
}

/// Keeps everything that writes slices of a subscription away until the transaction ends.
async fn lock_subscription(session: &mut Session<'_>, id: SubscriptionId) -> Result<()> {
    let sql =
        format!("SELECT id FROM tramline_gate WHERE kind = 1 AND id = {} AND side = 0 FOR UPDATE", id.0);
    session.rows(sql).await.map(|_| ())
}

/// Creates the topics that do not exist yet. Gives true if there were any.
pub(super) async fn create_missing(session: &mut Session<'_>, names: &[&str]) -> Result<bool> {
    let catalog = session.catalog.clone();
    let missing: BTreeSet<&str> =
        names.iter().copied().filter(|name| catalog.topic(name).is_none()).collect();
    for name in &missing {
        insert_topic(session, name, &TopicSettings::default()).await?;
    }
    if !missing.is_empty() {
        changed(session);
    }
    Ok(!missing.is_empty())
}

/// If another process created it first, the server says so, and the step begins anew.
async fn insert_topic(session: &mut Session<'_>, name: &str, settings: &TopicSettings) -> Result<Topic> {
    name::check("topic", name)?;
    let owner = settings.owner(None)?;
    let sql = format!(
        "INSERT INTO tramline_topic (name, lanes, retention_ms, created_at, owner) VALUES ({}, {}, {}, {}, {})",
        text(name),
        settings.lanes.unwrap_or(DEFAULT_LANES),
        millis(settings.retention.unwrap_or(DEFAULT_RETENTION)),
        session.now.0,
        maybe_text(owner.as_deref()),
    );
    session.write(sql);
    let gates = "INSERT INTO tramline_gate (kind, id, side) \
                 VALUES (0, LAST_INSERT_ID(), 0), (0, LAST_INSERT_ID(), 1), (0, LAST_INSERT_ID(), 2), \
                 (0, LAST_INSERT_ID(), 3)";
    session.write(gates);
    let sql = format!(
        "SELECT id, name, lanes, retention_ms, created_at, owner FROM tramline_topic WHERE name = {}",
        text(name)
    );
    let rows = session.rows(sql).await?;
    rows.first().map_or_else(|| Err(Error::unavailable("the topic is gone", "try again")), topic)
}

pub(super) async fn put_topic(session: &mut Session<'_>, put: &PutTopic) -> Result<Topic> {
    put.settings.check()?;
    if let Some(old) = session.catalog.topic(&put.name)
        && old.changed(&put.settings)? == *old
    {
        return Ok(old.clone());
    }
    // Looked at again behind the lock of the version: of two who claim a topic, the second has to see the first.
    changed(session);
    let catalog = load(session).await?;
    let Some(old) = catalog.topic(&put.name) else {
        return insert_topic(session, &put.name, &put.settings).await;
    };
    let topic = old.changed(&put.settings)?;
    session.write(format!(
        "UPDATE tramline_topic SET retention_ms = {}, owner = {} WHERE id = {}",
        millis(topic.retention),
        maybe_text(topic.owner.as_deref()),
        topic.id.0
    ));
    Ok(topic)
}

/// The caller has locked the topic.
pub(super) async fn delete_topic(session: &mut Session<'_>, name: &str) -> Result<()> {
    let catalog = session.catalog.clone();
    let topic = catalog.require_topic(name)?.id;
    catalog.check_unused(name)?;
    if erase::is_left(session, topic).await? {
        return Err(still_left(name));
    }
    erase::mark(session, Deleted::Topic(topic));
    session.write(format!("DELETE FROM tramline_topic WHERE id = {}", topic.0));
    session.write(format!("DELETE FROM tramline_gate WHERE kind = 0 AND id = {}", topic.0));
    changed(session);
    Ok(())
}

/// The caller has created and locked the topics, and holds a catalogue that was read after that.
pub(super) async fn put_subscription(
    session: &mut Session<'_>,
    put: &PutSubscription,
) -> Result<Subscription> {
    let catalog = session.catalog.clone();
    let old = catalog.subscription_named(&put.name);
    put.check_change(old)?;
    let (id, created_at) = write_subscription(session, old, put).await?;
    let wanted: BTreeSet<&str> = put.topics.iter().map(String::as_str).collect();
    let had: BTreeSet<&str> = old.iter().flat_map(|old| old.topics.iter().map(|topic| &**topic)).collect();
    for name in wanted.difference(&had) {
        join_topic(session, id, catalog.require_topic(name)?, put).await?;
    }
    if !had.is_subset(&wanted) {
        lock_subscription(session, id).await?;
    }
    for name in had.difference(&wanted) {
        leave_topic(session, id, catalog.require_topic(name)?.id);
    }
    changed(session);
    let topics = wanted.into_iter().map(Arc::from).collect();
    let name = put.name.as_str().into();
    let subscription = Subscription { id, name, topics, policy: put.policy.clone(), created_at };
    rules::resolve(session, &subscription).await?;
    Ok(subscription)
}

async fn write_subscription(
    session: &mut Session<'_>,
    old: Option<&Subscription>,
    put: &PutSubscription,
) -> Result<(SubscriptionId, Time)> {
    let policy = serde_json::to_string(&put.policy).unwrap_or_default(); // plain values always serialise
    if let Some(old) = old {
        session.write(format!(
            "UPDATE tramline_subscription SET policy = {} WHERE id = {}",
            text(&policy),
            old.id.0
        ));
        return Ok((old.id, old.created_at));
    }
    session.write(format!(
        "INSERT INTO tramline_subscription (name, policy, created_at) VALUES ({}, {}, {})",
        text(&put.name),
        text(&policy),
        session.now.0
    ));
    session.write(
        "INSERT INTO tramline_gate (kind, id, side) VALUES (1, LAST_INSERT_ID(), 0), (1, LAST_INSERT_ID(), 1)",
    );
    let sql = format!("SELECT id FROM tramline_subscription WHERE name = {}", text(&put.name));
    let id = session.rows(sql).await?.first().map_or(Ok(0), |row| row.int(0))?;
    Ok((SubscriptionId(id), session.now))
}

/// The topic is locked: nobody is writing to it, so all of its chunks can be seen.
async fn join_topic(
    session: &mut Session<'_>,
    id: SubscriptionId,
    topic: &Topic,
    put: &PutSubscription,
) -> Result<()> {
    if erase::is_marked(session, Deleted::Left(id, topic.id)).await? {
        return Err(still_left(&topic.name));
    }
    let since = match put.start {
        Start::Now => i64::MAX,
        Start::Beginning => i64::MIN,
        Start::At(time) => time.0,
    };
    let topic_id = topic.id.0;
    let sql = format!(
        "SELECT COALESCE(MAX(chunk), 0), (SELECT c.chunk FROM tramline_chunk c WHERE c.topic = {topic_id} \
         AND c.emitted_at >= {since} ORDER BY c.topic, c.chunk LIMIT 1) \
         FROM tramline_chunk WHERE topic = {topic_id}"
    );
    let found = session.rows(sql).await?;
    let row = found.first().ok_or_else(|| Error::unavailable("the server gave no answer", "try again"))?;
    let last = row.int(0)?;
    let next = row.maybe_int(1)?.unwrap_or(last + 1);
    session.write(format!(
        "INSERT INTO tramline_subscription_topic (subscription, topic, backfill_next, backfill_until) \
         VALUES ({}, {topic_id}, {next}, {last})",
        id.0
    ));
    let (first, count) = lane::all(put.policy.ordering, topic);
    let rows = (0..i64::from(count)).map(|lane| format!("({}, {})", id.0, first.0 + lane));
    let head = "INSERT IGNORE INTO tramline_lane (subscription, lane) VALUES ";
    session.write_all(insert(head, rows, "", session.common.packet));
    Ok(())
}

/// All that a subscription still had to do of a topic is to go.
fn leave_topic(session: &mut Session<'_>, id: SubscriptionId, topic: TopicId) {
    erase::mark(session, Deleted::Left(id, topic));
    let [first, end] = lanes_of(topic);
    session.write(format!(
        "DELETE FROM tramline_lane WHERE subscription = {} AND lane >= {first} AND lane < {end}",
        id.0
    ));
    session.write(format!(
        "DELETE FROM tramline_subscription_topic WHERE subscription = {} AND topic = {}",
        id.0, topic.0
    ));
}

/// The caller has locked the topics.
pub(super) async fn delete_subscription(session: &mut Session<'_>, name: &str) -> Result<()> {
    let id = session.catalog.require_subscription_named(name)?.id;
    lock_subscription(session, id).await?;
    // Or a rule by pattern could be written for it meanwhile.
    lock_catalog(session).await?;
    erase::mark(session, Deleted::Subscription(id));
    let tables = [
        "lane",
        "rule",
        "audit",
        "remote",
        "push",
        "attempt",
        "drop",
        "drop_total",
        "limit",
        "subscription_topic",
    ];
    for table in tables {
        session.write(format!("DELETE FROM tramline_{table} WHERE subscription = {}", id.0));
    }
    session.write(format!("DELETE FROM tramline_subscription WHERE id = {}", id.0));
    session.write(format!("DELETE FROM tramline_gate WHERE kind = 1 AND id = {}", id.0));
    changed(session);
    Ok(())
}

//! Topics, subscriptions and rules, and the copy of them that every process keeps.

use super::erase;
use super::rows::draw;
use super::rules;
use super::session::Session;
use crate::error::{Error, Result};
use crate::model::id::{ChunkId, LaneId, SubscriptionId, TopicId};
use crate::model::lane;
use crate::model::lane::DEFAULT_LANES;
use crate::model::name;
use crate::model::subscription::{DEFAULT_RETENTION, Policy, Start, Subscription, Topic, TopicSettings};
use crate::model::time::{Time, millis};
use crate::store::catalog::{Catalog, still_left};
use crate::store::deleted::{Deleted, lanes_of};
use crate::store::verbs::{PutSubscription, PutTopic};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The number that every change of topics and subscriptions raises.
pub(super) fn version(conn: &Connection) -> Result<i64> {
    let sql = "SELECT value FROM tramline_meta WHERE name = 'catalog'";
    Ok(conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

fn changed(conn: &Connection) -> Result<()> {
    draw(conn, "catalog", 1).map(|_| ())
}

/// Reads all topics and subscriptions.
pub(super) fn load(conn: &Connection) -> Result<Catalog> {
    let topics = topics(conn)?;
    let names: BTreeMap<TopicId, Arc<str>> =
        topics.iter().map(|topic| (topic.id, topic.name.clone())).collect();
    let mut consumed: BTreeMap<SubscriptionId, Vec<Arc<str>>> = BTreeMap::new();
    let mut statement = conn.prepare_cached("SELECT subscription, topic FROM tramline_subscription_topic")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(name) = names.get(&TopicId(row.get(1)?)) {
            consumed.entry(SubscriptionId(row.get(0)?)).or_default().push(name.clone());
        }
    }
    let mut statement =
        conn.prepare_cached("SELECT id, name, policy, created_at FROM tramline_subscription ORDER BY name")?;
    let mut rows = statement.query([])?;
    let mut subscriptions = Vec::new();
    while let Some(row) = rows.next()? {
        let id = SubscriptionId(row.get(0)?);
        let mut topics = consumed.remove(&id).unwrap_or_default();
        topics.sort();
        subscriptions.push(Subscription {
            id,
            name: Arc::from(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?),
            topics,
            policy: policy(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)?,
            created_at: Time(row.get(3)?),
        });
    }
    Ok(Catalog::new(version(conn)?, topics, subscriptions))
}

fn topics(conn: &Connection) -> Result<Vec<Topic>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, name, lanes, retention_ms, created_at, owner FROM tramline_topic ORDER BY name",
    )?;
    let topics = statement.query_map([], |row| {
        Ok(Topic {
            id: TopicId(row.get(0)?),
            name: Arc::from(row.get::<_, String>(1)?),
            lanes: row.get(2)?,
            retention: Duration::from_millis(row.get::<_, i64>(3)?.max(0).cast_unsigned()),
            created_at: Time(row.get(4)?),
            owner: row.get::<_, Option<String>>(5)?.map(Arc::from),
        })
    })?;
    Ok(topics.collect::<rusqlite::Result<_>>()?)
}

fn policy(text: &str) -> Result<Policy> {
    serde_json::from_str(text).map_err(|error| {
        Error::invalid("a stored policy cannot be read", "upgrade: it was written by a newer version")
            .because(error)
    })
}

/// Creates the topics that do not exist yet. Gives true if there were any.
pub(super) fn create_missing<'a>(
    session: &Session<'_>,
    names: impl Iterator<Item = &'a str>,
) -> Result<bool> {
    let missing: BTreeSet<&str> = names.filter(|name| session.catalog.topic(name).is_none()).collect();
    for name in &missing {
        insert_topic(session, name, &TopicSettings::default())?;
    }
    if !missing.is_empty() {
        changed(session.conn)?;
    }
    Ok(!missing.is_empty())
}

fn insert_topic(session: &Session<'_>, name: &str, settings: &TopicSettings) -> Result<Topic> {
    name::check("topic", name)?;
    let topic = Topic {
        id: TopicId(draw(session.conn, "topic", 1)?),
        name: Arc::from(name),
        lanes: settings.lanes.unwrap_or(DEFAULT_LANES),
        retention: settings.retention.unwrap_or(DEFAULT_RETENTION),
        owner: settings.owner(None)?,
        created_at: session.now,
    };
    let sql = "INSERT INTO tramline_topic (id, name, lanes, retention_ms, created_at, owner) VALUES (?, ?, ?, ?, ?, ?)";
    let (retention, owner) = (millis(topic.retention), topic.owner.as_deref());
    session.conn.execute(sql, params![topic.id.0, name, topic.lanes, retention, session.now.0, owner])?;
    Ok(topic)
}

pub(super) fn put_topic(session: &Session<'_>, put: &PutTopic) -> Result<Topic> {
    put.settings.check()?;
    let topic = match session.catalog.topic(&put.name) {
        None => insert_topic(session, &put.name, &put.settings)?,
        Some(old) => {
            let topic = old.changed(&put.settings)?;
            let sql = "UPDATE tramline_topic SET retention_ms = ?, owner = ? WHERE id = ?";
            session
                .conn
                .execute(sql, params![millis(topic.retention), topic.owner.as_deref(), topic.id.0])?;
            topic
        }
    };
    changed(session.conn)?;
    Ok(topic)
}

pub(super) fn delete_topic(session: &Session<'_>, name: &str) -> Result<()> {
    let topic = session.catalog.require_topic(name)?;
    session.catalog.check_unused(name)?;
    if erase::is_left(session.conn, topic.id)? {
        return Err(still_left(name));
    }
    erase::mark(session.conn, Deleted::Topic(topic.id))?;
    session.conn.execute("DELETE FROM tramline_topic WHERE id = ?", [topic.id.0])?;
    changed(session.conn)
}

/// The caller has created the topics and holds a catalogue that knows them.
pub(super) fn put_subscription(session: &Session<'_>, put: &PutSubscription) -> Result<Subscription> {
    put.check()?;
    let old = session.catalog.subscription_named(&put.name);
    put.check_change(old)?;
    let policy = serde_json::to_string(&put.policy).unwrap_or_default(); // plain values always serialise
    let (id, created_at) = match old {
        Some(old) => {
            session.conn.execute(
                "UPDATE tramline_subscription SET policy = ? WHERE id = ?",
                params![policy, old.id.0],
            )?;
            (old.id, old.created_at)
        }
        None => {
            let id = SubscriptionId(draw(session.conn, "subscription", 1)?);
            let sql = "INSERT INTO tramline_subscription (id, name, policy, created_at) VALUES (?, ?, ?, ?)";
            session.conn.execute(sql, params![id.0, put.name, policy, session.now.0])?;
            (id, session.now)
        }
    };
    let wanted: BTreeSet<&str> = put.topics.iter().map(String::as_str).collect();
    let had: BTreeSet<&str> = old.iter().flat_map(|old| old.topics.iter().map(|topic| &**topic)).collect();
    for name in wanted.difference(&had) {
        join_topic(session, id, session.catalog.require_topic(name)?, put)?;
    }
    for name in had.difference(&wanted) {
        leave_topic(session.conn, id, session.catalog.require_topic(name)?.id)?;
    }
    changed(session.conn)?;
    let topics = wanted.into_iter().map(Arc::from).collect();
    let name = Arc::from(put.name.as_str());
    let subscription = Subscription { id, name, topics, policy: put.policy.clone(), created_at };
    rules::resolve(session, &subscription)?;
    Ok(subscription)
}

fn join_topic(session: &Session<'_>, id: SubscriptionId, topic: &Topic, put: &PutSubscription) -> Result<()> {
    let conn = session.conn;
    if erase::is_marked(conn, Deleted::Left(id, topic.id))? {
        return Err(still_left(&topic.name));
    }
    let last: i64 =
        conn.query_row("SELECT value FROM tramline_meta WHERE name = 'chunk'", [], |row| row.get(0))?;
    let first = |condition: &str, value: i64| -> Result<Option<i64>> {
        let sql = format!("SELECT min(chunk) FROM tramline_chunk WHERE topic = ? AND {condition}");
        Ok(conn.query_row(&sql, [topic.id.0, value], |row| row.get(0))?)
    };
    let next = match put.start {
        Start::Now => None,
        Start::Beginning => first("chunk >= ?", 0)?,
        Start::At(time) => first("emitted_at >= ?", time.0)?,
    };
    let sql = "INSERT INTO tramline_subscription_topic (subscription, topic, backfill_next, backfill_until) \
               VALUES (?, ?, ?, ?)";
    conn.execute(sql, [id.0, topic.id.0, next.unwrap_or(last + 1), last])?;
    let sql = "INSERT OR IGNORE INTO tramline_lane VALUES (?, ?, 0, 0, 0, 0, 0, 0)";
    let mut statement = conn.prepare_cached(sql)?;
    let (first, count) = lane::all(put.policy.ordering, topic);
    for number in 0..i64::from(count) {
        statement.execute([id.0, first.0 + number])?;
    }
    Ok(())
}

/// All that a subscription still had to do of a topic is to go.
fn leave_topic(conn: &Connection, id: SubscriptionId, topic: TopicId) -> Result<()> {
    erase::mark(conn, Deleted::Left(id, topic))?;
    let [first, end] = lanes_of(topic);
    let sql = "DELETE FROM tramline_lane WHERE subscription = ? AND lane >= ? AND lane < ?";
    conn.execute(sql, [id.0, first, end])?;
    conn.execute(
        "DELETE FROM tramline_subscription_topic WHERE subscription = ? AND topic = ?",
        [id.0, topic.0],
    )?;
    Ok(())
}

pub(super) fn delete_subscription(session: &Session<'_>, name: &str) -> Result<()> {
    let id = session.catalog.require_subscription_named(name)?.id;
    erase::mark(session.conn, Deleted::Subscription(id))?;
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
        session.conn.execute(&format!("DELETE FROM tramline_{table} WHERE subscription = ?"), [id.0])?;
    }
    session.conn.execute("DELETE FROM tramline_subscription WHERE id = ?", [id.0])?;
    changed(session.conn)
}

/// Below which chunk claims of a lane have to stay while retained events are still being written.
pub(super) fn backfill_cursor(
    conn: &Connection,
    id: SubscriptionId,
    lane: LaneId,
) -> Result<Option<ChunkId>> {
    let sql = "SELECT min(backfill_next) FROM tramline_subscription_topic \
               WHERE subscription = ?1 AND (topic = ?2 OR ?3) AND backfill_next <= backfill_until";
    let mut statement = conn.prepare_cached(sql)?;
    let all = lane == LaneId::WHOLE;
    let next: Option<i64> = statement.query_row(params![id.0, lane.topic().0, all], |row| row.get(0))?;
    Ok(next.map(ChunkId))
}

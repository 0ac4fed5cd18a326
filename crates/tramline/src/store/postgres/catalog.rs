//! Topics, subscriptions and rules, and the copy of them that every process keeps.

use super::erase;
use super::rules;
use super::session::{Session, Texts};
use crate::error::{Error, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::lane;
use crate::model::lane::DEFAULT_LANES;
use crate::model::name;
use crate::model::subscription::{DEFAULT_RETENTION, Policy, Start, Subscription, Topic, TopicSettings};
use crate::model::time::{Time, millis};
use crate::store::catalog::{Catalog, still_left};
use crate::store::deleted::{Deleted, lanes_of};
use crate::store::verbs::{PutSubscription, PutTopic};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Reads all topics and subscriptions. The version comes first: what is read later may be newer, never older.
pub(super) async fn load(conn: &mut PgConnection, texts: &Texts) -> Result<Catalog> {
    let sql = "SELECT value FROM tramline_meta WHERE name = 'catalog'";
    let version = texts.query(sql).fetch_one(&mut *conn).await?.try_get(0)?;
    let sql = "SELECT id, name, lanes, retention_ms, created_at, owner FROM tramline_topic ORDER BY name";
    let topics: Vec<Topic> =
        texts.query(sql).fetch_all(&mut *conn).await?.iter().map(topic).collect::<Result<_>>()?;
    let names: BTreeMap<TopicId, Arc<str>> =
        topics.iter().map(|topic| (topic.id, topic.name.clone())).collect();
    let sql = "SELECT s.id, s.name, s.policy, s.created_at, ARRAY(SELECT st.topic \
               FROM tramline_subscription_topic st WHERE st.subscription = s.id) \
               FROM tramline_subscription s ORDER BY s.name";
    let mut subscriptions = Vec::new();
    for row in texts.query(sql).fetch_all(&mut *conn).await? {
        let consumed: Vec<i64> = row.try_get(4)?;
        let mut topics: Vec<Arc<str>> =
            consumed.iter().filter_map(|id| names.get(&TopicId(*id)).cloned()).collect();
        topics.sort();
        subscriptions.push(Subscription {
            id: SubscriptionId(row.try_get(0)?),
            name: row.try_get::<String, _>(1)?.into(),
            topics,
            policy: policy(row.try_get(2)?)?,
            created_at: Time(row.try_get(3)?),
        });
    }
    Ok(Catalog::new(version, topics, subscriptions))
}

fn topic(row: &PgRow) -> Result<Topic> {
    Ok(Topic {
        id: TopicId(row.try_get(0)?),
        name: row.try_get::<String, _>(1)?.into(),
        lanes: row.try_get::<i32, _>(2)?.cast_unsigned(),
        retention: Duration::from_millis(row.try_get::<i64, _>(3)?.max(0).cast_unsigned()),
        created_at: Time(row.try_get(4)?),
        owner: row.try_get::<Option<String>, _>(5)?.map(Arc::from),
    })
}

fn policy(text: &str) -> Result<Policy> {
    serde_json::from_str(text).map_err(|error| {
        Error::invalid("a stored policy cannot be read", "upgrade: it was written by a newer version")
            .because(error)
    })
}

/// Raises the version. Changes of the catalogue wait for each other here, until they are committed.
async fn changed(session: &mut Session<'_>) -> Result<()> {
    let query = session.query("UPDATE tramline_meta SET value = value + 1 WHERE name = 'catalog'");
    session.run(query).await.map(|_| ())
}

/// Waits for other changes of the catalogue, and keeps them away until the transaction ends.
pub(super) async fn lock_catalog(session: &mut Session<'_>) -> Result<()> {
    let query = session.query("SELECT value FROM tramline_meta WHERE name = 'catalog' FOR UPDATE");
    session.all(query).await.map(|_| ())
}

/// As [`lock_catalog`], without waiting. False if another transaction has it. The caller's own transaction may have it already.
pub(super) async fn try_lock_catalog(session: &mut Session<'_>) -> Result<bool> {
    let query =
        session.query("SELECT value FROM tramline_meta WHERE name = 'catalog' FOR UPDATE SKIP LOCKED");
    Ok(!session.all(query).await?.is_empty())
}

/// Keeps emits away from topics until the transaction ends; waits for those under way. Sorted, so that two changes
/// never wait in a circle. New emits queue behind a waiting change, so it must not wait long: see [`super::PATIENCE`].
pub(super) async fn lock_topics(session: &mut Session<'_>, topics: &BTreeSet<TopicId>) -> Result<()> {
    let sql = "SELECT pg_advisory_xact_lock('tramline_topic'::regclass::oid::int, t.topic::int) \
               FROM unnest($1::bigint[]) AS t(topic)";
    let query = session.query(sql).bind(topics.iter().map(|topic| topic.0).collect::<Vec<i64>>());
    session.all(query).await.map(|_| ())
}

/// Keeps everything that writes slices of a subscription away until the transaction ends.
async fn lock_subscription(session: &mut Session<'_>, id: SubscriptionId) -> Result<()> {
    let sql = "SELECT pg_advisory_xact_lock('tramline_subscription'::regclass::oid::int, $1::int)";
    let query = session.query(sql).bind(id.0 as i32);
    session.all(query).await.map(|_| ())
}

/// Creates the topics that do not exist yet. Gives true if there were any.
pub(super) async fn create_missing(session: &mut Session<'_>, names: &[&str]) -> Result<bool> {
    let catalog = session.catalog.clone();
    let missing: BTreeSet<&str> =
        names.iter().copied().filter(|name| catalog.topic(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(false);
    }
    // Before the names are taken: somebody's open transaction may have this lock, and need one of the names.
    lock_catalog(session).await?;
    for name in &missing {
        insert_topic(session, name, &TopicSettings::default()).await?;
    }
    changed(session).await?;
    Ok(true)
}

/// `None` when another process created it first.
async fn insert_topic(
    session: &mut Session<'_>,
    name: &str,
    settings: &TopicSettings,
) -> Result<Option<Topic>> {
    name::check("topic", name)?;
    let sql = "INSERT INTO tramline_topic (name, lanes, retention_ms, created_at, owner) VALUES ($1, $2, $3, $4, $5) \
               ON CONFLICT DO NOTHING RETURNING id, name, lanes, retention_ms, created_at, owner";
    let query = session
        .query(sql)
        .bind(name.to_owned())
        .bind(settings.lanes.unwrap_or(DEFAULT_LANES).cast_signed())
        .bind(millis(settings.retention.unwrap_or(DEFAULT_RETENTION)))
        .bind(session.now.0)
        .bind(settings.owner(None)?.map(|owner| owner.to_string()));
    session.all(query).await?.first().map(topic).transpose()
}

pub(super) async fn put_topic(session: &mut Session<'_>, put: &PutTopic) -> Result<Topic> {
    put.settings.check()?;
    if let Some(old) = session.catalog.topic(&put.name)
        && old.changed(&put.settings)? == *old
    {
        return Ok(old.clone());
    }
    // Looked at again behind the lock of the version: of two who claim a topic, the second has to see the first.
    changed(session).await?;
    session.catalog = Arc::new(load(session.conn, session.texts).await?);
    let catalog = session.catalog.clone();
    let Some(old) = catalog.topic(&put.name) else {
        return insert_topic(session, &put.name, &put.settings)
            .await?
            .ok_or_else(|| Error::unavailable("the topic was created at the same moment", "try again"));
    };
    let topic = old.changed(&put.settings)?;
    let query = session
        .query("UPDATE tramline_topic SET retention_ms = $2, owner = $3 WHERE id = $1")
        .bind(topic.id.0)
        .bind(millis(topic.retention))
        .bind(topic.owner.as_deref().map(str::to_owned));
    session.run(query).await?;
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
    erase::mark(session, Deleted::Topic(topic)).await?;
    let query = session.query("DELETE FROM tramline_topic WHERE id = $1").bind(topic.0);
    session.run(query).await?;
    changed(session).await
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
        leave_topic(session, id, catalog.require_topic(name)?.id).await?;
    }
    changed(session).await?;
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
        let sql = "UPDATE tramline_subscription SET policy = $2 WHERE id = $1";
        let query = session.query(sql).bind(old.id.0).bind(policy);
        session.run(query).await?;
        return Ok((old.id, old.created_at));
    }
    let sql = "INSERT INTO tramline_subscription (name, policy, created_at) VALUES ($1, $2, $3) RETURNING id";
    let query = session.query(sql).bind(put.name.clone()).bind(policy).bind(session.now.0);
    let id = query.fetch_one(&mut *session.conn).await?.try_get(0)?;
    Ok((SubscriptionId(id), session.now))
}

/// The topic is locked, so everything below the last number that was drawn is either committed or gone.
async fn join_topic(
    session: &mut Session<'_>,
    id: SubscriptionId,
    topic: &Topic,
    put: &PutSubscription,
) -> Result<()> {
    if erase::is_marked(session, Deleted::Left(id, topic.id)).await? {
        return Err(still_left(&topic.name));
    }
    let sql = "INSERT INTO tramline_subscription_topic (subscription, topic, backfill_next, backfill_until) \
               SELECT $1, $2, coalesce((SELECT c.chunk FROM tramline_chunk c WHERE c.topic = $2 \
               AND c.emitted_at >= $3 ORDER BY c.topic, c.chunk LIMIT 1), n.last + 1), n.last \
               FROM (SELECT coalesce(pg_sequence_last_value('tramline_chunk_number'::regclass), 0) AS last) n";
    let since = match put.start {
        Start::Now => i64::MAX,
        Start::Beginning => i64::MIN,
        Start::At(time) => time.0,
    };
    let query = session.query(sql).bind(id.0).bind(topic.id.0).bind(since);
    session.run(query).await?;
    let (first, count) = lane::all(put.policy.ordering, topic);
    // Of a line of all events there is one already, if this is not the first topic. Nobody else adds any: the topics are locked.
    let sql = "INSERT INTO tramline_lane (subscription, lane) SELECT $1, $2 + n FROM generate_series(0, $3 - 1) n \
               WHERE NOT EXISTS (SELECT 1 FROM tramline_lane l WHERE l.subscription = $1 AND l.lane = $2 + n)";
    let query = session.query(sql).bind(id.0).bind(first.0).bind(i64::from(count));
    session.run(query).await.map(|_| ())
}

/// All that a subscription still had to do of a topic is to go.
async fn leave_topic(session: &mut Session<'_>, id: SubscriptionId, topic: TopicId) -> Result<()> {
    erase::mark(session, Deleted::Left(id, topic)).await?;
    let [first, end] = lanes_of(topic);
    let sql = "DELETE FROM tramline_lane WHERE subscription = $1 AND lane >= $2 AND lane < $3";
    let query = session.query(sql).bind(id.0).bind(first).bind(end);
    session.run(query).await?;
    let sql = "DELETE FROM tramline_subscription_topic WHERE subscription = $1 AND topic = $2";
    let query = session.query(sql).bind(id.0).bind(topic.0);
    session.run(query).await.map(|_| ())
}

/// The caller has locked the topics.
pub(super) async fn delete_subscription(session: &mut Session<'_>, name: &str) -> Result<()> {
    let id = session.catalog.require_subscription_named(name)?.id;
    lock_subscription(session, id).await?;
    // Or a rule by pattern could be written for it meanwhile.
    lock_catalog(session).await?;
    erase::mark(session, Deleted::Subscription(id)).await?;
    for sql in [
        "DELETE FROM tramline_lane WHERE subscription = $1",
        "DELETE FROM tramline_rule WHERE subscription = $1",
        "DELETE FROM tramline_audit WHERE subscription = $1",
        "DELETE FROM tramline_remote WHERE subscription = $1",
        "DELETE FROM tramline_push WHERE subscription = $1",
        "DELETE FROM tramline_limit WHERE subscription = $1",
        "DELETE FROM tramline_attempt WHERE subscription = $1",
        "DELETE FROM tramline_drop WHERE subscription = $1",
        "DELETE FROM tramline_drop_total WHERE subscription = $1",
        "DELETE FROM tramline_subscription_topic WHERE subscription = $1",
        "DELETE FROM tramline_subscription WHERE id = $1",
    ] {
        let query = session.query(sql).bind(id.0);
        session.run(query).await?;
    }
    changed(session).await
}

//! Tallies: opened, added to, sealed, counted, looked at and given up. Acks: [`ack`]; their events: [`deliver`].

pub(super) mod ack;
mod deliver;
pub(super) mod place;
pub(super) mod rows;
pub(super) mod sweep;

use super::session::Session;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::{Added, NewTally, Parent, Tally, TallyItem, TallyState};
use crate::plan::tally::{Origin, TallyRow, unknown};
use crate::store::tally::{Of, added_otherwise, hash, new_row, notes, reused, state};
use crate::store::verbs_tally::*;
use rows::view;
use sqlx::Row;
use std::collections::{BTreeMap, BTreeSet};

pub(super) async fn open(session: &mut Session<'_>, tally: &NewTally) -> Result<OpenedTally> {
    let hash = hash(tally);
    if let Some(key) = tally.idempotency_key.as_deref()
        && let Some(known) = known(session, key, &hash).await?
    {
        return Ok(known);
    }
    let parent = match tally.parent {
        Some(parent) => Some(stands_for(session, parent).await?),
        None => None,
    };
    let row = new_row(tally, parent, session.now);
    let id = insert(session, &row, tally.idempotency_key.as_deref(), &hash).await?;
    let notes = notes(tally);
    let sql = "INSERT INTO tramline_tally_note (tally, kind, body) \
               SELECT $1, u.kind, u.body FROM unnest($2::smallint[], $3::text[]) AS u(kind, body)";
    if !notes.is_empty() {
        let (kinds, bodies): (Vec<i16>, Vec<String>) = notes.into_iter().unzip();
        let query = session.query(sql).bind(id.0).bind(kinds).bind(bodies);
        session.run(query).await?;
    }
    Ok(OpenedTally { id, parent, repeated: false })
}

/// The answer that an idempotency key already has. Whoever else opens with the same key waits until this step has ended.
async fn known(session: &mut Session<'_>, key: &str, hash: &[u8]) -> Result<Option<OpenedTally>> {
    let sql = "SELECT pg_advisory_xact_lock(hashtextextended('tally ' || $1, 'tramline_tally'::regclass::oid::bigint))";
    let query = session.query(sql).bind(key.to_owned());
    session.run(query).await?;
    let sql = "SELECT t.open_hash = $2, {tally} FROM tramline_tally t \
               WHERE t.open_key = $1 AND t.open_key IS NOT NULL AND t.state < 5";
    let query = session.query(sql).bind(key.to_owned()).bind(hash.to_vec());
    let rows = session.all(query).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    if !row.try_get::<bool, _>(0)? {
        return Err(reused(key));
    }
    let parent: Option<i64> = row.try_get(7)?;
    let number = row.try_get::<Option<i64>, _>(8)?.unwrap_or_default().cast_unsigned();
    let parent = parent.map(|tally| TallyItem { tally: TallyId(tally), number });
    Ok(Some(OpenedTally { id: TallyId(row.try_get(1)?), parent, repeated: true }))
}

/// Writes a new tally, and gives its number.
async fn insert(
    session: &mut Session<'_>,
    tally: &TallyRow,
    key: Option<&str>,
    hash: &[u8],
) -> Result<TallyId> {
    let sql = "INSERT INTO tramline_tally (state, growing, estimated, tells, user_key, parent_tally, parent_item, \
               created_at, active_at, expires_at, idle_since, checked_at, open_key, open_hash, topic) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $8, $8, $10, $11, $12) RETURNING id";
    let query = session
        .query(sql)
        .bind(tally.state as i16)
        .bind(tally.growing)
        .bind(tally.estimated)
        .bind(tally.tells.0)
        .bind(tally.user_key.clone())
        .bind(tally.parent.map(|parent| parent.tally.0))
        .bind(tally.parent.map(|parent| parent.number.cast_signed()))
        .bind(tally.created_at.0)
        .bind(tally.expires_at.map(|time| time.0))
        .bind(key.map(str::to_owned))
        .bind(key.map(|_| hash.to_vec()))
        .bind(tally.topic.clone());
    Ok(TallyId(query.fetch_one(&mut *session.conn).await?.try_get(0)?))
}

/// The item of another tally that a new one stands for.
async fn stands_for(session: &mut Session<'_>, parent: Parent) -> Result<TallyItem> {
    match parent {
        Parent::New(tally) => {
            let add = AddItems { tally, count: 1, within: None, token: None, now: None };
            Ok(TallyItem { tally, number: self::add(session, add).await?.first })
        }
        Parent::Item(item) => {
            let row = rows::require(session, item.tally).await?;
            let known = rows::items(session, &BTreeSet::from([item])).await?.remove(&item);
            let taken = rows::has_child(session, item).await?;
            row.check_child(item.number, known, taken, session.now)?;
            Ok(item)
        }
    }
}

/// The token is looked for under the lock of the tally: the same addition may be under way twice.
pub(super) async fn add(session: &mut Session<'_>, add: AddItems) -> Result<Added> {
    let mut row = rows::require(session, add.tally).await?;
    if let Some(token) = add.token
        && let Some(added) = rows::added(session, add.tally, token).await?
    {
        return if added.count == add.count { Ok(added) } else { Err(added_otherwise()) };
    }
    let within = add.within.map(|number| TallyItem { tally: add.tally, number });
    let items = rows::items(session, &within.into_iter().collect()).await?;
    let origin = within.map(|item| Origin { number: item.number, item: items.get(&item).copied() });
    let added = row.grow(add.count, origin, session.now)?;
    rows::extend(session, &BTreeMap::from([(add.tally, added)]), Of::Items(add.token)).await?;
    rows::write(session, &[&row], &[]).await?;
    Ok(added)
}

pub(super) async fn seal(session: &mut Session<'_>, seal: SealTally) -> Result<SealedTally> {
    let mut row = rows::require(session, seal.tally).await?;
    let mut outbox = Vec::new();
    let completed_now = row.seal(seal.expected, seal.by, session.now, &mut outbox)?;
    rows::write(session, &[&row], &outbox).await?;
    Ok(SealedTally { tally: require(session, seal.tally).await?, completed_now })
}

/// Locked in the order of their numbers, counted in the order given.
pub(super) async fn count(
    session: &mut Session<'_>,
    count: &CountTallies,
) -> Result<Vec<Result<CountedTally>>> {
    let ids: BTreeSet<TallyId> = count.counts.iter().map(|(id, _)| *id).collect();
    let mut known = rows::lock(session, &ids).await?;
    let mut outbox = Vec::new();
    let mut counted = Vec::new();
    for (id, by) in &count.counts {
        counted.push(match known.get_mut(id) {
            Some(row) => row.count(*by, session.now, &mut outbox).map(|completed| (row.clone(), completed)),
            None => Err(unknown(*id)),
        });
    }
    rows::write(session, &known.values().collect::<Vec<_>>(), &outbox).await?;
    let views = views(session, &ids).await?;
    // Each is shown as it was after its own count.
    let now = session.now;
    let view = |(row, completed_now): (TallyRow, bool)| {
        let metadata = views.get(&row.id).and_then(|tally| tally.metadata.clone());
        CountedTally { tally: row.view(metadata, Default::default(), now), completed_now }
    };
    Ok(counted.into_iter().map(|counted| counted.map(view)).collect())
}

pub(super) async fn get(session: &mut Session<'_>, tally: TallyId) -> Result<Option<Tally>> {
    Ok(views(session, &BTreeSet::from([tally])).await?.remove(&tally))
}

async fn require(session: &mut Session<'_>, tally: TallyId) -> Result<Tally> {
    get(session, tally).await?.ok_or_else(|| unknown(tally))
}

async fn views(session: &mut Session<'_>, ids: &BTreeSet<TallyId>) -> Result<BTreeMap<TallyId, Tally>> {
    let query = session.query(view!("t.id = ANY($1)")).bind(ids.iter().map(|id| id.0).collect::<Vec<i64>>());
    Ok(rows::views(session, query).await?.into_iter().map(|tally| (tally.id, tally)).collect())
}

/// By user key: `tramline_tally_user_key`; by state: `tramline_tally_state`, one range per state, because all of them together
/// would have to be sorted, and for what no sweep has met yet `tramline_tally_expiry`; else the primary key.
pub(super) async fn list(session: &mut Session<'_>, list: &ListTallies) -> Result<Vec<Tally>> {
    let states: BTreeSet<i16> = list.states.iter().map(|state| *state as i16).collect();
    let states: Vec<i16> = states.into_iter().collect();
    let (after, limit, now) = (list.after.0, i64::from(list.limit), session.now.0);
    let query = match (&list.user_key, states.is_empty()) {
        (Some(key), _) => session
            .query(view!(
                "t.user_key = $1 AND t.user_key IS NOT NULL AND t.id > $2 AND ($3::smallint[] = '{}' OR CASE \
                 WHEN t.state < 2 AND t.expires_at <= $5 THEN 4 ELSE t.state END = ANY($3::smallint[])) \
                 ORDER BY t.user_key, t.id LIMIT $4"
            ))
            .bind(key.clone())
            .bind(after)
            .bind(states)
            .bind(limit)
            .bind(now),
        (None, true) => {
            session.query(view!("t.id > $1 ORDER BY t.id LIMIT $2")).bind(after).bind(limit)
        }
        (None, false) => session
            .query(view!(
                "t.id IN (SELECT f.id FROM unnest($1::smallint[]) AS s(state) CROSS JOIN LATERAL (SELECT f.id \
                 FROM tramline_tally f WHERE f.state = s.state AND f.id > $2 \
                 AND (f.state > 1 OR f.expires_at IS NULL OR f.expires_at > $4) ORDER BY f.state, f.id LIMIT $3) f \
                 UNION ALL (SELECT f.id FROM tramline_tally f WHERE 4 = ANY($1::smallint[]) AND f.state < 2 \
                 AND f.expires_at IS NOT NULL AND f.expires_at <= $4 AND f.id > $2 ORDER BY f.id LIMIT $3) \
                 ORDER BY 1 LIMIT $3) ORDER BY t.id"
            ))
            .bind(states)
            .bind(after)
            .bind(limit)
            .bind(now),
    };
    rows::views(session, query).await
}

pub(super) async fn cancel(session: &mut Session<'_>, tally: TallyId) -> Result<Tally> {
    let mut row = rows::require(session, tally).await?;
    let mut outbox = Vec::new();
    if row.cancel(session.now, &mut outbox)? {
        rows::write(session, &[&row], &outbox).await?;
    }
    require(session, tally).await
}

pub(super) async fn delete(session: &mut Session<'_>, tally: TallyId) -> Result<()> {
    let row = rows::require(session, tally).await?;
    sweep::remove(session, &[&row]).await
}

/// How many tallies there are in each state, by the index of states.
pub(super) async fn counts(session: &mut Session<'_>) -> Result<TallyCounts> {
    let sql = "SELECT s.state, (SELECT count(*) FROM tramline_tally t WHERE t.state = s.state) \
               FROM unnest($1::smallint[]) AS s(state)";
    let states = TallyState::ALL.map(|state| state as i16).to_vec();
    let query = session.query(sql).bind(states);
    let mut counts = TallyCounts::default();
    for row in session.all(query).await? {
        *counts.of(state(row.try_get(0)?)?) = row.try_get::<i64, _>(1)?.cast_unsigned();
    }
    Ok(counts)
}

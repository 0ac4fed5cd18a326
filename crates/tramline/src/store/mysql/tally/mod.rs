//! Tallies: opened, added to, sealed, counted, looked at and given up. Acks: [`ack`]; their events: [`deliver`].

pub(super) mod ack;
mod deliver;
pub(super) mod place;
pub(super) mod rows;
pub(super) mod sweep;

use super::session::Session;
use super::sql::{
    Columns, bytes, insert as insert_sql, join, list as numbers, maybe, maybe_text, maybe_time, text,
};
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::{Added, NewTally, Parent, Tally, TallyItem, TallyState};
use crate::plan::tally::{Origin, TallyRow, unknown};
use crate::store::tally::{Of, added_otherwise, hash, new_row, notes, reused, state};
use crate::store::verbs_tally::*;
use rows::view_sql;
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
    let rows = notes.iter().map(|(kind, body)| format!("({},{kind},{})", id.0, text(body)));
    let head = "INSERT INTO tramline_tally_note (tally, kind, body) VALUES ";
    session.write_all(insert_sql(head, rows, "", session.common.packet));
    Ok(OpenedTally { id, parent, repeated: false })
}

/// The answer that an idempotency key already has. Of two that open with the same new key at once, the server refuses the second one, and
/// it begins anew.
async fn known(session: &mut Session<'_>, key: &str, hash: &[u8]) -> Result<Option<OpenedTally>> {
    let sql = format!(
        "SELECT open_hash = {}, id, parent_tally, parent_item FROM tramline_tally WHERE open_key = {}",
        bytes(hash),
        text(key)
    );
    let rows = session.rows(sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    if !row.flag(0)? {
        return Err(reused(key));
    }
    let number = row.maybe_int(3)?.unwrap_or_default().cast_unsigned();
    let parent = row.maybe_int(2)?.map(|tally| TallyItem { tally: TallyId(tally), number });
    Ok(Some(OpenedTally { id: TallyId(row.int(1)?), parent, repeated: true }))
}

/// Writes a new tally, and gives its number.
async fn insert(
    session: &mut Session<'_>,
    tally: &TallyRow,
    key: Option<&str>,
    hash: &[u8],
) -> Result<TallyId> {
    let now = tally.created_at.0.to_string();
    let values = [
        (tally.state as i16).to_string(),
        tally.growing.to_string(),
        tally.estimated.to_string(),
        tally.tells.0.to_string(),
        maybe_text(tally.user_key.as_deref()),
        maybe(tally.parent.map(|parent| parent.tally.0)),
        maybe(tally.parent.map(|parent| parent.number.cast_signed())),
        now.clone(),
        now.clone(),
        maybe_time(tally.expires_at),
        now.clone(),
        now,
        maybe_text(key),
        key.map_or_else(|| maybe(None), |_| bytes(hash)),
        maybe_text(tally.topic.as_deref()),
    ];
    session.write(format!(
        "INSERT INTO tramline_tally (state, growing, estimated, tells, user_key, parent_tally, parent_item, \
         created_at, active_at, expires_at, idle_since, checked_at, open_key, open_hash, topic) VALUES ({})",
        join(values.into_iter())
    ));
    let rows = session.rows("SELECT LAST_INSERT_ID()").await?;
    Ok(TallyId(rows.first().map_or(Ok(0), |row| row.int(0))?))
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
    rows::extend(session, &BTreeMap::from([(add.tally, added)]), Of::Items(add.token));
    rows::write(session, &[&row], &[]);
    Ok(added)
}

pub(super) async fn seal(session: &mut Session<'_>, seal: SealTally) -> Result<SealedTally> {
    let mut row = rows::require(session, seal.tally).await?;
    let mut outbox = Vec::new();
    let completed_now = row.seal(seal.expected, seal.by, session.now, &mut outbox)?;
    rows::write(session, &[&row], &outbox);
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
    rows::write(session, &known.values().collect::<Vec<_>>(), &outbox);
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
    let sql = view_sql(&format!("t.id IN ({})", numbers(ids.iter().map(|id| id.0))));
    Ok(rows::views(session, sql).await?.into_iter().map(|tally| (tally.id, tally)).collect())
}

/// By user key: `tramline_tally_user_key`; by state: `tramline_tally_state`, one range per state, because all of them together
/// would have to be sorted, and for what no sweep has met yet `tramline_tally_expiry`; else the primary key.
pub(super) async fn list(session: &mut Session<'_>, wanted: &ListTallies) -> Result<Vec<Tally>> {
    let states: BTreeSet<i64> = wanted.states.iter().map(|state| *state as i64).collect();
    let (after, limit, now) = (wanted.after.0, wanted.limit, session.now.0);
    let filter = match (&wanted.user_key, states.is_empty()) {
        (Some(key), none) => {
            let state = format!("IF(t.state < 2 AND COALESCE(t.expires_at <= {now}, FALSE), 4, t.state)");
            let among = if none { String::new() } else { format!(" AND {state} IN ({})", numbers(states)) };
            format!(
                "t.user_key = {} AND t.id > {after}{among} ORDER BY t.user_key, t.id LIMIT {limit}",
                text(key)
            )
        }
        (None, true) => format!("t.id > {after} ORDER BY t.id LIMIT {limit}"),
        (None, false) => {
            let ids = session.rows(in_states(&states, after, limit, now)).await?;
            let ids: Vec<i64> = ids.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
            format!("t.id IN ({}) ORDER BY t.id", numbers(ids))
        }
    };
    rows::views(session, view_sql(&filter)).await
}

/// Tallies in some states, by number. One whose time is over has expired, whether or not a sweep has met it.
fn in_states(states: &BTreeSet<i64>, after: i64, limit: u32, now: i64) -> String {
    let of = |state: &i64| {
        format!(
            "(SELECT f.id FROM tramline_tally f FORCE INDEX (tramline_tally_state) WHERE f.state = {state} AND f.id > {after} \
             AND (f.state > 1 OR f.expires_at IS NULL OR f.expires_at > {now}) ORDER BY f.state, f.id LIMIT {limit})"
        )
    };
    let mut all: Vec<String> = states.iter().map(of).collect();
    if states.contains(&(TallyState::Expired as i64)) {
        all.push(format!(
            "(SELECT f.id FROM tramline_tally f FORCE INDEX (tramline_tally_expiry) WHERE f.state IN (0, 1) \
             AND f.expires_at <= {now} AND f.id > {after} ORDER BY f.id LIMIT {limit})"
        ));
    }
    format!("SELECT u.id FROM ({}) u ORDER BY u.id LIMIT {limit}", all.join(" UNION ALL "))
}

pub(super) async fn cancel(session: &mut Session<'_>, tally: TallyId) -> Result<Tally> {
    let mut row = rows::require(session, tally).await?;
    let mut outbox = Vec::new();
    if row.cancel(session.now, &mut outbox)? {
        rows::write(session, &[&row], &outbox);
    }
    require(session, tally).await
}

pub(super) async fn delete(session: &mut Session<'_>, tally: TallyId) -> Result<()> {
    let row = rows::require(session, tally).await?;
    sweep::remove(session, &[&row]);
    Ok(())
}

/// How many tallies there are in each state, by the index of states.
pub(super) async fn counts(session: &mut Session<'_>) -> Result<TallyCounts> {
    let states = numbers(TallyState::ALL.map(|state| state as i64));
    let sql = format!("SELECT state, COUNT(*) FROM tramline_tally WHERE state IN ({states}) GROUP BY state");
    let mut counts = TallyCounts::default();
    for row in session.rows(sql).await? {
        *counts.of(state(row.small(0)?)?) = row.count(1)?;
    }
    Ok(counts)
}

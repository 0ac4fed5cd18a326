//! Push: how each subscription stands, what was tried, what has gathered.

use super::next_due::NEVER;
use super::outlook::RANKS;
use super::session::Session;
use super::sql::{Columns, insert, join, list, text as quoted};
use crate::error::Result;
use crate::model::health::Health;
use crate::model::id::SubscriptionId;
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::push::{attempt, health, sending, text};
use crate::store::verbs::{
    ATTEMPTS_KEPT, Gather, Gathered, ListAttempts, NumberedAttempt, PushEntry, RecordPush, Recorded,
    SteerPush,
};
use std::collections::HashMap;

/// Slices by the one index that serves all searches for work.
const SLICES: &str = "tramline_slice s FORCE INDEX (tramline_slice_claim)";

pub(super) async fn record(session: &mut Session<'_>, record: &RecordPush) -> Result<Recorded> {
    let catalog = session.catalog.clone();
    let push = sending(catalog.require_subscription(record.subscription)?)?;
    let SubscriptionId(id) = record.subscription;
    let mut health = standing(session, record.subscription).await?;
    let mut disabled_now = false;
    health.count(record.counted.events, record.counted.batches);
    for attempt in &record.attempts {
        disabled_now |= health.record(attempt, push, session.now);
    }
    write(session, record.subscription, &health);
    let kept = record.attempts.len().saturating_sub(ATTEMPTS_KEPT);
    let rows = record.attempts[kept..].iter().map(|attempt| format!("({id},{})", quoted(&text(attempt))));
    let head = "INSERT INTO tramline_attempt (subscription, entry) VALUES ";
    session.write_all(insert(head, rows, "", session.common.packet));
    session.write(format!(
        "DELETE FROM tramline_attempt WHERE subscription = {id} AND id <= (SELECT l.id FROM (SELECT a.id \
         FROM tramline_attempt a WHERE a.subscription = {id} ORDER BY a.id DESC LIMIT 1 OFFSET {ATTEMPTS_KEPT}) l)"
    ));
    Ok(Recorded { health, disabled_now, now: session.now })
}

pub(super) async fn steer(session: &mut Session<'_>, steer: &SteerPush) -> Result<Health> {
    sending(session.catalog.require_subscription(steer.subscription)?)?;
    let mut health = standing(session, steer.subscription).await?;
    let noted = steer.steer.apply(&mut health, session.now);
    write(session, steer.subscription, &health);
    let Some((action, reason)) = noted else { return Ok(health) };
    let (id, now) = (steer.subscription.0.to_string(), session.now.0.to_string());
    let values = [id, now, quoted(&steer.by), quoted(action), quoted(&reason)];
    session.write(format!(
        "INSERT INTO tramline_audit (subscription, at, `by`, action, reason) VALUES ({})",
        join(values.into_iter())
    ));
    Ok(health)
}

/// How a subscription stands, locked: nodes that report at once take turns.
pub(super) fn standing_reads(SubscriptionId(id): SubscriptionId) -> Vec<String> {
    vec![
        format!(
            "INSERT INTO tramline_push (subscription, state) VALUES ({id}, '{{}}') ON DUPLICATE KEY UPDATE state = state"
        ),
        format!("SELECT state FROM tramline_push WHERE subscription = {id} FOR UPDATE"),
    ]
}

async fn standing(session: &mut Session<'_>, id: SubscriptionId) -> Result<Health> {
    let found = match session.found.take() {
        Some(found) => found,
        None => session.sets(standing_reads(id)).await?,
    };
    health(found.iter().flatten().next().map(|row| row.text(0)).transpose()?.as_deref())
}

fn write(session: &mut Session<'_>, SubscriptionId(id): SubscriptionId, health: &Health) {
    session.write(format!(
        "UPDATE tramline_push SET state = {} WHERE subscription = {id}",
        quoted(&text(health))
    ));
}

/// One look at all of them. Where there is no order: ready and due, or a lease that has ended, one probe of
/// `tramline_slice_claim` for each priority. Where there is: a lane that is free and has something to give, or whose lease
/// has ended.
pub(super) fn board_reads(catalog: &Catalog) -> Vec<String> {
    let ids: Vec<i64> = pushed(catalog).map(|one| one.id.0).collect();
    if ids.is_empty() {
        return Vec::new();
    }
    let states = format!(
        "SELECT subscription, state FROM tramline_push WHERE subscription IN ({})",
        list(ids.into_iter())
    );
    let due = pushed(catalog).map(|one| due_sql(one.id, one.policy.is_ordered()));
    std::iter::once(states).chain(due).collect()
}

pub(super) async fn board(session: &mut Session<'_>) -> Result<Vec<PushEntry>> {
    let catalog = session.catalog.clone();
    let found = match session.found.take() {
        Some(found) => found,
        None => session.sets(board_reads(&catalog)).await?,
    };
    let Some((states, due)) = found.split_first() else { return Ok(Vec::new()) };
    let mut healths: HashMap<i64, Health> = HashMap::new();
    for row in states {
        healths.insert(row.int(0)?, health(Some(&row.text(1)?))?);
    }
    let mut board = Vec::with_capacity(due.len());
    for (subscription, due) in pushed(&catalog).zip(due) {
        let health = healths.remove(&subscription.id.0).unwrap_or_default();
        let due = due.first().map_or(Ok(false), |row| row.flag(0))? && health.is_open(session.now);
        board.push(PushEntry { subscription: subscription.clone(), health, due, now: session.now });
    }
    Ok(board)
}

fn pushed(catalog: &Catalog) -> impl Iterator<Item = &Subscription> {
    catalog.subscriptions().iter().filter(|one| one.policy.push.is_some())
}

fn due_sql(SubscriptionId(id): SubscriptionId, ordered: bool) -> String {
    if !ordered {
        return format!(
            "SELECT EXISTS (SELECT 1 FROM {SLICES} WHERE s.subscription = {id} AND s.state IN (0, 1, 2) AND s.lane = 0 \
             AND s.`rank` {RANKS} AND s.pos <= @tramline_now)"
        );
    }
    format!(
        "SELECT EXISTS (SELECT 1 FROM tramline_lane l WHERE l.subscription = {id} AND l.halted_until <= @tramline_now \
         AND ((l.owner <> 0 AND l.until <= @tramline_now) OR (l.owner = 0 AND (\
         EXISTS (SELECT 1 FROM {SLICES} WHERE s.subscription = {id} AND s.state = 0 AND s.lane = l.lane) OR \
         EXISTS (SELECT 1 FROM {SLICES} WHERE s.subscription = {id} AND s.state = 3 AND s.lane = l.lane AND s.`rank` = 0 \
         AND s.pos <= @tramline_now)))))"
    )
}

/// What has gathered; and if there is nothing, when the first of what waits is due.
pub(super) fn gather_reads(catalog: &Catalog, gather: &Gather) -> Vec<String> {
    let Ok(subscription) = catalog.require_subscription(gather.subscription) else { return Vec::new() };
    let ordered = subscription.policy.is_ordered();
    vec![gathered_sql(gather, ordered), next_due_sql(gather.subscription, ordered)]
}

pub(super) async fn gather(session: &mut Session<'_>, gather: &Gather) -> Result<Gathered> {
    let catalog = session.catalog.clone();
    catalog.require_subscription(gather.subscription)?;
    let found = match session.found.take() {
        Some(found) => found,
        None => session.sets(gather_reads(&catalog, gather)).await?,
    };
    let mut gathered = Gathered { now: session.now, ..Gathered::default() };
    for row in &found[0] {
        gathered.add(row.int(0)?, row.int(1)?, row.flag(2)?);
    }
    gathered.next_due = found[1].first().map_or(Ok(None), |row| row.maybe_int(0))?.map(Time);
    Ok(gathered)
}

/// Counts at most as many slices as there may be events in a batch: each has at least one. A lease that has ended counts as no event,
/// but somebody has to claim what was under it.
fn gathered_sql(gather: &Gather, ordered: bool) -> String {
    let (SubscriptionId(id), limit) = (gather.subscription, gather.events);
    if ordered {
        // The other way round, all slices that wait would be looked at before the lanes.
        return format!(
            "(SELECT s.mask, s.due_at, s.attempts > 0 OR s.replayed FROM tramline_lane l STRAIGHT_JOIN {SLICES} \
             ON s.subscription = {id} AND s.state IN (0, 3) AND s.lane = l.lane AND s.`rank` = 0 \
             AND s.due_at <= @tramline_now WHERE l.subscription = {id} AND l.halted_until <= @tramline_now AND l.owner = 0 \
             LIMIT {limit}) UNION ALL (SELECT 0, until, TRUE FROM tramline_lane WHERE subscription = {id} \
             AND halted_until <= @tramline_now AND owner <> 0 AND until <= @tramline_now LIMIT 1)"
        );
    }
    format!(
        "(SELECT s.mask, s.due_at, s.attempts > 0 OR s.replayed FROM {SLICES} WHERE s.subscription = {id} \
         AND s.state = 0 AND s.lane = 0 AND s.`rank` {RANKS} AND s.pos <= @tramline_now LIMIT {limit}) \
         UNION ALL (SELECT 0, s.pos, TRUE FROM {SLICES} WHERE s.subscription = {id} \
         AND s.state = 1 AND s.lane = 0 AND s.`rank` {RANKS} AND s.pos <= @tramline_now LIMIT 1)"
    )
}

/// When the first of what waits is due, or the first lane that is halted goes on, if the statement before this one found nothing.
fn next_due_sql(SubscriptionId(id): SubscriptionId, ordered: bool) -> String {
    let due = if ordered {
        format!(
            "SELECT MIN(IF(l.halted_until > @tramline_now, l.halted_until, (SELECT MIN(s.pos) FROM {SLICES} \
             WHERE s.subscription = {id} AND s.state = 3 AND s.lane = l.lane AND s.`rank` = 0))) FROM tramline_lane l \
             WHERE l.subscription = {id} AND l.owner = 0"
        )
    } else {
        // Each a value of its own, as in a claim.
        let first = |rank: i64| {
            format!(
                "COALESCE((SELECT MIN(s.pos) FROM {SLICES} WHERE s.subscription = {id} AND s.state = 0 AND s.lane = 0 \
                 AND s.`rank` = {rank}), {NEVER})"
            )
        };
        let all: Vec<String> = (0..10).map(first).collect();
        format!("SELECT NULLIF(LEAST({}), {NEVER})", all.join(", "))
    };
    format!("SELECT IF(FOUND_ROWS() = 0, ({due}), NULL)")
}

pub(super) async fn attempts(
    session: &mut Session<'_>,
    wanted: &ListAttempts,
) -> Result<Vec<NumberedAttempt>> {
    session.catalog.require_subscription(wanted.subscription)?;
    let sql = format!(
        "SELECT id, entry FROM tramline_attempt WHERE subscription = {} AND id < {} ORDER BY id DESC LIMIT {}",
        wanted.subscription.0, wanted.before, wanted.limit
    );
    let mut found = Vec::new();
    for row in session.rows(sql).await? {
        found.push(NumberedAttempt { number: row.int(0)?, attempt: attempt(&row.text(1)?)? });
    }
    Ok(found)
}

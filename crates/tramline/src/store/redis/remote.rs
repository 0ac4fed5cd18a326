//! Workers that claim through a node: who was seen lately.

use super::pack::{Packer, Unpacker};
use super::session::{Session, hgetall};
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::model::time::Time;
use crate::store::verbs::{REMEMBERED, RemoteWorker, SeeRemote};

fn table(session: &Session<'_>, id: SubscriptionId) -> Vec<u8> {
    session.key(&format!("remote:{id}"))
}

fn read(subscription: SubscriptionId, name: &[u8], row: &[u8]) -> Result<RemoteWorker> {
    let mut row = Unpacker::new(row);
    Ok(RemoteWorker {
        name: String::from_utf8_lossy(name).into_owned(),
        subscription,
        born_at: Time(row.number()?),
        seen_at: Time(row.number()?),
        claims: row.number()?.max(0).cast_unsigned(),
    })
}

pub(super) fn see(session: &Session<'_>, see: &SeeRemote) -> Result<()> {
    let (catalog, forgotten) = (session.catalog(), session.now.before(REMEMBERED));
    for seen in see.workers.iter().filter(|seen| catalog.require_subscription(seen.subscription).is_ok()) {
        let key = table(session, seen.subscription);
        let old = session.get(&key, seen.name.as_bytes())?;
        let old = old.map(|row| read(seen.subscription, seen.name.as_bytes(), &row)).transpose()?;
        let known = old.as_ref().filter(|old| old.seen_at > forgotten);
        let born_at = known.map_or(session.now, |old| old.born_at);
        let claims = known.map_or(0, |old| old.claims) + seen.claims;
        let seen_at = old.as_ref().map_or(session.now, |old| old.seen_at.max(session.now));
        let row = Packer::new().number(born_at.0).number(seen_at.0).number(claims.cast_signed()).done();
        session.put(key, seen.name.as_bytes(), row);
    }
    Ok(())
}

/// Everybody who is written down for some subscriptions.
fn known(session: &Session<'_>, subscriptions: &[SubscriptionId]) -> Result<Vec<RemoteWorker>> {
    session.expect(subscriptions.iter().map(|id| hgetall(&table(session, *id))))?;
    let mut workers = Vec::new();
    for &id in subscriptions {
        for (name, row) in session.all(&table(session, id))? {
            workers.push(read(id, &name, &row)?);
        }
    }
    workers.sort_by(|a, b| (&a.name, a.subscription).cmp(&(&b.name, b.subscription)));
    Ok(workers)
}

pub(super) fn all(session: &Session<'_>) -> Result<Vec<RemoteWorker>> {
    let all: Vec<SubscriptionId> = session.catalog().subscriptions().iter().map(|one| one.id).collect();
    let mut workers = known(session, &all)?;
    workers.retain(|worker| worker.seen_at > session.now.before(REMEMBERED));
    Ok(workers)
}

/// Forgets who was not seen for long.
pub(super) fn expire(session: &Session<'_>, subscriptions: &[SubscriptionId], limit: usize) -> Result<()> {
    let forgotten = |worker: &RemoteWorker| worker.seen_at <= session.now.before(REMEMBERED);
    for worker in known(session, subscriptions)?.into_iter().filter(forgotten).take(limit) {
        session.remove(table(session, worker.subscription), worker.name);
    }
    Ok(())
}

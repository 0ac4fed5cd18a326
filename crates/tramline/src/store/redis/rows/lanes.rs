//! Lanes: who has the lease of each.

use crate::error::Result;
use crate::model::id::{Incarnation, LaneId, SubscriptionId};
use crate::model::lane::Lane;
use crate::model::time::Time;
use crate::store::redis::pack::{Packer, Unpacker, damaged};
use crate::store::redis::session::Session;

/// The lanes of a subscription.
pub(in crate::store::redis) fn lanes_key(session: &Session<'_>, subscription: SubscriptionId) -> Vec<u8> {
    session.key(&format!("lanes:{subscription}"))
}

fn lane(subscription: SubscriptionId, lane: LaneId, row: &[u8]) -> Result<Lane> {
    let mut row = Unpacker::new(row);
    Ok(Lane {
        subscription,
        lane,
        owner: Some(row.number()?).filter(|owner| *owner != 0).map(Incarnation),
        epoch: row.number()?,
        until: Time(row.number()?),
        halted_until: Time(row.number()?),
        leased: row.number()?,
        marks: row.number()?,
    })
}

pub(in crate::store::redis) fn lanes(
    session: &Session<'_>,
    subscription: SubscriptionId,
) -> Result<Vec<Lane>> {
    let mut lanes = Vec::new();
    for (id, row) in session.all(&lanes_key(session, subscription))? {
        let id = std::str::from_utf8(&id).ok().and_then(|id| id.parse().ok()).ok_or_else(damaged)?;
        lanes.push(lane(subscription, LaneId(id), &row)?);
    }
    lanes.sort_by_key(|lane| lane.lane);
    Ok(lanes)
}

pub(in crate::store::redis) fn one_lane(
    session: &Session<'_>,
    subscription: SubscriptionId,
    id: LaneId,
) -> Result<Option<Lane>> {
    let row = session.get(&lanes_key(session, subscription), id.to_string().as_bytes())?;
    row.map(|row| lane(subscription, id, &row)).transpose()
}

pub(in crate::store::redis) fn write_lane(session: &Session<'_>, lane: &Lane) {
    let row = Packer::new()
        .number(lane.owner.map_or(0, |owner| owner.0))
        .number(lane.epoch)
        .number(lane.until.0)
        .number(lane.halted_until.0)
        .number(lane.leased)
        .number(lane.marks)
        .done();
    session.put(lanes_key(session, lane.subscription), lane.lane.to_string(), row);
}

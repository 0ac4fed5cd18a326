//! What claims under limits decide between reading and writing, whatever the database.

use crate::error::Result;
use crate::model::id::{ChunkId, SubscriptionId};
use crate::model::limits::Starts;
use crate::model::mask::Mask;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::Changes;
use crate::plan::claim::Taker;
use crate::plan::limit::{Crowd, Keys, Room, take};
use crate::store::claimed::RawClaim;
use crate::store::rows::StepRows;
use crate::store::verbs::{Claim, Settled};
use std::borrow::Cow;

/// How many ready slices a claim reads at once where keys are limited: those that it sets aside are never met again.
pub(crate) const READY: u32 = 256;
/// How often it looks behind what it set aside.
pub(crate) const ROUNDS: u32 = 8;

/// What is under way in a limited subscription, read under its lock.
#[derive(Default)]
pub(crate) struct UnderWay {
    pub(crate) leased: Vec<(ChunkId, Mask)>,
    /// The keys of these, where they are limited.
    pub(crate) keys: Keys,
    pub(crate) starts: Starts,
}

/// The limits of a claim.
pub(crate) struct Limit {
    room: Room,
    wanted: u32,
    /// Where keys are limited.
    pub(crate) crowd: Option<Crowd>,
}

impl Limit {
    pub(crate) fn new(claim: &Claim, policy: &Policy, under_way: UnderWay, now: Time) -> Limit {
        let UnderWay { leased, keys, starts } = under_way;
        let count = leased.iter().map(|(_, mask)| u64::from(mask.count())).sum();
        let crowd = policy.limits.per_key_concurrency.map(|most| Crowd::new(most, leased.iter(), &keys));
        Limit { room: Room::new(&policy.limits, count, starts, now), wanted: claim.max_events, crowd }
    }

    /// True if nothing may be taken.
    pub(crate) fn is_reached(&self) -> bool {
        self.room.events() == 0
    }

    /// The claim for no more than there is room for.
    pub(crate) fn clip<'a>(&self, claim: &'a Claim) -> Cow<'a, Claim> {
        let room = self.room.events();
        if claim.max_events <= room {
            return Cow::Borrowed(claim);
        }
        Cow::Owned(Claim { max_events: room, ..claim.clone() })
    }

    /// The claim is over. Gives what to remember for the rate, if anything. Where it was the limit that ended the claim, it says so,
    /// and when the rate allows more; without a rate, that is when a lease ends.
    pub(crate) fn end(&mut self, raw: &mut RawClaim) -> Option<String> {
        let room = self.room.events();
        let taken = raw.slices.iter().map(|slice| slice.mask.count()).sum();
        let starts = self.room.take(taken);
        raw.limited = taken >= room && self.wanted > room;
        if raw.limited {
            raw.next_due = self.room.next_start();
        }
        starts
    }
}

impl Settled {
    /// True if something ended that others may wait for, because only so many may be under way.
    pub(crate) fn frees(&self, policy: &Policy) -> bool {
        policy.limits.most().is_some() && self.accepted.iter().flatten().any(|accepted| *accepted)
    }
}

/// Takes what the limit of each key allows, of those that had to wait and of those that are ready; another kind comes first every
/// time.
pub(crate) async fn take_by_key(
    session: &mut impl StepRows,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    let crowded_first = session.now().0 % 2 == 0;
    if crowded_first {
        take_crowded(session, id, crowd, taker, raw).await?;
    }
    take_ready(session, id, crowd, taker, raw).await?;
    if !crowded_first {
        take_crowded(session, id, crowd, taker, raw).await?;
    }
    Ok(())
}

/// One suspect whose keys allow it.
pub(crate) async fn take_suspect(
    session: &mut impl StepRows,
    suspects: Vec<Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    for suspect in suspects {
        take_some(session, suspect.subscription, vec![suspect], crowd, taker, raw).await?;
        if !raw.slices.is_empty() {
            break;
        }
    }
    Ok(())
}

async fn take_ready(
    session: &mut impl StepRows,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    for _ in 0..ROUNDS {
        if taker.is_full() {
            return Ok(());
        }
        let ready = session.ready(id, READY).await?;
        if ready.is_empty() {
            return Ok(());
        }
        let all = (ready.len() as u32) < READY;
        take_some(session, id, ready, crowd, taker, raw).await?;
        if all {
            return Ok(());
        }
    }
    raw.next_due = Some(session.now());
    Ok(())
}

async fn take_crowded(
    session: &mut impl StepRows,
    id: SubscriptionId,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    if taker.is_full() {
        return Ok(());
    }
    let found = session.crowded(id, crowd, taker.events).await?;
    take_some(session, id, found, crowd, taker, raw).await
}

async fn take_some(
    session: &mut impl StepRows,
    id: SubscriptionId,
    found: Vec<Slice>,
    crowd: &mut Crowd,
    taker: &mut Taker,
    raw: &mut RawClaim,
) -> Result<()> {
    // Only the keys: most of what is found may have to wait, and payloads may be large.
    let keys = session.keys(found.iter().map(|slice| slice.chunk).collect()).await?;
    let mut changes = Changes::default();
    raw.slices.extend(take(found, &keys, crowd, taker, &mut changes));
    session.apply(id, &changes).await
}

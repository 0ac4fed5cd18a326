//! What claims under limits decide between reading and writing, whatever the database.

use crate::model::id::ChunkId;
use crate::model::limits::Starts;
use crate::model::mask::Mask;
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::limit::{Crowd, Keys, Room};
use crate::store::claimed::RawClaim;
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

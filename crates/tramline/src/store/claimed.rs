//! From claimed rows to claimed events: the part of a claim that needs no transaction.

use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::event::StoredEvent;
use crate::model::id::{ChunkId, EventId, TallyId};
use crate::model::mask::Mask;
use crate::model::rule::RuleKind;
use crate::model::slice::Slice;
use crate::model::subscription::Policy;
use crate::model::time::Time;
use crate::plan::claim::Taker;
use crate::store::catalog::Catalog;
use crate::store::rules::Stop;
use crate::store::verbs::{Claim, Claimed, ClaimedEvent, ClaimedSlice, Suspects};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// What a claim's transaction found.
#[derive(Debug, Default)]
pub(crate) struct RawClaim {
    pub(crate) now: Time,
    pub(crate) slices: Vec<Slice>,
    pub(crate) chunks: HashMap<ChunkId, ChunkRow>,
    /// Chunks that had to be decoded inside the transaction, because their keys mattered.
    pub(crate) decoded: HashMap<ChunkId, Arc<[StoredEvent]>>,
    pub(crate) skipped: HashMap<EventId, Vec<EventId>>,
    pub(crate) until: Time,
    pub(crate) next_due: Option<Time>,
    pub(crate) suspects_wait: bool,
    pub(crate) stopped_by: Option<RuleKind>,
    pub(crate) backfilling: bool,
    pub(crate) passed_over: bool,
    pub(crate) limited: bool,
    pub(crate) news: Vec<TallyId>,
}

impl Taker {
    /// What a claim may take under a policy.
    pub(crate) fn new(claim: &Claim, policy: &Policy, now: Time) -> Taker {
        Taker {
            owner: claim.owner,
            until: now.after(claim.lease.unwrap_or_else(|| policy.lease())),
            epoch: 0,
            events: claim.max_events,
            bytes: i64::try_from(claim.max_bytes).unwrap_or(i64::MAX).max(1),
            single: claim.single,
            consume: policy.is_at_most_once(),
        }
    }
}

impl RawClaim {
    /// Nothing, because of a rule; until it ends.
    pub(crate) fn stopped(self, stop: Stop) -> RawClaim {
        RawClaim { stopped_by: Some(stop.kind), next_due: stop.until, ..self }
    }

    /// What a claim still wants.
    pub(crate) fn rest_of(&self, claim: &Claim) -> Claim {
        let events: u32 = self.slices.iter().map(|slice| slice.mask.count()).sum();
        let bytes: usize = self.slices.iter().map(|slice| slice.bytes as usize).sum();
        Claim {
            max_events: claim.max_events.saturating_sub(events),
            max_bytes: claim.max_bytes.saturating_sub(bytes),
            // A suspect runs alone; there may be one by now, because a lease has ended since the first look.
            suspects: if self.slices.is_empty() { claim.suspects } else { Suspects::Leave },
            ..claim.clone()
        }
    }

    /// What a second look took comes behind what the first one took.
    pub(crate) fn and(mut self, later: RawClaim) -> RawClaim {
        // The leases of the first look end earlier.
        let until = if self.slices.is_empty() { later.until } else { self.until.min(later.until) };
        self.slices.extend(later.slices);
        self.chunks.extend(later.chunks);
        self.decoded.extend(later.decoded);
        let RawClaim { slices, chunks, decoded, now, .. } = self;
        RawClaim { slices, chunks, decoded, now, until, ..later }
    }

    /// The chunks that still have to be read.
    pub(crate) fn missing(&self) -> BTreeSet<ChunkId> {
        let known = |chunk: &ChunkId| self.chunks.contains_key(chunk) || self.decoded.contains_key(chunk);
        self.slices.iter().map(|slice| slice.chunk).filter(|chunk| !known(chunk)).collect()
    }

    /// Decodes the chunks that were read.
    pub(crate) fn decode_chunks(&mut self, catalog: &Catalog) -> Result<()> {
        for (id, row) in &self.chunks {
            if !self.decoded.contains_key(id) {
                let events = row.decode(&catalog.topic_name(row.topic))?;
                self.decoded.insert(*id, events.into());
            }
        }
        Ok(())
    }

    /// What was taken of chunks that are not decoded yet: of one that lies in many lanes that is a few events.
    fn choose(&self, catalog: &Catalog) -> Result<HashMap<ChunkId, (Mask, Vec<StoredEvent>)>> {
        let mut taken: HashMap<ChunkId, Mask> = HashMap::with_capacity(self.chunks.len());
        for slice in self.slices.iter().filter(|slice| !self.decoded.contains_key(&slice.chunk)) {
            let mask = taken.entry(slice.chunk).or_default();
            *mask = mask.plus(slice.mask);
        }
        let rows = taken.into_iter().filter_map(|(id, mask)| Some((id, mask, self.chunks.get(&id)?)));
        rows.map(|(id, mask, row)| Ok((id, (mask, row.select(&catalog.topic_name(row.topic), mask)?))))
            .collect()
    }

    /// Decodes the events of what was taken.
    pub(crate) fn decode(mut self, catalog: &Catalog) -> Result<Claimed> {
        let chosen = self.choose(catalog)?;
        let mut slices = Vec::with_capacity(self.slices.len());
        for slice in &self.slices {
            let all = self.decoded.get(&slice.chunk).map(|events| &events[..]);
            let some = chosen.get(&slice.chunk);
            let mut events = Vec::with_capacity(slice.mask.count() as usize);
            for index in slice.mask.iter() {
                let event = match (all, some) {
                    (Some(all), _) => all.get(index as usize),
                    (None, Some((mask, some))) => some.get(mask.and(Mask::first(index)).count() as usize),
                    (None, None) => None,
                };
                if let Some(event) = event {
                    let skipped = self.skipped.remove(&event.id).unwrap_or_default();
                    events.push(ClaimedEvent { event: event.shown_to(slice.subscription), skipped });
                }
            }
            slices.push(ClaimedSlice {
                lease: slice.lease(),
                until: self.until,
                events,
                attempts: slice.attempts,
                crashes: slice.crashes,
                replayed: slice.replayed,
            });
        }
        Ok(Claimed {
            slices,
            now: self.now,
            next_due: self.next_due,
            suspects_wait: self.suspects_wait,
            stopped_by: self.stopped_by,
            backfilling: self.backfilling,
            passed_over: self.passed_over,
            limited: self.limited,
            news: self.news,
        })
    }
}

/// Claims that come together, where that costs no less than one after the other.
pub(crate) fn each_alone(claims: &[Claim]) -> Vec<Result<Option<Claimed>>> {
    claims.iter().map(|_| Ok(None)).collect()
}

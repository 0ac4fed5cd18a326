//! Claims: from one site after the other, or from several at once, each asked for its part of what is wanted.

use super::{AT_ONCE, SpreadStore};
use crate::error::{Error, Kind, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::Store;
use crate::store::verbs::{Claim, Claimed, ClaimedSlice, Suspects};
use futures_util::future::join_all;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// What a process remembers between claims.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    /// Where suspects wait: they are taken first, by who has nothing else in flight.
    waiting: Mutex<BTreeSet<(SubscriptionId, TopicId)>>,
    /// Claims begin at another site every time.
    turn: AtomicUsize,
}

impl Suspicions {
    fn set(&self, subscription: SubscriptionId, topic: TopicId, waits: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waits {
            true => waiting.insert((subscription, topic)),
            false => waiting.remove(&(subscription, topic)),
        };
    }

    fn of(&self, subscription: SubscriptionId, topic: TopicId) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).contains(&(subscription, topic))
    }
}

impl SpreadStore {
    pub(super) async fn claim_from_all(&self, claim: &Claim) -> Result<Claimed> {
        let subscription = self.subscription(claim.subscription).await?;
        let topics = self.topics_of(&subscription);
        let claimed = self.claim_from(claim, &topics).await?;
        if !claimed.slices.is_empty() || claimed.stopped_by.is_some() {
            return Ok(claimed);
        }
        // Nobody waits in vain for a topic that the subscription has had for a moment only.
        let now = self.catalog().await?.require_subscription(claim.subscription)?.clone();
        let new: Vec<TopicId> =
            self.topics_of(&now).into_iter().filter(|topic| !topics.contains(topic)).collect();
        let mut sum = Sum::new(claim);
        sum.add(claimed);
        if !new.is_empty() {
            sum.add(self.claim_from(claim, &new).await?);
        }
        Ok(sum.end())
    }

    async fn claim_from(&self, claim: &Claim, topics: &[TopicId]) -> Result<Claimed> {
        if let [only] = topics {
            return self.claim_at(claim, *only).await;
        }
        let mut sum = Sum::new(claim);
        if claim.suspects == Suspects::TakeOne {
            let known = topics.iter().filter(|topic| self.suspicions.of(claim.subscription, **topic));
            if self.take_suspect(claim, known, &mut sum).await? {
                return Ok(sum.end());
            }
        }
        self.claim_by_turns(claim, topics, &mut sum).await?;
        if claim.suspects == Suspects::TakeOne && sum.is_empty() {
            let known = topics.iter().filter(|topic| self.suspicions.of(claim.subscription, **topic));
            self.take_suspect(claim, known, &mut sum).await?;
        }
        Ok(sum.end())
    }

    /// Takes from where suspects wait: one, and nothing else. True if something was taken.
    async fn take_suspect(
        &self,
        claim: &Claim,
        topics: impl Iterator<Item = &TopicId>,
        sum: &mut Sum,
    ) -> Result<bool> {
        for topic in topics {
            let claimed = self.claim_at(claim, *topic).await?;
            if !claimed.slices.is_empty() {
                sum.add(claimed);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes what is due and no suspect. No more sites are asked at once than there are events wanted, so that no more come than that.
    async fn claim_by_turns(&self, claim: &Claim, topics: &[TopicId], sum: &mut Sum) -> Result<()> {
        let mut open: VecDeque<TopicId> = topics.iter().copied().collect();
        if !open.is_empty() {
            open.rotate_left(self.suspicions.turn.fetch_add(1, Relaxed) % topics.len());
        }
        let mut failed = None;
        while !open.is_empty() && sum.wants_more() {
            let count = open.len().min(AT_ONCE).min(sum.events as usize);
            let quota = sum.events / count as u32;
            let part = Claim {
                max_events: quota,
                max_bytes: (sum.bytes / count).max(1),
                suspects: Suspects::Leave,
                ..claim.clone()
            };
            let some: Vec<TopicId> = open.drain(..count).collect();
            let claims = some.into_iter().map(async |topic| (topic, self.claim_at(&part, topic).await));
            for (topic, claimed) in join_all(claims).await {
                match claimed {
                    Ok(claimed) => {
                        let is_full = sum.add(claimed) >= quota;
                        open.extend(is_full.then_some(topic));
                    }
                    Err(error) => failed = Some(error),
                }
            }
        }
        // What was taken elsewhere must not be lost.
        match failed {
            Some(error) if sum.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!(error = %error, "a topic could not be claimed from");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Claims at one site. One that does not know the subscription yet hears of it first.
    async fn claim_at(&self, claim: &Claim, topic: TopicId) -> Result<Claimed> {
        let mut claimed = match self.site(topic).claim(claim.clone()).await {
            Err(error) if error.kind() == Kind::NotFound && self.consumes(claim.subscription, topic).await? => {
                self.bring_up(topic).await?;
                self.site(topic).claim(claim.clone()).await
            }
            Err(error) if error.kind() == Kind::NotFound => self.left(error, claim.subscription).await,
            claimed => claimed,
        }?;
        self.suspicions.set(claim.subscription, topic, claimed.suspects_wait);
        claimed.news = self.pay(topic, claim.now).await;
        Ok(claimed)
    }

    async fn consumes(&self, id: SubscriptionId, topic: TopicId) -> Result<bool> {
        let catalog = self.catalog().await?;
        let name = catalog.topic_name(topic);
        Ok(catalog.require_subscription(id).is_ok_and(|one: &Subscription| one.topics.contains(&name)))
    }

    /// A subscription that has left a topic gets nothing from there; one that is gone is an error.
    async fn left(&self, error: Error, id: SubscriptionId) -> Result<Claimed> {
        let is_there = self.catalog().await?.require_subscription(id).is_ok();
        if is_there { Ok(Claimed { now: self.home.now().await?, ..Claimed::default() }) } else { Err(error) }
    }
}

/// What several sites gave.
struct Sum {
    claimed: Option<Claimed>,
    /// How many events and bytes are still wanted.
    events: u32,
    bytes: usize,
}

impl Sum {
    fn new(claim: &Claim) -> Sum {
        Sum { claimed: None, events: claim.max_events, bytes: claim.max_bytes }
    }

    fn is_empty(&self) -> bool {
        self.claimed.as_ref().is_none_or(|claimed| claimed.slices.is_empty())
    }

    fn wants_more(&self) -> bool {
        self.events > 0 && self.bytes > 0
    }

    /// Adds what one site gave, and says how many events that were. Sites may be on servers whose clocks differ: times are
    /// told by the clock of the first.
    fn add(&mut self, mut other: Claimed) -> u32 {
        let events = other.slices.iter().map(|slice| slice.events.len() as u32).sum();
        self.events = self.events.saturating_sub(events);
        self.bytes = self.bytes.saturating_sub(other.slices.iter().map(weight).sum());
        let Some(sum) = &mut self.claimed else {
            self.claimed = Some(other);
            return events;
        };
        let here = |time: Time| Time(time.0.saturating_add(sum.now.0 - other.now.0));
        other.slices.iter_mut().for_each(|slice| slice.until = here(slice.until));
        sum.next_due = sum.next_due.into_iter().chain(other.next_due.map(here)).min();
        sum.slices.append(&mut other.slices);
        sum.news.append(&mut other.news);
        sum.suspects_wait |= other.suspects_wait;
        sum.stopped_by = sum.stopped_by.or(other.stopped_by);
        sum.backfilling |= other.backfilling;
        sum.passed_over |= other.passed_over;
        sum.limited |= other.limited;
        events
    }

    fn end(self) -> Claimed {
        let more = self.wants_more();
        let mut claimed = self.claimed.unwrap_or_default();
        // It is told only where the claim could have taken more, and a rule only where nothing was taken.
        claimed.next_due = claimed.next_due.filter(|_| more);
        claimed.stopped_by = claimed.stopped_by.filter(|_| claimed.slices.is_empty());
        claimed
    }
}

fn weight(slice: &ClaimedSlice) -> usize {
    slice.events.iter().map(|claimed| claimed.event.payload.len()).sum()
}

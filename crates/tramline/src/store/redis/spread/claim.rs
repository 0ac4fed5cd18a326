//! Claims: from one site after the other, or from several at once, each asked for its part of what is wanted.

use super::{AT_ONCE, SpreadStore};
use crate::error::{Error, Kind, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::time::Time;
use crate::store::Store;
use crate::store::redis::RedisStore;
use crate::store::verbs::{Claim, Claimed, ClaimedSlice, Suspects};
use futures_util::future::join_all;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a process remembers between claims.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// Where suspects wait: they are taken first, by who has nothing else in flight.
    waiting: Mutex<BTreeSet<(SubscriptionId, TopicId)>>,
    /// Claims begin at another site every time.
    turn: AtomicUsize,
    /// Sites that could not be reached, and when.
    away: Mutex<HashMap<TopicId, Instant>>,
}

/// How long a site that is away is asked only when there is nothing else to do: whoever asks waits for its answer, with all that the
/// others gave in hand.
const AWAY: Duration = Duration::from_secs(30);

impl Remembered {
    fn is_away(&self, topic: TopicId) -> bool {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.get(&topic).is_some_and(|since| since.elapsed() < AWAY)
    }

    fn saw(&self, topic: TopicId, claimed: &Result<Claimed>) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        match claimed {
            Err(error) if error.kind() == Kind::Unavailable => {
                if away.insert(topic, Instant::now()).is_none() {
                    tracing::warn!(topic = topic.0, error = %error, "a topic cannot be claimed from for now");
                }
            }
            _ => drop(away.remove(&topic)),
        }
    }

    fn set_suspects(&self, subscription: SubscriptionId, topic: TopicId, waits: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waits {
            true => waiting.insert((subscription, topic)),
            false => waiting.remove(&(subscription, topic)),
        };
    }

    fn suspects(&self, subscription: SubscriptionId, topic: TopicId) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).contains(&(subscription, topic))
    }
}

impl SpreadStore {
    pub(super) async fn claim_from_all(&self, claim: &Claim) -> Result<Claimed> {
        let known = self.topics_of(&self.subscription(claim.subscription).await?);
        let claimed = self.claim_from(claim, &known).await?;
        if !claimed.slices.is_empty() || claimed.stopped_by.is_some() {
            return Ok(claimed);
        }
        // Nobody waits in vain for a topic that the subscription has had for a moment only.
        let mut topics = match self.topics_now(claim.subscription).await {
            Err(error) if error.kind() == Kind::Unavailable => return Ok(claimed),
            topics => topics?,
        };
        topics.retain(|topic| !known.contains(topic));
        let mut all = Gathering::new(claim);
        all.add(claimed);
        if !topics.is_empty() {
            all.add(self.claim_from(claim, &topics).await?);
        }
        Ok(all.end())
    }

    async fn claim_from(&self, claim: &Claim, topics: &[TopicId]) -> Result<Claimed> {
        if let [only] = topics {
            return self.claim_at(claim, *only).await;
        }
        let mut all = Gathering::new(claim);
        if claim.suspects == Suspects::TakeOne && self.take_suspect(claim, topics, &mut all).await {
            return Ok(all.end());
        }
        let (away, near): (Vec<TopicId>, Vec<TopicId>) =
            topics.iter().partition(|topic| self.remembered.is_away(**topic));
        let mut failed = self.claim_by_turns(claim, &near, &mut all).await;
        if all.is_empty() {
            failed = self.claim_by_turns(claim, &away, &mut all).await.or(failed);
        }
        if claim.suspects == Suspects::TakeOne && all.is_empty() {
            self.take_suspect(claim, topics, &mut all).await;
        }
        // What some sites gave must not be lost because another one is away.
        match failed {
            Some(error) if all.claimed.is_none() => Err(error),
            _ if all.claimed.is_none() => Ok(Claimed { now: self.home.now().await?, ..Claimed::default() }),
            _ => Ok(all.end()),
        }
    }

    /// Takes from where suspects wait: one, and nothing else. True if something was taken.
    async fn take_suspect(&self, claim: &Claim, topics: &[TopicId], all: &mut Gathering) -> bool {
        let waits = |topic: &&TopicId| {
            self.remembered.suspects(claim.subscription, **topic) && !self.remembered.is_away(**topic)
        };
        for topic in topics.iter().filter(waits) {
            let claimed = self.claim_at(claim, *topic).await;
            self.remembered.saw(*topic, &claimed);
            if let Some(claimed) = claimed.ok().filter(|claimed| !claimed.slices.is_empty()) {
                all.add(claimed);
                return true;
            }
        }
        false
    }

    /// Takes what is due and no suspect. No more sites are asked at once than there are events wanted, so that no more come than that.
    /// Gives what went wrong at some of them.
    async fn claim_by_turns(&self, claim: &Claim, topics: &[TopicId], all: &mut Gathering) -> Option<Error> {
        let mut open: VecDeque<TopicId> = topics.iter().copied().collect();
        if !open.is_empty() {
            open.rotate_left(self.remembered.turn.fetch_add(1, Relaxed) % topics.len());
        }
        let mut failed = None;
        while !open.is_empty() && all.wants_more() {
            let count = open.len().min(AT_ONCE).min(all.events_wanted as usize);
            let quota = all.events_wanted / count as u32;
            let part = Claim {
                max_events: quota,
                max_bytes: (all.bytes_wanted / count).max(1),
                suspects: Suspects::Leave,
                ..claim.clone()
            };
            let some: Vec<TopicId> = open.drain(..count).collect();
            let claims = some.into_iter().map(async |topic| (topic, self.claim_at(&part, topic).await));
            for (topic, claimed) in join_all(claims).await {
                self.remembered.saw(topic, &claimed);
                match claimed {
                    Ok(claimed) => {
                        let is_full = all.add(claimed) >= quota;
                        open.extend(is_full.then_some(topic));
                    }
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed
    }

    /// Claims at one site. A subscription that has left the topic gets nothing there.
    async fn claim_at(&self, claim: &Claim, topic: TopicId) -> Result<Claimed> {
        let ask = |site: Arc<RedisStore>| async move { site.claim(claim.clone()).await };
        let Some(mut claimed) = self.at(claim.subscription, topic, ask).await? else {
            return Ok(Claimed { now: self.home.now().await?, ..Claimed::default() });
        };
        self.remembered.set_suspects(claim.subscription, topic, claimed.suspects_wait);
        claimed.news = self.pay(topic, claim.now).await;
        Ok(claimed)
    }
}

/// What several sites give for one claim.
struct Gathering {
    claimed: Option<Claimed>,
    events_wanted: u32,
    bytes_wanted: usize,
}

impl Gathering {
    fn new(claim: &Claim) -> Gathering {
        Gathering { claimed: None, events_wanted: claim.max_events, bytes_wanted: claim.max_bytes }
    }

    fn is_empty(&self) -> bool {
        self.claimed.as_ref().is_none_or(|claimed| claimed.slices.is_empty())
    }

    fn wants_more(&self) -> bool {
        self.events_wanted > 0 && self.bytes_wanted > 0
    }

    /// Adds what one site gave, and says how many events that were. Sites may be on servers whose clocks differ: times are
    /// told by the clock of the first.
    fn add(&mut self, mut other: Claimed) -> u32 {
        let events = other.slices.iter().map(|slice| slice.events.len() as u32).sum();
        self.events_wanted = self.events_wanted.saturating_sub(events);
        self.bytes_wanted = self.bytes_wanted.saturating_sub(other.slices.iter().map(weight).sum());
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

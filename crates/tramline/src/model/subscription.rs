//! Topics, subscriptions and their policies.

use crate::error::{Error, Result};
use crate::model::filter::Filter;
use crate::model::id::{EventId, MAX_LANES, SubscriptionId, TopicId};
use crate::model::limits::Limits;
use crate::model::outcome::Outcome;
use crate::model::push::Push;
use crate::model::retry::Retry;
use crate::model::time::{Time, as_optional_millis};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// How long events are kept unless a topic says otherwise.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// A named stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its number, never reused.
    pub id: TopicId,
    /// Its name.
    pub name: Arc<str>,
    /// How many lanes it has; never changes.
    pub lanes: u32,
    /// How long settled events are kept.
    pub retention: Duration,
    /// Who is in charge of it.
    pub owner: Option<Arc<str>>,
    /// When it was created.
    pub created_at: Time,
}

/// What may be said of a topic. What is left out is as it was, or the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSettings {
    /// How many lanes, 32 unless set; never changes.
    pub lanes: Option<u32>,
    /// How long settled events are kept, a day unless set.
    pub retention: Option<Duration>,
    /// Who is in charge of it; `Some(None)`: nobody any longer.
    pub owner: Option<Option<String>>,
    /// Who takes charge of it, unless somebody is: then that is a `Conflict`.
    pub claim: Option<String>,
}

/// The longest name of an owner, in bytes.
pub const MAX_OWNER: usize = 200;

impl TopicSettings {
    /// So many lanes, and nothing else.
    pub fn lanes(lanes: u32) -> TopicSettings {
        TopicSettings { lanes: Some(lanes), ..TopicSettings::default() }
    }

    /// An owner for a topic that has none.
    pub fn claim(owner: impl Into<String>) -> TopicSettings {
        TopicSettings { claim: Some(owner.into()), ..TopicSettings::default() }
    }

    /// Checks everything that can be known before the store is asked.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(lanes) = self.lanes
            && (lanes == 0 || lanes > MAX_LANES)
        {
            return Err(Error::invalid(
                format!("{lanes} lanes are not possible"),
                "use 1 to 4,096 lanes; 32 suit most topics",
            ));
        }
        let wrong =
            |owner: &String| owner.is_empty() || owner.len() > MAX_OWNER || owner.contains(char::is_control);
        if self.owner.iter().flatten().chain(&self.claim).any(wrong) {
            return Err(Error::invalid(
                "the owner is not a short text",
                "use 1 to 200 bytes without control characters, or none",
            ));
        }
        Ok(())
    }

    /// The owner of a topic that had this one.
    ///
    /// # Errors
    /// `Conflict` when it is claimed and somebody else has it.
    pub(crate) fn owner(&self, old: Option<&Arc<str>>) -> Result<Option<Arc<str>>> {
        match (&self.owner, &self.claim, old) {
            (_, Some(claim), Some(old)) if **old != **claim => Err(Error::conflict(
                "somebody else is in charge of the topic",
                "use another topic, or let its owner give it up",
            )),
            (_, Some(claim), _) => Ok(Some(Arc::from(claim.as_str()))),
            (None, None, old) => Ok(old.cloned()),
            (Some(owner), None, _) => Ok(owner.as_deref().map(Arc::from)),
        }
    }
}

/// One consumer of one or more topics, with its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its number, never reused.
    pub id: SubscriptionId,
    /// Its name.
    pub name: Arc<str>,
    /// The topics it consumes, sorted.
    pub topics: Vec<Arc<str>>,
    /// How its events are handled.
    pub policy: Policy,
    /// When it was created.
    pub created_at: Time,
}

impl Subscription {
    /// True if new events of a topic go to it.
    pub fn takes(&self, topic: &str) -> bool {
        self.topics.iter().any(|own| **own == *topic) && !self.policy.draining.iter().any(|own| own == topic)
    }
}

/// How the events of a subscription are handled.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Whether events of one key run one after the other. Never changes.
    pub ordering: Ordering,
    /// Whether an event may run twice or may be lost when a worker dies. Never changes.
    pub guarantee: Guarantee,
    /// What waits while an event of an ordered subscription is retried.
    pub while_retrying: WhileRetrying,
    /// What becomes of an event that is out of attempts.
    pub on_exhausted: OnExhausted,
    /// How often and when failed events run again.
    pub retry: Retry,
    /// How long a claim lasts if it is not extended; see [`Policy::lease`].
    #[serde(rename = "lease_ms", with = "as_optional_millis", skip_serializing_if = "Option::is_none")]
    pub lease: Option<Duration>,
    /// How long a handler may run.
    #[serde(rename = "time_limit_ms", with = "as_optional_millis", skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<Duration>,
    /// How many events a worker claims at once, at most; see [`Policy::claim_size`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_size: Option<u32>,
    /// Which events of its topics it gets; from the next emit on.
    #[serde(skip_serializing_if = "Filter::is_empty")]
    pub filter: Filter,
    /// True if older events of a key give way to the newest one, as long as nobody has claimed them.
    #[serde(skip_serializing_if = "is_false")]
    pub compact: bool,
    /// Those of its topics from which it gets nothing new: what it has of them is still done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub draining: Vec<String>,
    /// What all workers together may do.
    #[serde(skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// How events are sent to a callback. `None`: workers claim. That never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// How long dead events are kept; `None`: until somebody replays or drops them. Held ones are always kept.
    #[serde(
        rename = "dead_retention_ms",
        with = "as_optional_millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub dead_retention: Option<Duration>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Whether events of one key run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Ordering {
    /// Any order.
    #[default]
    None,
    /// Events of one (topic, key) strictly one after the other.
    Key,
    /// All events in the order of their arrival, one batch after the other. For push subscriptions.
    Subscriber,
}

/// What a worker's death does to the events it was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Guarantee {
    /// They run again.
    #[default]
    AtLeastOnce,
    /// They never run again by themselves.
    AtMostOnce,
}

/// What waits while an event of an ordered subscription is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum WhileRetrying {
    /// The later events of its key.
    #[default]
    Park,
    /// The whole lane.
    Halt,
}

/// What becomes of an event that is out of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum OnExhausted {
    /// It is kept as dead; the next event of its key goes on.
    #[default]
    Dead,
    /// Its key waits until somebody replays or drops it. Without a key: dead.
    Hold,
    /// It is dropped.
    Drop,
}

/// Where a new subscription starts in the retained events of its topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Start {
    /// With the oldest retained event.
    #[default]
    Beginning,
    /// With the next event.
    Now,
    /// With the first event stored at or after this time.
    At(Time),
}

const LEASE: Duration = Duration::from_secs(30);
const LANE_LEASE: Duration = Duration::from_secs(10);
const SHORTEST_LEASE: Duration = Duration::from_millis(50);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);

impl Policy {
    /// How long a claim lasts: 30 s, lanes 10 s, unless set.
    pub fn lease(&self) -> Duration {
        self.lease.unwrap_or(if self.is_ordered() { LANE_LEASE } else { LEASE })
    }

    /// How many events a worker claims at once, at most: 1 when at most once, 4,096 else, unless set.
    pub fn claim_size(&self) -> u32 {
        self.claim_size.unwrap_or(match self.guarantee {
            Guarantee::AtMostOnce => 1,
            Guarantee::AtLeastOnce => 4096,
        })
    }

    /// True where lanes keep an order: that of each key, or that of all events.
    pub fn is_ordered(&self) -> bool {
        self.ordering != Ordering::None
    }

    /// True if a failed event stops its whole lane until it runs again.
    pub fn halts(&self) -> bool {
        self.while_retrying == WhileRetrying::Halt || self.ordering == Ordering::Subscriber
    }

    /// True for `guarantee = at_most_once`.
    pub fn is_at_most_once(&self) -> bool {
        self.guarantee == Guarantee::AtMostOnce
    }

    /// How long an event waits for its next run after try number `attempt` (from 1) ended like this; `None`: there is none.
    pub(crate) fn wait_after(&self, outcome: &Outcome, attempt: u32, event: EventId) -> Option<Duration> {
        match outcome {
            Outcome::Done | Outcome::Dead { .. } => None,
            Outcome::Snooze { delay } => Some(*delay),
            Outcome::Retry { delay, .. } => {
                let wait = self.retry.delay_after(attempt, event).filter(|_| !self.is_at_most_once())?;
                Some(delay.unwrap_or(wait))
            }
        }
    }

    /// Checks the numbers.
    pub(crate) fn check(&self) -> Result<()> {
        if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&self.lease()) {
            return Err(Error::invalid("the lease is out of range", "use 50 milliseconds to 24 hours"));
        }
        if self.claim_size() == 0 || self.claim_size() > 10_000 {
            return Err(Error::invalid("the claim size is out of range", "use 1 to 10,000 events"));
        }
        if self.retry.max_attempts > 10_000 {
            return Err(Error::invalid("max_attempts is out of range", "use 1 to 10,000, or 0 for no limit"));
        }
        self.filter.check()?;
        self.limits.check(self.is_ordered(), self.push.is_some())?;
        self.check_push()
    }

    fn check_push(&self) -> Result<()> {
        let Some(push) = &self.push else {
            return match self.ordering {
                Ordering::Subscriber => Err(Error::invalid(
                    "workers have no order of all events",
                    "use ordering key, or a push subscription",
                )),
                _ => Ok(()),
            };
        };
        if self.is_at_most_once() {
            return Err(Error::invalid("push is at least once", "leave the guarantee at at_least_once"));
        }
        if self.ordering == Ordering::Subscriber && self.on_exhausted == OnExhausted::Hold {
            return Err(Error::invalid(
                "in the order of arrival nothing can be held for one key",
                "use ordering key, or on_exhausted dead or drop",
            ));
        }
        push.check()
    }

    /// Checks that this policy may replace `old`.
    pub(crate) fn check_change(&self, old: &Policy) -> Result<()> {
        if self.ordering == old.ordering
            && self.guarantee == old.guarantee
            && self.push.is_some() == old.push.is_some()
        {
            return Ok(());
        }
        Err(Error::conflict(
            "kind, ordering and guarantee of a subscription never change",
            "create a subscription of another name, or delete this one first",
        ))
    }
}

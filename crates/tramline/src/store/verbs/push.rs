//! Push: how the sending of each subscription stands, and what there is to send.

use crate::model::health::{Attempt, Health};
use crate::model::id::SubscriptionId;
use crate::model::subscription::Subscription;
use crate::model::time::Time;

/// How many attempts are remembered of each subscription.
pub const ATTEMPTS_KEPT: usize = 200;

/// Writes down what was tried.
#[derive(Clone, Debug)]
pub struct RecordPush {
    /// Whose.
    pub subscription: SubscriptionId,
    /// What was tried, oldest first.
    pub attempts: Vec<Attempt>,
    /// What was delivered before that and is only counted.
    pub counted: Sent,
    /// Test time.
    pub now: Option<Time>,
}

/// Deliveries that nobody looks at one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Acknowledged events.
    pub events: u64,
    /// Acknowledged batches.
    pub batches: u64,
}

/// What followed from attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// How the subscription stands now.
    pub health: Health,
    /// True if one of these attempts disabled it; [`Health::is_untold`] from then on, until somebody has told it.
    pub disabled_now: bool,
    /// The store's time.
    pub now: Time,
}

/// Changes how a push subscription stands, by somebody's will.
#[derive(Clone, Debug)]
pub struct SteerPush {
    /// Whose.
    pub subscription: SubscriptionId,
    /// How.
    pub steer: Steer,
    /// Who.
    pub by: String,
    /// Test time.
    pub now: Option<Time>,
}

/// What somebody wants of a push subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steer {
    /// Send again.
    Enable,
    /// Send nothing any more.
    Disable {
        /// Why.
        reason: String,
    },
    /// It was told that its failures have disabled it.
    Told {
        /// When they did: it may be another time already.
        at: Time,
    },
    /// The receiver behind this callback has agreed to be sent events.
    Agreed {
        /// Which.
        callback: String,
    },
}

/// A push subscription, and whether there may be something to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushEntry {
    /// The subscription.
    pub subscription: Subscription,
    /// How its sending stands.
    pub health: Health,
    /// True if something is due, or a lease has ended.
    pub due: bool,
    /// The store's time.
    pub now: Time,
}

/// Looks at what has gathered for a batch.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Counting more than this is of no use.
    pub events: u32,
    /// Test time.
    pub now: Option<Time>,
}

/// What has gathered for a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// How many events could be sent, as far as they were counted.
    pub events: u32,
    /// Since when the oldest of them could.
    pub since: Option<Time>,
    /// True if some were tried before or are sent again: they have gathered already.
    pub again: bool,
    /// When something becomes due that is not yet, if there is nothing else.
    pub next_due: Option<Time>,
    /// The store's time.
    pub now: Time,
}

/// Lists attempts, newest first.
#[derive(Clone, Copy, Debug)]
pub struct ListAttempts {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Only those before this number.
    pub before: i64,
    /// How many at most.
    pub limit: u32,
}

/// An attempt by its number; numbers ascend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedAttempt {
    /// Its number.
    pub number: i64,
    /// What was tried.
    pub attempt: Attempt,
}

//! What the stores keep of push subscriptions, as text.

use crate::error::{Error, Result};
use crate::model::health::{Attempt, Disabled, Health};
use crate::model::mask::Mask;
use crate::model::push::Push;
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::store::verbs::{Gathered, Steer};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Plain values always serialise.
pub(crate) fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

pub(crate) fn health(text: Option<&str>) -> Result<Health> {
    text.map_or_else(|| Ok(Health::default()), read)
}

pub(crate) fn attempt(text: &str) -> Result<Attempt> {
    read(text)
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        Error::invalid(
            "what is stored of a push subscription cannot be read",
            "was it written by another program?",
        )
        .because(error)
    })
}

/// How a push subscription sends.
pub(crate) fn sending(subscription: &Subscription) -> Result<&Push> {
    subscription.policy.push.as_ref().ok_or_else(|| {
        Error::invalid(
            format!("{:?} is not a push subscription", subscription.name),
            "this is for push subscriptions; workers claim from the others",
        )
    })
}

impl Steer {
    /// Changes how a subscription stands. Gives the words for the audit, if it was somebody's will.
    pub(crate) fn apply(&self, health: &mut Health, now: Time) -> Option<(&'static str, String)> {
        match self {
            Steer::Enable => {
                health.enable();
                Some(("enable", String::new()))
            }
            Steer::Disable { reason } => {
                health.disabled = Some(Disabled { at: now, reason: reason.clone() });
                health.is_untold = false;
                Some(("disable", reason.clone()))
            }
            Steer::Told { at } => {
                if health.disabled.as_ref().is_some_and(|disabled| disabled.at == *at) {
                    health.is_untold = false;
                }
                None
            }
            Steer::Agreed { callback } => {
                health.agreed = Some(callback.clone());
                Some(("agreed", callback.clone()))
            }
        }
    }
}

impl Gathered {
    /// Counts a slice that could be sent.
    pub(crate) fn add(&mut self, mask: i64, due_at: i64, again: bool) {
        self.events = self.events.saturating_add(Mask::from_i64(mask).count());
        self.since = Some(self.since.map_or(Time(due_at), |since| since.min(Time(due_at))));
        self.again |= again;
    }
}

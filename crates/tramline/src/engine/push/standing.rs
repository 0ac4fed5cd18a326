//! What a line knows of its subscription.

use super::Shared;
use crate::engine::clock::Clock;
use crate::model::health::Health;
use crate::model::push::Push;
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::push::{Keyring, Secret, check_callback};
use crate::store::verbs::PushEntry;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use url::Url;

/// A push subscription as it was known at some time.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) subscription: Arc<Subscription>,
    pub(super) push: Arc<Push>,
    pub(super) health: Health,
    /// The store's time then, and what the clock of this process showed.
    now: Time,
    reading: Duration,
    /// How often a line of this process wrote something down since it runs. What was read before the last time is stale.
    pub(super) learned: u64,
    /// Where requests go and what they carry; or why they cannot be made.
    pub(super) target: Arc<std::result::Result<Target, Unsendable>>,
}

/// Why no request can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unsendable {
    /// A secret cannot be opened by this node. Another one may have the key, so nothing is tried here.
    Locked(String),
    /// Nobody can make it.
    Never(String),
}

impl Unsendable {
    pub(super) fn text(&self) -> &str {
        match self {
            Unsendable::Locked(text) | Unsendable::Never(text) => text,
        }
    }
}

/// What all requests of a subscription have in common.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) url: Url,
    /// What the subscription sets, and who it is at the receiver.
    pub(super) headers: HeaderMap,
    pub(super) secrets: Vec<Secret>,
}

impl Standing {
    /// `known` is what was known before: secrets are opened again only if something changed.
    pub(super) fn new(entry: PushEntry, known: Option<&Standing>, shared: &Shared) -> Standing {
        let PushEntry { subscription, health, now, .. } = entry;
        let push = subscription.policy.push.clone().unwrap_or_default();
        let same = known.filter(|known| *known.push == push);
        let target = same.map_or_else(
            || Arc::new(target(&subscription.name, &push, &shared.keyring)),
            |known| known.target.clone(),
        );
        let reading = shared.tram.clock().reading();
        Standing {
            subscription: Arc::new(subscription),
            push: Arc::new(push),
            health,
            now,
            reading,
            learned: 0,
            target,
        }
    }

    /// Replaces what is known, unless something newer came in the meantime. Rings if that changes something, or if there may be
    /// something to send.
    pub(super) fn tell(self, due: bool, seen: u64, to: &watch::Sender<Standing>) {
        to.send_if_modified(|known| {
            let is_new = known.learned == seen;
            let rings =
                due || self.subscription != known.subscription || (is_new && self.health != known.health);
            let learned = known.learned;
            *known = match is_new {
                true => Standing { learned, ..self },
                false => {
                    let Standing { health, now, reading, .. } = known.clone();
                    Standing { health, now, reading, learned, ..self }
                }
            };
            rings
        });
    }

    /// The health after something was written down.
    pub(super) fn update(to: &watch::Sender<Standing>, health: Health, now: Time, clock: &Clock) {
        let reading = clock.reading();
        to.send_modify(|known| {
            known.learned += 1;
            if now >= known.now {
                (known.health, known.now, known.reading) = (health, now, reading);
            }
        });
    }

    /// When something may be sent again, by the clock of this process; `None`: at once.
    pub(super) fn closed_until(&self, clock: &Clock) -> Option<Duration> {
        if self.health.disabled.is_some() {
            return Some(Duration::MAX);
        }
        let until = match clock {
            Clock::Store(_) => self.reading.saturating_add(self.health.put_off_until.since(self.now)),
            Clock::Manual(_) => self.health.put_off_until.since(Time(0)),
        };
        Some(until).filter(|until| *until > clock.reading())
    }

    /// True if this node cannot open what it needs: what it claimed would fail, where another node could send it.
    pub(super) fn is_locked(&self) -> bool {
        matches!(*self.target, Err(Unsendable::Locked(_)))
    }

    /// True if something may be sent now.
    pub(super) fn is_open(&self, clock: &Clock) -> bool {
        self.closed_until(clock).is_none() && !self.is_locked()
    }

    /// How many requests may be under way. One that fails is only probed.
    pub(super) fn width(&self) -> usize {
        let in_line = self.subscription.policy.ordering == crate::model::subscription::Ordering::Subscriber;
        if in_line || self.health.failures > 0 { 1 } else { self.push.concurrency as usize }
    }

    /// True if the receiver has to be asked first whether it wants events.
    pub(super) fn is_to_be_asked(&self) -> bool {
        self.push.handshake && self.health.agreed.as_ref() != Some(&self.push.callback)
    }

    /// The store's time, as far as this process knows it.
    pub(super) fn time(&self, clock: &Clock) -> Time {
        clock.now().unwrap_or_else(|| self.now.after(clock.reading().saturating_sub(self.reading)))
    }
}

/// What can be sent to, told once if it cannot.
fn target(name: &str, push: &Push, keyring: &Keyring) -> std::result::Result<Target, Unsendable> {
    let target = Target::new(name, push, keyring);
    if let Err(Unsendable::Locked(error)) = &target {
        tracing::error!(
            subscription = name,
            error,
            "this node cannot open a secret of a push subscription, and sends nothing of it"
        );
    }
    target
}

/// Checks that a keyring opens all that sending to a subscription needs. `Err` says why it does not.
///
/// # Errors
/// `Invalid`.
pub fn check_secrets(name: &str, push: &Push, keyring: &Keyring) -> crate::error::Result<()> {
    for secret in &push.secrets {
        keyring.open(&secret_purpose(name, &secret.id), &secret.sealed)?;
    }
    for (purpose, sealed) in
        [(authorization_purpose(name), &push.authorization), (user_purpose(name), &push.user)]
    {
        if let Some(sealed) = sealed {
            keyring.open(&purpose, sealed)?;
        }
    }
    Ok(())
}

impl Target {
    fn new(name: &str, push: &Push, keyring: &Keyring) -> std::result::Result<Target, Unsendable> {
        check_secrets(name, push, keyring).map_err(|error| Unsendable::Locked(error.to_string()))?;
        Target::opened(name, push, keyring).map_err(Unsendable::Never)
    }

    fn opened(name: &str, push: &Push, keyring: &Keyring) -> std::result::Result<Target, String> {
        let open = |purpose: &str, sealed: &str| {
            let plain = keyring.open(purpose, sealed).map_err(|error| error.to_string())?;
            String::from_utf8(plain).map_err(|_| "a sealed secret is not text".to_owned())
        };
        let mut secrets = Vec::with_capacity(push.secrets.len());
        for secret in &push.secrets {
            let text = open(&secret_purpose(name, &secret.id), &secret.sealed)?;
            secrets.push(Secret::parse(&text).map_err(|error| error.to_string())?);
        }
        let authorization = match (push.authorization.as_deref(), push.user.as_deref()) {
            (Some(sealed), _) => Some(open(&authorization_purpose(name), sealed)?),
            (None, Some(sealed)) => Some(basic(&open(&user_purpose(name), sealed)?)),
            (None, None) => None,
        };
        let url = check_callback(&push.callback, false).map_err(|error| error.to_string())?;
        Ok(Target { url, headers: headers(push, authorization)?, secrets })
    }
}

fn basic(user: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:x")))
}

fn headers(push: &Push, authorization: Option<String>) -> std::result::Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(push.headers.len() + 6);
    for (name, value) in &push.headers {
        let name = HeaderName::try_from(name).map_err(|_| format!("{name:?} is not a header"))?;
        let value = HeaderValue::try_from(value).map_err(|_| format!("the value of {name} is no text"))?;
        headers.insert(name, value);
    }
    if let Some(text) = authorization {
        let mut value =
            HeaderValue::try_from(text).map_err(|_| "the authorization is not text".to_owned())?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(headers)
}

/// What a signing secret of a subscription is sealed for.
pub fn secret_purpose(subscription: &str, id: &str) -> String {
    format!("subscription/{subscription}/secret/{id}")
}

/// What the user name for a receiver is sealed for.
pub fn user_purpose(subscription: &str) -> String {
    format!("subscription/{subscription}/user")
}

/// What the header `Authorization` for a receiver is sealed for.
pub fn authorization_purpose(subscription: &str) -> String {
    format!("subscription/{subscription}/authorization")
}

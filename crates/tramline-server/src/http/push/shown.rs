//! What is told of a push subscription.

use crate::http::app::App;
use crate::http::json::When;
use crate::http::problem::Answer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tramline::engine::push::check_secrets;
use tramline::store::verbs::{Gather, Stats};
use tramline::{Counts, Format, Health, Push, SealedSecret, SecretKind, Subscription, Time};
use utoipa::ToSchema;

/// What is told of a push subscription, beside what is told of every subscription. Others have none of it, so none of it is required.
#[derive(Serialize, ToSchema)]
pub(crate) struct PushOut {
    #[schema(required = false)]
    callback: String,
    #[schema(required = false)]
    max_events: u32,
    #[schema(required = false)]
    timeout_ms: u64,
    #[schema(required = false)]
    format: Format,
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    #[schema(required = false)]
    concurrency: u32,
    rate: Option<u32>,
    #[schema(required = false)]
    request_timeout_ms: u64,
    /// After how long without a single success it is disabled; null: never
    disable_after_ms: Option<u64>,
    #[schema(required = false)]
    handshake: bool,
    /// The secrets that sign, newest first; they are never shown
    #[schema(required = false)]
    secrets: Vec<SecretOut>,
    /// Whether requests carry a header `Authorization`; it is never shown
    #[schema(required = false)]
    has_authorization: bool,
    #[schema(required = false)]
    delivery: DeliveryOut,
}

/// What is told of a secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct SecretOut {
    id: String,
    kind: SecretKind,
    /// What receivers verify with, where that is no secret
    #[serde(skip_serializing_if = "Option::is_none")]
    public: Option<String>,
    since: When,
}

/// How the sending stands.
#[derive(Serialize, ToSchema)]
#[schema(as = SendingOut)]
pub(crate) struct DeliveryOut {
    state: DeliveryState,
    /// Events whose batch is neither full nor due
    gathering: u64,
    /// Events that could be sent now
    ready: u64,
    /// Events in requests that are under way
    sending: u64,
    /// 0 to 100: one more for each success, two less for each failure
    points: u32,
    /// How often it failed in a row
    failures: u32,
    failing_since: Option<When>,
    /// Nothing is sent before
    put_off_until: Option<When>,
    disabled_at: Option<When>,
    disabled_because: Option<String>,
    /// Why this node sends nothing of it: it has no key for one of its secrets
    #[serde(skip_serializing_if = "Option::is_none")]
    locked_because: Option<String>,
    last_delivered_at: Option<When>,
    /// Events that were acknowledged since it was created
    events_sent: u64,
    batches_sent: u64,
    requests_failed: u64,
}

/// Whether events are sent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeliveryState {
    Active,
    /// It fails, and is left alone for a while
    PutOff,
    /// Nothing is sent until somebody enables it
    Disabled,
}

impl PushOut {
    pub(crate) fn new(push: &Push, health: &Health, pending: Pending) -> PushOut {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        PushOut {
            callback: push.callback.clone(),
            max_events: push.max_events,
            timeout_ms: millis(push.timeout),
            format: push.format,
            headers: push.headers.clone(),
            concurrency: push.concurrency,
            rate: push.rate,
            request_timeout_ms: millis(push.request_timeout),
            disable_after_ms: push.disable_after.map(millis),
            handshake: push.handshake,
            secrets: push.secrets.iter().map(SecretOut::new).collect(),
            has_authorization: push.authorization.is_some() || push.user.is_some(),
            delivery: DeliveryOut::new(push, health, pending),
        }
    }
}

impl SecretOut {
    pub(crate) fn new(secret: &SealedSecret) -> SecretOut {
        SecretOut {
            id: secret.id.clone(),
            kind: secret.kind,
            public: secret.public.clone(),
            since: When(secret.since),
        }
    }
}

/// What a subscription has to send, and when that was looked at.
pub(crate) struct Pending {
    counts: Counts,
    oldest_ready_at: Option<Time>,
    /// Some of it was tried before: that has gathered already.
    again: bool,
    now: Time,
    /// Why this node cannot open what it needs.
    locked_because: Option<String>,
}

impl Pending {
    /// What a push subscription has to send.
    pub(crate) async fn look(app: &App, of: &Subscription, push: &Push, stats: &Stats) -> Answer<Pending> {
        let gather = Gather { subscription: of.id, events: push.batch_size(), now: None };
        let gathered = app.ask(app.tram.store().gather(gather)).await?;
        Ok(Pending {
            counts: stats.counts,
            oldest_ready_at: stats.oldest_ready_at,
            again: gathered.again,
            now: gathered.now,
            locked_because: check_secrets(&of.name, push, &app.keyring)
                .err()
                .map(|error| error.message().to_owned()),
        })
    }

    /// Events that gather, and those that could go: whole batches at once, the rest when the oldest has waited for long enough.
    fn split(&self, push: &Push) -> (u64, u64) {
        let (ready, size) = (self.counts.ready, u64::from(push.batch_size()));
        let waited =
            self.again || self.oldest_ready_at.is_some_and(|since| since.after(push.timeout) <= self.now);
        let gathering = if waited { 0 } else { ready % size };
        (gathering, ready - gathering)
    }
}

impl DeliveryOut {
    pub(crate) fn new(push: &Push, health: &Health, pending: Pending) -> DeliveryOut {
        let (gathering, ready) = pending.split(push);
        let put_off = health.put_off_until > pending.now;
        DeliveryOut {
            state: match (&health.disabled, put_off) {
                (Some(_), _) => DeliveryState::Disabled,
                (None, true) => DeliveryState::PutOff,
                (None, false) => DeliveryState::Active,
            },
            gathering,
            ready,
            sending: pending.counts.leased,
            points: health.points,
            failures: health.failures,
            failing_since: health.failing_since.map(When),
            put_off_until: put_off.then_some(When(health.put_off_until)),
            disabled_at: health.disabled.as_ref().map(|disabled| When(disabled.at)),
            disabled_because: health.disabled.as_ref().map(|disabled| disabled.reason.clone()),
            locked_because: pending.locked_because,
            last_delivered_at: health.delivered_at.map(When),
            events_sent: health.sent,
            batches_sent: health.batches,
            requests_failed: health.failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_batches_are_ready_and_the_rest_gathers_until_its_time() {
        let push =
            Push { max_events: 10, timeout: Duration::from_millis(500), ..Push::to("https://a.example/") };
        let pending = |now| Pending {
            counts: Counts { ready: 25, ..Counts::default() },
            oldest_ready_at: Some(Time(1_000)),
            again: false,
            now: Time(now),
            locked_because: None,
        };
        assert_eq!(pending(1_499).split(&push), (5, 20));
        assert_eq!(pending(1_500).split(&push), (0, 25));
        assert_eq!(Pending { again: true, ..pending(1_499) }.split(&push), (0, 25), "what was tried before");
    }
}

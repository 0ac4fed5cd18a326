//! Steering push subscriptions, and looking at how they stand.

use crate::engine::tramline::Tramline;
use crate::error::Result;
use crate::model::filter::Subject;
use crate::model::health::Health;
use crate::model::id::EventId;
use crate::model::time::Time;
use crate::store::verbs::{ListAttempts, NumberedAttempt, PushEntry, Resend, Steer, SteerPush};
use std::sync::Arc;
use std::time::Duration;

/// How many events are read and sent again in one step, and in one call.
const STEP: u32 = 1_024;
const STEPS: usize = 64;
/// Events of a topic are numbered in the order of their times, but for those that were stored at almost the same moment.
const SLACK: Duration = Duration::from_secs(10);

/// What a call of [`Tramline::replay_since`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// How many events are sent again.
    pub count: u64,
    /// Where the next call goes on; `None`: that was all.
    pub next: Option<(Arc<str>, EventId)>,
}

/// All errors: `NotFound` for names that do not exist, `Invalid` for a subscription that workers claim from, `Unavailable`.
impl Tramline {
    /// Sends the events of a push subscription again, which was disabled by somebody or by its failures.
    ///
    /// # Errors
    /// See above.
    pub async fn enable_push(&self, subscription: &str, by: &str) -> Result<Health> {
        self.steer_push(subscription, by, Steer::Enable).await
    }

    /// Sends nothing of a push subscription any more, until it is enabled. Its events are kept.
    ///
    /// # Errors
    /// See above.
    pub async fn disable_push(&self, subscription: &str, by: &str, reason: &str) -> Result<Health> {
        self.steer_push(subscription, by, Steer::Disable { reason: reason.to_owned() }).await
    }

    async fn steer_push(&self, subscription: &str, by: &str, steer: Steer) -> Result<Health> {
        let id = self.subscription(subscription).await?.id;
        let now = self.clock().now();
        let health =
            self.store().steer_push(SteerPush { subscription: id, steer, by: by.to_owned(), now }).await?;
        self.pushes().notify_one();
        Ok(health)
    }

    /// All push subscriptions, and how each stands.
    ///
    /// # Errors
    /// See above.
    pub async fn push_board(&self) -> Result<Vec<PushEntry>> {
        self.store().push_board(self.clock().now()).await
    }

    /// What was tried lately, newest first: at most `limit` before number `before` (`i64::MAX`: the newest).
    ///
    /// # Errors
    /// See above.
    pub async fn attempts(
        &self,
        subscription: &str,
        before: i64,
        limit: u32,
    ) -> Result<Vec<NumberedAttempt>> {
        let subscription = self.subscription(subscription).await?.id;
        self.store().attempts(ListAttempts { subscription, before, limit }).await
    }

    /// Runs or sends again what was emitted since a time and is still retained, whatever became of it; what is pending stays as it
    /// is. A bounded part at a time: go on from where the last call ended.
    ///
    /// # Errors
    /// See above.
    pub async fn replay_since(
        &self,
        subscription: &str,
        since: Time,
        from: Option<(&str, EventId)>,
    ) -> Result<Replayed> {
        let subscription = self.subscription(subscription).await?;
        let filter = &subscription.policy.filter;
        let first = from.map_or("", |(topic, _)| topic);
        let (mut count, mut steps) = (0, 0);
        for topic in subscription.topics.iter().filter(|topic| &***topic >= first) {
            let mut after = match from {
                Some((at, after)) if at == &**topic => after,
                _ => self.position(topic, since.before(SLACK)).await?,
            };
            loop {
                let page = self.read_log(topic, after, STEP).await?;
                let wanted = page.events.iter().filter(|event| event.emitted_at >= since);
                let wanted = wanted.filter(|event| filter.admits(&Subject::of_stored(event)));
                let ids: Vec<EventId> = wanted.map(|event| event.id).collect();
                if !ids.is_empty() {
                    let now = self.clock().now();
                    count += self.store().resend(Resend { subscription: subscription.id, ids, now }).await?;
                    self.wake().notify(&[subscription.id]);
                }
                let more = page.events.len() == STEP as usize;
                (after, steps) = (page.next, steps + 1);
                if !more {
                    break;
                }
                if steps >= STEPS {
                    return Ok(Replayed { count, next: Some((topic.clone(), after)) });
                }
            }
        }
        Ok(Replayed { count, next: None })
    }

    /// After which event of a topic those of a time begin, found by halves.
    async fn position(&self, topic: &str, time: Time) -> Result<EventId> {
        let (mut low, mut high) = (0, self.log_end(topic).await?.0);
        while low < high {
            let middle = low + (high - low) / 2;
            let page = self.read_log(topic, EventId(middle), 1).await?;
            match page.events.first() {
                Some(event) if event.emitted_at < time => low = event.id.0.max(middle + 1),
                _ => high = middle,
            }
        }
        Ok(EventId(low))
    }
}

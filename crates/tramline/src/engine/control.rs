//! Looking and steering: topics, subscriptions, rules, counts, dead and parked events.

use crate::engine::tramline::Tramline;
use crate::error::{Error, Result};
use crate::model::id::{EventId, SubscriptionId};
use crate::model::letter::Letters;
use crate::model::rule::{AuditEntry, PatternRule, RuleKind};
use crate::model::subscription::{Policy, Start, Subscription, Topic, TopicSettings};
use crate::model::time::Time;
use crate::store::verbs::*;
use std::sync::Arc;

/// How many steps of a back-fill are made at once: some ten thousand events.
const CATCH_UP: u32 = 16;
/// How many looks for dead events one call takes at most.
const LOOKS: usize = 16;

/// All errors: `NotFound` for names that do not exist, `Unavailable` when the store does not answer. Dropping a future leaves open
/// whether the step happened, but never half of it.
impl Tramline {
    /// Creates a topic, or changes what may change of it.
    ///
    /// # Errors
    /// `Conflict` when it exists with another number of lanes.
    pub async fn put_topic(&self, name: &str, settings: TopicSettings) -> Result<Topic> {
        let now = self.clock().now();
        self.store().put_topic(PutTopic { name: name.to_owned(), settings, now }).await
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn topics(&self) -> Result<Vec<Topic>> {
        self.store().topics().await
    }

    /// Deletes a topic with its events. It is gone at once; sweeps remove what it took up, in steps.
    ///
    /// # Errors
    /// `Conflict` while a subscription consumes it.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        self.store().delete_topic(name).await
    }

    /// Creates a subscription or changes what may change of it. From its return on, no emit misses it.
    ///
    /// # Errors
    /// `Conflict` when ordering or guarantee would change.
    pub async fn put_subscription(
        &self,
        name: &str,
        topics: &[&str],
        policy: Policy,
        start: Start,
    ) -> Result<Subscription> {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let (name, expected, now) = (name.to_owned(), Expected::Anything, self.clock().now());
        self.change_subscription(PutSubscription { name, topics, policy, start, expected, now }).await
    }

    /// Creates or changes a subscription if it is what was expected; see [`PutSubscription`].
    ///
    /// # Errors
    /// `Changed` when somebody else was faster; `Conflict` when ordering or guarantee would change.
    pub async fn change_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        let subscription = self.store().put_subscription(put).await?;
        // A topic that it has left may have been full of items of tallies; so below.
        self.courier().look();
        self.catch_up(subscription.id).await;
        if subscription.policy.push.is_some() {
            self.pushes().notify_one();
        }
        Ok(subscription)
    }

    /// Writes what was emitted before a subscription into it, as far as that is quick: until then its events are nowhere to be
    /// seen. Workers and the housekeeping do the rest.
    async fn catch_up(&self, subscription: SubscriptionId) {
        for _ in 0..CATCH_UP {
            match self.store().backfill(subscription).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(error = %error, "a new subscription is filled later");
                    break;
                }
            }
        }
        self.wake().notify(&[subscription]);
    }

    /// All subscriptions, by name.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.store().subscriptions().await
    }

    /// One subscription.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn subscription(&self, name: &str) -> Result<Subscription> {
        let all = self.store().subscriptions().await?;
        all.into_iter().find(|subscription| &*subscription.name == name).ok_or_else(|| {
            Error::not_found(
                format!("there is no subscription {name:?}"),
                "create it first, or name its topics",
            )
        })
    }

    /// Deletes a subscription with all that it still had to do. It is gone at once; sweeps remove what it took up, in steps.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete_subscription(&self, name: &str) -> Result<()> {
        self.store().delete_subscription(name).await?;
        self.courier().look();
        Ok(())
    }

    /// A user stops a subscription, until it is resumed or `until` has come. Events are kept; running ones go on.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn pause(&self, subscription: &str, by: &str, reason: &str, until: Option<Time>) -> Result<()> {
        self.set_rule(subscription, RuleKind::Pause, Some(until), by, reason).await
    }

    /// Removes a user's stop. An admin's stays.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn resume(&self, subscription: &str, by: &str, reason: &str) -> Result<()> {
        self.set_rule(subscription, RuleKind::Pause, None, by, reason).await
    }

    /// An admin stops a subscription, until it is unblocked or `until` has come.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn block(&self, subscription: &str, by: &str, reason: &str, until: Option<Time>) -> Result<()> {
        self.set_rule(subscription, RuleKind::Block, Some(until), by, reason).await
    }

    /// Removes an admin's stop. A user's stays.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn unblock(&self, subscription: &str, by: &str, reason: &str) -> Result<()> {
        self.set_rule(subscription, RuleKind::Block, None, by, reason).await
    }

    /// Sets a rule for all subscriptions whose names match, those that there are and those that come. The same pattern, kind and topics
    /// again change its reason and its end.
    ///
    /// # Errors
    /// `Conflict` when there are too many rules by pattern.
    pub async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        let now = set.now.or(self.clock().now());
        self.store().set_pattern_rule(SetPatternRule { now, ..set }).await
    }

    /// Removes a rule by pattern. Gives how many subscriptions it stopped; all of them look for work now.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn remove_pattern_rule(&self, id: i64, by: &str, reason: &str) -> Result<u64> {
        let (by, reason, now) = (by.to_owned(), reason.to_owned(), self.clock().now());
        let stopped = self.store().remove_pattern_rule(RemovePatternRule { id, by, reason, now }).await?;
        self.wake().notify(&stopped);
        Ok(stopped.len() as u64)
    }

    /// The rules by pattern in force, by number.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn pattern_rules(&self) -> Result<Vec<PatternRule>> {
        self.store().pattern_rules(self.clock().now()).await
    }

    /// Who did what to a subscription, newest first.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn audit(&self, subscription: &str, limit: u32) -> Result<Vec<AuditEntry>> {
        let id = self.subscription(subscription).await?.id;
        self.store().audit(id, limit).await
    }

    /// Counts (exact; of long queues in Redis a sum over moments) and rules of a subscription.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn stats(&self, subscription: &str) -> Result<Stats> {
        let id = self.subscription(subscription).await?.id;
        self.store().stats(id, self.clock().now()).await
    }

    /// Dead and held events, by id: at most `limit` after `after`.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn dead(&self, subscription: &str, after: EventId, limit: u32) -> Result<Vec<DeadEvent>> {
        Ok(self.find_dead(subscription, Letters::default(), after, limit).await?.events)
    }

    /// Those dead and held events that are meant, by id: at most `limit` after `after`. Looks at a bounded part of them: there may be fewer
    /// or none, and still more to come after `next`.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn find_dead(
        &self,
        subscription: &str,
        letters: Letters,
        after: EventId,
        limit: u32,
    ) -> Result<DeadPage> {
        let mut page = self.page(subscription, after, limit).await?;
        let mut found = DeadPage::default();
        for _ in 0..LOOKS {
            let look = self.store().dead(ListDead { page: page.clone(), letters: letters.clone() }).await?;
            page.limit -= (look.events.len() as u32).min(page.limit);
            found.events.extend(look.events);
            found.next = look.next;
            match look.next {
                Some(next) if page.limit > 0 => page.after = next,
                _ => break,
            }
        }
        Ok(found)
    }

    /// Parked keys, by the event that blocks them: at most `limit` after `after`.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn parked(&self, subscription: &str, after: EventId, limit: u32) -> Result<Vec<ParkedKey>> {
        let page = self.page(subscription, after, limit).await?;
        self.store().parked(page).await
    }

    /// Lets parked keys go on (by topic and key; none stands for all): a waiting event runs now, a held one is replayed. Gives how many.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn release_parked(&self, subscription: &str, keys: &[(&str, &str)]) -> Result<u64> {
        let id = self.subscription(subscription).await?.id;
        let keys = keys.iter().map(|(topic, key)| ((*topic).to_owned(), (*key).to_owned())).collect();
        let count = self
            .store()
            .release_parked(ReleaseParked { subscription: id, keys, now: self.clock().now() })
            .await?;
        self.wake().notify(&[id]);
        Ok(count)
    }

    /// Makes events run again in a subscription that had settled or lost them. It does not emit. Gives how many.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn resend(&self, subscription: &str, ids: Vec<EventId>) -> Result<u64> {
        let id = self.subscription(subscription).await?.id;
        let count = self.store().resend(Resend { subscription: id, ids, now: self.clock().now() }).await?;
        self.wake().notify(&[id]);
        Ok(count)
    }

    /// Cancels an event wherever it has not been claimed. Gives the names of those subscriptions.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn cancel(&self, id: EventId) -> Result<Vec<Arc<str>>> {
        let cancelled = self.store().cancel(Cancel { id, now: self.clock().now() }).await?;
        self.courier().look();
        Ok(cancelled)
    }

    /// An event, and what every subscription makes of it.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn event(&self, id: EventId) -> Result<Option<EventView>> {
        self.store().event(FindEvent { id, now: self.clock().now() }).await
    }

    /// The last event of a key and the object's latest state.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        self.store().head(topic, key).await
    }

    /// Reads the retained events of a topic: at most `limit` after `after`, never past one that is still being written.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn read_log(&self, topic: &str, after: EventId, limit: u32) -> Result<LogPage> {
        self.store().read_log(ReadLog { topic: topic.to_owned(), after, limit }).await
    }

    /// Where the log of a topic ends now: whoever reads on from there gets all that is stored from now on, and nothing of before
    /// this call was made, but for what is being written just then.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` also while a transaction has been writing to the topic for long.
    pub async fn log_end(&self, topic: &str) -> Result<EventId> {
        self.store().log_end(topic).await
    }

    /// The living workers, in birth order.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn workers(&self) -> Result<Vec<Worker>> {
        self.store().workers().await
    }

    /// Records that remote workers claimed, so that all nodes know of them.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn see_remote(&self, workers: Vec<Seen>) -> Result<()> {
        self.store().see_remote(SeeRemote { workers, now: self.clock().now() }).await
    }

    /// Workers that claimed through some node in the last minutes, by name.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn remote_workers(&self) -> Result<Vec<RemoteWorker>> {
        self.store().remote_workers(self.clock().now()).await
    }

    async fn set_rule(
        &self,
        subscription: &str,
        kind: RuleKind,
        until: Option<Option<Time>>,
        by: &str,
        reason: &str,
    ) -> Result<()> {
        let id = self.subscription(subscription).await?.id;
        let until = until.map(|until| until.map_or(RuleEnd::Open, RuleEnd::At));
        let removed = until.is_none();
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.store()
            .set_rule(SetRule { subscription: id, kind, until, by, reason, now: self.clock().now() })
            .await?;
        if removed {
            // One hint is enough for all that waits: workers claim until nothing is left.
            self.wake().notify(&[id]);
        }
        Ok(())
    }

    async fn page(&self, subscription: &str, after: EventId, limit: u32) -> Result<Page> {
        let subscription = self.subscription(subscription).await?.id;
        Ok(Page { subscription, after, limit, now: self.clock().now() })
    }
}

//! A store that is spread over topics: each has a slot of its own, and so the nodes of a Cluster share the work.
//!
//! *Home* is the slot of what belongs to no single topic: the catalogue, rules, tallies, schedules, tokens, workers. A *site* is the
//! slot of a topic: its events, and all work that subscriptions have of them. Home and each site are what a store in one slot is, with
//! the same steps; here is only what lies between them.
//!
//! - `sites`: the slots, and how a topic gets its own
//! - `copies`: what a site knows of the catalogue and the rules. Home decides; copies follow before a change is answered
//! - `emit`, `claim`, `leases`, `look`, `mend`, `push`: verbs that go to one site, or to all that a subscription has
//! - `placed`, `owed`: events that are items of tallies: added at home before they are emitted, ended at home after they are settled
//! - `news`: what home emits: completions of tallies, schedules
//! - `upkeep`: workers, housekeeping, shedding
//! - `store`: the verbs
//!
//! What takes more than one slot is done step by step, in an order in which nothing is lost whoever dies in between: what is still to be
//! done is written down first, in the slot where it begins, and whoever sweeps goes on with it. What would need two slots at one moment
//! is refused. `tests/redis_only/spread_given_up.rs` gives most of these up at every point at which they wait.

mod claim;
mod copies;
mod emit;
mod leases;
mod look;
mod mend;
mod news;
pub(super) mod owed;
mod placed;
mod push;
mod sites;
mod store;
mod upkeep;

use super::options::RedisOptions;
use super::{RedisStore, Role};
use crate::error::{Error, Kind, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::subscription::{Ordering, Policy, Subscription};
use crate::store::catalog::Catalog;
use claim::Remembered;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use sites::Sites;
pub(super) use sites::has_numbers;
use std::future::Future;
use std::sync::Arc;
use upkeep::Rounds;

/// With how many sites one verb is busy at once.
const AT_ONCE: usize = 16;

/// A store in Redis that is spread over topics, for a Cluster of which one node is not enough. Open it with `spread=topics` in the URL.
///
/// Everything about one topic is as in every store. What is about several is not at one moment:
///
/// - Events of several topics cannot be emitted together, and a subscription of several topics can neither have limits nor get all its
///   events in one line: that is refused.
/// - A change of subscriptions or rules is in force everywhere when it is answered. Of one that was not answered, because its process
///   died, some topics may know a moment before others.
/// - A tally hears of its events a moment after they are settled, and its completion is told a moment later.
#[derive(Debug)]
pub struct SpreadStore {
    home: RedisStore,
    sites: Sites,
    remembered: Remembered,
    rounds: Rounds,
}

impl SpreadStore {
    /// Connects, and checks that the servers keep what they are given.
    ///
    /// # Errors
    /// Those of [`RedisStore::open`], and `Conflict` when the store is there already and in one slot.
    pub async fn open(options: RedisOptions) -> Result<SpreadStore> {
        let home = RedisStore::open_as(Role::Home, options).await?;
        Ok(SpreadStore {
            home,
            sites: Sites::default(),
            remembered: Remembered::default(),
            rounds: Rounds::default(),
        })
    }

    /// Where the store is.
    pub fn options(&self) -> &RedisOptions {
        self.home.options()
    }

    /// The channel of this store's hints.
    pub(crate) fn wake_channel(&self) -> String {
        self.home.wake_channel()
    }

    /// The catalogue as it is now.
    async fn catalog(&self) -> Result<Arc<Catalog>> {
        self.home.read(None, |session| Ok(session.catalog())).await
    }

    /// A subscription as this process knows it: what it does not know yet is looked up.
    async fn subscription(&self, id: SubscriptionId) -> Result<Subscription> {
        if let Ok(known) = self.home.cache.get().require_subscription(id) {
            return Ok(known.clone());
        }
        self.catalog().await?.require_subscription(id).cloned()
    }

    /// What a subscription consumes, in the order of the numbers.
    fn topics_of(&self, subscription: &Subscription) -> Vec<TopicId> {
        let catalog = self.home.cache.get();
        let mut topics: Vec<TopicId> =
            subscription.topics.iter().filter_map(|name| Some(catalog.topic(name)?.id)).collect();
        topics.sort_unstable();
        topics
    }

    /// True if there is a topic of this number.
    async fn knows(&self, topic: TopicId) -> Result<bool> {
        let known = self.home.cache.get().topic_by_id(topic).is_some();
        Ok(known || self.catalog().await?.topic_by_id(topic).is_some())
    }

    /// Asks the site of a topic about a subscription; one that has not heard of it yet hears of it first. `None`: the subscription
    /// has nothing there any more.
    ///
    /// # Errors
    /// `NotFound` if the subscription is gone altogether.
    async fn at<T, F>(
        &self,
        id: SubscriptionId,
        topic: TopicId,
        ask: impl Fn(Arc<RedisStore>) -> F,
    ) -> Result<Option<T>>
    where
        F: Future<Output = Result<T>>,
    {
        if !self.knows(topic).await? {
            return Ok(None);
        }
        match ask(self.site(topic)).await {
            Err(error) if error.kind() == Kind::NotFound => {}
            answer => return answer.map(Some),
        }
        let catalog = self.catalog().await?;
        if !catalog.require_subscription(id)?.topics.contains(&catalog.topic_name(topic)) {
            return Ok(None);
        }
        self.bring_up(topic).await?;
        ask(self.site(topic)).await.map(Some)
    }

    /// Does the same for each of many, some at once. Gives the answers in the same order, whatever becomes of the others.
    async fn side_by_side<I, T, F>(
        &self,
        items: impl IntoIterator<Item = I>,
        act: impl FnMut(I) -> F,
    ) -> Vec<T>
    where
        F: Future<Output = T>,
    {
        stream::iter(items).map(act).buffered(AT_ONCE).collect().await
    }

    /// The same, up to the first error.
    async fn each<I, T, F>(
        &self,
        items: impl IntoIterator<Item = I>,
        act: impl FnMut(I) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        stream::iter(items).map(act).buffered(AT_ONCE).try_collect().await
    }
}

/// Where one site cannot be reached, work goes on at the others.
fn warn_of<T>(tried: Result<T>) -> Option<T> {
    tried.map_err(|error| tracing::warn!(error = %error, "a topic of the store is left out for now")).ok()
}

/// Refuses what would need several slots at one moment.
fn check_spread(topics: &[String], policy: &Policy) -> Result<()> {
    let several = topics.iter().any(|topic| *topic != topics[0]);
    if several && policy.ordering == Ordering::Subscriber {
        return Err(Error::invalid(
            "in a store that is spread over topics, events of several topics have no common order",
            "order them by key, or give each topic a subscription of its own",
        ));
    }
    if several && !policy.limits.is_none() {
        return Err(Error::invalid(
            "in a store that is spread over topics, a limit cannot count the events of several topics",
            "give each topic a subscription of its own, with limits of its own",
        ));
    }
    Ok(())
}

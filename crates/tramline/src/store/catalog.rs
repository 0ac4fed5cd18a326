//! The catalogue: a copy of all topics and subscriptions, as of one version.
//!
//! Every process keeps one and checks its version inside each transaction, so that no emit misses a new subscription.

use crate::error::{Error, Kind, Result};
use crate::model::id::{SubscriptionId, TopicId};
use crate::model::name;
use crate::model::subscription::{Subscription, Topic, TopicSettings};
use crate::plan::slices::{Consumer, TopicView};
use crate::store::verbs::{Expected, PutSubscription};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// All topics and subscriptions, as of one version.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Which state of the store this is a copy of.
    pub version: i64,
    topics: Vec<Topic>,
    subscriptions: Vec<Subscription>,
    by_name: HashMap<Arc<str>, usize>,
    by_topic_id: HashMap<TopicId, usize>,
    by_id: HashMap<SubscriptionId, usize>,
    views: HashMap<String, TopicView>,
}

impl Catalog {
    /// Builds the look-ups.
    pub fn new(version: i64, topics: Vec<Topic>, subscriptions: Vec<Subscription>) -> Catalog {
        let mut consumers: HashMap<&str, Vec<Consumer>> = HashMap::new();
        for subscription in &subscriptions {
            for topic in subscription.topics.iter().filter(|topic| subscription.takes(topic)) {
                consumers.entry(topic).or_default().push(consumer(subscription));
            }
        }
        let mut view = |topic: &Topic| TopicView {
            id: topic.id,
            lanes: topic.lanes,
            subscriptions: consumers.remove(&*topic.name).unwrap_or_default(),
        };
        Catalog {
            version,
            views: topics.iter().map(|topic| (topic.name.to_string(), view(topic))).collect(),
            by_name: topics.iter().enumerate().map(|(at, topic)| (topic.name.clone(), at)).collect(),
            by_topic_id: topics.iter().enumerate().map(|(at, topic)| (topic.id, at)).collect(),
            by_id: subscriptions.iter().enumerate().map(|(at, subscription)| (subscription.id, at)).collect(),
            topics,
            subscriptions,
        }
    }

    /// All topics, by name.
    pub fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// All subscriptions, by name.
    pub fn subscriptions(&self) -> &[Subscription] {
        &self.subscriptions
    }

    /// What an emit has to know, by topic name.
    pub fn views(&self) -> &HashMap<String, TopicView> {
        &self.views
    }

    /// The topic of a name.
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.by_name.get(name).map(|at| &self.topics[*at])
    }

    /// The topic of a number.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Topic> {
        self.by_topic_id.get(&id).map(|at| &self.topics[*at])
    }

    /// The name of a topic; empty if it is gone.
    pub fn topic_name(&self, id: TopicId) -> Arc<str> {
        self.topic_by_id(id).map_or_else(|| Arc::from(""), |topic| topic.name.clone())
    }

    /// The topic of a name, or an error that says what to do.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn require_topic(&self, name: &str) -> Result<&Topic> {
        self.topic(name).ok_or_else(|| {
            Error::not_found(
                format!("there is no topic {name:?}"),
                "emit to it or create it first; check the spelling",
            )
        })
    }

    /// The subscription of a name.
    pub fn subscription_named(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|subscription| *subscription.name == *name)
    }

    /// The subscription of a name, or an error that says what to do.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn require_subscription_named(&self, name: &str) -> Result<&Subscription> {
        self.subscription_named(name).ok_or_else(|| {
            Error::not_found(
                format!("there is no subscription {name:?}"),
                "create it first; check the spelling",
            )
        })
    }

    /// The subscription of a number, or an error that says what to do.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn require_subscription(&self, id: SubscriptionId) -> Result<&Subscription> {
        self.by_id.get(&id).map(|at| &self.subscriptions[*at]).ok_or_else(|| {
            Error::not_found(
                format!("there is no subscription {id}"),
                "it was deleted; create it again by name",
            )
        })
    }

    /// Checks that no subscription consumes a topic.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn check_unused(&self, topic: &str) -> Result<()> {
        let consumer =
            self.subscriptions.iter().find(|subscription| subscription.topics.iter().any(|t| **t == *topic));
        match consumer {
            None => Ok(()),
            Some(subscription) => Err(Error::conflict(
                format!("subscription {:?} consumes the topic", subscription.name),
                "delete the subscription or take the topic off it first",
            )),
        }
    }
}

/// The last catalogue that was read.
#[derive(Debug, Default)]
pub(crate) struct CatalogCache(Mutex<Arc<Catalog>>);

impl CatalogCache {
    pub(crate) fn get(&self) -> Arc<Catalog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, catalog: Arc<Catalog>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = catalog;
    }
}

/// The subscription, if it is already as it shall be: most processes put theirs at every start.
pub(crate) fn as_wanted(catalog: &Catalog, put: &PutSubscription) -> Option<Subscription> {
    catalog.subscription_named(&put.name).filter(|old| put.is_there(old)).cloned()
}

/// All topics that putting or deleting a subscription touches.
pub(crate) fn touched<'a>(
    catalog: &'a Catalog,
    name: &str,
    wanted: impl Iterator<Item = &'a str>,
) -> BTreeSet<TopicId> {
    let had =
        catalog.subscription_named(name).into_iter().flat_map(|old| old.topics.iter().map(|topic| &**topic));
    had.chain(wanted).filter_map(|name| catalog.topic(name)).map(|topic| topic.id).collect()
}

fn consumer(subscription: &Subscription) -> Consumer {
    Consumer {
        id: subscription.id,
        ordering: subscription.policy.ordering,
        filter: subscription.policy.filter.clone(),
    }
}

/// What has to be removed before a topic may be joined again or deleted.
pub(crate) fn still_left(topic: &str) -> Error {
    Error::unavailable(
        format!("what subscriptions had of topic {topic:?} when they left it is still being removed"),
        "try again in a moment",
    )
}

impl Topic {
    /// The topic as it becomes by these settings.
    ///
    /// # Errors
    /// `Conflict`: the number of lanes never changes, and a claim finds another owner.
    pub(crate) fn changed(&self, settings: &TopicSettings) -> Result<Topic> {
        match settings.lanes {
            Some(lanes) if lanes != self.lanes => Err(Error::conflict(
                format!("topic {:?} has {} lanes, and their number never changes", self.name, self.lanes),
                "leave the number as it is, or create another topic",
            )),
            _ => Ok(Topic {
                retention: settings.retention.unwrap_or(self.retention),
                owner: settings.owner(self.owner.as_ref())?,
                ..self.clone()
            }),
        }
    }
}

impl PutSubscription {
    /// Checks everything that can be known before the store is asked.
    pub(crate) fn check(&self) -> Result<()> {
        name::check("subscription", &self.name)?;
        if self.topics.is_empty() {
            return Err(Error::invalid(
                "the subscription has no topics",
                "name at least one topic to consume",
            ));
        }
        self.policy.check()
    }

    /// True if the subscription is as it shall be.
    fn is_there(&self, old: &Subscription) -> bool {
        let wanted: BTreeSet<&str> = self.topics.iter().map(String::as_str).collect();
        old.policy == self.policy && old.topics.iter().map(|topic| &**topic).eq(wanted)
    }

    /// Checks that what is there is what was expected, and that it may become what is wanted.
    ///
    /// # Errors
    /// `Changed`; `Conflict` where ordering or guarantee would change.
    pub(crate) fn check_change(&self, old: Option<&Subscription>) -> Result<()> {
        let as_expected = match &self.expected {
            Expected::Anything => true,
            Expected::Nothing => old.is_none(),
            Expected::This(expected) => old == Some(&**expected),
        };
        if !as_expected && !old.is_some_and(|old| self.is_there(old)) {
            return Err(Error::new(
                Kind::Changed,
                format!("somebody else has changed subscription {:?}", self.name),
                "read it again, and try again",
            ));
        }
        old.map_or(Ok(()), |old| self.policy.check_change(&old.policy))
    }
}

//! Emit: each unit goes to the slot of its topic. A topic that nobody knows gets one first.

use super::SpreadStore;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::TopicId;
use crate::model::subscription::TopicSettings;
use crate::model::time::Time;
use crate::store::emit::{TRIES, Units, restless};
use crate::store::verbs::{Emission, Emit};
use futures_util::future::join_all;
use std::collections::BTreeMap;

impl SpreadStore {
    /// Stores units, those of each topic beside those of the others.
    pub(super) async fn emit_to_all(&self, given: Emit) -> Vec<Result<Emission>> {
        let mut answers: Vec<Option<Result<Emission>>> = given.units.iter().map(|_| None).collect();
        let mut by_topic: BTreeMap<String, (Vec<usize>, Units)> = BTreeMap::new();
        for (at, unit) in given.units.into_iter().enumerate() {
            match topic_of(&unit) {
                Ok(topic) => {
                    let (places, units) = by_topic.entry(topic).or_default();
                    places.push(at);
                    units.push(unit);
                }
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        let emits = by_topic.into_iter().map(async |(topic, (places, units))| {
            places.into_iter().zip(self.emit_to(&topic, units, given.now).await)
        });
        for (at, answer) in join_all(emits).await.into_iter().flatten() {
            answers[at] = Some(answer);
        }
        answers.into_iter().flatten().collect()
    }

    /// Stores units of one topic. Those that are items of tallies go on their own.
    async fn emit_to(&self, topic: &str, units: Units, now: Option<Time>) -> Vec<Result<Emission>> {
        let is_tallied = |unit: &Vec<Event>| unit.iter().any(|event| event.tally.is_some());
        let mut answers = Vec::with_capacity(units.len());
        for some in units.chunk_by(|a, b| is_tallied(a) == is_tallied(b)) {
            let tallied = is_tallied(&some[0]);
            let stored = self.emit_alike(topic, some, tallied, now).await;
            answers.extend(stored.unwrap_or_else(|error| some.iter().map(|_| Err(error.share())).collect()));
        }
        answers
    }

    async fn emit_alike(
        &self,
        topic: &str,
        units: &[Vec<Event>],
        tallied: bool,
        now: Option<Time>,
    ) -> Result<Vec<Result<Emission>>> {
        for _ in 0..TRIES {
            let id = self.topic(topic, now).await?;
            let stored = match tallied {
                true => self.emit_placed(id, units, now).await,
                false => self.site(id).emit_in_parts(Emit { units: units.to_vec(), now }).await,
            };
            // What gave way to a unique event may have been an item of a tally.
            self.pay(id, now).await;
            match stored {
                // What this process knew of the topic is no longer so, or its site has not heard of it yet.
                Err(error) if error.kind() == Kind::NotFound => {
                    if self.catalog().await?.topic_by_id(id).is_some() {
                        self.bring_up(id).await?;
                    }
                }
                stored => return stored,
            }
        }
        Err(restless())
    }

    /// The number of a topic. One that nobody knows is made.
    async fn topic(&self, name: &str, now: Option<Time>) -> Result<TopicId> {
        if let Some(known) = self.home.cache.get().topic(name) {
            return Ok(known.id);
        }
        if let Some(known) = self.catalog().await?.topic(name) {
            return Ok(known.id);
        }
        Ok(self.create_topic(name, &TopicSettings::default(), now).await?.id)
    }

    /// Makes the topics of these that nobody knows.
    pub(super) async fn create_missing(&self, names: &[String], now: Option<Time>) -> Result<()> {
        for name in names {
            self.topic(name, now).await?;
        }
        Ok(())
    }
}

/// The one topic of a unit.
fn topic_of(unit: &[Event]) -> Result<String> {
    let first = unit.first().ok_or_else(|| Error::invalid("there is nothing to emit", "give an event"))?;
    if unit.iter().any(|event| event.topic != first.topic) {
        return Err(Error::invalid(
            "in a store that is spread over topics, events of several topics cannot be emitted together",
            "emit those of each topic for themselves, or use a store that is in one slot",
        ));
    }
    Ok(first.topic.clone())
}

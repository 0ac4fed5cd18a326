//! What sites owe to tallies. Items end where their events are, and their tallies are at home. So a step that ends some notes that
//! in its own slot, and whoever took the step, or else a sweep, passes it on. Hearing of it twice changes nothing.

use super::SpreadStore;
use crate::error::Result;
use crate::model::id::{TallyId, TopicId};
use crate::model::tally::{Ack, Ending, Items};
use crate::model::time::Time;
use crate::store::redis::RedisStore;
use crate::store::redis::catalog::{read, written};
use crate::store::redis::session::Session;
use crate::store::redis::tally::ack;
use crate::store::redis::tuple::{Columns, Tuple};
use std::sync::atomic::Ordering::SeqCst;

/// How many notes are passed on at a time, and how often one sweep does that.
const SOME: usize = 200;
const ROUNDS: u32 = 50;

/// A note as it is stored: the tally, whether the items failed, and which they are.
type Row = (i64, bool, Vec<(u64, u64)>);

/// The notes, in the order in which they were made.
pub(in crate::store::redis) fn table(name: &str) -> Vec<u8> {
    crate::store::redis::session::key(name, "owed")
}

/// Notes that items have ended.
pub(in crate::store::redis) fn owe(session: &Session<'_>, acks: &[Ack]) -> Result<()> {
    for ack in acks {
        let number = session.draw("owed", 1)?;
        let items: Vec<(u64, u64)> = ack.items.iter().map(|items| (items.first, items.last)).collect();
        let row: Row = (ack.tally.0, ack.ending == Ending::Failed, items);
        session.enter(session.key("owed"), Tuple::new().with(&[number]).carrying(&written(&row)));
    }
    Ok(())
}

fn first(session: &Session<'_>) -> Result<Vec<(Vec<u8>, Ack)>> {
    let members = session.range(&session.key("owed"), Tuple::new().all(), SOME)?;
    let note = |member: Vec<u8>| {
        let mut columns = Columns(&member);
        columns.number();
        let (tally, failed, items): Row = read(columns.load())?;
        let items = items.into_iter().map(|(first, last)| Items { first, last }).collect();
        let ending = if failed { Ending::Failed } else { Ending::Done };
        let ack = Ack { tally: TallyId(tally), items, ending };
        Ok((member, ack))
    };
    members.into_iter().map(note).collect()
}

impl RedisStore {
    /// True if steps of this process have made notes since this was asked last.
    fn owes(&self) -> bool {
        self.owes.swap(false, SeqCst)
    }
}

impl SpreadStore {
    /// Passes on what a site owes, if this process knows of something. Gives the tallies that have news. What cannot be passed on now is
    /// left to a sweep, and what others owe is left to them.
    pub(super) async fn pay(&self, topic: TopicId, now: Option<Time>) -> Vec<TallyId> {
        if !self.site(topic).owes() {
            return Vec::new();
        }
        match self.pay_some(topic, now).await {
            Ok((news, more)) => {
                self.site(topic).owes.fetch_or(more, SeqCst);
                news
            }
            Err(error) => {
                tracing::warn!(error = %error, "tallies hear later of items that have ended");
                Vec::new()
            }
        }
    }

    /// Passes on all that a site owes.
    pub(super) async fn pay_all(&self, topic: TopicId, now: Option<Time>) -> Result<()> {
        for _ in 0..ROUNDS {
            if !self.pay_some(topic, now).await?.1 {
                break;
            }
        }
        Ok(())
    }

    /// Gives the tallies that have news, and whether there may be more to pass on.
    async fn pay_some(&self, topic: TopicId, now: Option<Time>) -> Result<(Vec<TallyId>, bool)> {
        let site = self.site(topic);
        let notes = site.read(now, first).await?;
        if notes.is_empty() {
            return Ok((Vec::new(), false));
        }
        let acks: Vec<Ack> = notes.iter().map(|(_, ack)| ack.clone()).collect();
        let acked = self.home.write(now, |session: &Session<'_>| ack::end(session, &acks, true, 0)).await?;
        let tick_off = |session: &Session<'_>| {
            notes.iter().for_each(|(member, _)| session.withdraw(session.key("owed"), member.clone()));
            Ok(())
        };
        site.write(now, tick_off).await?;
        Ok((acked.news, notes.len() == SOME))
    }
}

/// True if a site owes nothing.
pub(super) fn is_paid(session: &Session<'_>) -> Result<bool> {
    Ok(session.range(&session.key("owed"), Tuple::new().all(), 1)?.is_empty())
}

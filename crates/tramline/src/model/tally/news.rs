//! The events that a tally emits by itself: when it is complete, when the first item fails, when it expires.

use crate::error::Result;
use crate::model::event::Event;
use crate::model::id::TallyId;
use crate::model::kept;
use crate::model::tally::Ending;

/// The header that names the tally.
pub const TALLY_HEADER: &str = "tramline-tally";
/// The headers of a completion: how many items there were, are done, have failed.
pub const COUNT_HEADERS: [&str; 3] = ["tramline-tally-total", "tramline-tally-done", "tramline-tally-failed"];
/// The header of a failure: the first item that failed.
pub const ITEM_HEADER: &str = "tramline-tally-item";

/// What a tally has to tell. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum News {
    /// It is complete: emits an event.
    Complete = 0,
    /// The first item failed: emits an event.
    Failure = 1,
    /// It has expired: emits an event.
    Expiry = 2,
    /// The item of another tally that it stands for is done.
    ParentDone = 3,
    /// The item of another tally that it stands for has failed.
    ParentFailed = 4,
}

impl News {
    /// Those that emit an event.
    pub const EVENTS: [News; 3] = [News::Complete, News::Failure, News::Expiry];

    /// The news behind a stored number.
    pub fn from_i16(number: i16) -> Option<News> {
        let all = [News::Complete, News::Failure, News::Expiry, News::ParentDone, News::ParentFailed];
        all.get(usize::try_from(number).ok()?).copied()
    }

    /// How it makes the item end that its tally stands for.
    pub(crate) fn for_parent(self) -> Option<Ending> {
        match self {
            News::ParentDone => Some(Ending::Done),
            News::ParentFailed => Some(Ending::Failed),
            News::Complete | News::Failure | News::Expiry => None,
        }
    }

    fn idempotency_key(self, tally: TallyId) -> String {
        match self {
            News::Failure => format!("tally:{tally}:failure"),
            News::Expiry => format!("tally:{tally}:expiry"),
            _ => format!("tally:{tally}"),
        }
    }
}

/// News as they wait in the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) tally: TallyId,
    pub(crate) news: News,
    pub(crate) total: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// The item that failed first.
    pub(crate) item: Option<u64>,
}

impl Outgoing {
    /// The event to emit, made of the one that was kept for the occasion.
    pub(crate) fn event(&self, kept: &str) -> Result<Event> {
        let mut event = kept::read(kept)?.idempotency_key(self.news.idempotency_key(self.tally));
        event = event.header(TALLY_HEADER, self.tally.to_string());
        if self.news == News::Complete {
            for (name, count) in COUNT_HEADERS.into_iter().zip([self.total, self.done, self.failed]) {
                event = event.header(name, count.to_string());
            }
        }
        Ok(match self.item {
            Some(item) => event.header(ITEM_HEADER, item.to_string()),
            None => event,
        })
    }
}

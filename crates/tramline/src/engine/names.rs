//! Items of tallies by the names that Carlyle's clients know them by.

use crate::engine::tally::Tallies;
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::group::{ACK_CHUNK, ADD_CHUNK, Group, parse_item};
use crate::model::tally::{Ack, AckCount, Ending, TallyItem};
use crate::store::verbs_tally::CompletedTally;

impl Tallies {
    /// Adds items in steps of 10,000, and gives them in groups of 64, as Carlyle's clients know them.
    ///
    /// # Errors
    /// As [`Tallies::add`]; some may have been added.
    pub async fn add_groups(&self, tally: TallyId, count: u64) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        let mut left = count;
        loop {
            let added = self.add(tally, left.min(ADD_CHUNK)).await?;
            groups.extend(added.groups(tally));
            left -= added.count;
            if left == 0 {
                return Ok(groups);
            }
        }
    }

    /// Ends items by the names that their groups give them, in steps of 100. Says for each what became of it, and which tallies are
    /// complete because of it. A name that is none does not harm the others.
    ///
    /// # Errors
    /// `Unavailable`: some may have been acked; repeating it is harmless.
    pub async fn ack_names<S: AsRef<str>>(&self, names: &[S]) -> Result<NamedAcks> {
        let mut acks = NamedAcks::default();
        for names in names.chunks(ACK_CHUNK) {
            let items: Vec<Result<TallyItem>> = names.iter().map(|name| parse_item(name.as_ref())).collect();
            let ack = |item: &TallyItem| Ack {
                tally: item.tally,
                items: vec![item.number.into()],
                ending: Ending::Done,
            };
            let acked = self.ack(items.iter().flatten().map(ack).collect()).await?;
            let mut counts = acked.results.into_iter().flatten();
            for item in items {
                acks.results.push(item.map(|_| ItemStatus::of(counts.next().unwrap_or_default())));
            }
            acks.completed.extend(acked.completed);
        }
        Ok(acks)
    }
}

/// What became of items that were named.
#[derive(Debug, Default)]
pub struct NamedAcks {
    /// One for each name, in the order given; `Invalid` for what is no name of an item.
    pub results: Vec<Result<ItemStatus>>,
    /// The tallies that this made complete.
    pub completed: Vec<CompletedTally>,
}

/// What became of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemStatus {
    /// It was pending and has ended now.
    Acked,
    /// It had ended before; nothing was changed.
    Already,
    /// There is no such item or tally.
    Unknown,
    /// The tally is cancelled or has expired; nothing was changed.
    Closed,
}

impl ItemStatus {
    fn of(count: AckCount) -> ItemStatus {
        match count {
            AckCount { acked: 1.., .. } => ItemStatus::Acked,
            AckCount { already: 1.., .. } => ItemStatus::Already,
            AckCount { closed: 1.., .. } => ItemStatus::Closed,
            _ => ItemStatus::Unknown,
        }
    }
}

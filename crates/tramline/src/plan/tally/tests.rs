//! Random additions, acks, replays and seals, against a map of items.

use super::*;
use crate::model::tally::part::{PART, Part, PartId};
use crate::model::tally::{Ack, AckCount, Ending, Items};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NOW: Time = Time(1);

fn row() -> TallyRow {
    let new = crate::model::tally::NewTally::new();
    crate::store::tally::new_row(&new, None, NOW)
}

#[derive(Clone, Debug)]
enum Op {
    Add(u64),
    /// From where, how many, and how; numbers are taken modulo what was given out.
    Ack(Vec<(u64, u64, Ending)>),
    Replay(u64),
    Seal,
    All,
}

fn op() -> impl Strategy<Value = Op> {
    let ending = prop_oneof![3 => Just(Ending::Done), 1 => Just(Ending::Failed)];
    prop_oneof![
        2 => prop_oneof![1u64..200, 4000u64..9000].prop_map(Op::Add),
        6 => prop::collection::vec((any::<u64>(), prop_oneof![0u64..3, 0u64..9000], ending), 1..5).prop_map(Op::Ack),
        1 => any::<u64>().prop_map(Op::Replay),
        1 => Just(Op::Seal),
    ]
}

/// A store in memory, and beside it what every item is.
#[derive(Default)]
struct World {
    parts: BTreeMap<PartId, Part>,
    items: BTreeMap<u64, Option<Ending>>,
    completions: u32,
}

impl World {
    fn add(&mut self, row: &mut TallyRow, count: u64) {
        let added = match row.grow(count, None, NOW) {
            Ok(added) => added,
            Err(_) => return assert_ne!(row.state, TallyState::Open),
        };
        for at in 0..count.div_ceil(PART) {
            let id = PartId { tally: row.id, part: added.first / PART + at };
            self.parts.insert(id, Part::untouched(count, at).unwrap());
        }
        for number in added.first..added.first + count {
            assert!(self.items.insert(number, None).is_none(), "a number was given twice");
        }
    }

    fn ack(&mut self, row: &mut TallyRow, ranges: &[(u64, u64, Ending)], amend: bool) {
        let end = row.next_part * PART + 10;
        let acks: Vec<Ack> = ranges
            .iter()
            .map(|(from, more, ending)| {
                let first = from % end;
                Ack { tally: row.id, items: vec![(first..=first + more).into()], ending: *ending }
            })
            .collect();
        let acks = Acks::new(&acks, amend);
        let touched = acks.parts();
        let mut parts: BTreeMap<PartId, Part> =
            touched.iter().filter_map(|id| Some((*id, self.parts.get(id)?.clone()))).collect();
        let outcome = acks.apply(&[(row.id, row.standing(NOW))].into(), &mut parts);
        for (ack, result) in acks.acks.iter().zip(&outcome.results) {
            assert_eq!(result[0], self.end(ack.items[0], ack.ending, amend));
        }
        self.parts.extend(parts);
        for delta in outcome.deltas.values().filter(|delta| delta.concerns(false)) {
            self.completions += u32::from(row.take(delta, 7, NOW, &mut Vec::new()));
        }
    }

    fn end(&mut self, items: Items, ending: Ending, amend: bool) -> AckCount {
        let mut count = AckCount::default();
        for item in self.items.range_mut(items.first..=items.last).map(|(_, item)| item) {
            match item {
                None => count.acked += 1,
                Some(_) => count.already += 1,
            }
            if item.is_none() || (amend && ending == Ending::Done) {
                *item = Some(ending);
            }
        }
        AckCount { unknown: items.count() - count.acked - count.already, ..count }
    }

    fn check(&self, row: &TallyRow) {
        let of = |ending| self.items.values().filter(|item| **item == Some(ending)).count() as u64;
        let open = self.parts.values().filter(|part| part.left() > 0);
        let unfinished = Unfinished {
            done: open.clone().map(|part| u64::from(part.done())).sum(),
            failed: open.clone().map(|part| u64::from(part.failed())).sum(),
            active_at: None,
        };
        assert_eq!(row.parts_left, open.count() as u64);
        let view = row.clone().view(None, unfinished, NOW);
        assert_eq!((view.total, view.done), (self.items.len() as u64, of(Ending::Done)));
        assert_eq!(view.failed, of(Ending::Failed));
        let complete = view.is_sealed() && view.pending() == 0;
        assert_eq!((row.state == TallyState::Complete, self.completions), (complete, u32::from(complete)));
    }
}

proptest! {
    #[test]
    fn a_tally_counts_like_a_map_and_completes_exactly_once(ops in prop::collection::vec(op(), 1..40)) {
        let (mut row, mut world) = (row(), World::default());
        for op in ops.iter().chain(&[Op::Seal, Op::All]) {
            match op {
                Op::Add(count) => world.add(&mut row, *count),
                Op::Ack(ranges) => world.ack(&mut row, ranges, false),
                Op::Replay(from) => world.ack(&mut row, &[(*from, 2, Ending::Done)], true),
                Op::All => {
                    let last = row.next_part * PART;
                    world.ack(&mut row, &[(0, last, Ending::Done)], false);
                }
                Op::Seal => {
                    let completed = row.seal(None, 7, NOW, &mut Vec::new()).unwrap();
                    world.completions += u32::from(completed && world.completions == 0);
                }
            }
            world.check(&row);
        }
    }
}

#[test]
fn events_that_end_one_by_one_are_acked_in_ranges() {
    let item = |tally, number| TallyItem { tally: TallyId(tally), number };
    let (done, failed) = (Ending::Done, Ending::Failed);
    let ended = [(2, 5, done), (1, 3, failed), (1, 1, done), (1, 2, done), (1, 4, failed), (1, 9, done)];
    let acks = gather(ended.into_iter().map(|(tally, number, how)| (item(tally, number), how)).collect());
    let ack = |tally, ending, items: &[(u64, u64)]| Ack {
        tally: TallyId(tally),
        items: items.iter().map(|(first, last)| (*first..=*last).into()).collect(),
        ending,
    };
    let expected = [ack(1, done, &[(1, 2), (9, 9)]), ack(1, failed, &[(3, 4)]), ack(2, done, &[(5, 5)])];
    assert_eq!(acks, expected);
}

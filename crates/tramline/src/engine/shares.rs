//! Who starts next: weighted fair sharing of a number of places, without time and without tasks.
//!
//! Every member has a *pass*, which grows by `1 / weight` with each start; of those who wait, the one with the lowest pass is next
//! (start-time fair queueing). Whoever comes back from doing nothing goes on from where the others are: it neither has to catch up nor can it
//! save up.

use std::collections::BTreeMap;

/// What a start costs a member of weight 1.
const STEP: u64 = 1 << 32;
/// The greatest weight.
pub(crate) const MAX_WEIGHT: u32 = 1_000;

/// A member of the shares.
pub(crate) type MemberId = u64;

/// Places, and who wants them.
#[derive(Debug)]
pub(crate) struct Shares {
    free: usize,
    /// The pass of whoever started last.
    clock: u64,
    last: MemberId,
    members: BTreeMap<MemberId, Member>,
}

#[derive(Debug)]
struct Member {
    step: u64,
    pass: u64,
    waiting: usize,
}

impl Shares {
    pub(crate) fn new(places: usize) -> Shares {
        Shares { free: places, clock: 0, last: 0, members: BTreeMap::new() }
    }

    pub(crate) fn join(&mut self, weight: u32) -> MemberId {
        self.last += 1;
        let step = STEP / u64::from(weight.clamp(1, MAX_WEIGHT));
        self.members.insert(self.last, Member { step, pass: self.clock, waiting: 0 });
        self.last
    }

    pub(crate) fn leave(&mut self, member: MemberId) {
        self.members.remove(&member);
    }

    /// A member wants another place.
    pub(crate) fn want(&mut self, member: MemberId) {
        let clock = self.clock;
        if let Some(member) = self.members.get_mut(&member) {
            if member.waiting == 0 {
                member.pass = member.pass.max(clock);
            }
            member.waiting += 1;
        }
    }

    /// The next one that gets a place, if there is one.
    pub(crate) fn grant(&mut self) -> Option<MemberId> {
        let waiting = self.members.iter_mut().filter(|(_, member)| member.waiting > 0);
        let (id, member) =
            waiting.min_by_key(|(id, member)| (member.pass, **id)).filter(|_| self.free > 0)?;
        self.free -= 1;
        self.clock = member.pass;
        member.waiting -= 1;
        member.pass += member.step;
        Some(*id)
    }

    /// What started in a place was more than one event.
    pub(crate) fn charge(&mut self, member: MemberId, more: usize) {
        if let Some(member) = self.members.get_mut(&member) {
            member.pass = member.pass.saturating_add(member.step.saturating_mul(more as u64));
        }
    }

    /// Nothing started in a place.
    pub(crate) fn refund(&mut self, member: MemberId) {
        if let Some(member) = self.members.get_mut(&member) {
            member.pass = member.pass.saturating_sub(member.step);
        }
    }

    /// A place is free again.
    pub(crate) fn end(&mut self) {
        self.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everybody always wants more; each start ends at once. Gives how often each started.
    fn backlogged(shares: &mut Shares, members: &[MemberId], starts: usize) -> Vec<usize> {
        let mut counts = vec![0; members.len()];
        for _ in 0..starts {
            for member in
                members.iter().filter(|member| shares.members[member].waiting == 0).collect::<Vec<_>>()
            {
                shares.want(*member);
            }
            let next = shares.grant().unwrap();
            counts[members.iter().position(|member| *member == next).unwrap()] += 1;
            shares.end();
        }
        counts
    }

    #[test]
    fn whoever_did_nothing_for_long_has_saved_nothing_up() {
        let mut shares = Shares::new(1);
        let (busy, idle) = (shares.join(1), shares.join(1));
        backlogged(&mut shares, &[busy], 1_000);
        let counts = backlogged(&mut shares, &[busy, idle], 100);
        assert!((49..=51).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn whoever_had_all_places_for_itself_does_not_pay_for_it_later() {
        let mut shares = Shares::new(1);
        let (busy, late) = (shares.join(1), shares.join(1));
        backlogged(&mut shares, &[busy], 1_000);
        let counts = backlogged(&mut shares, &[late, busy], 10);
        assert!(counts[1] >= 4, "{counts:?}");
    }

    #[test]
    fn what_was_not_used_is_not_counted_and_several_at_once_are() {
        let mut shares = Shares::new(1);
        let (one, other) = (shares.join(1), shares.join(1));
        shares.want(one);
        assert_eq!(shares.grant(), Some(one));
        shares.refund(one);
        shares.end();
        assert_eq!(backlogged(&mut shares, &[one, other], 2), [1, 1]);
        shares.want(one);
        shares.grant().unwrap();
        shares.charge(one, 9);
        shares.end();
        let counts = backlogged(&mut shares, &[one, other], 10);
        assert!(counts[1] >= 9, "{counts:?}");
    }

    proptest! {
        #[test]
        fn with_work_for_all_starts_are_shared_by_weight(
            weights in proptest::collection::vec(1..20_u32, 1..6),
            starts in 1..2_000_usize,
        ) {
            let mut shares = Shares::new(1);
            let members: Vec<MemberId> = weights.iter().map(|weight| shares.join(*weight)).collect();
            let counts = backlogged(&mut shares, &members, starts);
            let sum: u32 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(&weights) {
                let due = starts as f64 * f64::from(*weight) / f64::from(sum);
                let lag = (*count as f64 - due).abs();
                prop_assert!(lag <= members.len() as f64, "{counts:?} of {starts} for {weights:?}");
            }
        }

        #[test]
        fn no_place_is_free_while_somebody_waits_and_none_is_given_twice(
            places in 1..5_usize,
            steps in proptest::collection::vec((0..4_u8, 0..3_usize), 1..300),
        ) {
            let mut shares = Shares::new(places);
            let members: Vec<MemberId> = (1..=3).map(|weight| shares.join(weight)).collect();
            let (mut running, mut waiting) = (0, [0_usize; 3]);
            for (what, who) in steps {
                match what {
                    0 | 1 => {
                        shares.want(members[who]);
                        waiting[who] += 1;
                    }
                    2 if running > 0 => {
                        shares.end();
                        running -= 1;
                    }
                    _ => {}
                }
                while let Some(next) = shares.grant() {
                    let at = members.iter().position(|member| *member == next).unwrap();
                    prop_assert!(waiting[at] > 0, "only who waits gets a place");
                    waiting[at] -= 1;
                    running += 1;
                }
                prop_assert!(running <= places);
                prop_assert!(running == places || waiting.iter().all(|count| *count == 0));
            }
        }

        #[test]
        fn nobody_starves_whatever_the_others_weigh(weight in 1..=MAX_WEIGHT, others in 1..5_usize) {
            let mut shares = Shares::new(1);
            let mut members: Vec<MemberId> = (0..others).map(|_| shares.join(MAX_WEIGHT)).collect();
            members.push(shares.join(weight));
            let turn = others * (MAX_WEIGHT as usize).div_ceil(weight as usize) + members.len();
            let counts = backlogged(&mut shares, &members, 2 * turn);
            prop_assert!(counts.last().is_some_and(|count| *count > 0), "{counts:?} for {weight}");
        }
    }
}

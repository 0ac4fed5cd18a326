//! What can happen in a history. Steps name things by small numbers that mean something wherever a step of their kind may come,
//! so that failures shrink well.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tramline::model::outcome::Outcome;
use tramline::model::rule::RuleKind;

/// An event to emit.
#[derive(Clone, Debug)]
pub(crate) struct New {
    pub(crate) key: Option<u8>,
    pub(crate) delay: u64,
    pub(crate) priority: u8,
    /// The subscription in whose tally it is an item: one of those that are there from the start.
    pub(crate) tally: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Emit(Vec<New>),
    Claim {
        sub: usize,
        worker: usize,
        max: u32,
        idle: bool,
        share: Option<u32>,
        single: bool,
        /// The worker names the lanes that it has; those are closed whose bit is set.
        known: Option<u8>,
    },
    Settle {
        sub: usize,
        worker: usize,
        verdicts: Vec<Verdict>,
    },
    SettleStale {
        pick: usize,
    },
    Extend {
        sub: usize,
        worker: usize,
    },
    Release {
        sub: usize,
        worker: usize,
        /// Which of its leases; even numbers stand for all.
        part: u8,
    },
    /// Somebody goes on with a part of what was consumed at most once and never started.
    Adopt {
        pick: usize,
        part: u8,
    },
    /// The worker forgets everything and goes on as somebody else.
    Crash {
        worker: usize,
    },
    /// The worker comes back under its name.
    Restart {
        worker: usize,
    },
    Beat {
        worker: usize,
    },
    Sweep,
    Pass {
        seconds: u64,
    },
    Rule {
        sub: usize,
        kind: RuleKind,
        set: bool,
    },
    Cancel {
        pick: usize,
    },
    Revive {
        sub: usize,
        pick: Option<usize>,
        replay: bool,
    },
    ReleaseParked {
        sub: usize,
        key: Option<u8>,
    },
    Resend {
        sub: usize,
        pick: usize,
    },
    Subscribe,
    Backfill,
}

impl Step {
    /// The one subscription that it is about; time and workers concern all.
    pub(crate) fn sub(&self) -> Option<usize> {
        match self {
            Step::Claim { sub, .. }
            | Step::Settle { sub, .. }
            | Step::Extend { sub, .. }
            | Step::Release { sub, .. }
            | Step::Rule { sub, .. }
            | Step::Revive { sub, .. }
            | Step::ReleaseParked { sub, .. }
            | Step::Resend { sub, .. } => Some(*sub),
            _ => None,
        }
    }
}

/// What a worker says of one event that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    NotYet,
    Done,
    Retry,
    RetryAfter(u64),
    Snooze(u64),
    Dead,
}

impl Verdict {
    pub(crate) fn outcome(self) -> Option<Outcome> {
        let after = std::time::Duration::from_secs;
        Some(match self {
            Verdict::NotYet => return None,
            Verdict::Done => Outcome::Done,
            Verdict::Retry => Outcome::retry("failed"),
            Verdict::RetryAfter(delay) => {
                Outcome::Retry { delay: Some(after(delay)), error: "failed".into() }
            }
            Verdict::Snooze(delay) => Outcome::Snooze { delay: after(delay) },
            Verdict::Dead => Outcome::dead("hopeless"),
        })
    }
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let (sub, worker) = (0..5usize, 0..3usize);
    let event = (option::weighted(0.85, 0..4u8), delay(), 3..6u8, option::weighted(0.5, 0..4usize));
    let event = event.prop_map(|(key, delay, priority, tally)| New { key, delay, priority, tally });
    let claim = (sub.clone(), worker.clone(), prop_oneof![1..4u32, Just(100)], any::<bool>());
    let claim = (claim, option::weighted(0.2, 0..2u32), prop::bool::weighted(0.1), known());
    prop_oneof![
        6 => vec(event, 1..6).prop_map(Step::Emit),
        12 => claim.prop_map(|((sub, worker, max, idle), share, single, known)| {
            Step::Claim { sub, worker, max, idle, share, single, known }
        }),
        12 => (sub.clone(), worker.clone(), vec(verdict(), 12)).prop_map(|(sub, worker, verdicts)| {
            Step::Settle { sub, worker, verdicts }
        }),
        2 => any::<u16>().prop_map(|pick| Step::SettleStale { pick: pick.into() }),
        2 => (sub.clone(), worker.clone()).prop_map(|(sub, worker)| Step::Extend { sub, worker }),
        2 => (sub.clone(), worker.clone(), any::<u8>()).prop_map(|(sub, worker, part)| Step::Release { sub, worker, part }),
        1 => any::<(u16, u8)>().prop_map(|(pick, part)| Step::Adopt { pick: pick.into(), part }),
        1 => worker.clone().prop_map(|worker| Step::Crash { worker }),
        1 => worker.clone().prop_map(|worker| Step::Restart { worker }),
        2 => worker.prop_map(|worker| Step::Beat { worker }),
        1 => Just(Step::Sweep),
        8 => prop_oneof![1..4u64, Just(5), Just(11), Just(60)].prop_map(|seconds| Step::Pass { seconds }),
        1 => (sub.clone(), rule(), prop::bool::weighted(0.3)).prop_map(|(sub, kind, set)| {
            Step::Rule { sub, kind, set }
        }),
        2 => any::<u16>().prop_map(|pick| Step::Cancel { pick: pick.into() }),
        3 => (sub.clone(), option::of(any::<u16>()), any::<bool>()).prop_map(|(sub, pick, replay)| {
            Step::Revive { sub, pick: pick.map(usize::from), replay }
        }),
        2 => (sub.clone(), option::of(0..4u8)).prop_map(|(sub, key)| Step::ReleaseParked { sub, key }),
        2 => (sub, any::<u16>()).prop_map(|(sub, pick)| Step::Resend { sub, pick: pick.into() }),
        1 => Just(Step::Subscribe),
        1 => Just(Step::Backfill),
    ]
}

fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0u64), 1 => 1..4u64, 1 => Just(20)]
}

fn known() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![3 => Just(None), 3 => Just(Some(0)), 1 => any::<u8>().prop_map(Some)]
}

fn rule() -> impl Strategy<Value = RuleKind> {
    prop_oneof![Just(RuleKind::Pause), Just(RuleKind::Block)]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        2 => Just(Verdict::NotYet),
        6 => Just(Verdict::Done),
        2 => Just(Verdict::Retry),
        1 => (0..8u64).prop_map(Verdict::RetryAfter),
        1 => (0..8u64).prop_map(Verdict::Snooze),
        1 => Just(Verdict::Dead),
    ]
}

//! The work: whether somebody does it, and what stands still.

use super::finding::{Finding, span};
use std::time::Duration;
use tramline::{Counts, Disabled, Rule};

/// As the alerts that the documentation proposes.
const LATE: Duration = Duration::from_secs(300);
const STUCK: Duration = Duration::from_secs(3600);
const SKEW_MS: i64 = 2000;

/// A subscription as it stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) counts: Counts,
    pub(super) oldest_ready: Option<Duration>,
    pub(super) oldest_dead: Option<Duration>,
    pub(super) rules: Vec<Rule>,
    /// For how long the key has waited that has waited longest.
    pub(super) parked_for: Option<Duration>,
    /// An event that fails stops all behind it, and not only those of its key.
    pub(super) halts: bool,
    pub(super) is_push: bool,
    pub(super) disabled: Option<Disabled>,
    pub(super) has_worker: bool,
    /// The longest retention of its topics.
    pub(super) retention: Option<Duration>,
}

pub(super) fn check(queues: &[Queue]) -> Vec<Finding> {
    let checks = [stopped, disabled, unattended, late, beyond_retention, parked, halted, dead];
    queues.iter().flat_map(|queue| checks.iter().filter_map(|check| check(queue))).collect()
}

fn stopped(queue: &Queue) -> Option<Finding> {
    let rule = queue.rules.first()?;
    let reason = if rule.reason.is_empty() { "no reason given" } else { &rule.reason };
    let of = rule.source.as_ref().map(|(_, pattern)| format!(" of {pattern}")).unwrap_or_default();
    let what = format!("{} is stopped ({}{of} by {}: {reason})", queue.name, rule.kind.as_str(), rule.by);
    let name = rule.source.as_ref().map_or_else(|| queue.name.clone(), |(_, pattern)| format!("'{pattern}'"));
    Some(Finding::note(
        "rules",
        what,
        format!("`tramline resume {name}` or `tramline unblock {name}` when it is over"),
    ))
}

fn disabled(queue: &Queue) -> Option<Finding> {
    let disabled = queue.disabled.as_ref()?;
    let what = format!("nothing is sent to {}: {}", queue.name, disabled.reason);
    Some(Finding::warning(
        "push",
        what,
        format!(
            "see `tramline push attempts {0}`, see to the receiver, then `tramline push enable {0}`",
            queue.name
        ),
    ))
}

fn is_unattended(queue: &Queue) -> bool {
    !queue.has_worker && !queue.is_push && queue.rules.is_empty()
}

fn unattended(queue: &Queue) -> Option<Finding> {
    if !is_unattended(queue) {
        return None;
    }
    let pending = queue.counts.pending();
    let remedy = "start a worker, or delete the subscription if nobody needs it: it keeps its events";
    Some(match pending {
        0 => Finding::note(
            "workers",
            format!("nobody works on {}, which has nothing to do", queue.name),
            remedy,
        ),
        _ => Finding::warning(
            "workers",
            format!("nobody works on {}, where {pending} events wait", queue.name),
            remedy,
        ),
    })
}

/// There is a better reason why events wait.
fn is_explained(queue: &Queue) -> bool {
    is_unattended(queue) || queue.disabled.is_some() || !queue.rules.is_empty()
}

fn late(queue: &Queue) -> Option<Finding> {
    let age = queue.oldest_ready.filter(|age| *age > LATE)?;
    let explained = is_explained(queue) || halted(queue).is_some();
    let what = format!("the oldest ready event of {} has waited for {}", queue.name, span(age));
    let remedy = "start more workers, or see whether those that run are stuck";
    (!explained).then(|| Finding::warning("late", what, remedy))
}

/// Retention does not take what is still to be done, so the store grows by it.
fn beyond_retention(queue: &Queue) -> Option<Finding> {
    let (age, retention) = (queue.oldest_ready?, queue.retention?);
    let what = format!(
        "{} has not done events of {} ago; they are kept beyond the {} of their topic",
        queue.name,
        span(age),
        span(retention)
    );
    let remedy = "have it worked on, cancel what is not wanted, or set store_limit_bytes";
    (age > retention).then(|| Finding::warning("retention", what, remedy))
}

fn parked(queue: &Queue) -> Option<Finding> {
    let age = queue.parked_for.filter(|age| *age > STUCK)?;
    let what = format!("a key of {} has been parked for {}", queue.name, span(age));
    let remedy = format!(
        "`tramline parked list {0}`, see to the event, then `tramline parked release {0} KEY`",
        queue.name
    );
    Some(Finding::warning("parked", what, remedy))
}

/// What stands in the way is delayed, for its next attempt; what has to wait for it counts as ready.
fn halted(queue: &Queue) -> Option<Finding> {
    let age = queue.oldest_ready.filter(|age| *age > STUCK)?;
    let is_halted = queue.halts && queue.counts.delayed > 0 && !is_explained(queue);
    let what =
        format!("a line of {} has stood still for {} behind an event that fails", queue.name, span(age));
    let name = &queue.name;
    let remedy = match queue.is_push {
        true => format!("see `tramline push attempts {name}`, and see to the receiver"),
        false => "see why the event fails that counts as delayed; cancel it if it is not wanted".to_owned(),
    };
    is_halted.then(|| Finding::warning("parked", what, remedy))
}

fn dead(queue: &Queue) -> Option<Finding> {
    let dead = queue.counts.dead;
    let remedy = format!(
        "`tramline dead list {0}`, then `tramline dead replay {0} ID` or `tramline dead drop {0} ID`",
        queue.name
    );
    let age = queue.oldest_dead.map(|age| format!(", the oldest for {}", span(age))).unwrap_or_default();
    let what = format!("{} has {dead} dead events{age}", queue.name);
    (dead > 0).then(|| Finding::warning("dead", what, remedy))
}

/// How far a server's clock is from ours, in milliseconds: as little as the time that asking took allows.
pub(super) fn skew(before: i64, server: i64, after: i64) -> Option<Finding> {
    let skew = (before - server).max(server - after).max(0);
    let what =
        format!("the clock of the server and that of this machine are {:.1} s apart", skew as f64 / 1000.0);
    let remedy = "let both follow a time server; times that clients name are compared with the server's";
    (skew > SKEW_MS).then(|| Finding::warning("clock", what, remedy))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;
    use tramline::{RuleKind, Time};

    fn found(change: impl Fn(&mut Queue)) -> Vec<(&'static str, Severity)> {
        let mut queue = Queue { name: "q".into(), has_worker: true, ..Queue::default() };
        queue.retention = Some(Duration::from_secs(86_400));
        change(&mut queue);
        check(&[queue]).into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    fn waits(queue: &mut Queue, seconds: u64) {
        queue.counts.ready = 1;
        queue.oldest_ready = Some(Duration::from_secs(seconds));
    }

    fn pause() -> Rule {
        Rule {
            kind: RuleKind::Pause,
            by: "ada".into(),
            reason: "move".into(),
            since: Time(0),
            until: None,
            source: None,
        }
    }

    #[test]
    fn work_that_is_done_gives_no_findings() {
        assert_eq!(found(|it| waits(it, 300)), []);
        assert_eq!(found(|it| it.parked_for = Some(STUCK)), []);
    }

    #[test]
    fn what_stands_still_is_found() {
        assert_eq!(found(|it| waits(it, 301)), [("late", Severity::Warning)]);
        assert_eq!(found(|it| it.counts.dead = 1), [("dead", Severity::Warning)]);
        assert_eq!(found(|it| it.parked_for = Some(STUCK * 2)), [("parked", Severity::Warning)]);
        let halted = |it: &mut Queue| {
            waits(it, 3601);
            it.halts = true;
            it.counts.delayed = 1;
        };
        assert_eq!(found(halted), [("parked", Severity::Warning)], "and not that it is late");
        let slow = |it: &mut Queue| {
            halted(it);
            it.counts.delayed = 0;
        };
        assert_eq!(found(slow), [("late", Severity::Warning)], "nothing stands in the way");
        let late = [("late", Severity::Warning), ("retention", Severity::Warning)];
        assert_eq!(found(|it| waits(it, 86_401)), late);
    }

    #[test]
    fn why_it_stands_still_is_told_instead_of_that_it_does() {
        let unattended = |it: &mut Queue| {
            waits(it, 301);
            it.has_worker = false;
        };
        assert_eq!(found(unattended), [("workers", Severity::Warning)]);
        assert_eq!(found(|it| it.has_worker = false), [("workers", Severity::Note)]);
        let paused = |it: &mut Queue| {
            unattended(it);
            it.rules = vec![pause()];
        };
        assert_eq!(found(paused), [("rules", Severity::Note)]);
        let pushed = |it: &mut Queue| {
            unattended(it);
            it.is_push = true;
            it.disabled = Some(Disabled { at: Time(0), reason: "410".into() });
        };
        assert_eq!(found(pushed), [("push", Severity::Warning)]);
    }

    #[test]
    fn a_clock_is_judged_by_no_more_than_what_is_certain() {
        assert_eq!(skew(1000, 1500, 2000), None);
        assert_eq!(skew(0, 5000, 4000), None, "asking took long");
        assert!(skew(0, 5000, 100).unwrap().what.contains("4.9 s"));
        assert!(skew(9000, 5000, 9100).unwrap().what.contains("4.0 s"));
    }
}

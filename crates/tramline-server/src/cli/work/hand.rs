//! The events in hand, by lease. Several events can share one, and a lease is given back as a whole: only when none of its events
//! runs any more, and at most once only if the server knows what became of those that were begun.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// All leases that are held.
#[derive(Default)]
pub(super) struct Hand {
    leases: HashMap<String, Held>,
}

struct Held {
    /// Events that wait, run or are being settled.
    active: usize,
    /// Some events were not run, and are the server's again once the lease is given back.
    left: bool,
    /// An event was begun that must not be begun again, and the server does not know what became of it.
    spent: bool,
    /// Until when it is certainly ours.
    until: Instant,
    /// Stops the commands of its events.
    stop: CancellationToken,
}

impl Hand {
    /// One more event. Gives what stops its command.
    pub(super) fn take(
        &mut self,
        lease: &str,
        until: Instant,
        kill: &CancellationToken,
    ) -> CancellationToken {
        let new = || Held { active: 0, left: false, spent: false, until, stop: kill.child_token() };
        let held = self.leases.entry(lease.to_owned()).or_insert_with(new);
        held.active += 1;
        held.stop.clone()
    }

    /// An event was settled. The lease, if it is to be given back now.
    pub(super) fn settled(&mut self, lease: &str) -> Option<String> {
        self.end(lease, |_| {})
    }

    /// An event was not run to its end. The lease, if it is to be given back now.
    pub(super) fn leave(&mut self, lease: &str) -> Option<String> {
        self.end(lease, |held| held.left = true)
    }

    /// An event was begun, must not be begun again, and could not be settled. Its lease is never given back.
    pub(super) fn spent(&mut self, lease: &str) {
        self.end(lease, |held| held.spent = true);
    }

    fn end(&mut self, lease: &str, note: impl FnOnce(&mut Held)) -> Option<String> {
        let held = self.leases.get_mut(lease)?;
        held.active -= 1;
        note(held);
        if held.active > 0 {
            return None;
        }
        let held = self.leases.remove(lease)?;
        (held.left && !held.spent).then(|| lease.to_owned())
    }

    /// How many events are in hand.
    pub(super) fn events(&self) -> usize {
        self.leases.values().map(|held| held.active).sum()
    }

    /// The leases to extend.
    pub(super) fn leases(&self) -> Vec<String> {
        self.leases.keys().cloned().collect()
    }

    /// Until when a lease is certainly ours; `None` when it is not.
    pub(super) fn until(&self, lease: &str) -> Option<Instant> {
        self.leases.get(lease).map(|held| held.until)
    }

    /// A lease was extended.
    pub(super) fn extended(&mut self, lease: &str, asked_at: Instant, by: Duration) {
        if let Some(held) = self.leases.get_mut(lease) {
            held.until = asked_at + by;
        }
    }

    /// A lease is somebody else's: its commands are stopped, and nothing is written back.
    pub(super) fn lost(&mut self, lease: &str) {
        if let Some(held) = self.leases.remove(lease) {
            held.stop.cancel();
        }
    }

    /// Leases that ran out are lost. How many.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let over: Vec<String> = self
            .leases
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(lease, _)| lease.clone())
            .collect();
        over.iter().for_each(|lease| self.lost(lease));
        over.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn hand(leases: &[&str]) -> (Hand, Vec<CancellationToken>, Instant) {
        let (mut hand, now, kill) = (Hand::default(), Instant::now(), CancellationToken::new());
        let stops = leases.iter().map(|lease| hand.take(lease, now + LEASE, &kill)).collect();
        (hand, stops, now)
    }

    #[test]
    fn a_shared_lease_is_given_back_when_its_last_event_ends() {
        let (mut hand, _, _) = hand(&["a", "a", "b"]);
        assert_eq!(hand.leave("a"), None, "another event of it still runs");
        assert_eq!(hand.settled("a"), Some("a".to_owned()));
        assert_eq!(hand.settled("b"), None, "all of it is settled");
        assert_eq!(hand.events(), 0);
    }

    #[test]
    fn a_lease_with_an_event_that_may_have_run_is_not_given_back() {
        let (mut hand, _, _) = hand(&["a", "a", "b"]);
        hand.spent("a");
        assert_eq!(hand.leave("a"), None);
        assert_eq!(hand.leave("b"), Some("b".to_owned()));
    }

    #[test]
    fn a_lost_lease_stops_its_commands_and_no_others() {
        let (mut hand, stops, _) = hand(&["a", "b"]);
        hand.lost("a");
        assert_eq!([stops[0].is_cancelled(), stops[1].is_cancelled()], [true, false]);
        assert_eq!((hand.leave("a"), hand.events()), (None, 1));
    }

    #[test]
    fn a_lease_that_is_not_extended_in_time_is_lost() {
        let (mut hand, stops, now) = hand(&["a", "b"]);
        hand.extended("b", now + LEASE / 3, LEASE);
        assert_eq!(hand.expire(now + LEASE), 1);
        assert_eq!([stops[0].is_cancelled(), stops[1].is_cancelled()], [true, false]);
    }
}

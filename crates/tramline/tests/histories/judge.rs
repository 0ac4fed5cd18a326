//! Whether a claim was allowed, and whether more was due.

use crate::model::{Held, Item, Place, Sub};
use std::collections::BTreeSet;
use tramline::model::id::{EventId, Incarnation};
use tramline::model::lane::{Known, Share};
use tramline::model::lease::Lease;
use tramline::model::time::Time;
use tramline::store::verbs::{Claim, Claimed, ClaimedEvent, ClaimedSlice, Suspects};

/// Checks what a claim gave against the model, and writes it into the model.
pub(crate) fn claimed(sub: &mut Sub, claim: &Claim, claimed: &Claimed, now: Time) {
    let name = sub.name.clone();
    if !sub.rules.is_empty() {
        assert!(claimed.slices.is_empty(), "{name}: a stopped subscription gave events");
        assert!(claimed.stopped_by.is_some_and(|rule| sub.rules.contains(&rule)), "{name}: {claimed:?}");
        return;
    }
    assert_eq!(claimed.stopped_by, None, "{name}");
    let given = ids(claimed);
    for id in given.iter().filter(|_| sub.is_ordered()) {
        let live = closed(sub, sub.lane_of(*id), claim).any(|at| sub.is_live(at, now));
        assert!(!live, "{name}: {id} was added to a closed lane");
    }
    assert!(given.len() <= claim.max_events as usize, "{name}: more than was asked for");
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len(), "{name}: twice in one claim");
    judge_suspects(sub, claim, claimed, now);
    if given.is_empty() {
        let missed = due_for(sub, claim, now);
        assert!(missed.is_none(), "{name}: nothing was given, but {missed:?} is due");
    }
    notice_crashes(sub, claim.owner, &given, now);
    for slice in &claimed.slices {
        for event in &slice.events {
            judge_event(sub, claim, slice, event, &given, now);
        }
    }
    for slice in &claimed.slices {
        record(sub, claim.owner, slice, now);
    }
}

fn ids(claimed: &Claimed) -> Vec<EventId> {
    claimed.slices.iter().flat_map(|slice| &slice.events).map(|event| event.event.id).collect()
}

/// Suspects run alone, and only where they were asked for; an idle worker takes one before anything else but what comes before
/// it in its lane.
fn judge_suspects(sub: &Sub, claim: &Claim, claimed: &Claimed, now: Time) {
    let name = &sub.name;
    let suspects = claimed.slices.iter().filter(|slice| slice.crashes > 0).count();
    match claim.suspects {
        Suspects::Leave => assert_eq!(suspects, 0, "{name}: a busy worker was given a suspect"),
        Suspects::TakeOne => {
            assert!(suspects == 0 || claimed.slices.len() == 1, "{name}: a suspect came with others");
            let waiting = suspect_for(sub, claim, now);
            assert!(waiting.is_none() || suspects == 1, "{name}: {waiting:?} is suspect and was not given");
        }
    }
}

/// Events that were given although somebody had them show that their leases were noticed to have ended.
fn notice_crashes(sub: &mut Sub, owner: Incarnation, given: &[EventId], now: Time) {
    for id in given {
        assert!(sub.items.contains_key(id), "{}: {id} was never emitted to it", sub.name);
        if let Place::Leased(at) = sub.items[id].place {
            assert!(!sub.is_live(at, now), "{}: {id} has two live leases", sub.name);
            assert!(!sub.is_once(), "{}: {id} was consumed before", sub.name);
            sub.crash(at, now);
        }
        if sub.is_ordered() {
            let lane = sub.lane_of(*id);
            match sub.lanes[lane].holder {
                Some((holder, until)) if until > now => {
                    assert_eq!(holder, owner, "{}: {id} is in a lane that somebody holds", sub.name);
                }
                _ => lose_lane(sub, lane, now),
            }
            assert!(sub.lanes[lane].halted.0 <= now, "{}: {id} is in a halted lane", sub.name);
        }
    }
}

fn lose_lane(sub: &mut Sub, lane: usize, now: Time) {
    let in_lane = |held: &Held| held.lane == lane && !held.events.is_empty();
    if let Some(at) = sub.leases.iter().position(in_lane) {
        sub.crash(at, now);
    }
}

fn judge_event(
    sub: &Sub,
    claim: &Claim,
    slice: &ClaimedSlice,
    event: &ClaimedEvent,
    given: &[EventId],
    now: Time,
) {
    let (name, id) = (&sub.name, event.event.id);
    let item = &sub.items[&id];
    let Place::Free { due } = item.place else { panic!("{name}: {id} is {:?} and was given", item.place) };
    assert!(due <= now, "{name}: {id} was given before its time");
    assert_eq!((slice.attempts, slice.replayed), (item.attempts, item.replayed), "{name}: {id}");
    assert_eq!(slice.crashes, item.crashes, "{name}: crashes of {id}");
    assert!(slice.crashes == 0 || slice.events.len() <= 64 >> slice.crashes.min(6), "{name}: not halved");
    assert_eq!(
        (event.event.prev, event.event.key.as_deref()),
        (item.prev, item.key.as_deref()),
        "{name}: {id}"
    );
    for before in sub.pending_before(id) {
        let mine = match sub.items[&before].place {
            Place::Leased(at) => sub.leases[at].owner == claim.owner && sub.is_live(at, now),
            Place::Free { .. } => given.contains(&before),
            _ => false,
        };
        assert!(mine, "{name}: {id} overtakes {before}, which is {:?}", sub.items[&before].place);
    }
    if let Some(key) = sub.ordered_key(id) {
        let gaps = sub.gaps.get(key).into_iter().flatten();
        let skipped: Vec<EventId> = gaps.copied().filter(|gap| *gap < id).collect();
        assert_eq!(event.skipped, skipped, "{name}: what {id} skips");
    }
}

fn record(sub: &mut Sub, owner: Incarnation, slice: &ClaimedSlice, now: Time) {
    let at = sub.leases.len();
    let events: BTreeSet<EventId> = slice.events.iter().map(|event| event.event.id).collect();
    let first = *events.first().expect("a slice holds events");
    let lane = if sub.is_ordered() { sub.lane_of(first) } else { 0 };
    assert_eq!(slice.until, now.after(sub.policy.lease()), "{}: the end of the lease", sub.name);
    for id in &events {
        if sub.is_ordered() {
            assert_eq!(sub.lane_of(*id), lane, "{}: a lease over two lanes", sub.name);
        }
        sub.items.get_mut(id).expect("it was judged").place = Place::Leased(at);
    }
    let known = sub.leases.iter().any(|held| held.lease == slice.lease);
    assert!(!known, "{}: the lease on {events:?} is the same as an old one", sub.name);
    let until = match sub.lanes[lane].holder {
        Some((holder, until)) if holder == owner => until.max(slice.until),
        _ => slice.until,
    };
    sub.lanes[lane].holder = Some((owner, until));
    sub.leases.push(Held { lease: slice.lease, owner, until: slice.until, lane, events, lost: false });
}

/// An event that such a claim must not leave if it gives nothing else.
fn due_for(sub: &Sub, claim: &Claim, now: Time) -> Option<EventId> {
    if claim.max_events == 0 || claim.share != Share::ALL {
        return None;
    }
    if let Some(suspect) = suspect_for(sub, claim, now) {
        return Some(suspect);
    }
    if sub.is_ordered() && sub.items.values().any(|item| item.place == Place::Unfilled) {
        return None; // claims stay below the cursor of the back-fill
    }
    let free = |id: &EventId| {
        let item = &sub.items[id];
        let due = matches!(item.place, Place::Free { due } if due <= now);
        let open = !sub.is_ordered() || is_open(sub, sub.lane_of(*id), claim, now);
        due && item.crashes == 0 && open && sub.pending_before(*id).next().is_none()
    };
    sub.items.keys().copied().find(free)
}

/// True if the claim may take from the lane something that is not suspect.
fn is_open(sub: &Sub, lane: usize, claim: &Claim, now: Time) -> bool {
    let lane_is_suspect = sub.items.iter().any(|(id, item)| {
        let crashed = match item.place {
            Place::Free { .. } => item.crashes > 0,
            Place::Leased(at) => !sub.is_live(at, now) && !sub.is_once(),
            _ => false,
        };
        crashed && sub.lane_of(*id) == lane
    });
    let others = sub.lanes[lane].holder.is_some_and(|(holder, until)| until > now && holder != claim.owner);
    let closed = closed(sub, lane, claim).next().is_some();
    !lane_is_suspect && !others && !closed && sub.lanes[lane].halted.1 <= now
}

/// The leases in a lane to which nothing may be added, because the claim says so.
fn closed<'a>(sub: &'a Sub, lane: usize, claim: &'a Claim) -> impl Iterator<Item = usize> + 'a {
    let is_closed = move |lease: &Lease| match &claim.known {
        Known::All => false,
        Known::Only(known) => known.iter().any(|held| {
            held.closed && lease.held().is_some_and(|own| (own.lane, own.epoch) == (held.lane, held.epoch))
        }),
    };
    let mine = sub.leases_of(claim.owner).into_iter();
    mine.filter(move |at| sub.leases[*at].lane == lane && is_closed(&sub.leases[*at].lease))
}

/// A suspect that an idle worker must be given.
fn suspect_for(sub: &Sub, claim: &Claim, now: Time) -> Option<EventId> {
    if claim.suspects == Suspects::Leave || claim.share != Share::ALL || sub.is_once() {
        return None;
    }
    let suspect = |id: &EventId| {
        let item = &sub.items[id];
        let crashed = match item.place {
            Place::Free { .. } => item.crashes > 0,
            Place::Leased(at) => !sub.is_live(at, now) && !sub.would_bury(*id, at),
            _ => false,
        };
        let lane = &sub.lanes[if sub.is_ordered() { sub.lane_of(*id) } else { 0 }];
        let held = lane.holder.is_some_and(|(_, until)| until > now);
        let may_add = !sub.is_ordered() || closed(sub, sub.lane_of(*id), claim).next().is_none();
        let open = !sub.is_ordered() || (!held && may_add && lane.halted.1 <= now);
        let first = !sub.is_ordered() || !has_free_before(sub, *id);
        crashed && open && first && sub.pending_before(*id).next().is_none()
    };
    sub.items.keys().copied().find(suspect)
}

/// True if something in the lane of a suspect comes before it and is no suspect itself.
fn has_free_before(sub: &Sub, id: EventId) -> bool {
    let free = |item: &Item| matches!(item.place, Place::Free { .. }) && item.crashes == 0;
    let same_lane = |other: EventId| sub.lane_of(other) == sub.lane_of(id);
    sub.items.range(..id).any(|(other, item)| free(item) && same_lane(*other))
}

//! Claims that wait for the writer: what an emit writes for them they get in the same transaction.

use super::claim::claim_ready;
use super::group::Answer;
use super::session::{CatalogCache, Session};
use super::writer::in_savepoint;
use crate::error::Result;
use crate::model::id::SubscriptionId;
use crate::store::claimed::RawClaim;
use crate::store::standing::{Served, Standing, Waiting, stand};
use crate::store::verbs::{Claim, Emission};
use rusqlite::Connection;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// More events than this are left to a hint: reading them back would hold the writer up.
const MANY: usize = 256;
/// How often everybody looks by himself.
const SOON: Duration = Duration::from_secs(1);

/// The claims that wait.
#[derive(Debug, Default)]
pub(super) struct Board(Mutex<Vec<Waiting>>);

/// What was taken for some of them. They are told when it is committed; dropping it instead has them look for themselves.
#[derive(Default)]
pub(super) struct Serving(Vec<(oneshot::Sender<Served>, Served)>);

impl Board {
    pub(super) fn add(&self, claim: Claim) -> Standing {
        let (standing, waiting) = stand(claim);
        let mut all = self.all();
        all.retain(Waiting::is_waiting);
        all.push(waiting);
        standing
    }

    /// Carries out the claims that wait for what was just emitted, in the transaction that the connection is in. Nobody is hinted at what
    /// they leave nothing of.
    pub(super) fn serve(&self, conn: &Connection, cache: &CatalogCache, emitted: &mut [Answer]) -> Serving {
        let mut serving = Serving::default();
        let (mut not_needed, mut exhausted) = (Vec::new(), Vec::new());
        for waiting in self.wanting(emitted) {
            let id = waiting.claim.subscription;
            if exhausted.contains(&id) {
                not_needed.push(waiting);
                continue;
            }
            let Some(tell) = waiting.begin() else { continue };
            // If it fails, its owner meets the error again when it looks.
            let Ok(served) = take(conn, cache, &waiting.claim) else { continue };
            if !is_full(&served.raw, &waiting.claim) {
                exhausted.push(id);
                if leaves_nothing(&served.raw) {
                    forget(emitted, id);
                }
            }
            serving.0.push((tell, served));
        }
        if !not_needed.is_empty() {
            self.all().splice(0..0, not_needed);
        }
        serving
    }

    /// Takes those off the board that wait for what was emitted.
    fn wanting(&self, emitted: &[Answer]) -> Vec<Waiting> {
        let mut all = self.all();
        if all.is_empty() || emissions(emitted).map(|emission| emission.events.len()).sum::<usize>() > MANY {
            return Vec::new();
        }
        let is_wanted = |waiting: &mut Waiting| {
            emissions(emitted).any(|one| one.wake.contains(&waiting.claim.subscription))
        };
        all.extract_if(.., is_wanted).collect()
    }

    /// Nobody is served any more.
    pub(super) fn close(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serving {
    /// It is committed.
    pub(super) fn tell(self) {
        for (tell, served) in self.0 {
            tell.send(served).ok(); // a run that was dropped: the events are free when the lease ends
        }
    }
}

fn take(conn: &Connection, cache: &CatalogCache, wish: &Claim) -> Result<Served> {
    let since = Instant::now();
    in_savepoint(conn, cache, |conn| {
        let session = Session::new(conn, wish.now, cache)?;
        let raw = claim_ready(&session, wish)?;
        session.finish()?;
        Ok(Served { raw, catalog: session.catalog.clone(), since })
    })
}

/// True if the claim could not have taken more.
fn is_full(raw: &RawClaim, wish: &Claim) -> bool {
    let rest = raw.rest_of(wish);
    rest.max_events == 0 || rest.max_bytes == 0
}

/// True if a claim that could have taken more ended because there was nothing, now or soon: of what is due later everybody knows who looks by
/// himself.
fn leaves_nothing(raw: &RawClaim) -> bool {
    let held_back = raw.limited || raw.suspects_wait || raw.backfilling || raw.stopped_by.is_some();
    !held_back && raw.next_due.is_none_or(|due| due > raw.now.after(SOON))
}

fn emissions(emitted: &[Answer]) -> impl Iterator<Item = &Emission> {
    emitted.iter().flatten().flatten().flatten()
}

fn forget(emitted: &mut [Answer], id: SubscriptionId) {
    let emissions = emitted.iter_mut().flatten().flatten().flatten();
    emissions.for_each(|emission| emission.wake.retain(|other| *other != id));
}

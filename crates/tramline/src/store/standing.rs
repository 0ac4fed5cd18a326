//! Claims that wait in a store: whoever finds nothing leaves its claim there, and the next emit of the same process carries it out in
//! its own transaction. So the events are in hand when the emit is stored, without a hint, a second commit and the ways in between.

use crate::error::Result;
use crate::store::catalog::Catalog;
use crate::store::claimed::RawClaim;
use crate::store::verbs::{Claim, Claimed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// A claim that waits in a store, as its owner sees it. Dropping it takes it back; what it has taken by then is free when its lease ends,
/// so who may be about to be served uses [`Standing::withdraw`].
#[derive(Debug)]
pub struct Standing {
    place: Arc<Place>,
    answer: oneshot::Receiver<Served>,
}

/// What a standing claim was given.
#[derive(Debug)]
pub struct Stood {
    /// The events.
    pub claimed: Claimed,
    /// A moment just before the lease began.
    pub since: Instant,
}

/// The same claim, as the store sees it.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) claim: Claim,
    place: Arc<Place>,
}

/// Empty once the claim is being carried out, or was taken back: whoever empties it decides.
#[derive(Debug)]
struct Place(Mutex<Option<oneshot::Sender<Served>>>);

/// What a store has taken for a standing claim. Not yet decoded: the owner has more time for that.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) raw: RawClaim,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) since: Instant,
}

/// Both sides of a claim that begins to wait.
pub(crate) fn stand(claim: Claim) -> (Standing, Waiting) {
    let (tell, answer) = oneshot::channel();
    let place = Arc::new(Place(Mutex::new(Some(tell))));
    (Standing { place: place.clone(), answer }, Waiting { claim, place })
}

impl Standing {
    /// Waits for events. `None`: the store has given the claim up, and its owner has to look. Cancel-safe.
    ///
    /// # Errors
    /// The events cannot be read.
    pub async fn served(&mut self) -> Result<Option<Stood>> {
        match (&mut self.answer).await {
            Ok(served) => served.decode().map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Takes the claim back. Gives what it was given all the same, because the store was faster.
    ///
    /// # Errors
    /// As [`Standing::served`].
    pub async fn withdraw(mut self) -> Result<Option<Stood>> {
        if self.place.empty().is_some() { Ok(None) } else { self.served().await }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.place.empty();
    }
}

impl Waiting {
    /// False once it was taken back.
    pub(crate) fn is_waiting(&self) -> bool {
        self.place.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The right to carry it out, and where to send what it took. `None`: it was taken back.
    pub(crate) fn begin(&self) -> Option<oneshot::Sender<Served>> {
        self.place.empty()
    }
}

/// A store that is done with it, be it served or not, leaves nobody waiting.
impl Drop for Waiting {
    fn drop(&mut self) {
        self.place.empty();
    }
}

impl Place {
    fn empty(&self) -> Option<oneshot::Sender<Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Served {
    fn decode(self) -> Result<Stood> {
        Ok(Stood { claimed: self.raw.decode(&self.catalog)?, since: self.since })
    }
}

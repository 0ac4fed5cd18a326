//! Tallies: know exactly, and exactly once, when the last of many items is done.
//!
//! ```
//! # use tramline::{NewTally, testkit::TestKit};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let kit = TestKit::new().await?;
//! # let tram = kit.tram();
//! let tallies = tram.tallies();
//! let id = tallies.open(NewTally::new().user_key("import-7")).await?.id;
//! let added = tallies.add(id, 1_000).await?;
//! tallies.seal(id, None).await?;
//! let acked = tallies.done(id, [added.items()]).await?;
//! assert_eq!(acked.completed[0].user_key.as_deref(), Some("import-7"));
//! # Ok::<(), tramline::Error>(()) }).unwrap();
//! ```

use crate::engine::ack::Acker;
use crate::engine::backoff;
use crate::engine::clock::Clock;
use crate::engine::courier::Courier;
use crate::error::{Error, Kind, Result};
use crate::model::id::{Incarnation, TallyId};
use crate::model::tally::{Ack, Added, Ending, Items, MAX_ITEMS, NewTally, Tally, TallyItem};
use crate::model::time::Time;
use crate::plan::tally::unknown;
use crate::store::Store;
use crate::store::verbs_tally::*;
use crate::wake::Wake;
use sha2::{Digest, Sha256};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// A hint may be lost: look at least this often.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// How often a step that may be repeated is tried.
const TRIES: u32 = 6;
/// How many tallies one step of a removal looks at.
const REAP: u32 = 100;

/// Everything that can be done with tallies; see [`Tramline::tallies`](crate::Tramline::tallies). Cheap to clone.
///
/// Dropping a future before it is done leaves open whether the step happened, but never half of it. Where a step may be repeated
/// without harm, it is repeated for a few seconds while the store does not answer.
#[derive(Clone, Debug)]
pub struct Tallies {
    store: Arc<dyn Store>,
    clock: Clock,
    wake: Arc<dyn Wake>,
    acker: Acker,
    courier: Arc<Courier>,
}

impl Tallies {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        wake: Arc<dyn Wake>,
        courier: Arc<Courier>,
    ) -> Tallies {
        let acker = Acker::new(store.clone(), clock.clone(), courier.clone());
        Tallies { store, clock, wake, acker, courier }
    }

    /// Opens a tally.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for what cannot be; `NotFound` or `Conflict` when its parent does not exist or takes no items, or the item has ended,
    /// is an event or has another tally that stands for it;
    /// `Conflict` when its idempotency key was used for another tally. `Unavailable`: only with an idempotency key was it
    /// repeated, and may be again.
    pub async fn open(&self, tally: NewTally) -> Result<OpenedTally> {
        tally.check()?;
        let tries = if tally.idempotency_key.is_some() { TRIES } else { 1 };
        let open = || self.store.open_tally(OpenTally { tally: tally.clone(), now: self.clock.now() });
        self.patiently(tries, open).await
    }

    /// Adds items, any number of them in one step, and gives their numbers.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the tally is sealed or has ended; `Invalid` for no items or too many, or a tally without items.
    pub async fn add(&self, tally: TallyId, count: u64) -> Result<Added> {
        self.add_items(tally, count, None, Incarnation::random().0).await
    }

    /// Adds items once: with the same key, the same items are given again.
    ///
    /// # Errors
    /// As [`Tallies::add`]; `Conflict` when the key was used for another number of items.
    pub async fn add_once(&self, tally: TallyId, count: u64, key: &str) -> Result<Added> {
        self.add_items(tally, count, None, token(key)).await
    }

    /// Adds items from inside an unfinished item of the same tally: a growing one takes them even after it was sealed.
    ///
    /// # Errors
    /// As [`Tallies::add`]; `Conflict` when there is no such item, or the tally is sealed and the item is finished.
    pub async fn add_within(&self, item: TallyItem, count: u64) -> Result<Added> {
        self.add_items(item.tally, count, Some(item.number), Incarnation::random().0).await
    }

    /// The same once: with the same key, the same items are given again.
    ///
    /// # Errors
    /// As [`Tallies::add_within`]; `Conflict` when the key was used for another number of items.
    pub async fn add_within_once(&self, item: TallyItem, count: u64, key: &str) -> Result<Added> {
        self.add_items(item.tally, count, Some(item.number), token(key)).await
    }

    async fn add_items(&self, tally: TallyId, count: u64, within: Option<u64>, token: i64) -> Result<Added> {
        if count == 0 || count > MAX_ITEMS {
            return Err(Error::invalid(
                format!("{count} items cannot be added"),
                "add at least one and at most 2^40",
            ));
        }
        let add = || {
            let add = AddItems { tally, count, within, token: Some(token), now: self.clock.now() };
            self.store.add_items(add)
        };
        self.patiently(TRIES, add).await
    }

    /// Says that all items were added, and that their number is `expected` if that is given. Sealing again changes nothing. An
    /// empty tally is complete at once.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the tally was cancelled or has expired, or has another number of items; then nothing changes.
    pub async fn seal(&self, tally: TallyId, expected: Option<u64>) -> Result<SealedTally> {
        let by = Incarnation::random().0;
        let seal = || self.store.seal_tally(SealTally { tally, expected, by, now: self.clock.now() });
        let sealed = self.patiently(TRIES, seal).await?;
        if sealed.completed_now {
            self.courier.send(&[tally]);
        }
        Ok(sealed)
    }

    /// Items are done. Says for each number or range what became of it; repeating it changes nothing.
    ///
    /// # Errors
    /// `Invalid` or `TooLarge` for ranges that cannot be; `Unavailable`. What does not exist is an answer, not an error.
    pub async fn done<T: Into<Items>>(
        &self,
        tally: TallyId,
        items: impl IntoIterator<Item = T>,
    ) -> Result<AckedItems> {
        let items = items.into_iter().map(Into::into).collect();
        self.ack(vec![Ack { tally, items, ending: Ending::Done }]).await
    }

    /// Items have failed and will never be done. They count as finished.
    ///
    /// # Errors
    /// As [`Tallies::done`].
    pub async fn fail<T: Into<Items>>(
        &self,
        tally: TallyId,
        items: impl IntoIterator<Item = T>,
    ) -> Result<AckedItems> {
        let items = items.into_iter().map(Into::into).collect();
        self.ack(vec![Ack { tally, items, ending: Ending::Failed }]).await
    }

    /// Items of any number of tallies have ended. Acks that run at the same time share a transaction; a lone one waits for nobody.
    /// A completion is told to exactly one call.
    ///
    /// # Errors
    /// As [`Tallies::done`].
    pub async fn ack(&self, acks: Vec<Ack>) -> Result<AckedItems> {
        self.acker.ack(acks).await
    }

    /// Counts estimated tallies up (work was added) and down (work was done), each with an answer of its own.
    ///
    /// # Errors
    /// `Unavailable`: then it is not known whether it was counted, and it is not repeated. Inside: `NotFound`, `Invalid` for a tally
    /// with items, `Conflict` for counting up one that is sealed or has ended.
    pub async fn count(&self, counts: Vec<(TallyId, i64)>) -> Result<Vec<Result<CountedTally>>> {
        let counted = self.store.count_tallies(CountTallies { counts, now: self.clock.now() }).await?;
        let completed: Vec<TallyId> =
            counted.iter().flatten().filter(|one| one.completed_now).map(|one| one.tally.id).collect();
        self.courier.send(&completed);
        Ok(counted)
    }

    /// A tally with exact counts.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn get(&self, tally: TallyId) -> Result<Tally> {
        let find = NameTally { tally, now: self.clock.now() };
        self.patiently(TRIES, || self.store.tally(find)).await?.ok_or_else(|| unknown(tally))
    }

    /// One page of tallies, by number.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(&self, list: ListTallies) -> Result<Vec<Tally>> {
        let list = ListTallies { now: self.clock.now(), ..list };
        self.patiently(TRIES, || self.store.tallies(list.clone())).await
    }

    /// Waits until a tally has ended, or `give_up` is done, and gives it as it is then.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn wait(&self, tally: TallyId, give_up: impl Future<Output = ()> + Send) -> Result<Tally> {
        let mut listener = self.wake.listen(tally.bell());
        tokio::pin!(give_up);
        loop {
            listener.arm();
            let found = self.get(tally).await?;
            if found.state.has_ended() {
                return Ok(found);
            }
            tokio::select! {
                biased;
                () = &mut give_up => return Ok(found),
                () = listener.wait() => {}
                () = self.clock.sleep(SLOW_POLL) => {}
            }
        }
    }

    /// Gives a tally up: nothing changes it any more, and it will never be complete. Cancelling again changes nothing.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is complete or has expired.
    pub async fn cancel(&self, tally: TallyId) -> Result<Tally> {
        let cancel = NameTally { tally, now: self.clock.now() };
        let cancelled = self.patiently(TRIES, || self.store.cancel_tally(cancel)).await?;
        self.courier.send(&[tally]);
        Ok(cancelled)
    }

    /// Deletes a tally, in whatever state.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn delete(&self, tally: TallyId) -> Result<()> {
        self.store.delete_tally(NameTally { tally, now: self.clock.now() }).await?;
        self.courier.send(&[tally]);
        Ok(())
    }

    /// How many tallies there are in each state.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn counts(&self) -> Result<TallyCounts> {
        self.patiently(TRIES, || self.store.tally_counts()).await
    }

    /// Removes tallies (of one topic, if it is given) to which nothing has happened since a time: those that are open, or those that
    /// were sealed or have ended. Housekeeping does so by itself after a week.
    ///
    /// # Errors
    /// `Unavailable`: some may have been removed.
    pub async fn reap(&self, open: bool, idle_since: Time, topic: Option<&str>) -> Result<ReapedTallies> {
        let mut sum = ReapedTallies::default();
        loop {
            let reap = ReapTallies {
                open,
                idle_since,
                topic: topic.map(str::to_owned),
                limit: REAP,
                now: self.clock.now(),
            };
            let reaped = self.store.reap_tallies(reap).await?;
            sum.tallies += reaped.tallies;
            sum.items += reaped.items;
            if !reaped.more {
                return Ok(sum);
            }
        }
    }

    /// Delivers, in the background, what tallies have to tell after a transaction of the caller's own that settled events: pass
    /// [`Settled::news`](crate::store::verbs::Settled::news) once it is committed. Forgetting it costs some seconds, not an event.
    pub fn tell(&self, news: &[TallyId]) {
        self.courier.send(news);
    }

    pub(crate) fn close(&self) {
        self.acker.close();
    }

    /// Repeats a step that may be repeated while the store does not answer.
    async fn patiently<T, F: Future<Output = Result<T>> + Send>(
        &self,
        tries: u32,
        step: impl Fn() -> F + Send,
    ) -> Result<T> {
        let mut failures = 0;
        loop {
            match step().await {
                Err(error) if error.kind() == Kind::Unavailable && failures + 1 < tries => {
                    failures += 1;
                    self.clock.sleep(backoff::delay(failures)).await;
                }
                result => return result,
            }
        }
    }
}

/// What an addition is known by in the store.
fn token(key: &str) -> i64 {
    let digest = Sha256::digest(key.as_bytes());
    let (token, _) = digest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    i64::from_le_bytes(*token)
}

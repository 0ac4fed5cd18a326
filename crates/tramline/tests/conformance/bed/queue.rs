//! A subscription: claims, settlements, and what an operator does to it.

use super::*;

/// A subscription and what can be done with it.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) bed: Bed,
    pub(crate) id: SubscriptionId,
}

impl Queue {
    /// The same subscription seen through another store.
    pub(crate) fn through(&self, bed: Bed) -> Queue {
        Queue { bed, id: self.id }
    }

    /// What an idle worker asks for.
    pub(crate) fn wish(&self, max_events: u32) -> Claim {
        Claim {
            subscription: self.id,
            owner: ANNA,
            max_events,
            max_bytes: usize::MAX >> 1,
            lease: None,
            suspects: Suspects::TakeOne,
            share: Share::ALL,
            known: Known::All,
            single: false,
            now: self.bed.now(),
        }
    }

    /// Anna claims; she has nothing else in flight.
    pub(crate) async fn claim(&self, max_events: u32) -> Claimed {
        self.take(self.wish(max_events)).await
    }

    pub(crate) async fn claim_by(&self, owner: Incarnation, max_events: u32) -> Claimed {
        self.take(Claim { owner, ..self.wish(max_events) }).await
    }

    pub(crate) async fn take(&self, claim: Claim) -> Claimed {
        self.bed.store.claim(claim).await.unwrap()
    }

    /// Settles all that was claimed; true if every outcome was taken.
    pub(crate) async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> bool {
        let outcomes: Vec<(EventId, Outcome)> =
            ids(claimed).into_iter().map(|id| (id, outcome.clone())).collect();
        self.settle_each(claimed, &outcomes).await.iter().all(|taken| *taken)
    }

    pub(crate) async fn done(&self, claimed: &Claimed) -> bool {
        self.settle(claimed, Outcome::Done).await
    }

    /// Settles some events; says for each whether its outcome was taken.
    pub(crate) async fn settle_each(&self, claimed: &Claimed, outcomes: &[(EventId, Outcome)]) -> Vec<bool> {
        self.try_settle(claimed, outcomes).await.unwrap().accepted.into_iter().flatten().collect()
    }

    pub(crate) async fn try_settle(
        &self,
        claimed: &Claimed,
        outcomes: &[(EventId, Outcome)],
    ) -> Result<Settled> {
        let results = outcomes
            .iter()
            .map(|(id, outcome)| SettleSlice {
                lease: lease_of(claimed, *id),
                outcomes: vec![(id.index(), outcome.clone())],
            })
            .collect();
        self.bed
            .store
            .settle(Settle { subscription: self.id, results, worker: None, now: self.bed.now() })
            .await
    }

    /// Claims everything and settles it as done; gives the ids in the order in which they came.
    pub(crate) async fn drain(&self) -> Vec<EventId> {
        let mut drained = Vec::new();
        loop {
            let claimed = self.claim(1000).await;
            if claimed.slices.is_empty() {
                return drained;
            }
            drained.extend(ids(&claimed));
            assert!(self.done(&claimed).await);
        }
    }

    pub(crate) async fn extend(&self, claimed: &Claimed) -> Vec<Extended> {
        let extend =
            Extend { subscription: self.id, leases: leases(claimed), lease: None, now: self.bed.now() };
        self.bed.store.extend(extend).await.unwrap()
    }

    /// Gives back all that was claimed. Gives how many leases it was.
    pub(crate) async fn release(&self, claimed: &Claimed) -> u64 {
        let release = Release { subscription: self.id, leases: leases(claimed), now: self.bed.now() };
        self.bed.store.release(release).await.unwrap()
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.bed.store.stats(self.id, self.bed.now()).await.unwrap()
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.stats().await.counts
    }

    pub(crate) async fn status(&self, id: EventId) -> Status {
        self.delivery(id).await.status
    }

    pub(crate) async fn delivery(&self, id: EventId) -> Delivery {
        let name = self.name().await;
        let view = self.bed.find(id).await.unwrap();
        view.deliveries.into_iter().find(|delivery| delivery.subscription == name).unwrap()
    }

    async fn name(&self) -> Arc<str> {
        let subscriptions = self.bed.store.subscriptions().await.unwrap();
        subscriptions.into_iter().find(|subscription| subscription.id == self.id).unwrap().name
    }

    pub(crate) async fn dead(&self) -> Vec<DeadEvent> {
        self.bed.store.dead(self.page()).await.unwrap()
    }

    pub(crate) async fn dead_ids(&self) -> Vec<EventId> {
        self.dead().await.iter().map(|dead| dead.event.id).collect()
    }

    pub(crate) async fn parked(&self) -> Vec<ParkedKey> {
        self.bed.store.parked(self.page()).await.unwrap()
    }

    /// The first page of a list.
    pub(crate) fn page(&self) -> Page {
        Page { subscription: self.id, after: EventId(0), limit: 1000, now: self.bed.now() }
    }

    pub(crate) async fn replay(&self, which: Which) -> u64 {
        self.revive(which, Revival::Replay).await
    }

    pub(crate) async fn drop_dead(&self, which: Which) -> u64 {
        self.revive(which, Revival::Drop).await
    }

    /// Replays, one after the other.
    pub(crate) async fn stagger(&self, which: Which, rate: Pace) -> u64 {
        self.revive(which, Revival::Stagger(Stagger { rate, start: None, done: 0 })).await
    }

    /// All steps of a revival.
    async fn revive(&self, which: Which, mut how: Revival) -> u64 {
        let (mut count, mut after) = (0, EventId(0));
        loop {
            let (id, which) = (self.id, which.clone());
            let revive = Revive { subscription: id, which, how, after, now: self.bed.now() };
            let revived = self.bed.store.revive(revive).await.unwrap();
            count += revived.count;
            if let Revival::Stagger(pace) = &mut how {
                *pace = Stagger { start: Some(revived.now), done: count, ..*pace };
            }
            match revived.next {
                Some(next) => after = next,
                None => return count,
            }
        }
    }

    pub(crate) async fn resend(&self, ids: &[EventId]) -> u64 {
        let resend = Resend { subscription: self.id, ids: ids.to_vec(), now: self.bed.now() };
        self.bed.store.resend(resend).await.unwrap()
    }

    /// Lets parked keys of [`TOPIC`] go on; none named stands for all.
    pub(crate) async fn release_parked(&self, keys: &[&str]) -> u64 {
        let keys = keys.iter().map(|key| (TOPIC.to_owned(), (*key).to_owned())).collect();
        let release = ReleaseParked { subscription: self.id, keys, now: self.bed.now() };
        self.bed.store.release_parked(release).await.unwrap()
    }

    pub(crate) async fn set(&self, kind: RuleKind) {
        self.rule(kind, Some(RuleEnd::Open)).await;
    }

    pub(crate) async fn unset(&self, kind: RuleKind) {
        self.rule(kind, None).await;
    }

    pub(crate) async fn rule(&self, kind: RuleKind, until: Option<RuleEnd>) {
        let (by, reason) = ("olga".into(), "because".into());
        let set = SetRule { subscription: self.id, kind, until, by, reason, now: self.bed.now() };
        self.bed.store.set_rule(set).await.unwrap();
    }

    /// Writes all retained events into a new subscription; gives the number of steps.
    pub(crate) async fn backfill(&self) -> u32 {
        let mut steps = 1;
        while self.bed.store.backfill(self.id).await.unwrap() {
            steps += 1;
        }
        steps
    }
}

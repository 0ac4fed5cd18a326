//! A store that measures how long its verbs take, and notes when they fail.

use crate::http::metrics::Metrics;
use async_trait::async_trait;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use tramline::store::standing::Standing;
use tramline::store::verbs::*;
use tramline::store::verbs_tally::*;
use tramline::{
    Added, AuditEntry, DropRecord, EventId, Health, Kind, PatternRule, Result, Store, StoredSchedule,
    Subscription, SubscriptionId, Tally, Time, Token, Topic, TopicId,
};

/// Passes everything on, and takes the time.
pub(crate) struct Timed {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
}

impl Timed {
    pub(crate) fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Timed {
        Timed { store, metrics }
    }

    async fn time<T>(&self, verb: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let started = Instant::now();
        let result = call.await;
        self.metrics.store_seconds.observe(verb, started.elapsed());
        if result.as_ref().is_err_and(|error| error.kind() == Kind::Unavailable) {
            self.metrics.store_failures.add(verb, 1);
            self.metrics.store_doubted.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl Store for Timed {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        self.time("put_topic", self.store.put_topic(put)).await
    }
    async fn topics(&self) -> Result<Vec<Topic>> {
        self.time("topics", self.store.topics()).await
    }
    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>> {
        self.time("topic_totals", self.store.topic_totals()).await
    }
    async fn delete_topic(&self, name: &str) -> Result<()> {
        self.time("delete_topic", self.store.delete_topic(name)).await
    }
    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        self.time("put_subscription", self.store.put_subscription(put)).await
    }
    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.time("subscriptions", self.store.subscriptions()).await
    }
    async fn delete_subscription(&self, name: &str) -> Result<()> {
        self.time("delete_subscription", self.store.delete_subscription(name)).await
    }
    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        self.time("backfill", self.store.backfill(subscription)).await
    }
    async fn set_rule(&self, set: SetRule) -> Result<()> {
        self.time("set_rule", self.store.set_rule(set)).await
    }
    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        self.time("set_pattern_rule", self.store.set_pattern_rule(set)).await
    }
    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>> {
        self.time("remove_pattern_rule", self.store.remove_pattern_rule(remove)).await
    }
    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>> {
        self.time("pattern_rules", self.store.pattern_rules(now)).await
    }
    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        self.time("audit", self.store.audit(subscription, limit)).await
    }
    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        let emissions = self.time("emit", self.store.emit(emit)).await?;
        if let Some(traffic) = self.metrics.traffic.get() {
            emissions.iter().flatten().for_each(|emission| traffic.emitted(emission));
        }
        Ok(emissions)
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.time("claim", self.store.claim(claim)).await
    }
    fn claims_together(&self, subscription: SubscriptionId) -> bool {
        self.store.claims_together(subscription)
    }
    async fn claim_together(&self, claims: Vec<Claim>) -> Result<Vec<Result<Option<Claimed>>>> {
        self.time("claim", self.store.claim_together(claims)).await
    }
    fn stand(&self, claim: Claim) -> Option<Standing> {
        self.store.stand(claim)
    }
    async fn settle(&self, settle: Settle) -> Result<Settled> {
        self.time("settle", self.store.settle(settle)).await
    }
    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        self.time("extend", self.store.extend(extend)).await
    }
    async fn release(&self, release: Release) -> Result<u64> {
        self.time("release", self.store.release(release)).await
    }
    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        self.time("adopt", self.store.adopt(adopt)).await
    }
    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        self.time("stats", self.store.stats(subscription, now)).await
    }
    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        self.time("event", self.store.event(find)).await
    }
    async fn trace(&self, trace: Trace) -> Result<Traced> {
        self.time("trace", self.store.trace(trace)).await
    }
    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        self.time("head", self.store.head(topic, key)).await
    }
    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        self.time("read_log", self.store.read_log(read)).await
    }
    async fn log_end(&self, topic: &str) -> Result<EventId> {
        self.time("log_end", self.store.log_end(topic)).await
    }
    async fn dead(&self, list: ListDead) -> Result<DeadPage> {
        self.time("dead", self.store.dead(list)).await
    }
    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        self.time("parked", self.store.parked(page)).await
    }
    async fn revive(&self, revive: Revive) -> Result<Revived> {
        self.time("revive", self.store.revive(revive)).await
    }
    async fn resend(&self, resend: Resend) -> Result<u64> {
        self.time("resend", self.store.resend(resend)).await
    }
    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        self.time("cancel", self.store.cancel(cancel)).await
    }
    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        self.time("release_parked", self.store.release_parked(release)).await
    }
    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        self.time("push_board", self.store.push_board(now)).await
    }
    async fn gather(&self, gather: Gather) -> Result<Gathered> {
        self.time("gather", self.store.gather(gather)).await
    }
    async fn record_push(&self, record: RecordPush) -> Result<Recorded> {
        if let Some(traffic) = self.metrics.traffic.get() {
            traffic.tried(&record);
        }
        self.time("record_push", self.store.record_push(record)).await
    }
    async fn steer_push(&self, steer: SteerPush) -> Result<Health> {
        self.time("steer_push", self.store.steer_push(steer)).await
    }
    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>> {
        self.time("attempts", self.store.attempts(list)).await
    }
    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally> {
        self.time("open_tally", self.store.open_tally(open)).await
    }
    async fn add_items(&self, add: AddItems) -> Result<Added> {
        self.time("add_items", self.store.add_items(add)).await
    }
    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally> {
        self.time("seal_tally", self.store.seal_tally(seal)).await
    }
    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems> {
        self.time("ack_items", self.store.ack_items(ack)).await
    }
    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>> {
        self.time("count_tallies", self.store.count_tallies(count)).await
    }
    async fn tally(&self, find: NameTally) -> Result<Option<Tally>> {
        self.time("tally", self.store.tally(find)).await
    }
    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>> {
        self.time("tallies", self.store.tallies(list)).await
    }
    async fn tally_counts(&self) -> Result<TallyCounts> {
        self.time("tally_counts", self.store.tally_counts()).await
    }
    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally> {
        self.time("cancel_tally", self.store.cancel_tally(cancel)).await
    }
    async fn delete_tally(&self, delete: NameTally) -> Result<()> {
        self.time("delete_tally", self.store.delete_tally(delete)).await
    }
    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies> {
        self.time("reap_tallies", self.store.reap_tallies(reap)).await
    }
    async fn deliver(&self, deliver: Deliver) -> Result<Delivered> {
        self.time("deliver", self.store.deliver(deliver)).await
    }
    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies> {
        self.time("sweep_tallies", self.store.sweep_tallies(sweep)).await
    }
    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        self.time("put_schedule", self.store.put_schedule(put)).await
    }
    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>> {
        self.time("declare_schedules", self.store.declare_schedules(declare)).await
    }
    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>> {
        self.time("schedules", self.store.schedules(list)).await
    }
    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>> {
        self.time("schedule", self.store.schedule(name)).await
    }
    async fn delete_schedule(&self, name: &str) -> Result<()> {
        self.time("delete_schedule", self.store.delete_schedule(name)).await
    }
    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule> {
        self.time("pause_schedule", self.store.pause_schedule(pause)).await
    }
    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission> {
        self.time("run_schedule", self.store.run_schedule(run)).await
    }
    async fn tick(&self, tick: Tick) -> Result<Ticked> {
        self.time("tick", self.store.tick(tick)).await
    }
    async fn put_token(&self, put: PutToken) -> Result<Token> {
        self.time("put_token", self.store.put_token(put)).await
    }
    async fn tokens(&self) -> Result<Vec<Token>> {
        self.time("tokens", self.store.tokens()).await
    }
    async fn delete_token(&self, name: &str) -> Result<()> {
        self.time("delete_token", self.store.delete_token(name)).await
    }
    async fn seal_token(&self, seal: SealToken) -> Result<bool> {
        self.time("seal_token", self.store.seal_token(seal)).await
    }
    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        self.time("touch_tokens", self.store.touch_tokens(uses)).await
    }
    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        self.time("beat", self.store.beat(beat)).await
    }
    async fn workers(&self) -> Result<Vec<Worker>> {
        self.time("workers", self.store.workers()).await
    }
    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        self.time("see_remote", self.store.see_remote(see)).await
    }
    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        self.time("remote_workers", self.store.remote_workers(now)).await
    }
    async fn bury(&self, bury: Bury) -> Result<Buried> {
        self.time("bury", self.store.bury(bury)).await
    }
    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        let swept = self.time("sweep", self.store.sweep(sweep)).await?;
        if let Some(traffic) = self.metrics.traffic.get() {
            traffic.scrubbed(swept.workers);
        }
        Ok(swept)
    }
    async fn size(&self) -> Result<StoreSize> {
        self.time("size", self.store.size()).await
    }
    async fn shed(&self, shed: Shed) -> Result<Shedded> {
        let shedded = self.time("shed", self.store.shed(shed)).await?;
        if let (Some(traffic), Some((subscription, events))) = (self.metrics.traffic.get(), shedded.dropped) {
            traffic.autodropped(subscription, events);
        }
        Ok(shedded)
    }
    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        self.time("drops", self.store.drops(list)).await
    }
    async fn drop_totals(&self) -> Result<Vec<DropTotal>> {
        self.time("drop_totals", self.store.drop_totals()).await
    }
    async fn now(&self) -> Result<Time> {
        self.time("now", self.store.now()).await
    }
    async fn probe(&self) -> Result<()> {
        self.time("probe", self.store.probe()).await
    }
    async fn close(&self) {
        self.store.close().await;
    }
}

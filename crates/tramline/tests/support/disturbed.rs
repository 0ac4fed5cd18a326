//! A store that can be disturbed: calls fail, lose their answers, or wait until they are let go.

use super::{all_wait, until};
use async_trait::async_trait;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex};
use tokio::sync::{Semaphore, oneshot};
use tramline::model::rule::{AuditEntry, PatternRule};
use tramline::model::token::Token;
use tramline::store::standing::Standing;
use tramline::store::verbs::*;
use tramline::store::verbs_tally::*;
use tramline::{
    Added, DropRecord, Error, EventId, Kind, Result, Store, StoredSchedule, Subscription, SubscriptionId,
    Tally, Time, Topic, TopicId,
};

/// What happens to a call.
enum Disturbance {
    /// It fails before it reaches the store.
    Fail(Kind),
    /// It succeeds, but the answer is lost.
    LoseAnswer,
    /// It tells that it has begun and waits.
    Hold(oneshot::Sender<()>, Arc<Semaphore>),
    /// It succeeds, tells so, and the answer waits.
    HoldAnswer(oneshot::Sender<()>, Arc<Semaphore>),
}

/// A call that waits until it is let go.
pub struct Held {
    begun: oneshot::Receiver<()>,
    release: Arc<Semaphore>,
}

impl Held {
    /// Waits until the call has begun.
    pub async fn begun(&mut self) {
        (&mut self.begun).await.unwrap();
    }

    pub fn release(self) {
        self.release.add_permits(1);
    }
}

/// Passes everything on to a store, but for the calls that it was told to disturb.
#[derive(Debug)]
pub struct Disturbed {
    inner: Arc<dyn Store>,
    plans: Mutex<HashMap<&'static str, VecDeque<Disturbance>>>,
    always: Mutex<HashMap<&'static str, Kind>>,
    calls: Mutex<HashMap<&'static str, u64>>,
    answers: Mutex<HashMap<&'static str, u64>>,
    passed_over: Mutex<u64>,
    /// Of which there is one more for each call that is under way.
    at_work: Arc<()>,
}

impl std::fmt::Debug for Disturbance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a disturbance")
    }
}

impl Disturbed {
    pub fn new(inner: Arc<dyn Store>) -> Disturbed {
        Disturbed {
            inner,
            plans: Mutex::default(),
            always: Mutex::default(),
            calls: Mutex::default(),
            answers: Mutex::default(),
            passed_over: Mutex::default(),
            at_work: Arc::default(),
        }
    }

    /// The next call of `verb` fails.
    pub fn fail(&self, verb: &'static str, kind: Kind) {
        self.plan(verb, Disturbance::Fail(kind));
    }

    /// All calls of `verb` fail from now on, until `None`.
    pub fn fail_always(&self, verb: &'static str, kind: Option<Kind>) {
        let mut always = self.always.lock().unwrap();
        match kind {
            Some(kind) => always.insert(verb, kind),
            None => always.remove(verb),
        };
    }

    /// The next call of `verb` succeeds, but its caller is told `Unavailable`.
    pub fn lose_answer(&self, verb: &'static str) {
        self.plan(verb, Disturbance::LoseAnswer);
    }

    /// The next call of `verb` waits.
    pub fn hold(&self, verb: &'static str) -> Held {
        let (tell, begun) = oneshot::channel();
        let release = Arc::new(Semaphore::new(0));
        self.plan(verb, Disturbance::Hold(tell, release.clone()));
        Held { begun, release }
    }

    /// The next call of `verb` is carried out at once, and its answer waits.
    pub fn hold_answer(&self, verb: &'static str) -> Held {
        let (tell, begun) = oneshot::channel();
        let release = Arc::new(Semaphore::new(0));
        self.plan(verb, Disturbance::HoldAnswer(tell, release.clone()));
        Held { begun, release }
    }

    /// The next claims find all that is due locked by somebody else.
    pub fn pass_over(&self, claims: u64) {
        *self.passed_over.lock().unwrap() = claims;
    }

    fn is_passed_over(&self) -> bool {
        let mut left = self.passed_over.lock().unwrap();
        let is_left = *left > 0;
        *left -= u64::from(is_left);
        is_left
    }

    pub fn calls(&self, verb: &'static str) -> u64 {
        self.calls.lock().unwrap().get(verb).copied().unwrap_or(0)
    }

    /// How many calls have ended.
    pub fn answers(&self, verb: &'static str) -> u64 {
        self.answers.lock().unwrap().get(verb).copied().unwrap_or(0)
    }

    /// Waits until nobody asks for anything any more, unless time passes. For tests with one thread.
    pub async fn left_alone(&self) {
        until("the store is left alone", || async {
            let before: u64 = self.calls.lock().unwrap().values().sum();
            all_wait().await;
            !self.is_at_work() && before == self.calls.lock().unwrap().values().sum::<u64>()
        })
        .await;
    }

    pub(super) fn is_at_work(&self) -> bool {
        Arc::strong_count(&self.at_work) > 1
    }

    fn plan(&self, verb: &'static str, disturbance: Disturbance) {
        self.plans.lock().unwrap().entry(verb).or_default().push_back(disturbance);
    }

    async fn pass<T>(&self, verb: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let _at_work = self.at_work.clone();
        let answer = self.disturb(verb, call).await;
        *self.answers.lock().unwrap().entry(verb).or_default() += 1;
        answer
    }

    async fn disturb<T>(&self, verb: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        *self.calls.lock().unwrap().entry(verb).or_default() += 1;
        let failed = |kind| Error::new(kind, format!("{verb} was disturbed"), "");
        if let Some(kind) = self.always.lock().unwrap().get(verb) {
            return Err(failed(*kind));
        }
        let plan = self.plans.lock().unwrap().get_mut(verb).and_then(VecDeque::pop_front);
        match plan {
            None => call.await,
            Some(Disturbance::Fail(kind)) => Err(failed(kind)),
            Some(Disturbance::LoseAnswer) => {
                call.await?;
                Err(failed(Kind::Unavailable))
            }
            Some(Disturbance::Hold(begun, release)) => {
                begun.send(()).ok();
                release.acquire().await.unwrap().forget();
                call.await
            }
            Some(Disturbance::HoldAnswer(begun, release)) => {
                let answer = call.await;
                begun.send(()).ok();
                release.acquire().await.unwrap().forget();
                answer
            }
        }
    }
}

#[async_trait]
impl Store for Disturbed {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        self.pass("put_topic", self.inner.put_topic(put)).await
    }
    async fn topics(&self) -> Result<Vec<Topic>> {
        self.pass("topics", self.inner.topics()).await
    }
    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>> {
        self.pass("topic_totals", self.inner.topic_totals()).await
    }
    async fn delete_topic(&self, name: &str) -> Result<()> {
        self.pass("delete_topic", self.inner.delete_topic(name)).await
    }
    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        self.pass("put_subscription", self.inner.put_subscription(put)).await
    }
    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.pass("subscriptions", self.inner.subscriptions()).await
    }
    async fn delete_subscription(&self, name: &str) -> Result<()> {
        self.pass("delete_subscription", self.inner.delete_subscription(name)).await
    }
    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        self.pass("backfill", self.inner.backfill(subscription)).await
    }
    async fn set_rule(&self, set: SetRule) -> Result<()> {
        self.pass("set_rule", self.inner.set_rule(set)).await
    }
    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        self.pass("set_pattern_rule", self.inner.set_pattern_rule(set)).await
    }
    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>> {
        self.pass("remove_pattern_rule", self.inner.remove_pattern_rule(remove)).await
    }
    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>> {
        self.pass("pattern_rules", self.inner.pattern_rules(now)).await
    }
    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        self.pass("audit", self.inner.audit(subscription, limit)).await
    }
    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        self.pass("emit", self.inner.emit(emit)).await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        if self.is_passed_over() {
            return Ok(Claimed { passed_over: true, ..Claimed::default() });
        }
        self.pass("claim", self.inner.claim(claim)).await
    }
    fn claims_together(&self, subscription: SubscriptionId) -> bool {
        self.inner.claims_together(subscription)
    }
    async fn claim_together(&self, claims: Vec<Claim>) -> Result<Vec<Result<Option<Claimed>>>> {
        self.pass("claim", self.inner.claim_together(claims)).await
    }
    /// Every claim is one that can be disturbed.
    fn stand(&self, _: Claim) -> Option<Standing> {
        None
    }
    async fn settle(&self, settle: Settle) -> Result<Settled> {
        self.pass("settle", self.inner.settle(settle)).await
    }
    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        self.pass("extend", self.inner.extend(extend)).await
    }
    async fn release(&self, release: Release) -> Result<u64> {
        self.pass("release", self.inner.release(release)).await
    }
    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        self.pass("adopt", self.inner.adopt(adopt)).await
    }
    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        self.pass("stats", self.inner.stats(subscription, now)).await
    }
    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        self.pass("event", self.inner.event(find)).await
    }
    async fn trace(&self, trace: Trace) -> Result<Traced> {
        self.pass("trace", self.inner.trace(trace)).await
    }
    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        self.pass("head", self.inner.head(topic, key)).await
    }
    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        self.pass("read_log", self.inner.read_log(read)).await
    }
    async fn log_end(&self, topic: &str) -> Result<EventId> {
        self.pass("log_end", self.inner.log_end(topic)).await
    }
    async fn dead(&self, list: ListDead) -> Result<DeadPage> {
        self.pass("dead", self.inner.dead(list)).await
    }
    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        self.pass("parked", self.inner.parked(page)).await
    }
    async fn revive(&self, revive: Revive) -> Result<Revived> {
        self.pass("revive", self.inner.revive(revive)).await
    }
    async fn resend(&self, resend: Resend) -> Result<u64> {
        self.pass("resend", self.inner.resend(resend)).await
    }
    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        self.pass("cancel", self.inner.cancel(cancel)).await
    }
    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        self.pass("push_board", self.inner.push_board(now)).await
    }
    async fn gather(&self, gather: Gather) -> Result<Gathered> {
        self.pass("gather", self.inner.gather(gather)).await
    }
    async fn record_push(&self, record: RecordPush) -> Result<Recorded> {
        self.pass("record_push", self.inner.record_push(record)).await
    }
    async fn steer_push(&self, steer: SteerPush) -> Result<tramline::Health> {
        self.pass("steer_push", self.inner.steer_push(steer)).await
    }
    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>> {
        self.pass("attempts", self.inner.attempts(list)).await
    }
    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        self.pass("release_parked", self.inner.release_parked(release)).await
    }
    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally> {
        self.pass("open_tally", self.inner.open_tally(open)).await
    }
    async fn add_items(&self, add: AddItems) -> Result<Added> {
        self.pass("add_items", self.inner.add_items(add)).await
    }
    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally> {
        self.pass("seal_tally", self.inner.seal_tally(seal)).await
    }
    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems> {
        self.pass("ack_items", self.inner.ack_items(ack)).await
    }
    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>> {
        self.pass("count_tallies", self.inner.count_tallies(count)).await
    }
    async fn tally(&self, find: NameTally) -> Result<Option<Tally>> {
        self.pass("tally", self.inner.tally(find)).await
    }
    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>> {
        self.pass("tallies", self.inner.tallies(list)).await
    }
    async fn tally_counts(&self) -> Result<TallyCounts> {
        self.pass("tally_counts", self.inner.tally_counts()).await
    }
    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally> {
        self.pass("cancel_tally", self.inner.cancel_tally(cancel)).await
    }
    async fn delete_tally(&self, delete: NameTally) -> Result<()> {
        self.pass("delete_tally", self.inner.delete_tally(delete)).await
    }
    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies> {
        self.pass("reap_tallies", self.inner.reap_tallies(reap)).await
    }
    async fn deliver(&self, deliver: Deliver) -> Result<Delivered> {
        self.pass("deliver", self.inner.deliver(deliver)).await
    }
    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies> {
        self.pass("sweep_tallies", self.inner.sweep_tallies(sweep)).await
    }
    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        self.pass("put_schedule", self.inner.put_schedule(put)).await
    }
    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>> {
        self.pass("declare_schedules", self.inner.declare_schedules(declare)).await
    }
    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>> {
        self.pass("schedules", self.inner.schedules(list)).await
    }
    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>> {
        self.pass("schedule", self.inner.schedule(name)).await
    }
    async fn delete_schedule(&self, name: &str) -> Result<()> {
        self.pass("delete_schedule", self.inner.delete_schedule(name)).await
    }
    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule> {
        self.pass("pause_schedule", self.inner.pause_schedule(pause)).await
    }
    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission> {
        self.pass("run_schedule", self.inner.run_schedule(run)).await
    }
    async fn tick(&self, tick: Tick) -> Result<Ticked> {
        self.pass("tick", self.inner.tick(tick)).await
    }
    async fn put_token(&self, put: PutToken) -> Result<Token> {
        self.pass("put_token", self.inner.put_token(put)).await
    }
    async fn tokens(&self) -> Result<Vec<Token>> {
        self.pass("tokens", self.inner.tokens()).await
    }
    async fn delete_token(&self, name: &str) -> Result<()> {
        self.pass("delete_token", self.inner.delete_token(name)).await
    }
    async fn seal_token(&self, seal: SealToken) -> Result<bool> {
        self.pass("seal_token", self.inner.seal_token(seal)).await
    }
    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        self.pass("touch_tokens", self.inner.touch_tokens(uses)).await
    }
    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        self.pass("beat", self.inner.beat(beat)).await
    }
    async fn workers(&self) -> Result<Vec<Worker>> {
        self.pass("workers", self.inner.workers()).await
    }
    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        self.pass("see_remote", self.inner.see_remote(see)).await
    }
    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        self.pass("remote_workers", self.inner.remote_workers(now)).await
    }
    async fn bury(&self, bury: Bury) -> Result<Buried> {
        self.pass("bury", self.inner.bury(bury)).await
    }
    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        self.pass("sweep", self.inner.sweep(sweep)).await
    }
    async fn size(&self) -> Result<StoreSize> {
        self.pass("size", self.inner.size()).await
    }
    async fn shed(&self, shed: Shed) -> Result<Shedded> {
        self.pass("shed", self.inner.shed(shed)).await
    }
    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        self.pass("drops", self.inner.drops(list)).await
    }
    async fn drop_totals(&self) -> Result<Vec<DropTotal>> {
        self.pass("drop_totals", self.inner.drop_totals()).await
    }
    async fn now(&self) -> Result<Time> {
        self.pass("now", self.inner.now()).await
    }
    async fn probe(&self) -> Result<()> {
        self.pass("probe", self.inner.probe()).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

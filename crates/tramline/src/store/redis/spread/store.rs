//! The verbs: at home, at one site, or at all that a subscription has.

use super::copies::{mark, mark_those_of, put_join, remove_join};
use super::sites::abandon;
use super::{SpreadStore, check_spread};
use crate::error::Result;
use crate::model::dropped::DropRecord;
use crate::model::health::Health;
use crate::model::id::{EventId, SubscriptionId, TopicId};
use crate::model::rule::{AuditEntry, PatternRule};
use crate::model::schedule::StoredSchedule;
use crate::model::subscription::{Subscription, Topic};
use crate::model::tally::{Added, Tally};
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::Store;
use crate::store::catalog::touched;
use crate::store::claimed::each_alone;
use crate::store::redis::session::Session;
use crate::store::redis::{RedisStore, catalog, rules};
use crate::store::standing::Standing;
use crate::store::verbs::*;
use crate::store::verbs_tally::*;
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::Arc;

#[async_trait]
impl Store for SpreadStore {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        if self.catalog().await?.topic(&put.name).is_none() {
            self.create_topic(&put.name, &put.settings, put.now).await?;
        }
        let step = |session: &Session<'_>| {
            session.catalog().require_topic(&put.name)?;
            let topic = catalog::put_topic(session, &put)?;
            mark(session, [topic.id])?;
            Ok(topic)
        };
        let topic = self.home.write(put.now, step).await?;
        self.bring_up(topic.id).await?;
        Ok(topic)
    }

    async fn topics(&self) -> Result<Vec<Topic>> {
        self.home.topics().await
    }

    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>> {
        self.totals_of_all().await
    }

    async fn delete_topic(&self, name: &str) -> Result<()> {
        let step = |session: &Session<'_>| {
            let id = session.catalog().require_topic(name)?.id;
            catalog::delete_topic(session, name)?;
            abandon(session, id, name)?;
            Ok(id)
        };
        let id = self.home.write(None, step).await?;
        self.bring_up(id).await
    }

    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        put.check()?;
        check_spread(&put.topics, &put.policy)?;
        put.check_change(self.catalog().await?.subscription_named(&put.name))?;
        self.create_missing(&put.topics, put.now).await?;
        let step = |session: &Session<'_>| {
            let before = session.catalog();
            let had = before.subscription_named(&put.name).cloned();
            let topics = touched(&before, &put.name, put.topics.iter().map(String::as_str));
            let subscription = catalog::put_subscription(session, &put)?;
            let had = had.map(|had| had.topics).unwrap_or_default();
            let change = mark(session, topics.iter().copied())?;
            for topic in before.topics().iter().filter(|topic| topics.contains(&topic.id)) {
                match (had.contains(&topic.name), subscription.topics.contains(&topic.name)) {
                    (false, true) => put_join(session, subscription.id, topic.id, change, put.start),
                    (true, false) => remove_join(session, subscription.id, topic.id),
                    _ => {}
                }
            }
            Ok((subscription, topics))
        };
        let (subscription, topics) = self.home.write(put.now, step).await?;
        self.bring_all_up(topics).await?;
        Ok(subscription)
    }

    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.home.subscriptions().await
    }

    async fn delete_subscription(&self, name: &str) -> Result<()> {
        let step = |session: &Session<'_>| {
            let before = session.catalog();
            let id = before.require_subscription_named(name)?.id;
            let topics = mark_those_of(session, &[id])?;
            topics.iter().for_each(|topic| remove_join(session, id, *topic));
            catalog::delete_subscription(session, name)?;
            Ok(topics)
        };
        let topics = self.home.write(None, step).await?;
        self.bring_all_up(topics).await
    }

    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        self.backfill_all(subscription).await
    }

    async fn set_rule(&self, set: SetRule) -> Result<()> {
        let step = |session: &Session<'_>| {
            rules::set(session, &set)?;
            mark_those_of(session, &[set.subscription])
        };
        let topics = self.home.write(set.now, step).await?;
        self.bring_all_up(topics).await
    }

    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        let step = |session: &Session<'_>| {
            let rule = rules::set_by_pattern(session, &set)?;
            let catalog = session.catalog();
            let stopped: Vec<SubscriptionId> =
                catalog.subscriptions().iter().filter(|one| rule.stops(one)).map(|one| one.id).collect();
            Ok((rule, mark_those_of(session, &stopped)?))
        };
        let (rule, topics) = self.home.write(set.now, step).await?;
        self.bring_all_up(topics).await?;
        Ok(rule)
    }

    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>> {
        let step = |session: &Session<'_>| {
            let stopped = rules::remove_by_pattern(session, &remove)?;
            let topics = mark_those_of(session, &stopped)?;
            Ok((stopped, topics))
        };
        let (stopped, topics): (_, BTreeSet<TopicId>) = self.home.write(remove.now, step).await?;
        self.bring_all_up(topics).await?;
        Ok(stopped)
    }

    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>> {
        self.home.pattern_rules(now).await
    }

    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        self.home.audit(subscription, limit).await
    }

    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        Ok(self.emit_to_all(emit).await)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.claim_from_all(&claim).await
    }

    fn claims_together(&self, _: SubscriptionId) -> bool {
        false
    }

    async fn claim_together(&self, claims: Vec<Claim>) -> Result<Vec<Result<Option<Claimed>>>> {
        Ok(each_alone(&claims))
    }

    fn stand(&self, _: Claim) -> Option<Standing> {
        None
    }

    async fn settle(&self, settle: Settle) -> Result<Settled> {
        self.settle_at_all(&settle).await
    }

    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        self.extend_at_all(&extend).await
    }

    async fn release(&self, release: Release) -> Result<u64> {
        self.release_at_all(&release).await
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        self.adopt_at_all(&adopt).await
    }

    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        self.stats_of_all(subscription, now).await
    }

    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        self.event_at(find).await
    }

    async fn trace(&self, trace: Trace) -> Result<Traced> {
        self.trace_at(trace).await
    }

    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        let head = |site: Arc<RedisStore>| async move { site.head(topic, key).await };
        self.at_topic(topic, head).await
    }

    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        let log = |site: Arc<RedisStore>| {
            let read = read.clone();
            async move { site.read_log(read).await }
        };
        self.at_topic(&read.topic, log).await
    }

    async fn log_end(&self, topic: &str) -> Result<EventId> {
        let end = |site: Arc<RedisStore>| async move { site.log_end(topic).await };
        self.at_topic(topic, end).await
    }

    async fn dead(&self, list: ListDead) -> Result<DeadPage> {
        self.dead_of_all(&list).await
    }

    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        self.parked_of_all(&page).await
    }

    async fn revive(&self, revive: Revive) -> Result<Revived> {
        self.revive_step(revive).await
    }

    async fn resend(&self, resend: Resend) -> Result<u64> {
        self.resend_at_all(&resend).await
    }

    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        self.cancel_at(cancel).await
    }

    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        self.release_parked_at_all(&release).await
    }

    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        self.board(now).await
    }

    async fn gather(&self, gather: Gather) -> Result<Gathered> {
        self.gather_all(gather).await
    }

    async fn record_push(&self, record: RecordPush) -> Result<Recorded> {
        self.home.record_push(record).await
    }

    async fn steer_push(&self, steer: SteerPush) -> Result<Health> {
        self.home.steer_push(steer).await
    }

    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>> {
        self.home.attempts(list).await
    }

    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally> {
        self.home.open_tally(open).await
    }

    async fn add_items(&self, add: AddItems) -> Result<Added> {
        self.home.add_items(add).await
    }

    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally> {
        self.home.seal_tally(seal).await
    }

    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems> {
        self.home.ack_items(ack).await
    }

    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>> {
        self.home.count_tallies(count).await
    }

    async fn tally(&self, find: NameTally) -> Result<Option<Tally>> {
        self.home.tally(find).await
    }

    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>> {
        self.home.tallies(list).await
    }

    async fn tally_counts(&self) -> Result<TallyCounts> {
        self.home.tally_counts().await
    }

    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally> {
        self.home.cancel_tally(cancel).await
    }

    async fn delete_tally(&self, delete: NameTally) -> Result<()> {
        self.home.delete_tally(delete).await
    }

    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies> {
        self.home.reap_tallies(reap).await
    }

    async fn deliver(&self, deliver: Deliver) -> Result<Delivered> {
        self.deliver_to_all(deliver).await
    }

    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies> {
        self.home.sweep_tallies(sweep).await
    }

    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        self.home.put_schedule(put).await
    }

    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>> {
        self.home.declare_schedules(declare).await
    }

    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>> {
        self.home.schedules(list).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>> {
        self.home.schedule(name).await
    }

    async fn delete_schedule(&self, name: &str) -> Result<()> {
        self.home.delete_schedule(name).await
    }

    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule> {
        self.home.pause_schedule(pause).await
    }

    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission> {
        self.run_now(&run).await
    }

    async fn tick(&self, tick: Tick) -> Result<Ticked> {
        self.tick_all(tick).await
    }

    async fn put_token(&self, put: PutToken) -> Result<Token> {
        self.home.put_token(put).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.home.tokens().await
    }

    async fn delete_token(&self, name: &str) -> Result<()> {
        self.home.delete_token(name).await
    }

    async fn seal_token(&self, seal: SealToken) -> Result<bool> {
        self.home.seal_token(seal).await
    }

    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        self.home.touch_tokens(uses).await
    }

    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        self.beat_at_home(&beat).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.home.workers().await
    }

    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        self.home.see_remote(see).await
    }

    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        self.home.remote_workers(now).await
    }

    async fn bury(&self, bury: Bury) -> Result<Buried> {
        self.bury_at_all(&bury).await
    }

    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        self.sweep_some(&sweep).await
    }

    async fn size(&self) -> Result<StoreSize> {
        self.size_of_all().await
    }

    async fn shed(&self, shed: Shed) -> Result<Shedded> {
        self.shed_some(shed).await
    }

    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        self.drops_of_all(list).await
    }

    async fn drop_totals(&self) -> Result<Vec<DropTotal>> {
        self.drop_totals_of_all().await
    }

    async fn now(&self) -> Result<Time> {
        self.home.now().await
    }

    async fn probe(&self) -> Result<()> {
        self.home.probe().await
    }

    async fn close(&self) {
        self.home.close().await;
    }
}

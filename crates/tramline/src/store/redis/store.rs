//! The verbs: each is one step, or a few.

use super::session::Session;
use super::{
    RedisStore, catalog, claim, drops, look, mend, push, remote, rules, schedule, shed, sweep, tally, token,
};
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
use crate::store::claimed::{RawClaim, each_alone};
use crate::store::deleted::InTheWay;
use crate::store::standing::Standing;
use crate::store::verbs::*;
use crate::store::verbs_tally::*;
use async_trait::async_trait;
use std::sync::Arc;

/// How many steps a claim takes before it has found something to take.
const CLAIM_STEPS: u32 = 64;

#[async_trait]
impl Store for RedisStore {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        self.write(put.now, |session: &Session<'_>| catalog::put_topic(session, &put)).await
    }

    async fn topics(&self) -> Result<Vec<Topic>> {
        self.read(None, |session: &Session<'_>| Ok(session.catalog().topics().to_vec())).await
    }

    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>> {
        self.read(None, |session: &Session<'_>| look::topic_totals(session)).await
    }

    async fn delete_topic(&self, name: &str) -> Result<()> {
        self.clear(InTheWay::LeftOf(name.into())).await?;
        let name = name.to_owned();
        self.write(None, |session: &Session<'_>| catalog::delete_topic(session, &name)).await
    }

    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        let left = InTheWay::LeftBy(put.name.as_str().into());
        self.clear(left.clone()).await?;
        let step = |session: &Session<'_>| catalog::put_subscription(session, &put);
        let subscription = self.write(put.now, step).await?;
        // Without order nothing but this keeps claims from what it has left.
        self.clear(left).await?;
        Ok(subscription)
    }

    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.read(None, |session: &Session<'_>| Ok(session.catalog().subscriptions().to_vec())).await
    }

    async fn delete_subscription(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(None, |session: &Session<'_>| catalog::delete_subscription(session, &name)).await
    }

    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        self.write(None, |session: &Session<'_>| sweep::backfill(session, subscription)).await
    }

    async fn set_rule(&self, set: SetRule) -> Result<()> {
        self.write(set.now, |session: &Session<'_>| rules::set(session, &set)).await
    }

    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        self.write(set.now, |session: &Session<'_>| rules::set_by_pattern(session, &set)).await
    }

    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>> {
        self.write(remove.now, |session: &Session<'_>| rules::remove_by_pattern(session, &remove)).await
    }

    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>> {
        self.read(now, rules::by_pattern).await
    }

    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        self.read(None, |session: &Session<'_>| rules::audit(session, subscription, limit)).await
    }

    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        self.emit_in_parts(emit).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        if let Some((raw, catalog)) = self.claim_at_once(&claim).await? {
            return raw.decode(&catalog);
        }
        let take =
            |session: &Session<'_>| Ok((claim::claim(session, &claim)?, session.now, session.catalog()));
        let (mut steps, mut news) = (0, Vec::new());
        let (mut raw, catalog) = loop {
            let ((raw, some), now, catalog) = self.write(claim.now, take).await?;
            steps += 1;
            news.extend(some);
            match raw {
                Some(raw) => break (raw, catalog),
                // The caller comes again.
                None if steps == CLAIM_STEPS => {
                    break (RawClaim { now, next_due: Some(now), ..RawClaim::default() }, catalog);
                }
                None => {}
            }
        };
        raw.news = news;
        if raw.stopped_by.is_none() && !raw.backfilling {
            self.at_once.is_filled(claim.subscription, catalog.version);
        }
        self.at_once.remember_slices(&raw.slices);
        raw.decode(&catalog)
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
        self.settle_in_parts(&settle).await
    }

    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        self.extend_in_parts(&extend).await
    }

    async fn release(&self, release: Release) -> Result<u64> {
        self.release_in_parts(&release).await
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        self.adopt_in_parts(&adopt).await
    }

    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        let mut sum: Option<Stats> = None;
        let mut from = Vec::new();
        loop {
            let some =
                self.read(now, |session: &Session<'_>| look::stats(session, subscription, &from)).await?;
            let stats = match sum {
                None => some.stats,
                Some(sum) => look::plus(sum, some.stats),
            };
            match some.next {
                None => return Ok(stats),
                Some(next) => from = next,
            }
            sum = Some(stats);
        }
    }

    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        self.read(find.now, |session: &Session<'_>| look::event(session, find.id)).await
    }

    async fn trace(&self, trace: Trace) -> Result<Traced> {
        self.read(None, |session: &Session<'_>| look::trace(session, &trace)).await
    }

    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        let (topic, key) = (topic.to_owned(), key.to_owned());
        self.read(None, |session: &Session<'_>| look::head(session, &topic, &key)).await
    }

    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        self.read(None, |session: &Session<'_>| look::read_log(session, &read)).await
    }

    async fn log_end(&self, topic: &str) -> Result<EventId> {
        let topic = topic.to_owned();
        self.read(None, |session: &Session<'_>| look::log_end(session, &topic)).await
    }

    async fn dead(&self, list: ListDead) -> Result<DeadPage> {
        self.read(list.page.now, |session: &Session<'_>| look::dead(session, &list)).await
    }

    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        self.read(page.now, |session: &Session<'_>| look::parked(session, &page)).await
    }

    async fn revive(&self, revive: Revive) -> Result<Revived> {
        self.write(revive.now, |session: &Session<'_>| mend::revive(session, &revive)).await
    }

    async fn resend(&self, resend: Resend) -> Result<u64> {
        self.resend_in_parts(&resend).await
    }

    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        self.write(cancel.now, |session: &Session<'_>| mend::cancel(session, &cancel)).await
    }

    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        self.release_parked_in_parts(&release).await
    }

    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        self.read(now, push::board).await
    }

    async fn gather(&self, gather: Gather) -> Result<Gathered> {
        self.read(gather.now, |session: &Session<'_>| push::gather(session, &gather)).await
    }

    async fn record_push(&self, record: RecordPush) -> Result<Recorded> {
        self.write(record.now, |session: &Session<'_>| push::record(session, &record)).await
    }

    async fn steer_push(&self, steer: SteerPush) -> Result<Health> {
        self.write(steer.now, |session: &Session<'_>| push::steer(session, &steer)).await
    }

    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>> {
        self.read(None, |session: &Session<'_>| push::attempts(session, &list)).await
    }

    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally> {
        self.add(open.now, |session: &Session<'_>| tally::open(session, &open.tally)).await
    }

    async fn add_items(&self, add: AddItems) -> Result<Added> {
        self.add(add.now, |session: &Session<'_>| tally::add(session, add)).await
    }

    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally> {
        self.write(seal.now, |session: &Session<'_>| tally::seal(session, seal)).await
    }

    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems> {
        self.write(ack.now, |session: &Session<'_>| tally::ack::ack(session, &ack)).await
    }

    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>> {
        let each = |session: &Session<'_>| {
            Ok(count.counts.iter().map(|(id, by)| tally::count(session, *id, *by)).collect())
        };
        self.write(count.now, each).await
    }

    async fn tally(&self, find: NameTally) -> Result<Option<Tally>> {
        self.write(find.now, |session: &Session<'_>| tally::get(session, find.tally)).await
    }

    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>> {
        let found = self.read(list.now, |session: &Session<'_>| tally::find(session, &list)).await?;
        let mut tallies = Vec::with_capacity(found.len());
        for some in found.chunks(tally::VIEWS) {
            let views = |session: &Session<'_>| tally::views(session, some, &list);
            tallies.extend(self.write(list.now, views).await?);
        }
        Ok(tallies)
    }

    async fn tally_counts(&self) -> Result<TallyCounts> {
        self.read(None, |session: &Session<'_>| tally::counts(session)).await
    }

    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally> {
        self.write(cancel.now, |session: &Session<'_>| tally::cancel(session, cancel.tally)).await
    }

    async fn delete_tally(&self, delete: NameTally) -> Result<()> {
        self.write(delete.now, |session: &Session<'_>| tally::delete(session, delete.tally)).await
    }

    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies> {
        self.write(reap.now, |session: &Session<'_>| tally::sweep::reap(session, &reap)).await
    }

    async fn deliver(&self, deliver: Deliver) -> Result<Delivered> {
        let send = |session: &Session<'_>| tally::deliver::deliver(session, deliver);
        self.write(deliver.now, send).await
    }

    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies> {
        self.sweep_tallies_in_steps(sweep).await
    }

    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        self.write(put.now, |session: &Session<'_>| schedule::put(session, &put)).await
    }

    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>> {
        self.write(declare.now, |session: &Session<'_>| schedule::declare(session, &declare)).await
    }

    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>> {
        self.read(None, |session: &Session<'_>| schedule::list(session, &list)).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>> {
        let name = name.to_owned();
        self.read(None, |session: &Session<'_>| schedule::get(session, &name)).await
    }

    async fn delete_schedule(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(None, |session: &Session<'_>| schedule::delete(session, &name)).await
    }

    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule> {
        let step = |session: &Session<'_>| schedule::pause(session, &pause.name, pause.paused);
        self.write(pause.now, step).await
    }

    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission> {
        let step = |session: &Session<'_>| schedule::run(session, &run.name);
        self.add(run.now, step).await
    }

    async fn tick(&self, tick: Tick) -> Result<Ticked> {
        // Most ticks find nothing: those wait for no writer.
        let look = |session: &Session<'_>| Ok((schedule::next(session)?, session.now));
        let (next, now) = self.read(tick.now, look).await?;
        if next.is_none_or(|next| next > now.0) {
            return Ok(Ticked { next: next.map(Time), now, ..Ticked::default() });
        }
        let step = |session: &Session<'_>| schedule::tick(session, tick);
        self.add(tick.now, step).await
    }

    async fn put_token(&self, put: PutToken) -> Result<Token> {
        self.write(put.now, |session: &Session<'_>| token::put(session, &put.token)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read(None, |session: &Session<'_>| token::all(session)).await
    }

    async fn delete_token(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(None, |session: &Session<'_>| token::delete(session, &name)).await
    }

    async fn seal_token(&self, seal: SealToken) -> Result<bool> {
        self.write(None, |session: &Session<'_>| token::seal(session, &seal)).await
    }

    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        self.write(None, |session: &Session<'_>| token::touch(session, &uses)).await
    }

    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        self.beat_once(&beat).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.read(None, |session: &Session<'_>| look::workers(session)).await
    }

    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        self.write(see.now, |session: &Session<'_>| remote::see(session, &see)).await
    }

    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        self.read(now, remote::all).await
    }

    async fn bury(&self, bury: Bury) -> Result<Buried> {
        self.bury_silent(&bury).await
    }

    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        self.sweep_all(&sweep).await
    }

    async fn size(&self) -> Result<StoreSize> {
        self.read(None, shed::size).await
    }

    async fn shed(&self, shed: Shed) -> Result<Shedded> {
        self.shed_in_scripts(shed).await
    }

    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        self.read(None, |session: &Session<'_>| drops::list(session, &list)).await
    }

    async fn drop_totals(&self) -> Result<Vec<DropTotal>> {
        self.read(None, |session: &Session<'_>| drops::totals(session)).await
    }

    async fn now(&self) -> Result<Time> {
        self.read(None, |session: &Session<'_>| Ok(session.now)).await
    }

    async fn probe(&self) -> Result<()> {
        self.write(None, |session: &Session<'_>| {
            session.sum(session.key("meta"), "probe", 1);
            Ok(())
        })
        .await
    }

    async fn close(&self) {
        // Everything acknowledged is stored; the connection ends with the last handle.
    }
}

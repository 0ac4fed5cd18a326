//! The verbs: each is one step, or a few.

use super::session::Begin;
use super::step::{Tries, step};
use super::{
    MysqlStore, catalog, drops, look, push, remote, rules, schedule, settle, shed, sweep, tally, token,
};
use crate::error::Result;
use crate::model::dropped::DropRecord;
use crate::model::health::Health;
use crate::model::id::{ChunkId, EventId, SubscriptionId, TopicId};
use crate::model::rule::{AuditEntry, PatternRule};
use crate::model::schedule::StoredSchedule;
use crate::model::subscription::{Subscription, Topic};
use crate::model::tally::{Added, Tally};
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::Store;
use crate::store::catalog::{Catalog, as_wanted, touched};
use crate::store::claimed::each_alone;
use crate::store::deleted::InTheWay;
use crate::store::driver::closed;
use crate::store::mend;
use crate::store::standing::Standing;
use crate::store::verbs::*;
use crate::store::verbs_tally::*;
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::Arc;

#[async_trait]
impl Store for MysqlStore {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        let topics = |_: &Catalog| BTreeSet::new();
        step!(self, Tries::patient(), |conn| self.changing(conn, put.now, topics), |session| {
            catalog::put_topic(session, &put)
        })
    }

    async fn topics(&self) -> Result<Vec<Topic>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| async {
            Ok(session.catalog.topics().to_vec())
        })
    }

    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| look::topic_totals(session))
    }

    async fn delete_topic(&self, name: &str) -> Result<()> {
        self.clear(InTheWay::LeftOf(name.into())).await?;
        let topics = |catalog: &Catalog| catalog.topic(name).map(|topic| topic.id).into_iter().collect();
        step!(self, Tries::patient(), |conn| self.changing(conn, None, topics), |session| {
            catalog::delete_topic(session, name)
        })
    }

    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        put.check()?;
        let left = InTheWay::LeftBy(put.name.as_str().into());
        self.clear(left.clone()).await?;
        let known = step!(
            self,
            Tries::few(),
            |conn| self.session(conn, &Begin::reading(put.now)),
            |session| async { Ok(as_wanted(&session.catalog, &put)) }
        )?;
        if let Some(subscription) = known {
            return Ok(subscription);
        }
        for name in &put.topics {
            crate::model::name::check("topic", name)?;
        }
        let names = || put.topics.iter().map(String::as_str);
        self.create_topics(names()).await?;
        let topics = |catalog: &Catalog| touched(catalog, &put.name, names());
        let subscription =
            step!(self, Tries::patient(), |conn| self.changing(conn, put.now, topics), |session| {
                catalog::put_subscription(session, &put)
            })?;
        // Without order nothing but this keeps claims from what it has left.
        self.clear(left).await?;
        Ok(subscription)
    }

    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| async {
            Ok(session.catalog.subscriptions().to_vec())
        })
    }

    async fn delete_subscription(&self, name: &str) -> Result<()> {
        let topics = |catalog: &Catalog| touched(catalog, name, std::iter::empty());
        step!(self, Tries::patient(), |conn| self.changing(conn, None, topics), |session| {
            catalog::delete_subscription(session, name)
        })
    }

    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        let begin = Begin::writing(None, subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| sweep::backfill(
            session,
            subscription
        ))
    }

    async fn set_rule(&self, set: SetRule) -> Result<()> {
        let begin = Begin::writing(set.now, set.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| rules::set(session, &set))?;
        self.outlast_claims(set.stopped()).await
    }

    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        let begin = Begin::reading(set.now);
        let (rule, stopped) = step!(self, Tries::patient(), |conn| self.session(conn, &begin), |session| {
            rules::set_by_pattern(session, &set)
        })?;
        self.outlast_claims(&stopped).await?;
        Ok(rule)
    }

    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>> {
        let begin = Begin::reading(remove.now);
        step!(self, Tries::patient(), |conn| self.session(conn, &begin), |session| rules::remove_by_pattern(
            session, &remove
        ))
    }

    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>> {
        let begin = Begin::reading(now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| rules::by_pattern(session))
    }

    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
            rules::audit(session, subscription, limit)
        })
    }

    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        let answers = self.emit_units(emit).await?;
        // What is repeated may be somebody else's, of which nobody here was told.
        let own = answers.iter().flatten().filter(|emission| !emission.repeated);
        // Nor is a duplicate an event of this emit.
        let events = own.flat_map(|emission| &emission.events).filter(|event| !event.duplicate);
        let chunks: BTreeSet<ChunkId> = events.map(|event| event.id.chunk()).collect();
        self.common.remember_own(chunks.into_iter());
        Ok(answers)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let (raw, catalog) = self.claim_raw(&claim).await?;
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
        let begin = Begin::writing(settle.now, settle.subscription);
        let asked = settle::Asked::by(&settle);
        step!(self, Tries::few(), |conn| self.asking(conn, &begin, asked.statements()), |session| {
            settle::settle(session, &settle, &asked)
        })
    }

    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        let begin = Begin::writing(extend.now, extend.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| settle::extend(
            session, &extend
        ))
    }

    async fn release(&self, release: Release) -> Result<u64> {
        let begin = Begin::writing(release.now, release.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| settle::release(
            session, &release
        ))
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        let begin = Begin::writing(adopt.now, adopt.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| mend::adopt(session, &adopt))
    }

    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(now)), |session| look::stats(
            session,
            subscription
        ))
    }

    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        step!(
            self,
            Tries::few(),
            |conn| self.session(conn, &Begin::reading(find.now)),
            |session| look::event(session, find.id)
        )
    }

    async fn trace(&self, trace: Trace) -> Result<Traced> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| look::trace(
            session, &trace
        ))
    }

    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| look::head(
            session, topic, key
        ))
    }

    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        self.read_page(&read).await
    }

    async fn log_end(&self, topic: &str) -> Result<EventId> {
        self.find_log_end(topic).await
    }

    async fn dead(&self, list: ListDead) -> Result<DeadPage> {
        let now = list.page.now;
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(now)), |session| look::dead(
            session, &list
        ))
    }

    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(page.now)), |session| {
            look::parked(session, &page)
        })
    }

    async fn revive(&self, revive: Revive) -> Result<Revived> {
        let begin = Begin::writing(revive.now, revive.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| mend::revive(session, &revive))
    }

    async fn resend(&self, resend: Resend) -> Result<u64> {
        let begin = Begin::writing(resend.now, resend.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| mend::resend(session, &resend))
    }

    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(cancel.now)), |session| {
            mend::cancel(session, &cancel)
        })
    }

    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        let begin = Begin::writing(release.now, release.subscription);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| mend::release_parked(
            session, &release
        ))
    }

    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        step!(self, Tries::few(), |conn| self.looking(conn, now, push::board_reads), |session| {
            push::board(session)
        })
    }

    async fn gather(&self, gather: Gather) -> Result<Gathered> {
        let reads = |catalog: &Catalog| push::gather_reads(catalog, &gather);
        step!(self, Tries::few(), |conn| self.looking(conn, gather.now, reads), |session| {
            push::gather(session, &gather)
        })
    }

    async fn record_push(&self, record: RecordPush) -> Result<Recorded> {
        let begin = Begin::writing(record.now, record.subscription);
        let reads = || push::standing_reads(record.subscription);
        step!(self, Tries::few(), |conn| self.asking(conn, &begin, reads()), |session| {
            push::record(session, &record)
        })
    }

    async fn steer_push(&self, steer: SteerPush) -> Result<Health> {
        let begin = Begin::writing(steer.now, steer.subscription);
        let reads = || push::standing_reads(steer.subscription);
        step!(self, Tries::few(), |conn| self.asking(conn, &begin, reads()), |session| {
            push::steer(session, &steer)
        })
    }

    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| push::attempts(session, &list))
    }

    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally> {
        let begin = Begin::reading(open.now);
        step!(self, Tries::patient(), |conn| self.session(conn, &begin), |session| tally::open(
            session,
            &open.tally
        ))
    }

    async fn add_items(&self, add: AddItems) -> Result<Added> {
        let begin = Begin::reading(add.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::add(session, add))
    }

    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally> {
        let begin = Begin::reading(seal.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::seal(session, seal))
    }

    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems> {
        let begin = Begin::reading(ack.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::ack::ack(session, &ack))
    }

    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>> {
        let begin = Begin::reading(count.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::count(session, &count))
    }

    async fn tally(&self, find: NameTally) -> Result<Option<Tally>> {
        let begin = Begin::reading(find.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::get(
            session, find.tally
        ))
    }

    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>> {
        let begin = Begin::reading(list.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::list(session, &list))
    }

    async fn tally_counts(&self) -> Result<TallyCounts> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| tally::counts(
            session
        ))
    }

    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally> {
        let begin = Begin::reading(cancel.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::cancel(
            session,
            cancel.tally
        ))
    }

    async fn delete_tally(&self, delete: NameTally) -> Result<()> {
        let begin = Begin::reading(delete.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::delete(
            session,
            delete.tally
        ))
    }

    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies> {
        let begin = Begin::reading(reap.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::sweep::reap(
            session, &reap
        ))
    }

    async fn deliver(&self, deliver: Deliver) -> Result<Delivered> {
        self.deliver_news(deliver).await
    }

    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies> {
        let begin = Begin::reading(sweep.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| tally::sweep::sweep(
            session, sweep
        ))
    }

    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        let begin = Begin::reading(put.now);
        step!(self, Tries::patient(), |conn| self.session(conn, &begin), |session| schedule::put(
            session, &put
        ))
    }

    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>> {
        let begin = Begin::reading(declare.now);
        step!(self, Tries::patient(), |conn| self.session(conn, &begin), |session| {
            schedule::declare(session, &declare)
        })
    }

    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| schedule::list(session, &list))
    }

    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| schedule::get(session, name))
    }

    async fn delete_schedule(&self, name: &str) -> Result<()> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| schedule::delete(
            session, name
        ))
    }

    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule> {
        let begin = Begin::reading(pause.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| {
            schedule::pause_one(session, &pause.name, pause.paused)
        })
    }

    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission> {
        self.run_asked(run).await
    }

    async fn tick(&self, tick: Tick) -> Result<Ticked> {
        self.tick_schedules(tick).await
    }

    async fn put_token(&self, put: PutToken) -> Result<Token> {
        let begin = Begin::reading(put.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| token::put(
            session, &put.token
        ))
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| token::all(
            session
        ))
    }

    async fn delete_token(&self, name: &str) -> Result<()> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| token::delete(
            session, name
        ))
    }

    async fn seal_token(&self, seal: SealToken) -> Result<bool> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| token::seal(
            session, &seal
        ))
    }

    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| async {
            token::touch(session, &uses);
            Ok(())
        })
    }

    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        let begin = Begin::reading(beat.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| sweep::beat(session, &beat))
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| look::workers(
            session
        ))
    }

    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        let begin = Begin::reading(see.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| async {
            remote::see(session, &see);
            Ok(())
        })
    }

    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(now)), |session| remote::all(
            session
        ))
    }

    async fn bury(&self, bury: Bury) -> Result<Buried> {
        let begin = Begin::reading(bury.now);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| sweep::bury_silent(
            session, &bury
        ))
    }

    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        self.sweep_all(&sweep).await
    }

    async fn size(&self) -> Result<StoreSize> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| shed::size(session))
    }

    async fn shed(&self, shed: Shed) -> Result<Shedded> {
        self.make_room(&shed).await
    }

    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| drops::list_records(
            session, &list
        ))
    }

    async fn drop_totals(&self) -> Result<Vec<DropTotal>> {
        let begin = Begin::reading(None);
        step!(self, Tries::few(), |conn| self.session(conn, &begin), |session| drops::totals(session))
    }

    async fn now(&self) -> Result<Time> {
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::reading(None)), |session| async {
            Ok(session.now)
        })
    }

    /// A row of its own, written and synced like the changes of any transaction.
    async fn probe(&self) -> Result<()> {
        let sql = "INSERT INTO tramline_meta VALUES ('probe', 1) ON DUPLICATE KEY UPDATE value = value + 1";
        step!(self, Tries::few(), |conn| self.session(conn, &Begin::default()), |session| async {
            session.write(sql);
            Ok(())
        })
    }

    async fn close(&self) {
        self.spares.close();
        closed(self.common.answer, self.pool.close()).await;
        closed(self.common.answer, self.own.close()).await;
    }
}

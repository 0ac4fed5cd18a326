//! The verbs: each is one step, or a few.

use super::session::{Session, store_time};
use super::writer::Durable;
use super::{
    SqliteStore, catalog, claim, drops, gather, look, mend, push, remote, rules, schedule, settle, shed,
    sweep, tally, token,
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
use crate::store::claimed::each_alone;
use crate::store::deleted::InTheWay;
use crate::store::standing::Standing;
use crate::store::verbs::*;
use crate::store::verbs_tally::*;
use async_trait::async_trait;
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;

#[async_trait]
impl Store for SqliteStore {
    async fn put_topic(&self, put: PutTopic) -> Result<Topic> {
        self.write(Durable::Yes, put.now, move |session| catalog::put_topic(session, &put)).await
    }

    async fn topics(&self) -> Result<Vec<Topic>> {
        self.read(None, |session| Ok(session.catalog.topics().to_vec())).await
    }

    async fn topic_totals(&self) -> Result<Vec<(TopicId, u64)>> {
        self.read(None, |session| look::topic_totals(session.conn)).await
    }

    async fn delete_topic(&self, name: &str) -> Result<()> {
        self.clear(InTheWay::LeftOf(name.into())).await?;
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| catalog::delete_topic(session, &name)).await
    }

    async fn put_subscription(&self, put: PutSubscription) -> Result<Subscription> {
        let left = InTheWay::LeftBy(put.name.as_str().into());
        self.clear(left.clone()).await?;
        let cache = self.cache.clone();
        let put_both = move |conn: &Connection| {
            let session = Session::new(conn, put.now, &cache)?;
            catalog::create_missing(&session, put.topics.iter().map(String::as_str))?;
            catalog::put_subscription(&Session::new(conn, put.now, &cache)?, &put)
        };
        let subscription = self.writer.run(Durable::Yes, put_both).await?;
        // Without order nothing but this keeps claims from what it has left.
        self.clear(left).await?;
        Ok(subscription)
    }

    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.read(None, |session| Ok(session.catalog.subscriptions().to_vec())).await
    }

    async fn delete_subscription(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| catalog::delete_subscription(session, &name)).await
    }

    async fn backfill(&self, subscription: SubscriptionId) -> Result<bool> {
        self.write(Durable::Yes, None, move |session| sweep::backfill(session, subscription)).await
    }

    async fn set_rule(&self, set: SetRule) -> Result<()> {
        self.write(Durable::Yes, set.now, move |session| rules::set(session, &set)).await
    }

    async fn set_pattern_rule(&self, set: SetPatternRule) -> Result<PatternRule> {
        self.write(Durable::Yes, set.now, move |session| rules::set_by_pattern(session, &set)).await
    }

    async fn remove_pattern_rule(&self, remove: RemovePatternRule) -> Result<Vec<SubscriptionId>> {
        self.write(Durable::Yes, remove.now, move |session| rules::remove_by_pattern(session, &remove)).await
    }

    async fn pattern_rules(&self, now: Option<Time>) -> Result<Vec<PatternRule>> {
        self.read(now, |session| rules::by_pattern(session.conn, session.now)).await
    }

    async fn audit(&self, subscription: SubscriptionId, limit: u32) -> Result<Vec<AuditEntry>> {
        self.read(None, move |session| rules::audit(session, subscription, limit)).await
    }

    async fn emit(&self, emit: Emit) -> Result<Vec<Result<Emission>>> {
        self.writer.emit(emit).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed> {
        let claim_now = claim.now;
        // At least once needs no sync: a claim that a power cut undoes is simply due again. What is consumed must stay so.
        let consumes = self.cache.is_at_most_once(claim.subscription);
        let durable = if consumes { Durable::Yes } else { Durable::No };
        let take = move |session: &Session<'_>| Ok((claim::claim(session, &claim)?, session.catalog.clone()));
        let (raw, catalog) = self.write(durable, claim_now, take).await?;
        if raw.missing().is_empty() {
            return raw.decode(&catalog);
        }
        let load = move |session: &Session<'_>| {
            let mut raw = raw;
            claim::load_chunks(session.conn, &mut raw)?;
            Ok(raw)
        };
        self.read(claim_now, load).await?.decode(&catalog)
    }

    fn claims_together(&self, _: SubscriptionId) -> bool {
        false
    }

    async fn claim_together(&self, claims: Vec<Claim>) -> Result<Vec<Result<Option<Claimed>>>> {
        Ok(each_alone(&claims))
    }

    fn stand(&self, claim: Claim) -> Option<Standing> {
        Some(self.writer.stand(claim))
    }

    async fn settle(&self, settle: Settle) -> Result<Settled> {
        self.write(Durable::Yes, settle.now, move |session| settle::settle(session, &settle)).await
    }

    async fn extend(&self, extend: Extend) -> Result<Vec<Extended>> {
        self.write(Durable::No, extend.now, move |session| settle::extend(session, &extend)).await
    }

    async fn release(&self, release: Release) -> Result<u64> {
        self.write(Durable::No, release.now, move |session| settle::release(session, &release)).await
    }

    async fn adopt(&self, adopt: Adopt) -> Result<Vec<EventId>> {
        self.write(Durable::Yes, adopt.now, move |session| mend::adopt(session, &adopt)).await
    }

    async fn stats(&self, subscription: SubscriptionId, now: Option<Time>) -> Result<Stats> {
        self.read(now, move |session| look::stats(session, subscription)).await
    }

    async fn event(&self, find: FindEvent) -> Result<Option<EventView>> {
        self.read(find.now, move |session| look::event(session, find.id)).await
    }

    async fn trace(&self, trace: Trace) -> Result<Traced> {
        self.read(None, move |session| look::trace(session, &trace)).await
    }

    async fn head(&self, topic: &str, key: &str) -> Result<Option<Head>> {
        let (topic, key) = (topic.to_owned(), key.to_owned());
        self.read(None, move |session| look::head(session, &topic, &key)).await
    }

    async fn read_log(&self, read: ReadLog) -> Result<LogPage> {
        self.read(None, move |session| look::read_log(session, &read)).await
    }

    async fn log_end(&self, topic: &str) -> Result<EventId> {
        let topic = topic.to_owned();
        self.read(None, move |session| look::log_end(session, &topic)).await
    }

    async fn dead(&self, list: ListDead) -> Result<DeadPage> {
        self.read(list.page.now, move |session| look::dead(session, &list)).await
    }

    async fn parked(&self, page: Page) -> Result<Vec<ParkedKey>> {
        self.read(page.now, move |session| look::parked(session, &page)).await
    }

    async fn revive(&self, revive: Revive) -> Result<Revived> {
        self.write(Durable::Yes, revive.now, move |session| mend::revive(session, &revive)).await
    }

    async fn resend(&self, resend: Resend) -> Result<u64> {
        self.write(Durable::Yes, resend.now, move |session| mend::resend(session, &resend)).await
    }

    async fn cancel(&self, cancel: Cancel) -> Result<Vec<Arc<str>>> {
        self.write(Durable::Yes, cancel.now, move |session| mend::cancel(session, &cancel)).await
    }

    async fn release_parked(&self, release: ReleaseParked) -> Result<u64> {
        self.write(Durable::Yes, release.now, move |session| mend::release_parked(session, &release)).await
    }

    async fn push_board(&self, now: Option<Time>) -> Result<Vec<PushEntry>> {
        self.read(now, push::board).await
    }

    async fn gather(&self, gather: Gather) -> Result<Gathered> {
        self.read(gather.now, move |session| push::gather(session, &gather)).await
    }

    async fn record_push(&self, record: RecordPush) -> Result<Recorded> {
        self.write(Durable::No, record.now, move |session| push::record(session, &record)).await
    }

    async fn steer_push(&self, steer: SteerPush) -> Result<Health> {
        self.write(Durable::Yes, steer.now, move |session| push::steer(session, &steer)).await
    }

    async fn attempts(&self, list: ListAttempts) -> Result<Vec<NumberedAttempt>> {
        self.read(None, move |session| push::attempts(session, &list)).await
    }

    async fn open_tally(&self, open: OpenTally) -> Result<OpenedTally> {
        self.write(Durable::Yes, open.now, move |session| tally::open(session, &open.tally)).await
    }

    async fn add_items(&self, add: AddItems) -> Result<Added> {
        self.write(Durable::Yes, add.now, move |session| tally::add(session, add)).await
    }

    async fn seal_tally(&self, seal: SealTally) -> Result<SealedTally> {
        self.write(Durable::Yes, seal.now, move |session| tally::seal(session, seal)).await
    }

    async fn ack_items(&self, ack: AckItems) -> Result<AckedItems> {
        self.write(Durable::Yes, ack.now, move |session| tally::ack::ack(session, &ack)).await
    }

    async fn count_tallies(&self, count: CountTallies) -> Result<Vec<Result<CountedTally>>> {
        let each = move |session: &Session<'_>| {
            Ok(count.counts.iter().map(|(id, by)| tally::count(session, *id, *by)).collect())
        };
        self.write(Durable::Yes, count.now, each).await
    }

    async fn tally(&self, find: NameTally) -> Result<Option<Tally>> {
        self.read(find.now, move |session| tally::get(session, find.tally)).await
    }

    async fn tallies(&self, list: ListTallies) -> Result<Vec<Tally>> {
        self.read(list.now, move |session| tally::list(session, &list)).await
    }

    async fn tally_counts(&self) -> Result<TallyCounts> {
        self.read(None, |session| tally::counts(session.conn)).await
    }

    async fn cancel_tally(&self, cancel: NameTally) -> Result<Tally> {
        self.write(Durable::Yes, cancel.now, move |session| tally::cancel(session, cancel.tally)).await
    }

    async fn delete_tally(&self, delete: NameTally) -> Result<()> {
        self.write(Durable::Yes, delete.now, move |session| tally::delete(session, delete.tally)).await
    }

    async fn reap_tallies(&self, reap: ReapTallies) -> Result<ReapedTallies> {
        self.write(Durable::Yes, reap.now, move |session| tally::sweep::reap(session, &reap)).await
    }

    async fn deliver(&self, deliver: Deliver) -> Result<Delivered> {
        let cache = self.cache.clone();
        let send = move |session: &Session<'_>| tally::deliver::deliver(session, deliver, &cache);
        self.write(Durable::Yes, deliver.now, send).await
    }

    async fn sweep_tallies(&self, sweep: SweepTallies) -> Result<SweptTallies> {
        self.write(Durable::Yes, sweep.now, move |session| tally::sweep::sweep(session, sweep)).await
    }

    async fn put_schedule(&self, put: PutSchedule) -> Result<StoredSchedule> {
        self.write(Durable::Yes, put.now, move |session| schedule::put(session, &put)).await
    }

    async fn declare_schedules(&self, declare: DeclareSchedules) -> Result<Vec<StoredSchedule>> {
        self.write(Durable::Yes, declare.now, move |session| schedule::declare(session, &declare)).await
    }

    async fn schedules(&self, list: ListSchedules) -> Result<Vec<StoredSchedule>> {
        self.read(None, move |session| schedule::list(session.conn, &list)).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<StoredSchedule>> {
        let name = name.to_owned();
        self.read(None, move |session| schedule::get(session.conn, &name)).await
    }

    async fn delete_schedule(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| schedule::delete(session.conn, &name)).await
    }

    async fn pause_schedule(&self, pause: PauseSchedule) -> Result<StoredSchedule> {
        let step = move |session: &Session<'_>| schedule::pause(session, &pause.name, pause.paused);
        self.write(Durable::Yes, pause.now, step).await
    }

    async fn run_schedule(&self, run: NameSchedule) -> Result<Emission> {
        let cache = self.cache.clone();
        let step = move |session: &Session<'_>| schedule::run(session, &run.name, &cache);
        self.write(Durable::Yes, run.now, step).await
    }

    async fn tick(&self, tick: Tick) -> Result<Ticked> {
        // Most ticks find nothing: those wait for no writer.
        let look = |session: &Session<'_>| Ok((schedule::next(session.conn)?, session.now));
        let (next, now) = self.read(tick.now, look).await?;
        if next.is_none_or(|next| next > now.0) {
            return Ok(Ticked { next: next.map(Time), now, ..Ticked::default() });
        }
        let cache = self.cache.clone();
        let step = move |session: &Session<'_>| schedule::tick(session, tick, &cache);
        self.write(Durable::Yes, tick.now, step).await
    }

    async fn put_token(&self, put: PutToken) -> Result<Token> {
        self.write(Durable::Yes, put.now, move |session| token::put(session, &put.token)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read(None, |session| token::all(session.conn)).await
    }

    async fn delete_token(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Durable::Yes, None, move |session| token::delete(session.conn, &name)).await
    }

    async fn seal_token(&self, seal: SealToken) -> Result<bool> {
        self.write(Durable::Yes, None, move |session| token::seal(session.conn, &seal)).await
    }

    async fn touch_tokens(&self, uses: Vec<(String, Time)>) -> Result<()> {
        self.write(Durable::No, None, move |session| token::touch(session.conn, &uses)).await
    }

    async fn beat(&self, beat: Beat) -> Result<Vec<Worker>> {
        self.write(Durable::No, beat.now, move |session| sweep::beat(session, &beat)).await
    }

    async fn workers(&self) -> Result<Vec<Worker>> {
        self.read(None, |session| look::workers(session.conn)).await
    }

    async fn see_remote(&self, see: SeeRemote) -> Result<()> {
        self.write(Durable::No, see.now, move |session| remote::see(session, &see)).await
    }

    async fn remote_workers(&self, now: Option<Time>) -> Result<Vec<RemoteWorker>> {
        self.read(now, remote::all).await
    }

    async fn bury(&self, bury: Bury) -> Result<Buried> {
        self.write(Durable::No, bury.now, move |session| sweep::bury_silent(session, &bury)).await
    }

    async fn sweep(&self, sweep: Sweep) -> Result<Swept> {
        let (now, place) = (sweep.now, self.round.place());
        let step = move |session: &Session<'_>| sweep::sweep(session, &sweep, place);
        let (swept, place) = self.write(Durable::Yes, now, step).await?;
        self.round.go_on_at(place);
        Ok(swept)
    }

    async fn size(&self) -> Result<StoreSize> {
        self.read(None, |session| shed::size(session.conn)).await
    }

    async fn shed(&self, shed: Shed) -> Result<Shedded> {
        self.write(Durable::Yes, shed.now, move |session| shed::shed(session, &shed)).await
    }

    async fn drops(&self, list: ListDrops) -> Result<Vec<DropRecord>> {
        self.read(None, move |session| drops::list(session.conn, &list)).await
    }

    async fn drop_totals(&self) -> Result<Vec<DropTotal>> {
        self.read(None, |session| drops::totals(session.conn)).await
    }

    async fn now(&self) -> Result<Time> {
        self.read(None, |session| store_time(session.conn)).await
    }

    async fn probe(&self) -> Result<()> {
        // A number that changes: SQLite does not write what is as it was.
        let sql = "INSERT INTO tramline_meta VALUES ('probe', 1) ON CONFLICT DO UPDATE SET value = value + 1";
        self.write(Durable::Yes, None, |session| {
            Ok(session.conn.prepare_cached(sql)?.execute([]).map(drop)?)
        })
        .await
    }

    async fn close(&self) {
        // Everything acknowledged is stored; the thread ends with the last handle. Brought together in one file, which can be
        // copied then.
        if let Some(path) = self.path().map(Path::to_owned) {
            let gathered = tokio::task::spawn_blocking(move || gather(&path)).await;
            if !matches!(gathered, Ok(Ok(()))) {
                tracing::debug!(
                    "the write-ahead log stays beside the database; it is read at the next start"
                );
            }
        }
    }
}

//! Housekeeping of tallies: expiry, recounts, removal. Always a bounded part.

use super::rows::{self, Stored};
use super::{extents, outbox, parts};
use crate::error::Result;
use crate::model::id::TallyId;
use crate::model::tally::part::PART;
use crate::model::tally::{Added, TallyState};
use crate::model::time::Time;
use crate::plan::tally::{TallyRow, Unfinished};
use crate::store::redis::RedisStore;
use crate::store::redis::session::Session;
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::tally::{GRACE, RECOUNT, RECOUNTS, REMOVED};
use crate::store::verbs_tally::{ReapTallies, ReapedTallies, SweepTallies, SweptTallies};

/// How many tallies one step removes.
const REMOVALS: usize = 100;
/// What removing may cost in one step, in rows.
const ROWS: i64 = 1_000;

/// How many tallies one step looks at.
const STEP: u32 = 100;
/// How many parts, and how many additions, are counted at a time.
const PARTS: usize = 500;
const EXTENTS: usize = 500;

impl RedisStore {
    pub(in crate::store::redis) async fn sweep_tallies_in_steps(
        &self,
        sweep: SweepTallies,
    ) -> Result<SweptTallies> {
        let (now, limit) = (sweep.now, sweep.limit.min(STEP));
        let mut swept = self.write(now, |session: &Session<'_>| expire(session, limit)).await?;
        for tally in self.read(now, unchecked).await? {
            let counted = self.count_parts(now, tally).await?;
            if self.write(now, |session: &Session<'_>| recount(session, tally, &counted)).await? {
                swept.repaired += 1;
                swept.news.push(tally);
            }
        }
        for (open, kept) in [(true, sweep.keep_open), (false, sweep.keep_sealed)] {
            let idle = |session: &Session<'_>| {
                let idle_since = session.now.before(kept);
                reap(session, &ReapTallies { open, idle_since, topic: None, limit, now: None })
            };
            let reaped = self.write(now, idle).await?;
            swept.reaped += reaped.tallies;
            swept.more |= reaped.more;
        }
        Ok(swept)
    }

    /// Counts the parts of a tally anew, some at a time: there may be any number of them.
    async fn count_parts(&self, now: Option<Time>, tally: TallyId) -> Result<Counted> {
        let row = self.read(now, |session: &Session<'_>| rows::row(session, tally)).await?;
        let mut counted = Counted { row, ..Counted::default() };
        let mut after = Vec::new();
        loop {
            let page = |session: &Session<'_>| extents::extents(session, tally, &after, EXTENTS);
            let extents = self.read(now, page).await?;
            let parts_of = |(_, added): &(Vec<u8>, Added)| {
                let first = added.first / PART;
                first..first + added.count.div_ceil(PART)
            };
            let parts: Vec<u64> = extents.iter().flat_map(parts_of).collect();
            for some in parts.chunks(PARTS) {
                let look = |session: &Session<'_>| parts::finished(session, tally, some);
                counted.add(some.len(), self.read(now, look).await?);
            }
            match extents.into_iter().next_back() {
                Some((last, _)) => after = last,
                None => return Ok(counted),
            }
        }
    }
}

/// The parts of a tally, counted while its row was this.
#[derive(Default)]
struct Counted {
    row: Option<Vec<u8>>,
    added: u64,
    finished: u64,
    sums: Unfinished,
}

impl Counted {
    fn add(&mut self, parts: usize, (finished, sums): (u64, Unfinished)) {
        self.added += parts as u64;
        self.finished += finished;
        self.sums.done += sums.done;
        self.sums.failed += sums.failed;
        self.sums.active_at = self.sums.active_at.max(sums.active_at);
    }
}

fn expire(session: &Session<'_>, limit: u32) -> Result<SweptTallies> {
    let mut swept = SweptTallies::default();
    let range = (Tuple::new().bytes(), Tuple::new().with(&[session.now.0.saturating_add(1)]).bytes());
    for mut row in rows::find_some(session, rows::EXPIRY, range, limit as usize, |_| true)? {
        let mut outbox = Vec::new();
        row.expire(session.now, &mut outbox);
        rows::write(session, &row, &outbox)?;
        swept.expired += 1;
        swept.news.push(row.id);
    }
    swept.more = swept.expired >= u64::from(limit);
    Ok(swept)
}

/// The sealed tallies that are to be counted anew: every hour.
fn unchecked(session: &Session<'_>) -> Result<Vec<TallyId>> {
    let before = session.now.before(RECOUNT).0.saturating_add(1);
    let range = (Tuple::new().bytes(), Tuple::new().with(&[before]).bytes());
    let found = rows::find_some(session, rows::UNCHECKED, range, RECOUNTS as usize, |_| true)?;
    Ok(found.into_iter().map(|row| row.id).collect())
}

/// Proves that a sealed tally is not stuck, and gives whether it was. Whoever finishes a part changes its row: if that is still what
/// it was, what was counted is so; if not, it is not stuck.
fn recount(session: &Session<'_>, tally: TallyId, counted: &Counted) -> Result<bool> {
    let unchanged = rows::row(session, tally)? == counted.row;
    let Some(mut row) = rows::one(session, tally)? else { return Ok(false) };
    let mut outbox = Vec::new();
    let left = counted.added.saturating_sub(counted.finished);
    let repaired = unchanged && row.recount(left, counted.sums, session.now, &mut outbox);
    if repaired {
        rows::write(session, &row, &outbox)?;
    }
    rewrite(session, tally, |stored| stored.checked_at = session.now.0)?;
    Ok(repaired)
}

/// Removes what is idle. `idle_since` of a row is never later than its last activity: those it names are looked at closely, and
/// those that stay are not looked at again before they could be idle for as long.
pub(in crate::store::redis) fn reap(session: &Session<'_>, reap: &ReapTallies) -> Result<ReapedTallies> {
    let mut reaped = ReapedTallies::default();
    let mut looked = 0;
    for state in TallyState::ALL.into_iter().filter(|state| (*state == TallyState::Open) == reap.open) {
        let left = (i64::from(reap.limit) - looked).max(0) as usize;
        let of_state = || Tuple::new().with(&[state as i64]);
        let range = (of_state().bytes(), of_state().with(&[reap.idle_since.0]).bytes());
        let wanted = |row: &TallyRow| reap.topic.is_none() || row.topic == reap.topic;
        for row in rows::find_some(session, rows::IDLE, range, left, wanted)? {
            looked += 1;
            let parts = parts::unfinished(session, row.id)?.active_at.unwrap_or(Time(0));
            let active_at = row.active_at.max(parts);
            if active_at < reap.idle_since {
                remove(session, &row)?;
                reaped.tallies += 1;
                reaped.items += row.total;
            } else {
                rewrite(session, row.id, |stored| stored.idle_since = active_at.0)?;
            }
        }
    }
    reaped.more = clear_removed(session)? || looked >= i64::from(reap.limit);
    Ok(reaped)
}

/// A tally does not exist any more, but for what is left to clear and to tell.
pub(super) fn remove(session: &Session<'_>, row: &TallyRow) -> Result<()> {
    let mut outbox = Vec::new();
    row.remove(session.now, &mut outbox);
    outbox::put_out(session, &outbox)?;
    rewrite(session, row.id, |stored| {
        stored.state = REMOVED;
        stored.idle_since = session.now.0;
    })
}

/// Clears what belongs to removed tallies. True if a limit was reached.
fn clear_removed(session: &Session<'_>) -> Result<bool> {
    let removed = || Tuple::new().with(&[i64::from(REMOVED)]);
    let before = session.now.before(GRACE).0.saturating_add(1);
    let range = (removed().bytes(), removed().with(&[before]).bytes());
    let found = session.range(&session.key(rows::IDLE), range, REMOVALS)?;
    let id = |member: &Vec<u8>| {
        let mut columns = Columns(member);
        let _state_and_time = (columns.number(), columns.number());
        TallyId(columns.number())
    };
    let removed: Vec<TallyId> = found.iter().map(id).collect();
    let mut left = ROWS;
    for id in &removed {
        left -= clear(session, *id, left)?;
        if left <= 0 {
            return Ok(true);
        }
    }
    Ok(removed.len() == REMOVALS)
}

/// Clears up to `limit` rows of a removed tally, and the tally itself when nothing is left and all its news are told. Gives how
/// many rows.
fn clear(session: &Session<'_>, tally: TallyId, limit: i64) -> Result<i64> {
    parts::forget_parts(session, tally);
    let mut cleared = 1;
    for (member, _) in extents::extents(session, tally, &[], limit as usize)? {
        extents::remove_extent(session, tally, member);
        cleared += 1;
    }
    if cleared <= limit && !outbox::has_news(session, tally)? {
        rows::erase(session, tally)?;
    }
    Ok(cleared)
}

/// Changes what only those who look after tallies know.
fn rewrite(session: &Session<'_>, id: TallyId, change: impl FnOnce(&mut Stored)) -> Result<()> {
    let Some(mut stored) = rows::stored(session, id)? else { return Ok(()) };
    change(&mut stored);
    rows::store(session, id, &stored)
}

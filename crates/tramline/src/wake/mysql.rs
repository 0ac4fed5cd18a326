//! Hints between processes that share a MySQL or MariaDB database, which cannot call anybody: each feels its pulse while it waits.

use crate::model::id::{ChunkId, SubscriptionId, TopicId};
use crate::store::mysql::{Beat, MysqlStore};
use crate::wake::{Audience, Bells, Listener, Wake};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How soon the pulse is felt again after it changed: where something happens, more will.
const SOON: Duration = Duration::from_millis(1);
/// How late at the latest: five looks per second cost a node about a thousandth of a core.
const LATE: Duration = Duration::from_millis(200);
/// How late where hints travel another way, and only the inbox is to be looked at: as often as anybody looks who waits.
const SLOW_POLL: Duration = Duration::from_secs(1);
/// A look that takes long says that the server is busy, and not with looks: it is asked for a tenth of the time at most.
const BREATH: u32 = 9;
/// How long an emit may take to commit after a later one, and is still heard of.
const LATELY: Duration = Duration::from_millis(200);
/// How many chunks one look reads. Where there are more, all bells ring, and nobody waits anyway.
const MANY: usize = 1_000;

/// Watches what is emitted, the last change of a rule and the version of the catalogue, and empties the inbox. The bells of those ring whose
/// topics were emitted to: a node with hundreds of subscriptions would claim hundreds of times for each emit of another. Rules and the
/// catalogue change rarely, and ring all of them. What changes nothing of these (a replay) is found by the slow poll of those who
/// wait.
#[derive(Debug)]
pub struct Pulse {
    bells: Arc<Bells>,
    watcher: JoinHandle<()>,
}

impl Pulse {
    /// Watches the database of a store. Needs a Tokio runtime.
    pub fn new(store: Arc<MysqlStore>) -> Pulse {
        let bells = Arc::new(Bells::default());
        let watcher = tokio::spawn(watch(store, bells.clone()));
        Pulse { bells, watcher }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Wake for Pulse {
    /// Only this process is told: the others feel the pulse.
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.bells.ring(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.bells.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.bells.listen_to_all()
    }
}

/// Another way for hints, on a store whose inbox is emptied all the same: those who insert into it tell nobody.
#[derive(Debug)]
pub(crate) struct WithInbox {
    wake: Arc<dyn Wake>,
    watcher: JoinHandle<()>,
}

impl WithInbox {
    /// Needs a Tokio runtime.
    pub(crate) fn new(store: Arc<MysqlStore>, wake: Arc<dyn Wake>) -> WithInbox {
        let watcher = tokio::spawn(empty_inbox(store, wake.clone()));
        WithInbox { wake, watcher }
    }
}

impl Drop for WithInbox {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Wake for WithInbox {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.wake.notify(subscriptions);
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.wake.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.wake.listen_to_all()
    }
}

/// Looks once in a while, and tells whom it concerns. Where there was something, more may be.
async fn empty_inbox(store: Arc<MysqlStore>, wake: Arc<dyn Wake>) {
    let audience = wake.listen_to_all().audience.clone();
    loop {
        audience.somebody().await;
        let start = Instant::now();
        let woken = match store.pulse(None, 0).await {
            Ok(beat) if beat.inbox => store.take_in().await.unwrap_or_default(),
            // An error is met, and said, by the sweep.
            _ => BTreeSet::new(),
        };
        let pause = if woken.is_empty() { SLOW_POLL } else { (start.elapsed() * BREATH).clamp(SOON, LATE) };
        if !woken.is_empty() {
            wake.notify(&woken.into_iter().collect::<Vec<_>>());
        }
        tokio::time::sleep(pause).await;
    }
}

async fn watch(store: Arc<MysqlStore>, bells: Arc<Bells>) {
    let audience: Arc<Audience> = bells.audience();
    let (mut felt, mut pause) = (Felt::default(), SOON);
    loop {
        audience.somebody().await;
        let start = Instant::now();
        match store.pulse(felt.after(), MANY).await {
            // What is emitted from the inbox is felt at the next look, and rings there.
            Ok(beat) if beat.inbox && store.take_in().await.is_ok_and(|woken| !woken.is_empty()) => {
                pause = SOON;
            }
            Ok(beat) => {
                let news = felt.news(start, &beat, |chunk| store.has_told_of(chunk));
                pause = if news == News::None { next(pause) } else { SOON };
                match news {
                    News::None | News::Told => {}
                    News::In(topics) => match store.concerned(&topics, beat.catalog) {
                        Some(subscriptions) => bells.ring(&subscriptions),
                        None => bells.ring_all(),
                    },
                    News::Anywhere => bells.ring_all(),
                }
            }
            // Whoever waits meets the error by himself.
            Err(_) => pause = LATE,
        }
        tokio::time::sleep(pause.max((start.elapsed() * BREATH).min(LATE))).await;
    }
}

/// What was felt lately.
#[derive(Debug, Default)]
struct Felt {
    /// The last change of a rule, and the version of the catalogue.
    others: Option<(Option<i64>, i64)>,
    /// The last chunks of the looks of a while, and of one before that. Numbers are drawn before the commit, so that a lower one may appear
    /// after a higher one.
    ends: VecDeque<(Instant, ChunkId)>,
    /// The chunks since then that were heard of.
    chunks: BTreeSet<ChunkId>,
}

/// What is new since the last look.
#[derive(Debug, PartialEq, Eq)]
enum News {
    None,
    /// Something was emitted by this process, which has rung by itself: ringing once more would be a claim in vain for each who heard it.
    Told,
    /// Something was emitted to these.
    In(BTreeSet<TopicId>),
    Anywhere,
}

impl Felt {
    /// After which chunk there may be news.
    fn after(&self) -> Option<ChunkId> {
        self.ends.front().map(|(_, last)| *last)
    }

    /// What is new in a look that began at this moment, at what came after the chunk that [`Felt::after`] names. `told`: of which chunks
    /// everybody in this process was told.
    fn news(&mut self, at: Instant, beat: &Beat, told: impl Fn(ChunkId) -> bool) -> News {
        let others = Some((beat.rules, beat.catalog));
        let same = std::mem::replace(&mut self.others, others) == others;
        if self.ends.is_empty() || beat.chunks.len() >= MANY {
            self.ends = VecDeque::from([(at, beat.last)]);
            self.chunks.clear();
            return News::Anywhere;
        }
        let new: Vec<&(ChunkId, TopicId)> =
            beat.chunks.iter().filter(|(chunk, _)| self.chunks.insert(*chunk)).collect();
        let foreign = new.iter().filter(|(chunk, _)| !told(*chunk));
        let topics: BTreeSet<TopicId> = foreign.map(|(_, topic)| *topic).collect();
        self.forget(at);
        match topics.is_empty() {
            _ if !same => News::Anywhere,
            true if new.is_empty() => News::None,
            true => News::Told,
            false => News::In(topics),
        }
    }

    /// Forgets what was felt before the last while.
    fn forget(&mut self, at: Instant) {
        let last = self.chunks.last().copied().or(self.after());
        self.ends.extend(last.map(|last| (at, last)));
        while self.ends.get(1).is_some_and(|(seen, _)| at.saturating_duration_since(*seen) >= LATELY) {
            self.ends.pop_front();
        }
        let after = self.after();
        self.chunks.retain(|chunk| Some(*chunk) > after);
    }
}

fn next(pause: Duration) -> Duration {
    (pause * 3 / 2).min(LATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_database_is_looked_at_less_and_less_often() {
        let pauses: Vec<Duration> =
            std::iter::successors(Some(SOON), |pause| Some(next(*pause))).take(20).collect();
        let busy: Duration = pauses.iter().filter(|pause| **pause < LATE).sum();
        assert!(busy < 3 * LATE, "a quiet one is left alone after {busy:?}");
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&LATE));
    }

    fn beat(chunks: &[(i64, i64)]) -> Beat {
        let chunks = chunks.iter().map(|(chunk, topic)| (ChunkId(*chunk), TopicId(*topic))).collect();
        Beat { chunks, last: ChunkId(10), catalog: 1, ..Beat::default() }
    }

    fn nobody(_: ChunkId) -> bool {
        false
    }

    #[test]
    fn what_this_process_emitted_is_no_news_to_those_who_were_told() {
        let (mut felt, start) = (Felt::default(), Instant::now());
        felt.news(start, &beat(&[]), nobody);
        let own = |chunk: ChunkId| chunk == ChunkId(12);
        assert_eq!(felt.news(start + SOON, &beat(&[(12, 1)]), own), News::Told);
        assert_eq!(felt.news(start + SOON * 2, &beat(&[(12, 1), (13, 2)]), own), in_topic(2));
        assert_eq!(felt.news(start + SOON * 3, &beat(&[(12, 1), (13, 2)]), own), News::None);
    }

    fn in_topic(topic: i64) -> News {
        News::In(BTreeSet::from([TopicId(topic)]))
    }

    #[test]
    fn an_emit_is_news_once_and_to_its_topic() {
        let (mut felt, start) = (Felt::default(), Instant::now());
        assert_eq!(felt.news(start, &beat(&[]), nobody), News::Anywhere);
        assert_eq!(felt.after(), Some(ChunkId(10)));
        assert_eq!(felt.news(start + SOON, &beat(&[(12, 1)]), nobody), in_topic(1));
        assert_eq!(felt.news(start + SOON * 2, &beat(&[(12, 1)]), nobody), News::None);
        let changed = Beat { catalog: 2, ..beat(&[(12, 1)]) };
        assert_eq!(felt.news(start + SOON * 3, &changed, nobody), News::Anywhere);
        assert_eq!(felt.news(start + SOON * 4, &changed, nobody), News::None);
    }

    #[test]
    fn an_emit_that_commits_after_a_later_one_is_heard_of_for_a_while() {
        let (mut felt, start) = (Felt::default(), Instant::now());
        felt.news(start, &beat(&[]), nobody);
        assert_eq!(felt.news(start + SOON, &beat(&[(12, 1)]), nobody), in_topic(1));
        assert_eq!(felt.news(start + SOON * 2, &beat(&[(11, 2), (12, 1)]), nobody), in_topic(2));
        felt.news(start + SOON * 3 + LATELY, &beat(&[(11, 2), (12, 1)]), nobody);
        assert_eq!(felt.after(), Some(ChunkId(12)), "it is not read for ever");
        assert!(felt.chunks.is_empty());
    }

    #[test]
    fn when_much_was_emitted_all_look() {
        let (mut felt, start) = (Felt::default(), Instant::now());
        felt.news(start, &beat(&[]), nobody);
        let chunks: Vec<(i64, i64)> = (0..MANY as i64).map(|n| (20 + n, 1)).collect();
        let much = Beat { last: ChunkId(5_000), ..beat(&chunks) };
        assert_eq!(felt.news(start + SOON, &much, nobody), News::Anywhere);
        assert_eq!(felt.after(), Some(ChunkId(5_000)));
    }
}

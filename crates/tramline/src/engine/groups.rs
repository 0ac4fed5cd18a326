//! Wishes that go to the store together: while one group is being carried out, the next one gathers.

use crate::engine::pace::Pace;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// What is done for many at once.
pub(super) trait Work: Debug + Send + Sync + 'static {
    /// Wishes with the same key go together.
    type Key: Clone + Debug + Eq + Hash + Send + Sync;
    type Wish: Debug + Send;
    type Answer: Debug + Send;

    /// Answers in the order of the wishes.
    fn carry_out(
        &self,
        key: &Self::Key,
        wishes: Vec<Self::Wish>,
    ) -> impl Future<Output = Vec<Result<Self::Answer>>> + Send;

    /// How much of a group a wish is.
    fn size(wish: &Self::Wish) -> usize;

    /// Whoever asked is gone, perhaps with the runtime.
    fn unwanted(&self, key: &Self::Key, answer: Self::Answer);
}

/// Gathers wishes and has them carried out in groups, one at a time for each key; beside one that takes long, the next.
#[derive(Debug)]
pub(super) struct Groups<W: Work> {
    inner: Arc<Inner<W>>,
}

#[derive(Debug)]
struct Inner<W: Work> {
    work: W,
    /// How large a group is, unless one wish alone is larger.
    most: usize,
    pace: Pace,
    queues: Mutex<HashMap<W::Key, Queue<W>>>,
    turns: AtomicU64,
}

/// What waits while somebody works.
#[derive(Debug)]
struct Queue<W: Work> {
    waiting: Vec<Waiting<W>>,
    /// The turn of the task that will be back for it; one that takes long no longer counts.
    turn: Option<u64>,
}

type Reply<W> = oneshot::Sender<Delivery<W>>;

/// A wish and the caller who waits for it.
#[derive(Debug)]
struct Waiting<W: Work> {
    wish: W::Wish,
    reply: Reply<W>,
}

/// An answer on its way. Whoever asked may be gone when it comes, or go before looking at it.
#[derive(Debug)]
struct Delivery<W: Work> {
    inner: Arc<Inner<W>>,
    key: W::Key,
    answer: Option<Result<W::Answer>>,
}

impl<W: Work> Delivery<W> {
    fn open(mut self) -> Option<Result<W::Answer>> {
        self.answer.take()
    }
}

impl<W: Work> Drop for Delivery<W> {
    fn drop(&mut self) {
        if let Some(Ok(answer)) = self.answer.take() {
            self.inner.work.unwanted(&self.key, answer);
        }
    }
}

impl<W: Work> Groups<W> {
    pub(super) fn new(work: W, most: usize) -> Groups<W> {
        let (pace, queues, turns) = (Pace::default(), Mutex::default(), AtomicU64::new(0));
        Groups { inner: Arc::new(Inner { work, most, pace, queues, turns }) }
    }

    pub(super) fn work(&self) -> &W {
        &self.inner.work
    }

    /// The answer to one wish. If the future is dropped, it may be carried out or not.
    pub(super) async fn join(&self, key: W::Key, wish: W::Wish) -> Result<W::Answer> {
        let (reply, answer) = oneshot::channel();
        {
            let mut queues = self.inner.queues();
            let queue =
                queues.entry(key.clone()).or_insert_with(|| Queue { waiting: Vec::new(), turn: None });
            queue.waiting.push(Waiting { wish, reply });
        }
        self.inner.start(&key);
        answer.await.ok().and_then(Delivery::open).unwrap_or_else(|| Err(closed()))
    }
}

impl<W: Work> Inner<W> {
    fn queues(&self) -> MutexGuard<'_, HashMap<W::Key, Queue<W>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a task for what waits, unless one will be back for it.
    fn start(self: &Arc<Self>, key: &W::Key) {
        // Without a runtime everything is over, and whoever waits is gone.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let turn = {
            let mut queues = self.queues();
            let Some(queue) = queues.get_mut(key).filter(|queue| queue.turn.is_none()) else { return };
            let number = self.turns.fetch_add(1, Ordering::Relaxed);
            queue.turn = Some(number);
            Turn { inner: self.clone(), key: key.clone(), number, ran: false }
        };
        // A task of its own and not the caller's future, which may be dropped while others depend on the group.
        runtime.spawn(take_turn(turn));
    }

    /// The next group, for the one whose turn it is. Where nothing is left, the queue goes.
    fn next_group(&self, turn: &Turn<W>) -> Vec<Waiting<W>> {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(&turn.key).filter(|queue| queue.turn == Some(turn.number)) else {
            return Vec::new();
        };
        let mut size = 0;
        let fits = |one: &&Waiting<W>| {
            size += W::size(&one.wish);
            size <= self.most
        };
        let count = queue.waiting.iter().take_while(fits).count().max(1).min(queue.waiting.len());
        let group: Vec<Waiting<W>> = queue.waiting.drain(..count).collect();
        if group.is_empty() {
            queues.remove(&turn.key);
        }
        group
    }

    async fn carry_out(self: &Arc<Self>, key: &W::Key, group: Vec<Waiting<W>>) {
        let (wishes, replies): (Vec<W::Wish>, Vec<Reply<W>>) =
            group.into_iter().map(|one| (one.wish, one.reply)).unzip();
        for (reply, answer) in replies.into_iter().zip(self.work.carry_out(key, wishes).await) {
            let delivery = Delivery { inner: self.clone(), key: key.clone(), answer: Some(answer) };
            // Nobody there: it comes back, and dropping it tells so.
            drop(reply.send(delivery));
        }
    }
}

/// The right to take what gathers. Dropping it, even by a panic, lets the next one take it.
struct Turn<W: Work> {
    inner: Arc<Inner<W>>,
    key: W::Key,
    number: u64,
    /// A task that never ran was refused by a runtime that shuts down: it would refuse the next one, too.
    ran: bool,
}

impl<W: Work> Turn<W> {
    /// Lets another task work beside this one.
    fn give_up(&self) {
        let is_mine = {
            let mut queues = self.inner.queues();
            let mine = queues.get_mut(&self.key).filter(|queue| queue.turn == Some(self.number));
            mine.map(|queue| queue.turn = None).is_some()
        };
        if is_mine && self.ran {
            self.inner.start(&self.key);
        }
    }
}

impl<W: Work> Drop for Turn<W> {
    fn drop(&mut self) {
        self.give_up();
    }
}

async fn take_turn<W: Work>(mut turn: Turn<W>) {
    turn.ran = true;
    let inner = turn.inner.clone();
    loop {
        // Whoever is about to ask, because the last group was answered, joins this one.
        tokio::task::yield_now().await;
        let group = inner.next_group(&turn);
        if group.is_empty() {
            return;
        }
        let working = inner.pace.measure(inner.carry_out(&turn.key, group));
        tokio::pin!(working);
        if tokio::time::timeout(inner.pace.long(), &mut working).await.is_err() {
            // Perhaps somebody has one of its rows locked. Others need not wait for that.
            turn.give_up();
            working.await;
        }
    }
}

fn closed() -> Error {
    Error::unavailable(
        "the step was not carried out",
        "this Tramline is closed or its runtime is shutting down",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{Semaphore, watch};

    /// Answers each wish with itself, when it is let.
    #[derive(Debug)]
    struct Echo {
        groups: watch::Sender<Vec<Vec<u32>>>,
        let_go: Semaphore,
        unwanted: watch::Sender<Vec<u32>>,
    }

    impl Work for Echo {
        type Key = &'static str;
        type Wish = u32;
        type Answer = u32;

        async fn carry_out(&self, _: &&'static str, wishes: Vec<u32>) -> Vec<Result<u32>> {
            self.groups.send_modify(|groups| groups.push(wishes.clone()));
            self.let_go.acquire().await.unwrap().forget();
            wishes.into_iter().map(Ok).collect()
        }

        fn size(_: &u32) -> usize {
            1
        }

        fn unwanted(&self, _: &&'static str, answer: u32) {
            self.unwanted.send_modify(|all| all.push(answer));
        }
    }

    fn echo(most: usize) -> Arc<Groups<Echo>> {
        let let_go = Semaphore::new(0);
        let work = Echo { groups: watch::Sender::default(), let_go, unwanted: watch::Sender::default() };
        Arc::new(Groups::new(work, most))
    }

    fn ask(groups: &Arc<Groups<Echo>>, wish: u32) -> tokio::task::JoinHandle<Result<u32>> {
        let groups = groups.clone();
        tokio::spawn(async move { groups.join("key", wish).await })
    }

    async fn begun(groups: &Arc<Groups<Echo>>, count: usize) {
        while groups.work().groups.borrow().len() < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_go_together_but_not_more_than_fit() {
        let groups = echo(3);
        groups.work().let_go.add_permits(2);
        // All of them have asked before the task of the first one has its turn.
        let asked: Vec<_> = (0..5).map(|wish| ask(&groups, wish)).collect();
        for (wish, answer) in (0..).zip(asked) {
            assert_eq!(answer.await.unwrap().unwrap(), wish);
        }
        assert_eq!(*groups.work().groups.borrow(), [vec![0, 1, 2], vec![3, 4]]);
        while !groups.inner.queues().is_empty() {
            tokio::task::yield_now().await; // what nobody uses is not kept
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_group_that_takes_long() {
        let groups = echo(3);
        let stuck = ask(&groups, 0);
        begun(&groups, 1).await;
        let other = ask(&groups, 1);
        let mut seen = groups.work().groups.subscribe();
        seen.wait_for(|groups| groups.len() == 2).await.unwrap();
        assert!(!stuck.is_finished() && !other.is_finished());
        groups.work().let_go.add_permits(2);
        assert_eq!((stuck.await.unwrap().unwrap(), other.await.unwrap().unwrap()), (0, 1));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_told() {
        let groups = echo(3);
        let gone = ask(&groups, 7);
        begun(&groups, 1).await;
        gone.abort();
        assert!(gone.await.is_err());
        groups.work().let_go.add_permits(1);
        let mut unwanted = groups.work().unwanted.subscribe();
        assert_eq!(*unwanted.wait_for(|all| !all.is_empty()).await.unwrap(), [7]);
    }

    #[tokio::test]
    async fn what_nobody_looked_at_any_more_is_told() {
        let groups = echo(3);
        let mut asked = Box::pin(groups.join("key", 7));
        tokio::select! {
            biased;
            _ = &mut asked => panic!("nobody has let it"),
            () = std::future::ready(()) => {}
        }
        groups.work().let_go.add_permits(1);
        while !groups.inner.queues().is_empty() {
            tokio::task::yield_now().await; // answered
        }
        assert!(groups.work().unwanted.borrow().is_empty(), "somebody waits");
        drop(asked);
        assert_eq!(*groups.work().unwanted.borrow(), [7]);
    }

    /// The story: a runtime that ended dropped the task at work, which started another one for what waited; that was refused and dropped,
    /// and started another one, until the stack was full.
    #[test]
    fn a_runtime_that_ends_in_the_middle_of_a_group_starts_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let groups = echo(3);
        runtime.block_on(async {
            drop(ask(&groups, 0));
            begun(&groups, 1).await;
        });
        drop(runtime);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        groups.work().let_go.add_permits(1);
        assert_eq!(runtime.block_on(groups.join("key", 1)).unwrap(), 1, "the next one goes on");
    }
}

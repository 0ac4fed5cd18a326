//! Completion in any race: exactly one call is told, exactly one event comes, never early and never missing.

use crate::bed::*;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

conformance![
    a_thousand_races_of_acks_and_seals_tell_exactly_one_call_each,
    random_steps_with_crashes_between_them_complete_exactly_once,
    workers_that_settle_while_a_tally_is_sealed_complete_it_once,
    adds_and_seals_at_once_lose_no_item,
    acks_over_the_same_parts_in_any_order_wait_for_each_other_and_never_in_a_circle,
    a_tree_of_tallies_completes_once_whoever_delivers,
];

const TOLD: &str = "told";

fn on_complete() -> NewTally {
    NewTally::new().on_complete(Event::new(TOLD, "complete").kind("complete"))
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// One caller's part of a race.
#[derive(Clone, Copy, Debug)]
enum Move {
    Seal,
    End(TallyId, Items, Ending),
}

async fn make(bed: &Bed, tally: TallyId, step: Move) -> bool {
    match step {
        Move::Seal => bed.seal(tally).await,
        Move::End(tally, items, Ending::Done) => bed.ack(tally, items).await,
        Move::End(tally, items, Ending::Failed) => bed.fail(tally, items).await,
    }
}

async fn a_thousand_races_of_acks_and_seals_tell_exactly_one_call_each(bed: Bed) {
    let twin = bed.twin().await;
    for lap in 0..250 {
        let races = (0..4).map(|n| race([bed.clone(), twin.clone()], lap * 4 + n));
        futures_util::future::join_all(races).await;
        if lap % 50 == 49 {
            assert_eq!(bed.deliver().await.count, 200, "each race has one completion event");
        }
    }
}

/// The last items of a few parts end, and the tally is sealed, all at the same moment.
async fn race(beds: [Bed; 2], seed: u64) {
    let mut dice = Dice(seed);
    let bed = &beds[0];
    let tally = bed.open(on_complete()).await;
    let mut moves = vec![Move::Seal];
    if dice.below(4) == 0 {
        moves.push(Move::Seal);
    }
    for _ in 0..=dice.below(3) {
        let added = bed.add(tally, 1 + dice.below(3)).await;
        let ending = if dice.below(4) == 0 { Ending::Failed } else { Ending::Done };
        moves.push(Move::End(tally, added.items(), ending));
        if dice.below(3) == 0 {
            moves.push(Move::End(tally, added.first.into(), Ending::Done));
        }
    }
    dice.shuffle(&mut moves);
    let steps = moves.iter().enumerate().map(|(at, step)| {
        let (bed, step) = (beds[at % 2].clone(), *step);
        tokio::spawn(async move { make(&bed, tally, step).await })
    });
    let told = futures_util::future::join_all(steps.collect::<Vec<_>>()).await;
    let told = told.into_iter().filter(|told| *told.as_ref().unwrap()).count();
    let found = bed.tally(tally).await;
    assert_eq!((told, found.state, found.pending()), (1, TallyState::Complete, 0), "race {seed}: {moves:?}");
}

/// What has begun so far, by those who may crash.
#[derive(Default)]
struct Begun {
    added: BTreeSet<u64>,
    ended: BTreeSet<u64>,
    sealing: bool,
}

/// Callers add, ack, fail, seal and deliver; most of their calls are dropped after a random time, and repeated by a successor
/// under the same token until one is answered.
async fn random_steps_with_crashes_between_them_complete_exactly_once(bed: Bed) {
    let twin = bed.twin().await;
    for seed in 0..12 {
        let tally = bed.open(on_complete()).await;
        let begun: Arc<Mutex<Begun>> = Arc::default();
        let told: Arc<Mutex<BTreeSet<i64>>> = Arc::default();
        let adders = (0..3).map(|n| {
            let crasher = Crasher { bed: [bed.clone(), twin.clone()], dice: Dice(seed * 100 + n), tally };
            tokio::spawn(add_and_ack(crasher, begun.clone(), told.clone()))
        });
        let adders: Vec<_> = adders.collect();
        let deliverer = Crasher { bed: [twin.clone(), bed.clone()], dice: Dice(seed * 100 + 50), tally };
        let delivering = tokio::spawn(deliver_and_crash(deliverer));
        for adder in adders {
            adder.await.unwrap();
        }
        let mut sealer = Crasher { bed: [bed.clone(), twin.clone()], dice: Dice(seed * 100 + 60), tally };
        // Half of the items are left: they end while the tally is sealed, by callers who crash too.
        let rest: Vec<u64> = {
            let mut begun = begun.lock().unwrap();
            begun.sealing = true;
            begun.added.difference(&begun.ended).copied().collect()
        };
        let ackers = rest.chunks(3).enumerate().map(|(n, items)| {
            let crasher =
                Crasher { bed: [twin.clone(), bed.clone()], dice: Dice(seed * 100 + 70 + n as u64), tally };
            tokio::spawn(ack_rest(crasher, items.to_vec(), begun.clone(), told.clone()))
        });
        let ackers: Vec<_> = ackers.collect();
        sealer.seal(&begun, &told).await;
        for acker in ackers {
            acker.await.unwrap();
        }
        delivering.await.unwrap();
        let found = bed.tally(tally).await;
        let added = begun.lock().unwrap().added.len() as u64;
        assert_eq!(
            (found.state, found.total, found.pending()),
            (TallyState::Complete, added, 0),
            "seed {seed}"
        );
        assert_eq!(told.lock().unwrap().len(), 1, "seed {seed}: who was told");
        assert_eq!(completions(&bed, tally).await, 1, "seed {seed}: completion events");
    }
    assert_eq!(bed.emitted(TOLD).await.len(), 12);
}

/// How many completion events a tally has, as soon as it has any. A server may take a moment to notice that a caller has
/// crashed; until then what that one was delivering, or writing into the log, is left alone.
async fn completions(bed: &Bed, tally: TallyId) -> usize {
    let name = tally.to_string();
    let look = async {
        loop {
            bed.deliver().await;
            let events = bed.emitted(TOLD).await;
            let mine = events.iter().filter(|event| event.headers["tramline-tally"] == name).count();
            if mine > 0 {
                return mine;
            }
        }
    };
    tokio::time::timeout(seconds(60), look).await.expect("the event comes")
}

/// Calls that are dropped after a random time.
struct Crasher {
    bed: [Bed; 2],
    dice: Dice,
    tally: TallyId,
}

impl Crasher {
    fn bed(&mut self) -> Bed {
        self.bed[self.dice.below(2) as usize].clone()
    }

    /// The answer, unless the caller crashes before it comes.
    async fn try_once<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        match self.dice.below(3) {
            0 => Some(call.await),
            _ => {
                let patience = std::time::Duration::from_micros(self.dice.below(1500));
                tokio::time::timeout(patience, call).await.ok()
            }
        }
    }

    async fn add(&mut self) -> Added {
        let token = Some(Incarnation::random().0);
        let count = 1 + self.dice.below(4);
        loop {
            let bed = self.bed();
            let add = AddItems { tally: self.tally, count, within: None, token, now: bed.now() };
            if let Some(added) = self.try_once(bed.store.add_items(add)).await {
                return added.unwrap();
            }
        }
    }

    async fn end(&mut self, items: Items, begun: &Mutex<Begun>, told: &Mutex<BTreeSet<i64>>) {
        begun.lock().unwrap().ended.extend(items.first..=items.last);
        let by = Incarnation::random().0;
        let ending = if self.dice.below(4) == 0 { Ending::Failed } else { Ending::Done };
        loop {
            let bed = self.bed();
            let acks = vec![Ack { tally: self.tally, items: vec![items], ending }];
            let ack = AckItems { acks, by, now: bed.now() };
            if let Some(acked) = self.try_once(bed.store.ack_items(ack)).await {
                return hear(!acked.unwrap().completed.is_empty(), by, begun, told);
            }
        }
    }

    async fn seal(&mut self, begun: &Mutex<Begun>, told: &Mutex<BTreeSet<i64>>) {
        let by = Incarnation::random().0;
        loop {
            let bed = self.bed();
            let seal = SealTally { tally: self.tally, expected: None, by, now: bed.now() };
            if let Some(sealed) = self.try_once(bed.store.seal_tally(seal)).await {
                return hear(sealed.unwrap().completed_now, by, begun, told);
            }
        }
    }
}

/// Whoever is told must not be told early: sealing and the end of every item had begun.
fn hear(completed: bool, by: i64, begun: &Mutex<Begun>, told: &Mutex<BTreeSet<i64>>) {
    if completed {
        let begun = begun.lock().unwrap();
        assert!(begun.sealing && begun.ended == begun.added, "complete before everything has ended");
        told.lock().unwrap().insert(by);
    }
}

async fn add_and_ack(mut crasher: Crasher, begun: Arc<Mutex<Begun>>, told: Arc<Mutex<BTreeSet<i64>>>) {
    for _ in 0..4 {
        let added = crasher.add().await;
        begun.lock().unwrap().added.extend(added.first..added.first + added.count);
        if crasher.dice.below(2) == 0 {
            crasher.end(added.items(), &begun, &told).await;
        }
    }
}

async fn ack_rest(
    mut crasher: Crasher,
    items: Vec<u64>,
    begun: Arc<Mutex<Begun>>,
    told: Arc<Mutex<BTreeSet<i64>>>,
) {
    for item in items {
        crasher.end(item.into(), &begun, &told).await;
    }
}

async fn deliver_and_crash(mut crasher: Crasher) {
    for _ in 0..30 {
        let bed = crasher.bed();
        let deliver = Deliver { limit: 10, now: bed.now() };
        if let Some(delivered) = crasher.try_once(bed.store.deliver(deliver)).await {
            delivered.unwrap();
        }
        tokio::task::yield_now().await;
    }
}

async fn workers_that_settle_while_a_tally_is_sealed_complete_it_once(bed: Bed) {
    let queues = [
        bed.queue_named("unordered", &[TOPIC], unordered()).await,
        bed.queue_named("ordered", &[TOPIC], ordered_or(OnExhausted::Dead)).await,
    ];
    for (lap, queue) in (0..10u64).zip(queues.iter().cycle()) {
        let name = if lap % 2 == 0 { "unordered" } else { "ordered" };
        let tally = bed.open(on_complete()).await;
        for unit in 0..3 {
            let event = |n: u64| keyed(&format!("k{}", n % 5)).tally_of(tally, name);
            bed.emit_together((0..40 + unit).map(event).collect()).await;
        }
        let workers = (1..=4i64).map(|n| {
            let queue = queue.through(bed.clone());
            tokio::spawn(async move {
                let mut dice = Dice(lap * 10 + n as u64);
                loop {
                    let claimed = queue.claim_by(Incarnation(n), 1 + dice.below(9) as u32).await;
                    if claimed.slices.is_empty()
                        && queue.counts().await.ready + queue.counts().await.leased == 0
                    {
                        return;
                    }
                    let outcome = if dice.below(5) == 0 { Outcome::dead("no") } else { Outcome::Done };
                    queue.settle(&claimed, outcome).await;
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        bed.seal(tally).await;
        for worker in workers {
            worker.await.unwrap();
        }
        let found = bed.tally(tally).await;
        assert_eq!((found.state, found.total, found.pending()), (TallyState::Complete, 123, 0), "{name}");
        assert_eq!(bed.deliver().await.count, 1, "{name}");
    }
}

async fn adds_and_seals_at_once_lose_no_item(bed: Bed) {
    for _ in 0..30 {
        let tally = bed.open(NewTally::new()).await;
        let bed = &bed;
        let added = in_parallel(6, |n| {
            let bed = bed.clone();
            async move {
                if n == 6 {
                    bed.seal(tally).await;
                    return 0;
                }
                match bed.try_add(tally, 10).await {
                    Ok(added) => added.count,
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Conflict);
                        0
                    }
                }
            }
        })
        .await;
        assert_eq!(bed.tallied(tally).await.0, added.iter().sum::<u64>());
    }
}

async fn acks_over_the_same_parts_in_any_order_wait_for_each_other_and_never_in_a_circle(bed: Bed) {
    let tally = bed.open(on_complete()).await;
    for _ in 0..20 {
        bed.add(tally, 50).await;
    }
    bed.seal(tally).await;
    let bed = &bed;
    let told = in_parallel(8, |n| {
        let bed = bed.clone();
        async move {
            let mut dice = Dice(n as u64);
            let mut numbers: Vec<u64> =
                (0..20).flat_map(|part| (0..50).map(move |at| part * 4096 + at)).collect();
            dice.shuffle(&mut numbers);
            let mut told = 0;
            for numbers in numbers.chunks(25) {
                let items = numbers.iter().map(|number| Items::from(*number)).collect();
                let acked = bed.ack_all(vec![Ack { tally, items, ending: Ending::Done }]).await;
                told += acked.completed.len();
            }
            told
        }
    })
    .await;
    assert_eq!(told.iter().sum::<usize>(), 1);
    assert_eq!(bed.tallied(tally).await, (1000, 1000, 0));
}

async fn a_tree_of_tallies_completes_once_whoever_delivers(bed: Bed) {
    let root = bed.open(on_complete()).await;
    let mut leaves = Vec::new();
    for _ in 0..5 {
        let branch = bed.open(NewTally::new().parent(Parent::New(root))).await;
        for _ in 0..5 {
            leaves.push(bed.open(NewTally::new().parent(Parent::New(branch))).await);
        }
        bed.seal(branch).await;
    }
    bed.seal(root).await;
    let bed = &bed;
    in_parallel(5, |n| {
        let (bed, leaves) = (bed.clone(), leaves.clone());
        async move {
            for leaf in leaves.into_iter().skip(n as usize - 1).step_by(5) {
                bed.seal(leaf).await;
                bed.deliver().await;
            }
        }
    })
    .await;
    bed.deliver().await;
    assert!(bed.tally(root).await.is_complete());
    assert_eq!(bed.emitted(TOLD).await.len(), 1);
}

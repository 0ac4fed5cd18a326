//! The disturbances. They come in rounds in which each kind has its turn, in any order.

use crate::chance::Chance;
use crate::crew::{Crew, WORKERS, signal};
use crate::place::Place;
use crate::proxy::{Mode, Proxy, Request};
use crate::recorder::{Caught, Recorder};
use crate::scenario::{LEASE, PATIENCE};

/// How many records are progress.
const PROGRESS: usize = 30;

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `kill -9` of a worker, at any moment or in the middle of a handler.
    Kill,
    KillInHandler,
    /// `kill -9` of the emitter while it emits.
    KillEmitter,
    /// A worker is stopped in the middle of a handler until its lease has ended, and goes on as if nothing had happened.
    Stop,
    /// Connections to the server end, politely or not.
    Drop,
    Reset,
    DropEmitter,
    ResetEmitter,
    /// A request is done, and its answer never comes. Emits that are a single call are cut in their commit.
    CutAnswer,
    CutEmit,
    /// The same of the COMMIT of a worker's step.
    CutCommit,
    /// Nothing gets through any more: for a worker until its lease has ended.
    Stall,
    StallEmitter,
}

const OF_PROCESSES: [Kind; 4] = [Kind::Kill, Kind::KillInHandler, Kind::KillEmitter, Kind::Stop];
const OF_CONNECTIONS: [Kind; 8] = [
    Kind::Drop,
    Kind::Reset,
    Kind::DropEmitter,
    Kind::ResetEmitter,
    Kind::CutAnswer,
    Kind::CutEmit,
    Kind::Stall,
    Kind::StallEmitter,
];

pub(crate) struct Disturber<'a> {
    place: &'a Place,
    pub(crate) crew: Crew<'a>,
    recorder: &'a Recorder,
    chance: Chance,
    /// What is left of this round.
    round: Vec<Kind>,
    /// How often a worker was kept from extending its lease, and how often somebody else has seen its end.
    pub(crate) kept_away: usize,
    pub(crate) taken_over: usize,
}

impl<'a> Disturber<'a> {
    pub(crate) fn new(
        place: &'a Place,
        crew: Crew<'a>,
        recorder: &'a Recorder,
        chance: Chance,
    ) -> Disturber<'a> {
        Disturber { place, crew, recorder, chance, round: Vec::new(), kept_away: 0, taken_over: 0 }
    }

    /// One disturbance, and then some progress.
    pub(crate) async fn disturb(&mut self) {
        let safe = self.recorder.wait(PATIENCE, |log| log.in_danger.is_empty()).await;
        assert!(
            safe,
            "what was hit before does not run: {:?}",
            self.recorder.look(|log| log.in_danger.clone())
        );
        let kind = self.next();
        if tokio::time::timeout(PATIENCE, self.inflict(kind)).await.is_err() {
            panic!("{kind:?} does not come to its end");
        }
        let goal = self.recorder.look(|log| log.records.len()) + PROGRESS;
        let progress = self.recorder.wait(PATIENCE, |log| log.records.len() >= goal).await;
        assert!(progress, "nothing runs any more after {kind:?}");
    }

    fn next(&mut self) -> Kind {
        if self.round.is_empty() {
            self.round.extend(OF_PROCESSES);
            if !self.place.proxies.is_empty() {
                self.round.extend(OF_CONNECTIONS);
                self.round.extend(self.place.says_commit().then_some(Kind::CutCommit));
            }
            self.chance.shuffle(&mut self.round);
        }
        self.round.pop().unwrap()
    }

    async fn inflict(&mut self, kind: Kind) {
        let victim = self.chance.below(WORKERS as u64) as usize;
        let after = self.chance.below(4);
        match kind {
            Kind::Kill => self.crew.kill_worker(victim),
            Kind::KillInHandler => {
                let _caught = self.recorder.catch(self.crew.worker(victim)).await;
                self.crew.kill_worker(victim);
            }
            Kind::KillEmitter => self.kill_emitter().await,
            Kind::Stop => self.stop(victim).await,
            Kind::Drop => self.way_of(victim).cut(false),
            Kind::Reset => self.way_of(victim).cut(true),
            Kind::DropEmitter => self.way_of(WORKERS).cut(false),
            Kind::ResetEmitter => self.way_of(WORKERS).cut(true),
            Kind::CutAnswer => self.way_of(victim).cut_answer(Request::After(after)).await,
            Kind::CutEmit => self.way_of(WORKERS).cut_answer(Request::After(after)).await,
            Kind::CutCommit => self.way_of(victim).cut_answer(Request::Commit).await,
            Kind::Stall => self.stall(victim).await,
            Kind::StallEmitter => {
                self.way_of(WORKERS).set(Mode::Stall);
                let goal = self.recorder.look(|log| log.records.len()) + PROGRESS;
                self.recorder.wait(LEASE, |log| log.records.len() >= goal).await;
                self.way_of(WORKERS).set(Mode::Pass);
            }
        }
    }

    fn way_of(&self, process: usize) -> &Proxy {
        &self.place.proxies[process]
    }

    /// It has just said what it is going to emit, so that it is hit in the middle.
    async fn kill_emitter(&mut self) {
        let sent = self.recorder.look(|log| log.emitted.sent.len());
        self.recorder.until(|log| log.emitted.sent.len() > sent && log.has_room()).await;
        self.crew.kill_emitter();
        let last = self.recorder.look(|log| log.emitted.sent.iter().max().copied());
        self.crew.new_emitter(last.unwrap_or(0) + 1);
    }

    async fn stop(&mut self, victim: usize) {
        let caught = self.recorder.catch(self.crew.worker(victim)).await;
        signal("-STOP", self.crew.worker(victim));
        self.outlast(&caught).await;
        signal("-CONT", self.crew.worker(victim));
    }

    async fn stall(&mut self, victim: usize) {
        let caught = self.recorder.catch(self.crew.worker(victim)).await;
        self.way_of(victim).set(Mode::Stall);
        self.outlast(&caught).await;
        self.way_of(victim).set(Mode::Pass);
    }

    /// Waits until somebody has taken over what the victim runs. Nobody can if it was hit inside a transaction that they have to wait
    /// for; but then the lease has ended all the same.
    async fn outlast(&mut self, caught: &Caught) {
        self.kept_away += 1;
        self.taken_over += usize::from(self.recorder.taken_over(caught, LEASE * 2).await);
    }
}

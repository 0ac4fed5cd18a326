//! The processes: workers, and one emitter.

use crate::place::Place;
use crate::process::{EMITTER, FIRST, JOURNAL, RECORDER, ROLE, URL, WORKER};
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Child, Command};
use tempfile::TempDir;

/// How many workers there are.
pub(crate) const WORKERS: usize = 3;

/// The processes, each with its own way to the database: workers by number, and then the emitter.
pub(crate) struct Crew<'a> {
    place: &'a Place,
    recorder: String,
    processes: Vec<Child>,
    journals: TempDir,
    /// How many events workers had in their journals, when they were killed, that no handler had seen.
    pub(crate) never_begun: usize,
}

impl<'a> Crew<'a> {
    pub(crate) fn start(place: &'a Place, recorder: String) -> Crew<'a> {
        let journals = tempfile::tempdir().unwrap();
        let mut crew = Crew { place, recorder, processes: Vec::new(), journals, never_begun: 0 };
        for number in 0..WORKERS {
            let worker = crew.spawn(number, WORKER, 0);
            crew.processes.push(worker);
        }
        let emitter = crew.spawn(WORKERS, EMITTER, 1);
        crew.processes.push(emitter);
        crew
    }

    pub(crate) fn worker(&self, number: usize) -> u32 {
        self.processes[number].id()
    }

    pub(crate) fn kill_worker(&mut self, number: usize) {
        self.kill(number);
        self.never_begun += never_begun(&std::fs::read_to_string(self.journal(number)).unwrap_or_default());
        self.processes[number] = self.spawn(number, WORKER, 0);
    }

    pub(crate) fn kill_emitter(&mut self) {
        self.kill(WORKERS);
    }

    /// A new one goes on with numbers that nobody has used.
    pub(crate) fn new_emitter(&mut self, first: u64) {
        self.processes[WORKERS] = self.spawn(WORKERS, EMITTER, first);
    }

    /// True once the emitter has ended by itself.
    pub(crate) fn emitter_has_ended(&mut self) -> bool {
        self.processes[WORKERS].try_wait().unwrap().is_some_and(|status| status.success())
    }

    fn spawn(&self, number: usize, role: &str, first: u64) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env(URL, self.place.url_through(number))
            .env(RECORDER, &self.recorder)
            .env(JOURNAL, self.journal(number))
            .env(FIRST, first.to_string())
            .spawn()
            .unwrap()
    }

    fn journal(&self, number: usize) -> PathBuf {
        self.journals.path().join(format!("{number}.journal"))
    }

    fn kill(&mut self, number: usize) {
        self.processes[number].kill().unwrap();
        self.processes[number].wait().unwrap();
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill().ok(); // also in a run that has failed
            process.wait().ok();
        }
    }
}

/// How many events were claimed and not begun: lines are `claimed <lease> <id>..` and `started <id>..`.
fn never_begun(journal: &str) -> usize {
    let (mut claimed, mut started) = (HashSet::new(), HashSet::new());
    for line in journal.lines() {
        match line.split_once(' ') {
            Some(("claimed", rest)) => claimed.extend(rest.split(' ').skip(1)),
            Some(("started", ids)) => started.extend(ids.split(' ')),
            _ => {}
        }
    }
    claimed.difference(&started).count()
}

pub(crate) fn signal(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

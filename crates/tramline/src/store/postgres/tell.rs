//! Hints that go with an emit: the server says them when it has committed, so that whoever waits does not wait for the emitter to be
//! answered and to say it on another connection. Where several emit at once, that is left to the relay, which gathers their hints; and where
//! somebody in this process listens, who has it from the emitter, and would only wait longer for its answer.

use crate::model::id::SubscriptionId;
use crate::wake::relay::Voice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub(super) struct Speech {
    voice: OnceLock<Voice>,
    /// How many emits are under way, and how many hints went with one.
    emits: AtomicUsize,
    marks: AtomicU64,
}

/// What goes with an emit.
#[derive(Clone, Debug)]
pub(super) struct Telling {
    pub(super) hint: String,
    /// What the connection remembers when the emit is stored; no other emit has the same, as a hint names its process.
    pub(super) mark: String,
}

impl Speech {
    pub(super) fn begin(&self, voice: Voice) {
        self.voice.set(voice).ok(); // the first one stays
    }

    /// An emit of this process has begun.
    pub(super) fn emit(&self) -> Emitting<'_> {
        Emitting { speech: self, alone: self.emits.fetch_add(1, Ordering::Relaxed) == 0 }
    }
}

/// An emit under way.
pub(super) struct Emitting<'s> {
    speech: &'s Speech,
    alone: bool,
}

impl<'s> Emitting<'s> {
    /// What to tell with the emit, if it is to be told with it.
    pub(super) fn telling(&self, ids: &[SubscriptionId]) -> Option<(&'s Voice, Telling)> {
        let voice = self.speech.voice.get().filter(|_| self.alone && !ids.is_empty())?;
        if voice.is_heard(ids) {
            return None;
        }
        let hint = voice.hint(ids)?;
        let mark = format!("{hint} {}", self.speech.marks.fetch_add(1, Ordering::Relaxed));
        Some((voice, Telling { hint, mark }))
    }
}

impl Drop for Emitting<'_> {
    fn drop(&mut self) {
        self.speech.emits.fetch_sub(1, Ordering::Relaxed);
    }
}

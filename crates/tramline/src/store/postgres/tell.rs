//! Hints that go with an emit: the server says them when it has committed, so that whoever waits does not wait for the emitter to be
//! answered and to say it on another connection. Where several emit at once, that is left to the relay, which gathers their hints; and where
//! somebody in this process listens, who has it from the emitter, and would only wait longer for its answer.

use crate::model::id::SubscriptionId;
use crate::wake::relay::Voice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub(super) struct Speech {
    voice: OnceLock<Voice>,
    emits: AtomicUsize,
    /// The newest chunk that this process knows to be drawn by one of its connections.
    newest: AtomicI64,
}

impl Speech {
    pub(super) fn begin(&self, voice: Voice) {
        self.voice.set(voice).ok(); // the first one stays
    }

    pub(super) fn newest(&self) -> i64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// Told before the connection that drew the number is used again.
    pub(super) fn drew(&self, chunk: i64) {
        self.newest.fetch_max(chunk, Ordering::SeqCst);
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
    /// The hint to say with the emit, if it is to be said with it.
    pub(super) fn hint(&self, ids: &[SubscriptionId]) -> Option<(&'s Voice, String)> {
        let voice = self.speech.voice.get().filter(|_| self.alone && !ids.is_empty())?;
        if voice.is_heard(ids) {
            return None;
        }
        Some((voice, voice.hint(ids)?))
    }
}

impl Drop for Emitting<'_> {
    fn drop(&mut self) {
        self.speech.emits.fetch_sub(1, Ordering::Relaxed);
    }
}

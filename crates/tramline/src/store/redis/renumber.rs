//! Numbers after a loss: those that were given by a server whose last moments another one does not know of are not given again.

use super::connection::TRIES;
use super::{RedisStore, Role, opening};
use crate::error::Result;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How many numbers of a counter are left out at least: more than can be given in the moments that a fail-over loses. And how many at random
/// beyond that, by a power of two: two fail-overs in a row that lose each other must not leave out the same ones.
const LEAST: u64 = 1 << 24;
const RANDOM: [(&str, u32); 6] =
    [("topic", 24), ("subscription", 24), ("epoch", 24), ("tally", 32), ("chunk", 32), ("changes", 24)];
const SLICES: u32 = 32;
const SITE: u32 = 24;
/// So often nothing goes wrong.
const NEVER: u64 = u64::MAX;

/// When it was last made sure that the server knows all numbers that it gave, or leaves out those that it may not.
#[derive(Debug)]
pub(super) struct Assured(AtomicU64);

impl Default for Assured {
    /// A process that has just started knows nothing of what went wrong before.
    fn default() -> Assured {
        Assured(AtomicU64::new(NEVER))
    }
}

impl RedisStore {
    /// How often something went wrong, if it was made sure since then that numbers are new.
    pub(super) fn is_assured(&self) -> Option<u64> {
        let breaks = self.numbers.breaks();
        (self.assured.0.load(SeqCst) == breaks).then_some(breaks)
    }

    /// The same; it is made sure where it was not.
    pub(super) async fn assured(&self) -> Result<u64> {
        for _ in 0..TRIES {
            if let Some(breaks) = self.is_assured() {
                return Ok(breaks);
            }
            let (breaks, before) = (self.numbers.breaks(), self.assured.0.load(SeqCst));
            let words = left_out(if before == NEVER { "" } else { "again" }, self.role);
            let epoch = self.link.renumber(&self.key("meta"), &self.key("slices"), &words).await?;
            // Another server, or the same one after a new start, which may be set up in another way.
            if before != NEVER && epoch > self.numbers.epoch() {
                self.check_again();
            }
            self.numbers.begin_epoch(epoch);
            self.assured.0.store(breaks, SeqCst);
        }
        // What is sent now is refused if something goes wrong again and again.
        Ok(self.assured.0.load(SeqCst))
    }

    /// Nobody waits for it, and it ends with its few answers.
    fn check_again(&self) {
        let (link, cluster) = (self.link.clone(), self.options.cluster);
        drop(tokio::spawn(async move { opening::check_again(&link, cluster).await }));
    }
}

/// What the script takes.
fn left_out(again: &str, role: Role) -> Vec<String> {
    // Less than zero: the site of a topic may have lost what it was told, and does nothing before it hears it again.
    let sign = if role == Role::Site { "-" } else { "" };
    let version = format!("{sign}{}", 1 + random(61));
    let mut words = vec![again.to_owned(), version, (LEAST + random(SLICES)).to_string()];
    // Topics of a store that is spread are numbered closely, and each number is taken where the topic is.
    let close = |counter: &str| role != Role::Whole && counter == "topic";
    for (counter, mut bits) in RANDOM.into_iter().filter(|(counter, _)| !close(counter)) {
        // Of the numbers of one topic there are fewer.
        if role == Role::Site {
            bits = bits.min(SITE);
        }
        words.extend([counter.to_owned(), (LEAST + random(bits)).to_string()]);
    }
    words
}

/// How many numbers a site leaves out that may have lost all it knew of them.
pub(super) fn leap() -> i64 {
    (LEAST + random(SITE)).cast_signed()
}

fn random(bits: u32) -> u64 {
    getrandom::u64().unwrap_or(0) >> (64 - bits)
}

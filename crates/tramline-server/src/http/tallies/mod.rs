//! Tallies: sets of items that are tracked to completion.
//!
//! - [`open`]: opening; [`add`]: adding, sealing; [`ack`], [`ack_many`]: how items ended; [`count`]: plain counters; [`end`]: cancelling, deleting
//! - [`look`]: one, with a long poll, and lists; [`figures`]: for stats and metrics
//! - [`about`]: a request about one; [`access`]: whose tally it is; [`member`]: events as items
//! - [`standing`], [`items`], [`number`]: how tallies, items and numbers are written

pub(crate) mod about;
pub(crate) mod access;
pub(crate) mod ack;
pub(crate) mod ack_many;
pub(crate) mod add;
pub(crate) mod count;
pub(crate) mod end;
pub(crate) mod figures;
pub(crate) mod items;
pub(crate) mod look;
pub(crate) mod member;
pub(crate) mod number;
pub(crate) mod open;
pub(crate) mod standing;

use tramline::Scope;

/// Who opens a tally, adds to it and seals it.
pub(crate) const FILL: &[Scope] = &[Scope::Publish, Scope::Manage];
/// Who says how items ended.
pub(crate) const ACK: &[Scope] = &[Scope::Consume, Scope::Manage];
/// Who counts: up is filling, down is acking, and whoever does one of them may do the other.
pub(crate) const COUNT: &[Scope] = &[Scope::Publish, Scope::Consume, Scope::Manage];
/// Whoever has to do with tallies may look at those of its patterns.
pub(crate) const SEE: &[Scope] = &[Scope::Publish, Scope::Consume, Scope::Manage];
/// Who gives tallies up.
pub(crate) const MANAGE: &[Scope] = &[Scope::Manage];

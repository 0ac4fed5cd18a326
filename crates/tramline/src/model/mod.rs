//! What Tramline talks about: plain values and pure decisions, no I/O.
//!
//! - [`event`], [`chunk`]: events, and how up to 64 of them are written as one row; `kept`: those that are emitted later
//! - [`mask`], [`mod@slice`], [`status`]: what is left to do of a chunk, and what users are told
//! - [`subscription`], [`filter`], [`retry`], [`rule`]: who consumes, which events, how failures are repeated, what stops it
//! - [`limits`]: what all workers of a subscription may do together
//! - [`push`], [`health`]: how events are sent to a callback, and how that goes
//! - [`dropped`]: what a subscription will never see; [`failure`], [`letter`]: why events failed, and which dead ones are meant
//! - [`lane`], [`lease`], [`outcome`]: order, claims and their results
//! - [`resequencer`]: the consumer's side of the order
//! - [`id`], [`name`], [`pattern`], [`time`]: numbers, names and points in time
//! - [`tally`]: sets of items that are tracked to completion
//! - [`schedule`]: what is emitted at certain times
//! - [`trace`]: to which trace an event belongs
//! - [`unique`]: events of which at most one is pending
//! - [`token`]: who may do what over the network

pub mod chunk;
pub mod dropped;
pub mod event;
pub mod failure;
pub mod filter;
pub mod health;
pub mod id;
pub(crate) mod kept;
pub mod lane;
pub mod lease;
pub mod letter;
pub mod limits;
pub mod mask;
pub mod name;
pub mod outcome;
pub mod pattern;
pub mod push;
pub mod resequencer;
pub mod retry;
pub mod rule;
pub mod schedule;
pub mod slice;
pub mod status;
pub mod subscription;
pub mod tally;
pub mod time;
pub mod token;
pub mod trace;
pub mod unique;

//! The engine: everything between a program and the store.
//!
//! - [`tramline`], [`options`], [`control`], [`revive`]: the handle, how it is opened, and the verbs of an operator
//! - [`emit`] (with `gather`: what goes together, and `pace`: how long that takes), [`buffer`], [`receipt`], [`follow`], [`chain`]: how events get in, and out again
//!   without a subscription
//! - [`worker`], [`handler`], [`context`], [`plugin`], [`command`], [`hooks`], [`shutdown`]: what a worker is told, and what its handlers see
//! - `run`: one run of a worker, made of `claim` (gets events), `dispatch` (which one next), `runner` (runs handlers), `settle`
//!   (writes outcomes back) and `keeper` (extends leases), which meet in `ledger` and `hand`
//! - [`pool`]: places that workers of a process share, by the weights of `shares`
//! - [`remote`]: claims and settlements for workers in other processes; with `takes` and `returns`, of which many go together (`groups`)
//! - `presence`, `sweep` (with `shed`), `gate`, `journal`: signs of life, housekeeping and a full store, suspects, at-most-once
//! - [`push`]: sends the events of push subscriptions to their callbacks
//! - [`tally`], [`names`], with `ack` (group commit) and `courier` (takes their news to whom they concern): fan-out tracking
//! - [`schedule`]: what is emitted at certain times
//! - [`trace`]: the way of an event as spans
//! - [`clock`], `backoff`: time, and patience with the store

mod ack;
pub(crate) mod backoff;
pub mod buffer;
pub mod chain;
mod claim;
pub mod clock;
pub mod command;
pub mod context;
pub mod control;
pub(crate) mod courier;
mod dispatch;
pub mod emit;
pub mod follow;
mod gate;
mod gather;
mod groups;
mod hand;
pub mod handler;
pub mod hooks;
mod journal;
mod keeper;
mod ledger;
pub mod names;
pub mod options;
mod pace;
pub mod plugin;
pub mod pool;
mod presence;
pub mod push;
pub mod receipt;
pub mod remote;
mod returns;
pub mod revive;
mod run;
mod runner;
pub mod schedule;
mod settle;
mod shares;
mod shed;
pub mod shutdown;
mod sweep;
mod takes;
pub mod tally;
pub mod trace;
pub mod tramline;
pub mod worker;

//! Tramline: ordered events, work queues and worker pools on the database you already run.
//!
//! Start with [`Tramline`]: open a store, emit an [`Event`], run a [`Worker`].
//!
//! - [`model`]: what Tramline talks about; plain values and pure decisions
//! - [`store`]: the databases, behind one trait
//! - [`plan`]: what a verb of a store changes, decided without I/O
//! - [`wake`]: hints that there is work
//! - [`engine`]: the program's side: emitting, workers, handlers, signs of life
//! - [`push`]: the network side of push: what may be dialled, the HTTP client, signatures, secrets at rest
//! - [`testkit`]: a store in memory and a clock to turn, for the tests of programs that use Tramline
//! - [`error`]: the one error type; `tls`: the cryptography of connections that libraries make

pub mod engine;
pub mod error;
pub mod model;
pub mod plan;
pub mod push;
pub mod store;
pub mod testkit;
pub mod tls;
pub mod wake;

pub use engine::buffer::Rejected;
pub use engine::chain::{Direction, KeyEvents};
pub use engine::clock::{Clock, ManualClock};
pub use engine::command::{Output, ShellCommand};
pub use engine::context::Context;
pub use engine::follow::Follow;
pub use engine::handler::{Batch, Extract, Handler, IntoOutcome, IntoOutcomes, Json, Proto, Raw, State};
pub use engine::hooks::{Finished, Hooks, LogHooks, NoHooks, Progress, Settlement};
pub use engine::names::{ItemStatus, NamedAcks};
pub use engine::options::Options;
pub use engine::plugin::{HttpForward, Plugin};
pub use engine::pool::Pool;
pub use engine::push::{Pusher, Replayed};
pub use engine::receipt::{IntoEvents, Receipt};
pub use engine::remote::Take;
pub use engine::revive::{Part, Place};
pub use engine::shutdown::Shutdown;
pub use engine::tally::Tallies;
#[cfg(feature = "otel")]
pub use engine::trace::OtelTraces;
pub use engine::trace::{NoTraces, Traces};
pub use engine::tramline::{Housekeeping, Tramline};
pub use engine::worker::Worker;
pub use error::{Error, Kind, Result};
pub use model::dropped::{DropReason, DropRecord};
pub use model::event::{Emitted, Event, Headers, StoredEvent};
pub use model::failure::{Failure, Gone};
pub use model::filter::Filter;
pub use model::health::{Attempt, Disabled, Health, Verdict};
pub use model::id::{EventId, Incarnation, SubscriptionId, TallyId, TopicId};
pub use model::lease::Lease;
pub use model::letter::{Letters, Pace};
pub use model::limits::{Limits, Rate};
pub use model::outcome::Outcome;
pub use model::pattern::Pattern;
pub use model::push::{Format, Push, SealedSecret, SecretKind};
pub use model::resequencer::Resequencer;
pub use model::retry::{Backoff, Retry};
pub use model::rule::{AuditEntry, PatternRule, Rule, RuleKind};
pub use model::schedule::{Missed, Schedule, StoredSchedule, Timing};
pub use model::status::{Counts, Status};
pub use model::subscription::{
    Guarantee, OnExhausted, Ordering, Policy, Start, Subscription, Topic, TopicSettings, WhileRetrying,
};
pub use model::tally::{Ack, AckCount, Added, Ending, Items, NewTally, Parent, Tally, TallyItem, TallyState};
pub use model::time::Time;
pub use model::token::{Scope, Token};
pub use model::unique::{Duplicates, Unique};
pub use store::Store;
pub use store::sqlite::SqliteStore;

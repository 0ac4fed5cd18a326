//! What the verbs of a store take and give. Every verb takes one of these; `now` is only set by tests.

mod catalog;
mod claim;
mod emit;
mod look;
mod mend;
mod push;
mod schedule;
mod settle;
mod shed;
mod sweep;
mod token;

pub use catalog::{
    Expected, MAX_PATTERN_RULES, PutSubscription, PutTopic, RemovePatternRule, RuleEnd, SetPatternRule,
    SetRule,
};
pub use claim::{Claim, Claimed, ClaimedEvent, ClaimedSlice, Suspects};
pub use emit::{Emission, Emit};
pub use look::{
    DeadEvent, DeadPage, Delivery, EventView, FindEvent, Head, ListDead, LogPage, Page, ParkedKey, ReadLog,
    Stats, Trace, Traced,
};
pub(crate) use mend::REVIVE_STEP;
pub use mend::{Cancel, ReleaseParked, Resend, Revival, Revive, Revived, Stagger, Which};
pub use push::{
    ATTEMPTS_KEPT, Gather, Gathered, ListAttempts, NumberedAttempt, PushEntry, RecordPush, Recorded, Sent,
    Steer, SteerPush,
};
pub use schedule::{
    DeclareSchedules, ListSchedules, MAX_SCHEDULES, NameSchedule, Over, PauseSchedule, PutSchedule, Tick,
    Ticked,
};
pub use settle::{Adopt, Extend, Extended, Release, Settle, SettleSlice, Settled};
pub use shed::{DropTotal, ListDrops, Shed, Shedded, StoreSize, Surplus};
pub(crate) use sweep::BURIALS;
pub use sweep::{Beat, Buried, Bury, REMEMBERED, RemoteWorker, SeeRemote, Seen, Sweep, Swept, Worker};
pub use token::{PutToken, SealToken};

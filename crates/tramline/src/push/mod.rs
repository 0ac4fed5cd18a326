//! The network side of push: everything between a batch that is due and the receiver's answer.
//!
//! - [`format`](mod@format): how a batch is written; [`verdict`]: what an answer says of it
//! - [`guard`]: which addresses may be dialled
//! - [`sign`], [`verify`]: signatures, and how a receiver checks them
//! - [`seal`]: secrets at rest

pub mod format;
pub mod guard;
pub mod seal;
pub mod sign;
pub mod verdict;
pub mod verify;

pub use format::{Sending, Written, write};
pub use guard::{Cidr, Guard, Refused};
pub use seal::Keyring;
pub use sign::{Secret, sign};
pub use verdict::{Judged, all_failed, in_order, judge};
pub use verify::{Key, Unverified, Verifier};

//! The network side of push: everything between a batch that is due and the receiver's answer.
//!
//! - [`format`](mod@format): how a batch is written; [`verdict`]: what an answer says of it
//! - [`guard`]: which addresses may be dialled
//! - `dial`: how connections are opened, with [`resolve`] (names), [`proxy`] and `tls`; `pool`: how they are kept
//! - [`client`]: sends a request and reads the answer; [`failed`]: why there is none; `retry_after`: when to ask again
//! - [`callback`]: URLs that may be called back
//! - [`mod@sign`], [`verify`]: signatures, and how a receiver checks them
//! - [`seal`]: secrets at rest

pub mod callback;
pub mod client;
mod dial;
pub mod failed;
pub mod format;
pub mod guard;
mod pool;
pub mod proxy;
pub mod resolve;
pub(crate) mod retry_after;
pub mod seal;
pub mod sign;
mod tls;
pub mod verdict;
pub mod verify;

pub use callback::check_callback;
pub use client::{Answer, Answered, Client, Request, Settings};
pub use failed::{FailKind, Failed};
pub use format::{Sending, Written, write};
pub use guard::{Cidr, Guard, Refused};
pub use proxy::Proxy;
pub use resolve::{Resolve, SystemResolver};
pub use seal::Keyring;
pub use sign::{Secret, sign};
pub use verdict::{Judged, all_failed, in_order, judge};
pub use verify::{Key, Unverified, Verifier};

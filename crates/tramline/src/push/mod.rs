//! The network side of push: everything between a batch that is due and the receiver's answer.
//!
//! - [`guard`]: which addresses may be dialled
//! - [`sign`], [`verify`]: signatures, and how a receiver checks them
//! - [`seal`]: secrets at rest

pub mod guard;
pub mod seal;
pub mod sign;
pub mod verify;

pub use guard::{Cidr, Guard, Refused};
pub use seal::Keyring;
pub use sign::{Secret, sign};
pub use verify::{Key, Unverified, Verifier};

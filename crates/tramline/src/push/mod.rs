//! The network side of push: everything between a batch that is due and the receiver's answer.
//!
//! - [`guard`]: which addresses may be dialled

pub mod guard;

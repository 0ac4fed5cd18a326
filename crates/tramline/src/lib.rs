//! x
pub mod error;
pub mod model;
pub mod plan;
pub mod store;
pub use error::{Error, Result};
pub use model::event::Event;

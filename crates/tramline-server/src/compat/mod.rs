//! The APIs of others, on top of Tramline's own words.

pub(crate) mod carlyle;
pub(crate) mod routemaster;
mod served;

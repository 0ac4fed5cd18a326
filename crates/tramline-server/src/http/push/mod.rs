//! Push subscriptions over HTTP.
//!
//! - [`fields`]: what may be said of one
//! - [`shown`]: what is told of one
//! - [`secrets`]: signing secrets: adding and removing
//! - [`steer`]: enabling, disabling, sending again
//! - [`attempts`]: what was tried; [`figures`]: for the page of metrics

pub(crate) mod attempts;
pub(crate) mod fields;
pub(crate) mod figures;
pub(crate) mod secrets;
pub(crate) mod shown;
pub(crate) mod steer;

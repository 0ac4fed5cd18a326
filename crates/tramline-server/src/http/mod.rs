//! The HTTP API.
//!
//! - [`routes`]: every route, on one page; [`openapi`], [`schema`]: their description, made from the same list
//! - [`app`]: what all handlers share; [`limits`], [`place`], [`access`], [`caller`]: what goes before a request
//! - [`emit`] (with [`unique`]), [`ndjson`], [`events`], [`follow`]: events, in and out
//! - [`topics`], [`subscriptions`] (with [`limited`], [`change`]), [`control`], [`dead`]: looking and steering
//! - [`tallies`]: fan-outs that are tracked to completion; [`schedules`]: what is emitted at certain times
//! - [`claims`], [`given`], [`settle`], [`workers`]: remote workers
//! - [`stats`], [`drops`], [`metrics`], [`timed`], [`health`]: figures, and what is gone
//! - [`tokens`]: who may do what
//! - [`body`], [`params`], [`json`], [`problem`]: how requests are read and answers written

pub(crate) mod access;
pub(crate) mod app;
pub(crate) mod audit;
pub(crate) mod body;
pub(crate) mod caller;
mod chain;
pub(crate) mod change;
mod claims;
mod control;
mod dead;
mod drops;
pub(crate) mod emit;
pub(crate) mod events;
mod follow;
mod given;
pub(crate) mod health;
pub(crate) mod json;
mod letters;
mod life;
mod limited;
pub(crate) mod limits;
pub(crate) mod metrics;
mod ndjson;
mod openapi;
pub(crate) mod params;
mod place;
pub(crate) mod problem;
pub(crate) mod push;
pub(crate) mod routes;
mod rules;
mod schedules;
mod schema;
mod settle;
pub(crate) mod stats;
mod subscriptions;
pub(crate) mod tallies;
#[cfg(test)]
mod tests;
pub(crate) mod timed;
pub(crate) mod tokens;
mod topics;
mod unique;
mod workers;

//! The HTTP API.
//!
//! - [`routes`]: every route, on one page; [`openapi`], [`schema`]: their description, made from the same list
//! - [`app`]: what all handlers share; [`limits`], [`access`], [`caller`]: what goes before a request
//! - [`emit`], [`ndjson`], [`events`], [`follow`]: events, in and out
//! - [`topics`], [`subscriptions`], [`control`], [`dead`]: looking and steering
//! - [`claims`], [`given`], [`settle`], [`workers`]: remote workers
//! - [`stats`], [`metrics`], [`timed`], [`health`]: figures
//! - [`tokens`]: who may do what
//! - [`body`], [`params`], [`json`], [`problem`]: how requests are read and answers written

pub(crate) mod access;
pub(crate) mod app;
mod body;
mod caller;
mod claims;
mod control;
mod dead;
mod emit;
mod events;
mod follow;
mod given;
mod health;
mod json;
pub(crate) mod limits;
pub(crate) mod metrics;
mod ndjson;
mod openapi;
mod params;
mod problem;
pub(crate) mod routes;
mod schema;
mod settle;
mod stats;
mod subscriptions;
#[cfg(test)]
mod tests;
pub(crate) mod timed;
mod tokens;
mod topics;
mod workers;

//! The API as a whole, in process: a router on a store in memory.

mod bed;
mod emitting;
mod figures;
mod following;
mod matrix;
mod openapi;
mod refusals;
mod work;

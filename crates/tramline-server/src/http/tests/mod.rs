//! The API as a whole, in process: a router on a store in memory.

mod bed;
mod carlyle;
mod drops;
mod emitting;
mod figures;
mod following;
mod letters;
mod limits;
mod matrix;
mod openapi;
mod outage;
mod push;
mod refusals;
mod routemaster;
mod rules;
mod schedules;
mod tallies;
mod tally_events;
mod tally_tokens;
mod unique;
mod work;

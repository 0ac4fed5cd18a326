//! Routemaster's API, in process.

mod bus;
mod losing;
mod publishing;
mod pulse;
mod reports;
mod rights;
mod subscribing;
mod tokens;

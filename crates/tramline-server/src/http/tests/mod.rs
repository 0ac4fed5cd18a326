//! The API as a whole, in process.

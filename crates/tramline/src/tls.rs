//! The cryptography of connections that libraries make: those to Redis and NATS, and those of HTTP clients.

use rustls::crypto::ring::default_provider;

/// Names the cryptography that such connections use, unless the program has named one: a library that is told nothing, or finds more
/// than one compiled in, panics. The parts of this crate that connect see to it themselves.
pub fn prepare() {
    // An error says that there is one already.
    default_provider().install_default().ok();
}

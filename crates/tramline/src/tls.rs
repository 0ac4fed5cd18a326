//! The cryptography of connections that libraries make: those to Redis and NATS.

use rustls::crypto::ring::default_provider;

/// Names the cryptography that such connections use, unless the program has named one. More than one is compiled in, and a library that
/// is told nothing cannot choose between them: it panics.
pub(crate) fn prepare() {
    // An error says that there is one already.
    default_provider().install_default().ok();
}

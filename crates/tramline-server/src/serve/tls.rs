//! TLS: the certificate and key are read again when their files change.

use crate::bench::BoxError;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What connections are opened with.
pub(crate) struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

/// How the files looked when they were last read.
type Look = [Option<(SystemTime, u64)>; 2];

impl Tls {
    pub(crate) fn open(cert: &Path, key: &Path) -> Result<Arc<Tls>, BoxError> {
        let config = RwLock::new(read(cert, key)?);
        Ok(Arc::new(Tls { cert: cert.into(), key: key.into(), config }))
    }

    /// Opens a connection with the certificate of now.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> std::io::Result<TlsStream<S>> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Reads the files again when they have changed, until it is dropped. What cannot be read changes nothing.
    pub(crate) async fn keep_current(&self) {
        let mut seen = self.look();
        loop {
            tokio::time::sleep(EVERY).await;
            let now = self.look();
            if now == seen {
                continue;
            }
            seen = now;
            match read(&self.cert, &self.key) {
                Ok(config) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!("the TLS certificate was read again");
                }
                Err(error) => {
                    tracing::warn!(error, "the new TLS certificate cannot be used; the old one stays")
                }
            }
        }
    }

    fn look(&self) -> Look {
        [&self.cert, &self.key].map(|path| {
            let data = std::fs::metadata(path).ok()?;
            Some((data.modified().ok()?, data.len()))
        })
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, BoxError> {
    let unreadable = |path: &Path, error| format!("{} cannot be used for TLS: {error}", path.display());
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(|error| unreadable(cert, error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

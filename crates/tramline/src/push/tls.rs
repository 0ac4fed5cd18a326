//! TLS to receivers: whose certificates are trusted.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls::{WantsVerifier, client::WantsClientCert};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Trusts what the machine trusts, or, only if asked for, everything.
pub(super) fn connector(insecure: bool) -> TlsConnector {
    let provider = Arc::new(ring::default_provider());
    let config = if insecure { trusting(provider) } else { trusted(provider, system_roots()) };
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config).into()
}

/// The roots of the machine, not a list compiled in: an operator who adds the authority of his company, or whose distribution
/// withdraws one, need not wait for a new version of this program.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(
            errors = ?found.errors,
            "no root certificates were found: every push over https will fail. Install the package ca-certificates, or set SSL_CERT_FILE"
        );
    }
    roots
}

fn trusted(
    provider: Arc<CryptoProvider>,
    roots: RootCertStore,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    builder(provider).with_root_certificates(roots)
}

fn trusting(provider: Arc<CryptoProvider>) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    builder(provider.clone()).dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
}

fn builder(provider: Arc<CryptoProvider>) -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers for TLS 1.2 and 1.3")
}

/// Accepts every certificate. Whoever stands in between can read and change everything; it keeps out only those who just listen.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

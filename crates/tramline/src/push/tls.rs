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
    if insecure { trusting_anybody() } else { trusting(system_roots()) }
}

fn trusting(roots: RootCertStore) -> TlsConnector {
    finish(builder(provider()).with_root_certificates(roots))
}

fn trusting_anybody() -> TlsConnector {
    let verifier = Arc::new(Anybody(provider()));
    finish(builder(provider()).dangerous().with_custom_certificate_verifier(verifier))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn builder(provider: Arc<CryptoProvider>) -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers for TLS 1.2 and 1.3")
}

fn finish(config: ConfigBuilder<ClientConfig, WantsClientCert>) -> TlsConnector {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::pki_types::pem::PemObject;
    use tokio_rustls::TlsAcceptor;

    fn certificate() -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(include_bytes!("../../tests/push/cert.pem")).unwrap()
    }

    /// Shakes hands with a server that shows the certificate.
    async fn shake(connector: TlsConnector, name: &'static str) -> std::io::Result<()> {
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../tests/push/key.pem")).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate()], key)
            .unwrap();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let accepting = tokio::spawn(TlsAcceptor::from(Arc::new(config)).accept(theirs));
        let shaken = connector.connect(name.try_into().unwrap(), ours).await.map(drop);
        drop(accepting.await.unwrap());
        shaken
    }

    #[tokio::test]
    async fn a_root_vouches_for_the_names_in_the_certificate_only() {
        let mut roots = RootCertStore::empty();
        roots.add(certificate()).unwrap();
        assert!(shake(trusting(roots.clone()), "localhost").await.is_ok());
        assert!(shake(trusting(roots), "example.org").await.is_err());
    }

    #[tokio::test]
    async fn without_roots_nobody_is_trusted_unless_everybody_is() {
        assert!(shake(trusting(RootCertStore::empty()), "localhost").await.is_err());
        assert!(shake(trusting_anybody(), "example.org").await.is_ok());
    }
}

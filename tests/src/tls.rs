//! Certificate authorities of tenants, and TLS clients and servers that trust only one of them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};

use crate::temp::TempDir;

/// Time limit for each step of a test connection.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A tenant's certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    certificate_pem: String,
    key_pem: String,
}

/// An authority's certificate and a client's identity as files, for programs that read files.
#[derive(Debug)]
pub struct Files {
    _folder: TempDir,
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Identity {
    /// Returns the chain and its key, in the form that rustls expects.
    pub fn into_parts(self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (vec![self.certificate], PrivateKeyDer::Pkcs8(self.key))
    }
}

impl Authority {
    /// Creates an authority with the common name `<tenant> CA`.
    pub fn new(tenant: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("{tenant} CA"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?;
        let (pem, der) = (certificate.pem(), certificate.der().clone());
        Ok(Self { issuer: Issuer::new(params, key), certificate: der, pem })
    }

    /// Issues a server's identity for these names.
    pub fn server(&self, names: &[&str]) -> Result<Identity> {
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, names.first().copied().unwrap_or("server"));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Issues a client's identity.
    pub fn client(&self, common_name: &str) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity> {
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: certificate.der().clone(),
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }

    /// Its certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns a root store that trusts only this authority.
    pub fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        Ok(roots)
    }

    /// Returns the configuration of a server with this identity. Clients may present a certificate of this
    /// authority, and of no other.
    pub fn server_config(&self, identity: &Identity) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![identity.certificate.clone()],
                PrivateKeyDer::Pkcs8(identity.key.clone_key()),
            )?;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of a client that trusts only this authority and presents `identity`, if
    /// there is one.
    pub fn client_config(&self, identity: Option<&Identity>) -> Result<Arc<ClientConfig>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?);
        let config = match identity {
            Some(identity) => {
                let key = PrivateKeyDer::Pkcs8(identity.key.clone_key());
                builder.with_client_auth_cert(vec![identity.certificate.clone()], key)?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    /// Writes the authority's certificate and an identity as PEM files.
    pub fn files(&self, identity: &Identity) -> Result<Files> {
        let folder = TempDir::new()?;
        let authority = folder.write("ca.pem", &self.pem)?;
        let certificate = folder.write("client.pem", &identity.certificate_pem)?;
        let key = folder.write("client.key", &identity.key_pem)?;
        Ok(Files { _folder: folder, authority, certificate, key })
    }
}

/// A TLS connection of a client.
pub type ClientStream = StreamOwned<ClientConnection, TcpStream>;

/// Starts TLS on a connected socket; the handshake is complete when this returns.
pub fn handshake(
    socket: TcpStream,
    config: Arc<ClientConfig>,
    server_name: &str,
) -> io::Result<ClientStream> {
    let name = ServerName::try_from(server_name.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// Connects a TCP socket in the calling thread's namespace; connect, reads and writes are bounded by
/// [`PATIENCE`].
pub fn dial(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&to, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Returns the common name of a certificate's subject. It is the last one in the certificate, as the issuer's
/// precedes it.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    /// `06 03` and 2.5.4.3 (RFC 5280 appendix A.1, id-at-commonName).
    const OID: [u8; 5] = [6, 3, 0x55, 4, 3];
    let at = certificate.windows(OID.len()).rposition(|window| window == OID)? + OID.len();
    let length = usize::from(*certificate.get(at + 1)?);
    let text = certificate.get(at + 2..at + 2 + length)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Describes what failed.
pub fn context(what: &str, to: SocketAddr, server_name: &str) -> String {
    format!("{what} at {to} by the name {server_name}")
}

/// Connects and performs the handshake.
pub fn connect(to: SocketAddr, config: Arc<ClientConfig>, server_name: &str) -> Result<ClientStream> {
    let socket = dial(to).with_context(|| context("connecting", to, server_name))?;
    handshake(socket, config, server_name).with_context(|| context("TLS handshake", to, server_name))
}

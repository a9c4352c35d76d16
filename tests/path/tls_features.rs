//! TLS beyond one hello and one answer: a second hello, resumption, early data, encrypted hellos.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion,
};
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, server_name};
use tests::clients::ask;
use tests::config::{Backend, Config, SHARED, listener, route};
use tests::server::Speech;
use tests::tls::{Authority, dial, handshake};
use tests::topology::{Lab, Options};

use crate::scene::Scene;

const PORT: u16 = 7443;

/// Returns a crypto provider with these key exchanges only.
fn provider(groups: &[&'static dyn SupportedKxGroup]) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { kx_groups: groups.to_vec(), ..ring::default_provider() })
}

/// The configurations of both ends.
struct Ends {
    server: ServerConfig,
    client: Arc<ClientConfig>,
}

/// Returns a server of one tenant, and a client that trusts it.
fn ends(
    server_groups: &[&'static dyn SupportedKxGroup],
    client_groups: &[&'static dyn SupportedKxGroup],
    versions: &[&'static SupportedProtocolVersion],
) -> Ends {
    let authority = Authority::new("tenant-a").unwrap();
    let identity = authority.server(&[&server_name(0)]).unwrap();
    let (chain, key) = identity.into_parts();
    let server = ServerConfig::builder_with_provider(provider(server_groups))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let mut client = ClientConfig::builder_with_provider(provider(client_groups))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(authority.roots().unwrap())
        .with_no_client_auth();
    client.enable_early_data = true;
    Ends { server, client: Arc::new(client) }
}

fn config() -> Config {
    let mut config = Config::empty();
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    let backends = FAMILIES.map(|family| Backend::new(backend(family, 0, 0), PORT));
    config.routes.push(route("tenant-a", &[SHARED], &[&server_name(0)], backends.to_vec()));
    config
}

fn lab() -> Lab {
    Lab::with(&Options { servers: false, ..Options::default() }).unwrap()
}

/// Returns the handshake kinds of a first and a second connection, both of which reached the tenant's server.
fn handshakes(ends: Ends, family: Family) -> [Option<HandshakeKind>; 2] {
    let lab = lab();
    let speech = Speech::Tls(Arc::new(ends.server));
    let server = lab.serve(0, (backend(family, 0, 0), PORT).into(), "tenant-a/0", speech).unwrap();
    let daemon = lab.vestibule(&config()).unwrap();
    let to = lab.vip(family, TLS_PORT);
    let kinds = [(); 2].map(|()| {
        lab.client.run(|| {
            let mut tls = handshake(dial(to).unwrap(), Arc::clone(&ends.client), &server_name(0)).unwrap();
            assert_eq!(ask(&mut tls).unwrap(), "tenant-a/0 -");
            tls.conn.handshake_kind()
        })
    });
    assert_eq!(server.accepted(), 2);
    drop(Scene { daemon, echoes: vec![server], lab });
    kinds
}

#[test]
fn a_second_hello_after_a_hello_retry_request_passes() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let client = [ring::kx_group::X25519, ring::kx_group::SECP384R1];
        let ends = ends(&[ring::kx_group::SECP384R1], &client, &[&TLS13]);
        let [first, second] = handshakes(ends, family);
        assert_eq!(first, Some(HandshakeKind::FullWithHelloRetryRequest));
        // The client remembers the server's key exchange and resumes.
        assert_eq!(second, Some(HandshakeKind::Resumed));
    }
}

#[test]
fn sessions_are_resumed() {
    tests::skip_without_root!();
    for version in [&TLS12, &TLS13] {
        let groups = [ring::kx_group::X25519];
        let kinds = handshakes(ends(&groups, &groups, &[version]), Family::V4);
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)], "{version:?}");
    }
}

/// Starts a server that reads early data, one connection after another, and answers each with what it read.
fn early_server(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    connections: usize,
) -> JoinHandle<io::Result<()>> {
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept()?;
            let connection = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
            let mut tls = StreamOwned::new(connection, stream);
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock)?;
            }
            let mut read = Vec::new();
            if let Some(mut early) = tls.conn.early_data() {
                early.read_to_end(&mut read)?;
            }
            tls.write_all(format!("early: {}\n", String::from_utf8_lossy(&read)).as_bytes())?;
            tls.conn.send_close_notify();
            tls.flush()?;
        }
        Ok(())
    })
}

/// Sends a hello with `words` as early data; returns the answer, and whether the server accepted the early data.
fn early_client(to: SocketAddr, config: &Arc<ClientConfig>, words: &str) -> (String, bool) {
    let name = server_name(0).try_into().unwrap();
    let mut connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    if let Some(mut early) = connection.early_data() {
        early.write_all(words.as_bytes()).unwrap();
    }
    let mut tls = StreamOwned::new(connection, dial(to).unwrap());
    let mut answer = String::new();
    tls.read_to_string(&mut answer).unwrap();
    (answer, tls.conn.is_early_data_accepted())
}

#[test]
fn early_data_arrives_with_the_hello() {
    tests::skip_without_root!();
    let groups = [ring::kx_group::X25519];
    let Ends { mut server, client } = ends(&groups, &groups, &[&TLS13]);
    server.max_early_data_size = 16_384;
    let (lab, server) = (lab(), Arc::new(server));
    let at = SocketAddr::new(backend(Family::V6, 0, 0), PORT);
    let listener = lab.tenants[0].namespace.run(|| TcpListener::bind(at)).unwrap();
    let serving = early_server(listener, server, 3);
    let _daemon = lab.vestibule(&config()).unwrap();
    let to = lab.vip(Family::V6, TLS_PORT);
    // Early data of more than one segment.
    let long = "word ".repeat(2000);
    lab.client.run(|| {
        assert_eq!(early_client(to, &client, "nothing to resume yet"), ("early: \n".into(), false));
        assert_eq!(early_client(to, &client, "GET /"), ("early: GET /\n".into(), true));
        assert_eq!(early_client(to, &client, &long), (format!("early: {long}\n"), true));
    });
    serving.join().unwrap().unwrap();
}

/// A server process for encrypted hellos, as in `tests/path/ech`; it ends when dropped.
struct EchServer {
    child: Child,
    /// What the server printed: its certificate, an outdated configuration, and the current one.
    certificate: String,
    stale: String,
    current: String,
}

impl EchServer {
    fn start(program: &OsStr, lab: &Lab, at: SocketAddr, public: &str, inner: &str) -> Self {
        let mut child = lab.tenants[0]
            .namespace
            .command(program)
            .args(["serve", &at.to_string(), public, inner])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut word = || words.next().expect("the server prints certificate and configurations");
        Self { child, certificate: word(), stale: word(), current: word() }
    }
}

impl Drop for EchServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The inner name is another tenant's: no node on the path can read it, and no connection is routed by it.
#[test]
fn an_encrypted_hello_goes_by_its_outer_name() {
    tests::skip_without_root!();
    let Some(program) = std::env::var_os("VESTIBULE_ECH") else {
        eprintln!(
            "SKIPPED: needs server and client of encrypted hellos (VESTIBULE_ECH), as `cargo xtask test` builds them"
        );
        return;
    };
    let (public, inner) = (server_name(0), server_name(1));
    for family in FAMILIES {
        let lab = lab();
        let at = SocketAddr::new(backend(family, 0, 0), PORT);
        let server = EchServer::start(&program, &lab, at, &public, &inner);
        let mut config = config();
        // This backend has no listener, so a connection routed to it is refused.
        let other = FAMILIES.map(|family| Backend::new(backend(family, 1, 0), PORT));
        config.routes.push(route("tenant-b", &[SHARED], &[&inner], other.to_vec()));
        let _daemon = lab.vestibule(&config).unwrap();
        let dial = |configurations: &str| {
            let to = lab.vip(family, TLS_PORT).to_string();
            let mut dial = lab.client.command(&program);
            let output =
                dial.args(["dial", &to, &inner, &server.certificate, configurations]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(dial(&server.current), format!("{inner} true\n"));
        // After key rotation the client learns the new keys from a handshake by the outer name, and connects again.
        let answer = dial(&server.stale);
        let retry = answer.trim().strip_prefix("retry ").unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(dial(retry), format!("{inner} true\n"));
    }
}

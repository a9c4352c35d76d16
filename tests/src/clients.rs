//! TLS clients: rustls and common programs. Each verifies the server against one tenant's authority only.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustls::ClientConfig;

use crate::net::Namespace;
use crate::server::read_line;
use crate::tls::{self, Authority, Files, Identity, PATIENCE};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rustls,
    Openssl,
    Curl,
    Python,
}

/// All kinds.
pub const KINDS: [Kind; 4] = [Kind::Rustls, Kind::Openssl, Kind::Curl, Kind::Python];

/// A tenant's user. It trusts only this tenant's authority and has a certificate issued by it.
#[derive(Debug)]
pub struct User {
    files: Files,
    anonymous: Arc<ClientConfig>,
    known: Arc<ClientConfig>,
}

impl User {
    /// Creates a user whose certificate has this common name.
    pub fn new(authority: &Authority, common_name: &str) -> Result<Self> {
        let identity: Identity = authority.client(common_name)?;
        Ok(Self {
            files: authority.files(&identity)?,
            anonymous: authority.client_config(None)?,
            known: authority.client_config(Some(&identity))?,
        })
    }

    /// Returns the configuration for rustls, without the certificate.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.anonymous)
    }

    /// Returns the configuration for rustls, with the certificate.
    pub fn config_with_certificate(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.known)
    }

    /// The authority's certificate and the user's own, as files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Connects from a namespace with this kind of client and requests the server's name. Returns the
    /// server's name, a space, and the common name of the client's certificate or `-`.
    pub fn ask(
        &self,
        kind: Kind,
        from: &Namespace,
        to: SocketAddr,
        name: &str,
        certificate: bool,
    ) -> Result<String> {
        match kind {
            Kind::Rustls => {
                let config = if certificate { self.config_with_certificate() } else { self.config() };
                from.run(|| get(tls::connect(to, config, name)?))
            }
            Kind::Openssl => said(self.openssl(from, to, name, certificate), REQUEST),
            Kind::Curl => said(self.curl(from, to, name, certificate), b""),
            Kind::Python => said(self.python(from, to, name, certificate), b""),
        }
    }

    /// Builds an `openssl s_client` command; it sends its standard input to the server.
    pub fn openssl(&self, from: &Namespace, to: SocketAddr, name: &str, certificate: bool) -> Command {
        let mut command = from.command("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-connect", &to.to_string()]);
        command.args(["-servername", name, "-verify_hostname", name.trim_end_matches('.'), "-CAfile"]);
        command.arg(&self.files.authority);
        if certificate {
            command.arg("-cert").arg(&self.files.certificate).arg("-key").arg(&self.files.key);
        }
        command
    }

    /// Builds a `curl` command that requests the name but always connects to this address.
    pub fn curl(&self, from: &Namespace, to: SocketAddr, name: &str, certificate: bool) -> Command {
        let mut command = from.command("curl");
        let seconds = PATIENCE.as_secs().to_string();
        command.args(["--silent", "--show-error", "--http1.1", "--noproxy", "*", "--max-time", &seconds]);
        command.arg("--connect-to").arg(format!("::{to}")).arg("--cacert").arg(&self.files.authority);
        if certificate {
            command.arg("--cert").arg(&self.files.certificate).arg("--key").arg(&self.files.key);
        }
        command.arg(format!("https://{name}:{}/who", to.port()));
        command
    }

    /// Builds a command that uses Python's `ssl` module.
    pub fn python(&self, from: &Namespace, to: SocketAddr, name: &str, certificate: bool) -> Command {
        const PROGRAM: &str = "\
import socket, ssl, sys
host, port, name, authority, certificate, key, seconds = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
if certificate:
    context.load_cert_chain(certificate, key)
with socket.create_connection((host, int(port)), timeout=int(seconds)) as plain:
    with context.wrap_socket(plain, server_hostname=name) as tls:
        tls.sendall(b'GET /who HTTP/1.0\\r\\n\\r\\n')
        print(tls.makefile().read(), end='')
";
        let mut command = python(from);
        command
            .args(["-c", PROGRAM, &to.ip().to_string(), &to.port().to_string(), name])
            .arg(&self.files.authority);
        if certificate {
            command.arg(&self.files.certificate).arg(&self.files.key);
        } else {
            command.args(["", ""]);
        }
        command.arg(PATIENCE.as_secs().to_string());
        command
    }
}

/// The request that the rustls and openssl clients send.
const REQUEST: &[u8] = b"GET /who HTTP/1.0\r\n\r\n";

/// Builds a Python command in a namespace.
pub(crate) fn python(namespace: &Namespace) -> Command {
    namespace.command(if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" })
}

/// Sends the request and returns the last line of the answer.
fn get(mut stream: impl Read + Write) -> Result<String> {
    stream.write_all(REQUEST).and_then(|()| stream.flush()).context("sending the request")?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // Not every server sends close_notify before it closes.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Err(error).context("reading the answer")
        }
        _ => last_line(&answer).context("the server ended without an answer"),
    }
}

/// Returns the last non-empty line.
fn last_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// Requests the name of one of our servers; the connection stays open.
pub fn ask(mut stream: impl Read + Write) -> Result<String> {
    stream.write_all(b"NAME\n").and_then(|()| stream.flush()).context("asking for the name")?;
    read_line(&mut stream).context("reading the name")?.context("the server ended without an answer")
}

/// Runs a client program and returns its last non-empty line.
fn said(mut command: Command, input: &[u8]) -> Result<String> {
    let output = run(&mut command, input).with_context(|| format!("running {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {}", output.status, errors.trim());
    last_line(&output.stdout).with_context(|| format!("{command:?} printed nothing: {}", errors.trim()))
}

/// Runs a program with this input and captures its output.
pub fn run(command: &mut Command, input: &[u8]) -> io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program may exit before it reads its input; only its exit status matters.
        let _ = stdin.write_all(input);
    }
    child.wait_with_output()
}

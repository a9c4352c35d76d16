//! Third-party TLS servers: `openssl s_server` and Python's `ssl`. Both answer `GET /who` with their name.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::clients::python;
use crate::net::Namespace;
use crate::temp::TempDir;
use crate::tls::{Files, dial};

/// Time limit for a server to start listening.
const START: Duration = Duration::from_secs(20);

/// A server in its own process; killed when dropped.
#[derive(Debug)]
pub struct ForeignServer {
    child: Child,
    _folder: TempDir,
}

impl ForeignServer {
    /// Starts `openssl s_server`, which serves files unchanged.
    pub fn openssl(namespace: &Namespace, at: SocketAddr, identity: &Files) -> Result<Self> {
        let folder = TempDir::new()?;
        folder.write("who", "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nopenssl -\n")?;
        let mut command = namespace.command("openssl");
        command.args(["s_server", "-quiet", "-HTTP", "-accept", &at.to_string()]);
        command.arg("-cert").arg(&identity.certificate).arg("-key").arg(&identity.key);
        Self::start(command, folder, namespace, at)
    }

    /// Starts a server that uses Python's `ssl` module, with a thread for each connection.
    pub fn python(namespace: &Namespace, at: SocketAddr, identity: &Files) -> Result<Self> {
        const PROGRAM: &str = "\
import socket, ssl, sys, threading
host, port, certificate, key = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
def serve(plain):
    try:
        with context.wrap_socket(plain, server_side=True) as tls:
            request = tls.makefile('rb')
            while request.readline().strip():
                pass
            tls.sendall(b'HTTP/1.0 200 OK\\r\\nContent-Type: text/plain\\r\\n\\r\\npython -\\n')
            tls.unwrap()
    except OSError as error:
        print(error, file=sys.stderr)
family = socket.AF_INET6 if ':' in host else socket.AF_INET
server = socket.create_server((host, int(port)), family=family, backlog=128)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";
        let mut command = python(namespace);
        command.args(["-c", PROGRAM, &at.ip().to_string(), &at.port().to_string()]);
        command.arg(&identity.certificate).arg(&identity.key);
        Self::start(command, TempDir::new()?, namespace, at)
    }

    fn start(mut command: Command, folder: TempDir, namespace: &Namespace, at: SocketAddr) -> Result<Self> {
        let log = folder.path().join("log");
        let output = File::create(&log)?;
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let mut server = Self { child, _folder: folder };
        let start = Instant::now();
        while namespace.run(|| dial(at)).is_err() {
            if server.child.try_wait()?.is_some() || start.elapsed() > START {
                bail!("{command:?} does not listen at {at}: {}", said(&log));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

fn said(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

impl Drop for ForeignServer {
    fn drop(&mut self) {
        // It may have ended already: then both calls fail, and there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

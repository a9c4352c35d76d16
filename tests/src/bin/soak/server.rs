//! Backends: each answers with its tenant and a digest of what it received, and checks every byte itself.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use ::tests::addresses::FAMILIES;
use ::tests::net::Namespace;
use anyhow::{Context, Result};
use load::content::{Pattern, digest};

use crate::book::{Book, Connection};
use crate::greeting;
use crate::plan::{Aim, End};
use crate::socket::{self, Broken, Got, abort, is_reset};
use crate::tenants::{BACKENDS, TENANTS, Tenant};

/// Bytes of an answer.
pub(crate) const ANSWER_BYTES: usize = 32;
const MAGIC: [u8; 4] = *b"SOAK";
/// Bytes of a connection thread's stack.
const STACK_BYTES: usize = 256 * 1024;

/// What a backend answers after the upload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    tenant: u32,
    backend: u32,
    number: u64,
    /// Digest of the hello.
    digest: u64,
    /// Bytes received after the hello.
    upload: u32,
}

impl Answer {
    fn bytes(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.tenant.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.backend.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.number.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.digest.to_be_bytes());
        bytes[28..].copy_from_slice(&self.upload.to_be_bytes());
        bytes
    }

    /// Reads an answer.
    pub(crate) fn read(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, String> {
        let four = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let eight = |at: usize| u64::from(four(at)) << 32 | u64::from(four(at + 4));
        if bytes[..4] != MAGIC {
            return Err(format!("not an answer: {bytes:02x?}"));
        }
        Ok(Self { tenant: four(4), backend: four(8), number: eight(12), digest: eight(20), upload: four(28) })
    }

    /// Compares the answer with what the client expects.
    pub(crate) fn check(&self, connection: &Connection) -> Result<(), String> {
        let plan = &connection.plan;
        let expected = (plan.tenant.number, plan.number, connection.digest, plan.upload);
        match (self.tenant, self.number, self.digest, self.upload) == expected {
            true => Ok(()),
            false => Err(format!("misrouted or altered: {self:?}, expected {expected:?}")),
        }
    }
}

/// All backends; they end when dropped, with the connections that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    listeners: Vec<TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts every backend of every tenant in its namespace.
    pub(crate) fn start(book: &Arc<Book>, sites: &[Namespace; 2]) -> Result<Self> {
        let mut servers = Self::default();
        let pattern = Arc::new(Pattern::new());
        for tenant in TENANTS {
            for (family, index) in FAMILIES.into_iter().flat_map(|f| (0..BACKENDS).map(move |n| (f, n))) {
                let at = tenant.backend(family, index);
                let listener = sites[usize::from(index % 2)].run(|| socket::listen(at));
                let listener = listener.with_context(|| format!("listening at {at}"))?;
                servers.listeners.push(listener.try_clone()?);
                let backend =
                    Backend { book: Arc::clone(book), pattern: Arc::clone(&pattern), tenant, index };
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                servers.threads.push(thread.spawn(move || accept(&listener, &Arc::new(backend)))?);
            }
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for listener in &self.listeners {
            // SAFETY: shutdown(2) on our own descriptor; it makes the blocked accept(2) return.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked reported it.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, backend: &Arc<Backend>) {
    while let Ok((stream, peer)) = listener.accept() {
        let own = Arc::clone(backend);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || own.take(stream, peer)) {
            backend.book.fault(format!("no thread for a connection: {error}"), None);
        }
    }
}

/// One backend.
struct Backend {
    book: Arc<Book>,
    pattern: Arc<Pattern>,
    tenant: Tenant,
    index: u8,
}

/// A connection whose hello was read, and the bytes that followed it.
type Greeted = (Arc<Connection>, Vec<u8>);

/// Why a conversation failed.
enum Failure {
    /// Something that no plan and no change explains.
    Wrong(String),
    /// The other end reset the connection, or ended it too early.
    Cut(String),
}

fn failed(doing: &str, broken: Broken) -> Failure {
    match broken {
        Broken::Error(at, error) if is_reset(&error) => {
            Failure::Cut(format!("{doing}, after {at} bytes: {error}"))
        }
        Broken::Error(at, error) => Failure::Wrong(format!("{doing}, after {at} bytes: {error}")),
        Broken::Early(at) => Failure::Cut(format!("{doing}: ended after {at} bytes")),
        Broken::Altered(at) => {
            Failure::Wrong(format!("{doing}: other bytes than were sent, before byte {at}"))
        }
    }
}

fn error(doing: &str, error: io::Error) -> Failure {
    failed(doing, Broken::Error(0, error))
}

impl Backend {
    /// Serves a connection and judges how it went.
    fn take(&self, mut stream: TcpStream, peer: SocketAddr) {
        // If the client is gone already, the next call reports it.
        let _ = socket::prepare(&stream);
        let (connection, rest) = match self.greeted(&mut stream) {
            Ok(Some(both)) => both,
            Ok(None) => return,
            Err(what) => {
                self.book
                    .fault(format!("backend {}/{}, {peer}: {what}", self.tenant.number, self.index), None);
                return;
            }
        };
        let Err(failure) = self.converse(stream, &connection, &rest) else { return };
        let aborts = matches!(connection.plan.aim, Aim::Served(end) if end.is_client_abort());
        let what = match failure {
            Failure::Cut(_) if aborts || self.book.explains(&connection) => return,
            Failure::Cut(what) | Failure::Wrong(what) => what,
        };
        self.book.fault(
            format!("backend {}/{}, {peer}: {what}", self.tenant.number, self.index),
            Some(&connection),
        );
    }

    /// Reads the hello; returns its connection and what came behind it. `None`: reset before the hello was complete.
    fn greeted(&self, stream: &mut TcpStream) -> Result<Option<Greeted>, String> {
        let (mut have, mut buffer) = (Vec::new(), vec![0; 32 * 1024]);
        let (length, number) = loop {
            if let Some(read) = greeting::read(&have) {
                break read;
            }
            match socket::read(stream, &mut buffer) {
                Got::Bytes(length) => have.extend(&buffer[..length]),
                Got::Error(error) if is_reset(&error) => return Ok(None),
                other => return Err(format!("{other:?} after {} bytes of a hello", have.len())),
            }
        };
        let Some(connection) = self.book.find(number) else {
            return Err(format!("nobody sent the hello with number {number:#x}, {length} bytes"));
        };
        let (plan, digest) = (&connection.plan, digest(&have[..length]));
        if plan.tenant != self.tenant || digest != connection.digest || !matches!(plan.aim, Aim::Served(_)) {
            return Err(format!(
                "misrouted or altered, digest {digest:#x} of {length} bytes: {connection:?}"
            ));
        }
        if !connection.take(self.index) {
            return Err(format!("a second backend has the hello: {connection:?}"));
        }
        if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) {
            connection.served(local, peer);
        }
        Ok(Some((connection, have.split_off(length))))
    }

    /// Upload, answer, download, end.
    fn converse(&self, mut stream: TcpStream, connection: &Connection, rest: &[u8]) -> Result<(), Failure> {
        let (plan, seed) = (&connection.plan, connection.plan.number as u32);
        let Aim::Served(end) = plan.aim else { return Ok(()) };
        let come = rest.len() as u32;
        if come > plan.upload || self.pattern.from(seed, 0)[..rest.len()] != *rest {
            return Err(Failure::Wrong(format!("other bytes than were sent, behind the hello: {rest:02x?}")));
        }
        socket::receive(&mut stream, &self.pattern, seed, come, plan.upload)
            .map_err(|broken| failed("upload", broken))?;
        if end == End::HalfClose {
            ended(&mut stream)?;
        }
        let (tenant, backend, number) = (self.tenant.number, self.index.into(), plan.number);
        let answer = Answer { tenant, backend, number, digest: connection.digest, upload: plan.upload };
        stream.write_all(&answer.bytes()).map_err(|failed| error("answering", failed))?;
        let download = if let End::BackendAborts(at) = end { at } else { plan.download };
        socket::send(&mut stream, &self.pattern, !seed, 0, download)
            .map_err(|broken| failed("download", broken))?;
        match end {
            End::BackendAborts(_) => {
                abort(stream);
                Ok(())
            }
            End::BackendCloses => {
                stream.shutdown(Shutdown::Write).map_err(|failed| error("closing", failed))?;
                ended(&mut stream)
            }
            // The client's FIN was read already.
            End::HalfClose => Ok(()),
            _ => ended(&mut stream),
        }
    }
}

/// Waits for the client's FIN.
fn ended(stream: &mut TcpStream) -> Result<(), Failure> {
    match socket::read(stream, &mut [0; 64]) {
        Got::End => Ok(()),
        Got::Bytes(_) => Err(Failure::Wrong("more bytes than were sent".into())),
        Got::Error(failed) => Err(error("waiting for the client's end", failed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_back() {
        let answer = Answer { tenant: 3, backend: 2, number: 1 << 40 | 7, digest: u64::MAX - 1, upload: 9 };
        assert_eq!(Answer::read(&answer.bytes()), Ok(answer));
        assert!(Answer::read(&[0; ANSWER_BYTES]).is_err());
    }
}

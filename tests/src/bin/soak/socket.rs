//! Sockets of clients and backends.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use load::content::{PIECE, Pattern};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, sockopt};

/// How long one read or write may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);
/// Seconds of silence before the first keep-alive probe, and between two.
const KEEP_ALIVE_SECS: [u32; 2] = [6, 3];
/// Probes without an answer that end a connection: a client whose RST got lost may get nothing while its cookie is valid, for
/// up to 137 s.
const KEEP_ALIVE_PROBES: u32 = 60;
/// Connections that may wait for `accept`.
const BACKLOG: i32 = 4096;

fn socket_of(family: IpAddr) -> Result<OwnedFd> {
    let family = if family.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    Ok(socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Opens a socket of this address; its port is chosen by connect(2), which knows the other end.
pub(crate) fn bound(from: IpAddr) -> Result<OwnedFd> {
    let fd = socket_of(from)?;
    socket::setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
    socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
    Ok(fd)
}

/// Connects a socket of [`bound`].
pub(crate) fn connect(fd: OwnedFd, to: SocketAddr) -> io::Result<TcpStream> {
    socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    let stream = TcpStream::from(fd);
    prepare(&stream)?;
    Ok(stream)
}

/// Listens at an address of the calling thread's namespace.
pub(crate) fn listen(at: SocketAddr) -> Result<TcpListener> {
    let fd = socket_of(at.ip())?;
    socket::setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(at))?;
    socket::listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd.into())
}

/// Sets limits, keep-alive probes, and that every write is sent at once.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    socket::setsockopt(stream, sockopt::KeepAlive, &true)?;
    socket::setsockopt(stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_SECS[0])?;
    socket::setsockopt(stream, sockopt::TcpKeepInterval, &KEEP_ALIVE_SECS[1])?;
    socket::setsockopt(stream, sockopt::TcpKeepCount, &KEEP_ALIVE_PROBES)?;
    Ok(())
}

/// Sends no keep-alive probes any more.
pub(crate) fn without_probes(stream: &TcpStream) -> io::Result<()> {
    Ok(socket::setsockopt(stream, sockopt::KeepAlive, &false)?)
}

/// Closes with RST.
pub(crate) fn abort(stream: TcpStream) {
    // If this fails it is closed by FIN, and the other end reports it.
    let _ = tests::server::reset(&stream);
    drop(stream);
}

/// Whether the error is that the other end reset the connection, also before it was established.
pub(crate) fn is_reset(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(
        error.kind(),
        // `NotConnected`: the call after the one that reported the reset, or that discarded it.
        ConnectionReset | ConnectionAborted | BrokenPipe | ConnectionRefused | NotConnected
    )
}

/// Whether the error is that nothing came for too long.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// What one read gave.
#[derive(Debug)]
pub(crate) enum Got {
    Bytes(usize),
    End,
    Error(io::Error),
}

/// Reads once.
pub(crate) fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Got {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Got::End,
            Ok(length) => return Got::Bytes(length),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Got::Error(error),
        }
    }
}

/// Why a stream could not be read to its end.
#[derive(Debug)]
pub(crate) enum Broken {
    /// After this many bytes.
    Error(u32, io::Error),
    /// It ended after this many bytes.
    Early(u32),
    /// Other bytes than were sent, from one of the bytes before this one.
    Altered(u32),
}

/// Reads bytes `from` to `to` of the content with this seed, and compares every one.
pub(crate) fn receive(
    stream: &mut TcpStream,
    pattern: &Pattern,
    seed: u32,
    from: u32,
    to: u32,
) -> Result<(), Broken> {
    let mut buffer = vec![0; PIECE.min(1 + (to - from) as usize)];
    let mut at = from;
    while at < to {
        let most = buffer.len().min((to - at) as usize);
        match read(stream, &mut buffer[..most]) {
            Got::Bytes(length) => {
                if pattern.from(seed, at.into())[..length] != buffer[..length] {
                    return Err(Broken::Altered(at + length as u32));
                }
                at += length as u32;
            }
            Got::End => return Err(Broken::Early(at)),
            Got::Error(error) => return Err(Broken::Error(at, error)),
        }
    }
    Ok(())
}

/// Sends bytes `from` to `to` of the content with this seed.
pub(crate) fn send(
    stream: &mut TcpStream,
    pattern: &Pattern,
    seed: u32,
    from: u32,
    to: u32,
) -> Result<(), Broken> {
    let mut at = from;
    while at < to {
        let length = PIECE.min((to - at) as usize);
        let piece = &pattern.from(seed, at.into())[..length];
        match io::Write::write_all(stream, piece) {
            Ok(()) => at += length as u32,
            Err(error) => return Err(Broken::Error(at, error)),
        }
    }
    Ok(())
}

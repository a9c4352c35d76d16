//! One connection: where to connect, from which address, and whether the right server answered.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, sockopt};

use crate::content::{self, MESSAGE, Template};
use crate::order::Aim;

/// How long a connection may take; the client's own retransmissions start after 1 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The next connection to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) tenant: u32,
    pub(crate) server: u32,
    pub(crate) to: SocketAddrV4,
    pub(crate) from: Ipv4Addr,
}

/// Iterates over all tenants and all own addresses.
#[derive(Debug)]
pub(crate) struct Walk {
    aim: Aim,
    template: Template,
    count: u64,
}

impl Walk {
    pub(crate) fn new(aim: Aim, template: Template) -> Self {
        Self { aim, template, count: 0 }
    }

    /// Distinguishes the streams of this order from those of others.
    pub(crate) fn seed(&self) -> u32 {
        self.aim.seed
    }

    /// Returns the hello for a tenant.
    pub(crate) fn hello(&mut self, tenant: u32) -> &[u8] {
        self.template.of(tenant)
    }

    pub(crate) fn next(&mut self) -> Next {
        let aim = &self.aim;
        // A prime that divides no number of tenants in use, so that all tenants are reached.
        let tenant = ((u64::from(aim.seed) + self.count * 7919) % u64::from(aim.tenants)) as u32;
        let server = tenant % aim.servers;
        let from = Ipv4Addr::from(u32::from(aim.from.0) + (self.count % u64::from(aim.from.1)) as u32);
        self.count += 1;
        Next { tenant, server, to: aim.door.of(tenant, server), from }
    }
}

/// Starts to connect.
pub(crate) fn begin(next: &Next) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    // The port is chosen by connect(2), which knows the other end.
    socket::setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
    socket::bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(next.from, 0)))?;
    match socket::connect(fd.as_raw_fd(), &SockaddrIn::from(next.to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd.into()),
        Err(error) => Err(error.into()),
    }
}

/// Returns what is wrong with an answer to this hello, if anything.
pub(crate) fn fault(answer: &[u8; MESSAGE], next: &Next, hello: &[u8]) -> Option<&'static str> {
    let digest = content::digest(hello);
    if *answer == content::answer(next.server, digest) {
        None
    } else if *answer == content::answer(content::server_of(answer), digest) {
        Some("another tenant's server answered")
    } else {
        Some("a wrong answer")
    }
}

/// Describes an error in few words.
pub(crate) fn named(stage: &str, error: &io::Error) -> String {
    let kind = match error.kind() {
        ErrorKind::ConnectionReset => "reset",
        ErrorKind::ConnectionRefused => "refused",
        ErrorKind::UnexpectedEof => "ended",
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "timed out",
        kind => return format!("{stage}: {kind}"),
    };
    format!("{stage}: {kind}")
}

/// Connects, sends the hello and checks the answer. The socket blocks, but not longer than [`PATIENCE`].
pub(crate) fn open(next: &Next, walk: &mut Walk) -> Result<TcpStream, String> {
    let of = |stage: &'static str| move |error: io::Error| named(stage, &error);
    let mut stream = begin(next).map_err(of("connect"))?;
    stream.set_nonblocking(false).map_err(of("connect"))?;
    // For both directions: a blocking write also waits for the connection.
    stream.set_read_timeout(Some(PATIENCE)).map_err(of("connect"))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(of("connect"))?;
    stream.set_nodelay(true).map_err(of("connect"))?;
    let hello = walk.hello(next.tenant);
    stream.write_all(hello).map_err(of("hello"))?;
    let mut answer = [0; MESSAGE];
    stream.read_exact(&mut answer).map_err(of("answer"))?;
    match fault(&answer, next, hello) {
        None => Ok(stream),
        Some(fault) => Err(fault.to_owned()),
    }
}

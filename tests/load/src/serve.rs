//! The backends' process: listens on consecutive ports, one per server, and answers on one thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, sockopt};

use crate::content::{self, ASK, DOWN, MESSAGE, PIECE, Pattern, UP};

/// Epoll token of standard input: the process ends when it ends.
const STDIN: u64 = u64::MAX;
/// Connections that may wait for `accept`, per server.
const BACKLOG: i32 = 1024;

/// Serves until standard input ends.
pub fn run(first: SocketAddrV4, count: u32) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create")?;
    let mut listeners = Vec::new();
    for server in 0..count {
        let at = SocketAddrV4::new(*first.ip(), first.port() + server as u16);
        let listener = listen(at).with_context(|| format!("listening at {at}"))?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, server.into()))?;
        listeners.push(listener);
    }
    epoll.add(io::stdin().as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, STDIN))?;
    println!("ready");
    let mut server =
        Server { epoll, listeners, peers: Vec::new(), free: Vec::new(), pattern: Pattern::new() };
    server.work()
}

/// Listens on an address where the other process of the same backends listens, too.
fn listen(at: SocketAddrV4) -> Result<TcpListener> {
    let fd = socket::socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    socket::setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    socket::setsockopt(&fd, sockopt::ReusePort, &true)?;
    socket::bind(fd.as_raw_fd(), &SockaddrIn::from(at))?;
    socket::listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd.into())
}

/// One connection.
struct Peer {
    stream: TcpStream,
    server: u32,
    stage: Stage,
}

enum Stage {
    /// What has been received of the hello.
    Hello(Vec<u8>),
    /// What has been received of the next request.
    Asked(Vec<u8>),
    /// Bytes sent of the stream of a seed, and where it ends once the client has had enough.
    Down { seed: u32, position: u64, end: Option<u64> },
    /// Bytes received of the stream of a seed, and whether all were right.
    Up { seed: u32, position: u64, right: bool },
}

struct Server {
    epoll: Epoll,
    listeners: Vec<TcpListener>,
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    pattern: Pattern,
}

impl Server {
    fn work(&mut self) -> Result<()> {
        let mut events = [EpollEvent::empty(); 128];
        let mut buffer = vec![0; PIECE];
        loop {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => continue,
                ready => ready.context("epoll_wait")?,
            };
            for event in &events[..ready] {
                let token = event.data();
                if token == STDIN {
                    return Ok(());
                }
                match (token as usize).checked_sub(self.listeners.len()) {
                    None => self.accept(token as usize),
                    Some(place) => {
                        let readable = event.events().intersects(!EpollFlags::EPOLLOUT);
                        self.progress(place, readable, &mut buffer);
                    }
                }
            }
        }
    }

    fn accept(&mut self, server: usize) {
        // The other process may have been faster.
        let Ok((stream, _)) = self.listeners[server].accept() else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let _ = stream.set_nodelay(true);
        let place = self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        let token = (place + self.listeners.len()) as u64;
        if self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token)).is_err() {
            self.free.push(place);
            return;
        }
        self.peers[place] = Some(Peer { stream, server: server as u32, stage: Stage::Hello(Vec::new()) });
    }

    fn progress(&mut self, place: usize, readable: bool, buffer: &mut [u8]) {
        let Some(peer) = self.peers.get_mut(place).and_then(Option::as_mut) else { return };
        let sending = peer.stage.sends();
        match peer.progress(readable, buffer, &self.pattern) {
            Ok(true) if peer.stage.sends() == sending => {}
            Ok(true) => {
                let also = if sending { EpollFlags::empty() } else { EpollFlags::EPOLLOUT };
                let token = (place + self.listeners.len()) as u64;
                let mut event = EpollEvent::new(EpollFlags::EPOLLIN | also, token);
                let _ = self.epoll.modify(&peer.stream, &mut event);
            }
            // A client that disconnects reports its own errors.
            Ok(false) | Err(_) => {
                self.peers[place] = None;
                self.free.push(place);
            }
        }
    }
}

impl Stage {
    /// Whether there is something to send as soon as the socket has room.
    fn sends(&self) -> bool {
        matches!(self, Self::Down { position, end, .. } if end.is_none_or(|end| *position < end))
    }
}

impl Peer {
    /// Processes received data and sends what is pending; `false`: the connection is over.
    fn progress(&mut self, readable: bool, buffer: &mut [u8], pattern: &Pattern) -> io::Result<bool> {
        if !readable {
            return self.send(pattern);
        }
        let came = match self.stream.read(buffer) {
            Ok(came) => Some(came),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => return Err(error),
        };
        match (&mut self.stage, came) {
            (_, None) => Ok(true),
            (Stage::Down { position, end: end @ None, .. }, Some(_)) => {
                *end = Some(position.next_multiple_of(PIECE as u64));
                self.send(pattern)
            }
            (Stage::Down { .. }, Some(came)) => Ok(came > 0),
            (Stage::Up { position, right, .. }, Some(0)) => {
                let count = if *right { *position } else { u64::MAX };
                self.stream.write_all(&content::request(count))?;
                Ok(false)
            }
            (_, Some(0)) => Ok(false),
            (Stage::Up { seed, position, right }, Some(came)) => {
                *right &= pattern.from(*seed, *position)[..came] == buffer[..came];
                *position += came as u64;
                Ok(true)
            }
            (Stage::Hello(have), Some(came)) => {
                have.extend_from_slice(&buffer[..came]);
                if content::hello_length(have).is_some_and(|length| have.len() >= length) {
                    let answer = content::answer(self.server, content::digest(have));
                    self.stage = Stage::Asked(Vec::new());
                    self.stream.write_all(&answer)?;
                }
                Ok(true)
            }
            (Stage::Asked(_), Some(came)) => self.asked(&buffer[..came], pattern),
        }
    }

    fn asked(&mut self, bytes: &[u8], pattern: &Pattern) -> io::Result<bool> {
        let Stage::Asked(have) = &mut self.stage else { return Ok(true) };
        have.extend_from_slice(bytes);
        while let Some(request) = have.first_chunk::<MESSAGE>() {
            let count = u64::from_be_bytes([1, 2, 3, 4, 5, 6, 7, 8].map(|at: usize| request[at]));
            match request[0] {
                ASK => {
                    self.stream.write_all(&content::response(self.server, request))?;
                    have.drain(..MESSAGE);
                }
                DOWN => {
                    self.stage = Stage::Down { seed: count as u32, position: 0, end: None };
                    return self.send(pattern);
                }
                UP => {
                    // Data may have arrived with the request.
                    let rest = have[MESSAGE..].to_vec();
                    let right = pattern.from(count as u32, 0).starts_with(&rest);
                    self.stage = Stage::Up { seed: count as u32, position: rest.len() as u64, right };
                    return Ok(true);
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(true)
    }

    /// Sends some pieces of the stream while the socket has room; at the end, closes this direction.
    fn send(&mut self, pattern: &Pattern) -> io::Result<bool> {
        let Stage::Down { seed, position, end } = &mut self.stage else { return Ok(true) };
        for _ in 0..4 {
            let left = end.map_or(PIECE as u64, |end| (end - *position).min(PIECE as u64));
            if left == 0 {
                break;
            }
            match self.stream.write(&pattern.from(*seed, *position)[..left as usize]) {
                Ok(sent) => *position += sent as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        if *end == Some(*position) {
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(true)
    }
}

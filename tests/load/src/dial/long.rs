//! A few long connections: requests and responses, streams, and connections that are only held.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{self, Next, PATIENCE, Walk};
use crate::content::{self, DOWN, MESSAGE, PIECE, Pattern, UP};
use crate::order::{Report, Way};

/// Opens connections and adds them to an epoll set.
fn open_all(
    walk: &mut Walk,
    connections: u32,
    flags: EpollFlags,
    report: &mut Report,
) -> Result<(Epoll, Vec<(Next, TcpStream)>)> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create")?;
    let mut open = Vec::new();
    for _ in 0..connections {
        let next = walk.next();
        match connection::open(&next, walk) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                epoll.add(&stream, EpollEvent::new(flags, open.len() as u64))?;
                open.push((next, stream));
            }
            Err(error) => report.wrong(error),
        }
    }
    Ok((epoll, open))
}

/// Waits for events, for at most [`PATIENCE`].
fn wait(epoll: &Epoll, events: &mut [EpollEvent]) -> Result<usize> {
    loop {
        match epoll.wait(events, EpollTimeout::try_from(PATIENCE)?) {
            Err(nix::errno::Errno::EINTR) => {}
            ready => return ready.context("epoll_wait"),
        }
    }
}

/// Sends one request at a time on each connection.
pub(crate) fn ask(walk: &mut Walk, connections: u32, milliseconds: u64) -> Result<Report> {
    let mut report = Report::default();
    let (epoll, mut open) = open_all(walk, connections, EpollFlags::EPOLLIN, &mut report)?;
    let begun = Instant::now();
    let until = begun + Duration::from_millis(milliseconds);
    let mut sent = vec![0_u64; open.len()];
    for (_, stream) in &mut open {
        stream.write_all(&content::request(0))?;
    }
    let mut left = open.len();
    let mut events = [EpollEvent::empty(); 64];
    let mut buffer = [0; MESSAGE];
    while left > 0 {
        let ready = wait(&epoll, &mut events)?;
        if ready == 0 {
            (0..left).for_each(|_| report.wrong("response: timed out"));
            break;
        }
        for event in &events[..ready] {
            let place = event.data() as usize;
            let (next, stream) = &mut open[place];
            let count = &mut sent[place];
            // A response arrives in one segment.
            let came = stream.read(&mut buffer);
            let expected = content::response(next.server, &content::request(*count));
            if !matches!(came, Ok(MESSAGE)) || buffer != expected {
                report.wrong(came.map_or_else(
                    |error| connection::named("response", &error),
                    |_| "a wrong response".to_owned(),
                ));
                epoll.delete(&*stream)?;
                left -= 1;
                continue;
            }
            report.done += 1;
            if Instant::now() >= until {
                left -= 1;
                epoll.delete(&*stream)?;
                continue;
            }
            *count += 1;
            stream.write_all(&content::request(*count))?;
        }
    }
    report.nanoseconds = begun.elapsed().as_nanos() as u64;
    Ok(report)
}

/// Runs streams on all connections at once; the receiver compares each byte.
pub(crate) fn stream(
    walk: &mut Walk,
    way: Way,
    connections: u32,
    milliseconds: u64,
    pattern: &Pattern,
) -> Result<Report> {
    let mut report = Report::default();
    let flags = if way == Way::Down { EpollFlags::EPOLLIN } else { EpollFlags::EPOLLOUT };
    let (epoll, open) = open_all(walk, connections, flags, &mut report)?;
    let begun = Instant::now();
    let until = begun + Duration::from_millis(milliseconds);
    let mut flows: Vec<Stream> = Vec::new();
    for (place, (_, mut stream)) in open.into_iter().enumerate() {
        let seed = walk.seed().wrapping_add(place as u32);
        let mut request = content::request(u64::from(seed));
        request[0] = if way == Way::Down { DOWN } else { UP };
        stream.write_all(&request)?;
        flows.push(Stream { stream, seed, position: 0, stopped: false, over: false });
    }
    let mut events = [EpollEvent::empty(); 16];
    let mut buffer = vec![0; PIECE];
    while flows.iter().any(|flow| !flow.over) {
        let ready = wait(&epoll, &mut events)?;
        if ready == 0 {
            report.wrong("stream: timed out");
            break;
        }
        let late = Instant::now() >= until;
        for event in &events[..ready] {
            let flow = &mut flows[event.data() as usize];
            let step = match way {
                Way::Down => flow.receive(&mut buffer, pattern, late),
                Way::Up => flow.send(&epoll, pattern, late, event.data()),
            };
            if let Err(error) = step {
                report.wrong(format!("{error:#}"));
                flow.over = true;
            }
            if flow.over {
                epoll.delete(&flow.stream)?;
                report.done += 1;
                report.bytes += flow.position;
            }
        }
    }
    report.nanoseconds = begun.elapsed().as_nanos() as u64;
    Ok(report)
}

/// One stream.
struct Stream {
    stream: TcpStream,
    seed: u32,
    position: u64,
    stopped: bool,
    over: bool,
}

impl Stream {
    fn receive(&mut self, buffer: &mut [u8], pattern: &Pattern, late: bool) -> Result<()> {
        if late && !self.stopped {
            self.stopped = true;
            self.stream.write_all(b"S")?;
        }
        let came = match self.stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            came => came.context("stream")?,
        };
        if came == 0 {
            self.over = true;
            // A server ends at the end of a piece.
            if self.position == 0 || !self.position.is_multiple_of(PIECE as u64) {
                bail!("stream: ended early");
            }
            return Ok(());
        }
        if pattern.from(self.seed, self.position)[..came] != buffer[..came] {
            bail!("stream: other bytes came than were sent");
        }
        self.position += came as u64;
        Ok(())
    }

    fn send(&mut self, epoll: &Epoll, pattern: &Pattern, late: bool, token: u64) -> Result<()> {
        if self.stopped {
            let mut message = [0; MESSAGE];
            self.stream.set_nonblocking(false)?;
            self.stream.read_exact(&mut message).context("count")?;
            if message != content::request(self.position) {
                bail!("stream: the server got other bytes than were sent");
            }
            self.over = true;
            return Ok(());
        }
        if late {
            self.stopped = true;
            self.stream.shutdown(Shutdown::Write)?;
            epoll.modify(&self.stream, &mut EpollEvent::new(EpollFlags::EPOLLIN, token))?;
            return Ok(());
        }
        match self.stream.write(&pattern.from(self.seed, self.position)[..PIECE]) {
            Ok(sent) => self.position += sent as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("stream"),
        }
        Ok(())
    }
}

/// Connections that stay open from one order to the next.
#[derive(Debug, Default)]
pub(crate) struct Held {
    open: Vec<(Next, TcpStream)>,
    asked: u64,
}

impl Held {
    pub(crate) fn hold(&mut self, walk: &mut Walk, connections: u32) -> Report {
        let mut report = Report::default();
        for _ in 0..connections {
            let next = walk.next();
            match connection::open(&next, walk) {
                Ok(stream) => {
                    report.done += 1;
                    self.open.push((next, stream));
                }
                Err(error) => report.wrong(error),
            }
        }
        report
    }

    pub(crate) fn check(&mut self) -> Report {
        let mut report = Report::default();
        self.asked += 1;
        let request = content::request(self.asked);
        for (next, stream) in &mut self.open {
            let mut message = [0; MESSAGE];
            let asked = stream.write_all(&request).and_then(|()| stream.read_exact(&mut message));
            match asked {
                Ok(()) if message == content::response(next.server, &request) => report.done += 1,
                Ok(()) => report.wrong("a wrong response"),
                Err(error) => report.wrong(connection::named("held", &error)),
            }
        }
        report
    }

    pub(crate) fn release(&mut self) -> Report {
        let report = Report { done: self.open.len() as u64, ..Report::default() };
        self.open.clear();
        report
    }
}

//! Many short connections: connect, hello, answer, close.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::connection::{self, Next, PATIENCE, Walk};
use crate::content::MESSAGE;
use crate::order::Report;

/// Epoll token of the timer for arrivals.
const CLOCK: u64 = u64::MAX;

/// A connection in progress.
struct Visit {
    stream: TcpStream,
    next: Next,
    begun: Instant,
    /// When the connection was established and the hello written.
    greeted: Option<Instant>,
    answer: [u8; MESSAGE],
    have: usize,
}

/// The state of a visit after a step.
enum Progress {
    Waits,
    Done,
    Failed(String),
}

struct Load {
    epoll: Epoll,
    visits: Vec<Option<Visit>>,
    free: Vec<usize>,
    walk: Walk,
    report: Report,
    /// Times from `connect` to the answer and to the established connection, if they are wanted.
    times_ns: Option<(Vec<u32>, Vec<u32>)>,
}

/// Keeps this many connections in progress at once.
pub(crate) fn connect(walk: Walk, slots: u32, milliseconds: u64) -> Result<Report> {
    let mut load = Load::new(walk)?;
    let begun = Instant::now();
    let until = begun + Duration::from_millis(milliseconds);
    for _ in 0..slots {
        load.begin();
    }
    load.until(begun, |load, ended| {
        if ended > 0 && Instant::now() < until {
            (0..ended).for_each(|_| load.begin());
        }
        true
    })
}

/// Starts this many connections per second, however long the earlier ones take.
pub(crate) fn arrive(walk: Walk, rate: u32, milliseconds: u64) -> Result<Report> {
    let mut load = Load::new(walk)?;
    load.times_ns = Some(Default::default());
    let clock = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK).context("timerfd")?;
    let every = TimeSpec::from_duration(Duration::from_secs(1) / rate);
    clock.set(Expiration::Interval(every), TimerSetTimeFlags::empty())?;
    load.epoll.add(clock.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, CLOCK))?;
    let mut left = u64::from(rate) * milliseconds / 1000;
    load.until(Instant::now(), |load, _| {
        let mut expired = [0; 8];
        if let Ok(8) = nix::unistd::read(&clock, &mut expired) {
            let due = u64::from_ne_bytes(expired).min(left);
            (0..due).for_each(|_| load.begin());
            left -= due;
        }
        left == 0
    })
}

/// Connects at most a thousand times a second until a server other than `server` answers; the report has the
/// time until then. At a higher rate, one backend's source ports would be used up: each is kept for a while
/// after its connection has ended.
pub(crate) fn turn(walk: &mut Walk, server: u32, milliseconds: u64) -> Report {
    let (begun, mut report) = (Instant::now(), Report::default());
    while begun.elapsed() < Duration::from_millis(milliseconds) {
        let next = Next { server, ..walk.next() };
        match connection::open(&next, walk) {
            Ok(_) => report.done += 1,
            Err(error) if error.starts_with("another") => break,
            Err(error) => report.wrong(error),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    report.nanoseconds = begun.elapsed().as_nanos() as u64;
    report
}

/// Median and 99th percentile.
fn quantiles(times: &mut [u32]) -> [u32; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times.get(times.len() * percent / 100).copied().unwrap_or(0))
}

impl Load {
    fn new(walk: Walk) -> Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create")?,
            visits: Vec::new(),
            free: Vec::new(),
            walk,
            report: Report::default(),
            times_ns: None,
        })
    }

    /// Works until `more` says that no more connections will start, and all have ended. `more` is called with
    /// the number of connections that have just ended.
    fn until(mut self, begun: Instant, mut more: impl FnMut(&mut Self, usize) -> bool) -> Result<Report> {
        let mut events = [EpollEvent::empty(); 128];
        let mut last = Instant::now();
        loop {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::from(100u8)) {
                Err(nix::errno::Errno::EINTR) => continue,
                ready => ready.context("epoll_wait")?,
            };
            let ended = events[..ready].iter().filter(|event| self.progress(event.data())).count();
            let no_more = more(&mut self, ended);
            if ended > 0 {
                last = Instant::now();
            }
            let open = self.visits.len() - self.free.len();
            if no_more && open == 0 {
                break;
            }
            if last.elapsed() > PATIENCE {
                (0..open).for_each(|_| self.report.wrong("nothing happened any more"));
                break;
            }
        }
        self.report.nanoseconds = begun.elapsed().as_nanos() as u64;
        if let Some((mut total, mut connect)) = self.times_ns {
            self.report.total_ns = quantiles(&mut total);
            self.report.connect_ns = quantiles(&mut connect);
        }
        Ok(self.report)
    }

    fn begin(&mut self) {
        let next = self.walk.next();
        let begun = Instant::now();
        let stream = match connection::begin(&next) {
            Ok(stream) => stream,
            Err(error) => return self.report.wrong(connection::named("connect", &error)),
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.visits.push(None);
            self.visits.len() - 1
        });
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        if let Err(error) = self.epoll.add(&stream, EpollEvent::new(flags, place as u64)) {
            self.free.push(place);
            return self.report.wrong(format!("epoll: {error}"));
        }
        self.visits[place] =
            Some(Visit { stream, next, begun, greeted: None, answer: [0; MESSAGE], have: 0 });
    }

    /// Advances the connection in this slot; returns whether it has ended.
    fn progress(&mut self, token: u64) -> bool {
        let place = token as usize;
        let Some(visit) = self.visits.get_mut(place).and_then(Option::as_mut) else { return false };
        match visit.progress(&mut self.walk) {
            Progress::Waits => return false,
            Progress::Done => {
                self.report.done += 1;
                if let Some((total, connect)) = &mut self.times_ns {
                    total.push(visit.begun.elapsed().as_nanos() as u32);
                    connect.extend(visit.greeted.map(|at| (at - visit.begun).as_nanos() as u32));
                }
            }
            Progress::Failed(error) => self.report.wrong(error),
        }
        self.visits[place] = None;
        self.free.push(place);
        true
    }
}

impl Visit {
    fn progress(&mut self, walk: &mut Walk) -> Progress {
        if self.greeted.is_none() {
            let hello = walk.hello(self.next.tenant);
            match self.stream.write(hello) {
                Ok(sent) if sent == hello.len() => self.greeted = Some(Instant::now()),
                Ok(_) => return Progress::Failed("hello: cut".to_owned()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Progress::Failed(connection::named("connect", &error)),
            }
            return Progress::Waits;
        }
        match self.stream.read(&mut self.answer[self.have..]) {
            Ok(0) => Progress::Failed("answer: ended".to_owned()),
            Ok(came) => {
                self.have += came;
                if self.have < MESSAGE {
                    return Progress::Waits;
                }
                match connection::fault(&self.answer, &self.next, walk.hello(self.next.tenant)) {
                    None => Progress::Done,
                    Some(fault) => Progress::Failed(fault.to_owned()),
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Progress::Waits,
            Err(error) => Progress::Failed(connection::named("answer", &error)),
        }
    }
}

//! Drops, duplicates, reorders and delays frames between two devices, controlled by a seed. It does what `netem` does
//! in kernels that have it.
//!
//! The injector's own namespace holds one end of each of two veth pairs. A thread forwards frames between
//! them through packet sockets. Offloads are off at both ends of each pair, so that every frame fits the MTU
//! and has a real checksum.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use common::decide::maglev::mix;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::net::{End, Namespace, veth};
use crate::offload;
use crate::tap::Tap;
use crate::world::kernel_talk;

/// A held frame is released after this many other frames, or after [`HELD`].
const HELD_FRAMES: u32 = 3;
/// Longest time a frame is held back.
const HELD: Duration = Duration::from_millis(4);

/// The share of frames for each fault, in percent; the same in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
    /// With the same seed, the nth frame of each direction always gets the same faults.
    pub seed: u64,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self { loss: 0, duplication: 0, reordering: 0, seed: 0 };

    /// 2 % of each fault.
    pub const fn two_percent(seed: u64) -> Self {
        Self { loss: 2, duplication: 2, reordering: 2, seed }
    }
}

#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    lost: AtomicU64,
    doubled: AtomicU64,
    delayed: AtomicU64,
    refused: AtomicU64,
}

/// The rates that apply now: loss, duplication and reordering in percent.
#[derive(Debug)]
struct Rates([AtomicU32; 3]);

impl Rates {
    fn new(faults: Faults) -> Self {
        Self([faults.loss, faults.duplication, faults.reordering].map(AtomicU32::new))
    }

    fn set(&self, faults: Faults) {
        for (rate, percent) in self.0.iter().zip([faults.loss, faults.duplication, faults.reordering]) {
            rate.store(percent, Ordering::Relaxed);
        }
    }

    fn faults(&self, seed: u64) -> Faults {
        let [loss, duplication, reordering] = self.0.each_ref().map(|rate| rate.load(Ordering::Relaxed));
        Faults { loss, duplication, reordering, seed }
    }
}

/// A running injector; forwarding stops when it is dropped.
#[derive(Debug)]
pub struct Injector {
    seed: u64,
    rates: Arc<Rates>,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _namespace: Namespace,
}

impl Injector {
    /// Connects two ends through an injector.
    pub fn between(left: End<'_>, right: End<'_>, mtu: u16, faults: Faults) -> Result<Self> {
        Self::delaying(left, right, mtu, faults, Duration::ZERO)
    }

    /// The same, with a delay in each direction.
    pub fn delaying(
        left: End<'_>,
        right: End<'_>,
        mtu: u16,
        faults: Faults,
        delay: Duration,
    ) -> Result<Self> {
        let namespace = Namespace::new("injector")?;
        namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        let mut taps = Vec::new();
        for (end, device) in [(left, "left"), (right, "right")] {
            veth(end, End { namespace: &namespace, device, addresses: &[] }, mtu)?;
            offload::set(end.namespace, end.device, false)?;
            offload::set(&namespace, device, false)?;
            taps.push(Tap::open(&namespace, device)?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let rates = Arc::new(Rates::new(faults));
        let (own_stop, own_counts, own_rates) = (Arc::clone(&stop), Arc::clone(&counts), Arc::clone(&rates));
        let (Some(right_tap), Some(left_tap)) = (taps.pop(), taps.pop()) else {
            anyhow::bail!("two taps were opened");
        };
        let thread = std::thread::Builder::new().name("injector".into()).spawn(move || {
            let taps = [left_tap, right_tap];
            let mut ways = [1, 2].map(|direction| Way { delay, ..Way::new(faults, direction) });
            while !own_stop.load(Ordering::Relaxed) {
                for way in &mut ways {
                    way.faults = own_rates.faults(faults.seed);
                }
                pump(&taps, &mut ways, &own_counts);
            }
        });
        let thread = thread.context("starting the injector")?;
        Ok(Self { seed: faults.seed, rates, counts, stop, thread: Some(thread), _namespace: namespace })
    }

    /// Changes the rates from now on; the seed stays.
    pub fn set(&self, faults: Faults) {
        self.rates.set(faults);
    }

    /// The seed and the counts, for failure messages.
    pub fn summary(&self) -> String {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        format!(
            "{:?}: {} frames passed, {} lost, {} doubled, {} held back, {} refused by the device",
            self.rates.faults(self.seed),
            read(&counts.passed),
            read(&counts.lost),
            read(&counts.doubled),
            read(&counts.delayed),
            read(&counts.refused)
        )
    }

    /// Frames lost, doubled and held back so far.
    pub fn faults(&self) -> [u64; 3] {
        let counts = &self.counts;
        [&counts.lost, &counts.doubled, &counts.delayed].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if std::thread::panicking() {
            eprintln!("injector: {}", self.summary());
        }
    }
}

/// One direction: its random state and its held frames. Each held frame has the number of frames it still
/// waits for, and its deadline.
struct Way {
    faults: Faults,
    dice: u64,
    held: VecDeque<(Vec<u8>, u32, Instant)>,
    /// How long each frame takes, and the frames in transit, each with the time of its arrival.
    delay: Duration,
    in_transit: VecDeque<(Vec<u8>, Instant)>,
}

impl Way {
    fn new(faults: Faults, direction: u64) -> Self {
        let dice = mix(faults.seed ^ direction << 60);
        Self { faults, dice, held: VecDeque::new(), delay: Duration::ZERO, in_transit: VecDeque::new() }
    }

    /// Whether frames wait here.
    fn is_waiting(&self) -> bool {
        !self.held.is_empty() || !self.in_transit.is_empty()
    }

    /// Sends frames, after the delay.
    fn send(&mut self, frames: Vec<Vec<u8>>, to: &Tap, counts: &Counts) {
        if self.delay.is_zero() {
            frames.iter().for_each(|frame| transmit(to, frame, counts));
            return;
        }
        let arrival = Instant::now() + self.delay;
        self.in_transit.extend(frames.into_iter().map(|frame| (frame, arrival)));
    }

    /// Sends the frames whose time has come.
    fn arrive(&mut self, to: &Tap, counts: &Counts) {
        let now = Instant::now();
        while let Some((frame, _)) = self.in_transit.pop_front_if(|(_, arrival)| *arrival <= now) {
            transmit(to, &frame, counts);
        }
    }

    /// Returns true in `percent` of the calls.
    fn chance(&mut self, percent: u32) -> bool {
        self.dice = mix(self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15));
        (self.dice >> 32) % 100 < u64::from(percent)
    }

    /// Takes an incoming frame and returns the frames to forward now.
    fn judge(&mut self, frame: &[u8], counts: &Counts) -> Vec<Vec<u8>> {
        // Always the same number of draws per frame, so that a frame's fate depends only on its number.
        let (lost, doubled, delayed) = (
            self.chance(self.faults.loss),
            self.chance(self.faults.duplication),
            self.chance(self.faults.reordering),
        );
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let mut leaving = Vec::new();
        if kernel_talk(frame) {
            // Never faulted: after three unanswered requests a host abandons the address, and with it every
            // connection there.
            count(&counts.passed);
            leaving.push(frame.to_vec());
        } else if lost {
            count(&counts.lost);
        } else if delayed {
            count(&counts.delayed);
            self.held.push_back((frame.to_vec(), HELD_FRAMES, Instant::now() + HELD));
            return self.due(false);
        } else {
            count(&counts.passed);
            leaving.push(frame.to_vec());
            if doubled {
                count(&counts.doubled);
                leaving.push(frame.to_vec());
            }
        }
        leaving.extend(self.due(true));
        leaving
    }

    /// Returns the held frames to release now; `passed` if another frame went by.
    fn due(&mut self, passed: bool) -> Vec<Vec<u8>> {
        let now = Instant::now();
        let mut leaving = Vec::new();
        for (_, left, _) in &mut self.held {
            *left = left.saturating_sub(u32::from(passed));
        }
        while self.held.front().is_some_and(|(_, left, until)| *left == 0 || *until <= now) {
            leaving.extend(self.held.pop_front().map(|(frame, _, _)| frame));
        }
        leaving
    }
}

/// Waits briefly for frames and forwards those that arrived.
fn pump(taps: &[Tap; 2], ways: &mut [Way; 2], counts: &Counts) {
    let mut wait = taps.each_ref().map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN));
    let holding = ways.iter().any(Way::is_waiting);
    let timeout = if holding { PollTimeout::from(1u8) } else { PollTimeout::from(20u8) };
    // If poll fails, the taps are read at once.
    let _ = poll(&mut wait, timeout);
    let mut buffer = [0; 65_536];
    for from in 0..2 {
        let (way, to) = (&mut ways[from], &taps[1 - from]);
        // Bounded, so that one busy direction does not starve the other.
        for _ in 0..64 {
            let frame = match taps[from].receive(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // The device went down: the lab is being torn down.
                Err(_) => return,
            };
            let leaving = way.judge(frame, counts);
            way.send(leaving, to, counts);
        }
        let leaving = way.due(false);
        way.send(leaving, to, counts);
        way.arrive(to, counts);
    }
}

fn transmit(to: &Tap, frame: &[u8], counts: &Counts) {
    for _ in 0..100 {
        match to.send(frame) {
            Ok(()) => return,
            Err(error)
                if error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS) =>
            {
                std::thread::sleep(Duration::from_micros(50));
            }
            Err(_) => break,
        }
    }
    counts.refused.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::bytes;

    #[test]
    fn tcp_gets_through_and_frames_met_every_fate() {
        crate::skip_without_root!();
        const BYTES: u64 = 4 << 20;
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let injector = Injector::between(
            End { namespace: &a, device: "one", addresses: &["192.0.2.1/24", "2001:db8::1/64"] },
            End { namespace: &b, device: "two", addresses: &["192.0.2.2/24", "2001:db8::2/64"] },
            1500,
            Faults::two_percent(7),
        )
        .unwrap();
        for address in ["192.0.2.2:1000", "[2001:db8::2]:1000"] {
            let listener = b.run(|| TcpListener::bind(address)).unwrap();
            let sender = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                bytes::send(&mut stream, BYTES, 3).unwrap();
            });
            let mut stream = a.run(|| TcpStream::connect(address)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(
                bytes::receive(&mut stream, BYTES).unwrap(),
                bytes::hash(BYTES, 3),
                "{}",
                injector.summary()
            );
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            sender.join().unwrap();
        }
        assert!(injector.faults().iter().all(|count| *count > 10), "{}", injector.summary());
    }

    #[test]
    fn the_seed_decides() {
        let fates = |seed| {
            let counts = Counts::default();
            let mut way = Way::new(Faults { loss: 30, duplication: 30, reordering: 0, seed }, 1);
            (0..100u8).map(|n| way.judge(&[n], &counts).len()).collect::<Vec<_>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
    }
}

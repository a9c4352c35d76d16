//! Captures every RST that enters or leaves the node, on all its devices.
//!
//! A RST of ours has the hop limit of our own segments; one that is passed on has lost a hop. The node's own stack sends
//! RSTs, too, with the same hop limit as ours: the kernel counts them. It also forwards what the stranger's faults in headers
//! have made another host's, which no program counts: such a RST is from no address of the node.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{self, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::net::Namespace;
use crate::packet::Segment;

/// Hop limit of segments that we make.
const OWN_HOPS: u8 = 64;
/// Bytes that may wait to be read: some 100,000 segments.
const BUFFER_BYTES: usize = 64 << 20;
/// RSTs that are remembered, for reports.
const KEPT: usize = 50_000;

/// Passes TCP segments with RST, of IPv4 without options and of IPv6 without extension headers. Offsets are from the
/// Ethernet header; byte 13 of the TCP header has the flags.
const FILTER: [libc::sock_filter; 15] = [
    load(libc::BPF_H, 12),
    jump(libc::BPF_JEQ, 0x0800, 0, 6),
    load(libc::BPF_B, 23),
    jump(libc::BPF_JEQ, 6, 0, 10),
    load(libc::BPF_H, 20),
    jump(libc::BPF_JSET, 0x1fff, 8, 0),
    load(libc::BPF_B, 14 + 20 + 13),
    jump(libc::BPF_JSET, 4, 5, 6),
    jump(libc::BPF_JEQ, 0x86dd, 0, 5),
    load(libc::BPF_B, 20),
    jump(libc::BPF_JEQ, 6, 0, 3),
    load(libc::BPF_B, 14 + 40 + 13),
    jump(libc::BPF_JSET, 4, 0, 1),
    give(256),
    give(0),
];

/// An instruction of a filter: loads what is at this offset.
pub const fn load(size: u32, at: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_LD | size | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: at }
}

/// One that skips `jt` instructions if the test holds, and `jf` if not.
pub const fn jump(test: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt, jf, k }
}

/// One that passes this many bytes of the frame; 0 drops it.
pub const fn give(bytes: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: bytes }
}

/// A RST as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    /// Index of the node's device.
    pub device: u32,
    /// Whether the node sent it.
    pub sent: bool,
    pub segment: Segment,
}

/// Numbers of RSTs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent by the node itself: by our programs or by its stack.
    pub own: u64,
    /// Passed on by our programs.
    pub passed: u64,
    /// Forwarded by the node's stack between two other hosts.
    pub forwarded: u64,
    /// Received by the node.
    pub received: u64,
    /// Read and counted above.
    pub seen: u64,
    /// That the kernel has queued for the capture. Those that are not `seen` still wait to be read.
    pub queued: u64,
    /// That the kernel has dropped, because they came faster than they were read.
    pub missed: u64,
}

impl Counts {
    /// Whether no RST waits to be read. One that is read after the kernel was asked makes `seen` the greater number.
    pub fn are_all_read(&self) -> bool {
        self.seen == self.queued
    }
}

/// What the kernel says of a packet socket, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Statistics {
    /// Frames that passed the filter, also those that were dropped.
    packets: u64,
    drops: u64,
}

impl Statistics {
    /// Adds what was read, which the kernel clears on each read.
    fn add(&mut self, [packets, drops]: [u32; 2]) {
        self.packets += u64::from(packets);
        self.drops += u64::from(drops);
    }

    /// Frames that were queued to be read.
    fn queued(&self) -> u64 {
        self.packets - self.drops
    }
}

#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    own: AtomicU64,
    passed: AtomicU64,
    forwarded: AtomicU64,
    received: AtomicU64,
    /// Is raised after the counter of the segment's kind.
    seen: AtomicU64,
    /// Locked while the kernel is asked, as each answer is given once.
    statistics: Mutex<Statistics>,
    last: Mutex<VecDeque<Seen>>,
    /// The node's addresses that connections have.
    addresses: Vec<IpAddr>,
    stop: AtomicBool,
}

impl Shared {
    fn new(fd: OwnedFd, addresses: &[IpAddr]) -> Self {
        Self {
            fd,
            own: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            received: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            statistics: Mutex::default(),
            last: Mutex::default(),
            addresses: addresses.to_vec(),
            stop: AtomicBool::new(false),
        }
    }

    /// Asks the kernel, and adds up.
    fn statistics(&self) -> Result<Statistics> {
        let mut sum = locked(&self.statistics);
        sum.add(read_statistics(&self.fd)?);
        Ok(*sum)
    }
}

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Starts capturing on all devices of the namespace, whose connections have these addresses: the VIPs, and those that
    /// backends see.
    pub fn start(node: &Namespace, addresses: &[IpAddr]) -> Result<Self> {
        let fd = node.run(|| open(&FILTER)).context("opening a packet socket")?;
        socket::setsockopt(&fd, sockopt::RcvBufForce, &BUFFER_BYTES).context("a large buffer")?;
        socket::setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::milliseconds(20))?;
        let shared = Arc::new(Shared::new(fd, addresses));
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("capture".into()).spawn(move || {
            while !own.stop.load(Ordering::Relaxed) {
                receive(&own);
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The numbers so far. The kernel is asked first.
    pub fn counts(&self) -> Result<Counts> {
        ensure!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the capture has ended");
        let s = &self.shared;
        let statistics = s.statistics().context("statistics of the packet socket")?;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok(Counts {
            // First: the counters below include all that it includes.
            seen: s.seen.load(Ordering::Acquire),
            queued: statistics.queued(),
            missed: statistics.drops,
            own: of(&s.own),
            passed: of(&s.passed),
            forwarded: of(&s.forwarded),
            received: of(&s.received),
        })
    }

    /// The last RSTs, oldest first.
    pub fn last(&self) -> Vec<Seen> {
        locked(&self.shared.last).iter().cloned().collect()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a packet socket on all devices of the calling thread's namespace, with a filter.
pub fn open(filter: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) with constants. Protocol 0: nothing is queued before bind.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut filter = filter.to_vec();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program and its instructions, which are live.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a valid sockaddr_ll. Interface 0: all devices.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the address is live and its size is passed along.
    let bound = unsafe {
        libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// A frame that was captured, as far as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub length: usize,
    /// Index of the node's device.
    pub device: u32,
    /// Whether the node sent it.
    pub sent: bool,
}

/// Waits a short time for a frame, and reads its first bytes.
pub fn next(fd: &OwnedFd, buffer: &mut [u8]) -> Option<Frame> {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut from_bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: buffer and address are live and their lengths are passed along.
    let length = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
            (&raw mut from).cast(),
            &raw mut from_bytes,
        )
    };
    let sent = from.sll_pkttype == libc::PACKET_OUTGOING;
    (length > 0).then_some(Frame { length: length as usize, device: from.sll_ifindex as u32, sent })
}

/// Waits a short time for a segment and counts it.
fn receive(shared: &Shared) {
    let mut buffer = [0; 256];
    let Some(Frame { length, device, sent }) = next(&shared.fd, &mut buffer) else { return };
    let frame = &buffer[..length];
    let hops = if frame[12] == 0x08 { frame[22] } else { frame[21] };
    let segment = parsed(frame);
    let counter = match (sent, hops == OWN_HOPS) {
        (true, true) => &shared.own,
        (true, false) if is_of_another(segment.as_ref(), &shared.addresses) => &shared.forwarded,
        (true, false) => &shared.passed,
        (false, _) => &shared.received,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    shared.seen.fetch_add(1, Ordering::Release);
    let mut last = locked(&shared.last);
    if last.len() == KEPT {
        last.pop_front();
    }
    last.extend(segment.map(|segment| Seen { at: Instant::now(), device, sent, segment }));
}

/// Whether a segment is known to be from none of the node's addresses.
fn is_of_another(segment: Option<&Segment>, addresses: &[IpAddr]) -> bool {
    segment.is_some_and(|segment| !addresses.contains(&segment.from.ip()))
}

/// Reads the fields that a report shows; a malformed segment has fewer.
fn parsed(frame: &[u8]) -> Option<Segment> {
    Segment::parse(frame).or_else(|| {
        let v4 = frame[12] == 0x08;
        let at = if v4 { 34 } else { 54 };
        let port = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (from, to) = match v4 {
            true => (
                Ipv4Addr::from(*frame.get(26..)?.first_chunk::<4>()?).into(),
                Ipv4Addr::from(*frame.get(30..)?.first_chunk::<4>()?).into(),
            ),
            false => (
                Ipv6Addr::from(*frame.get(22..)?.first_chunk::<16>()?).into(),
                Ipv6Addr::from(*frame.get(38..)?.first_chunk::<16>()?).into(),
            ),
        };
        let (from, to) = (SocketAddr::new(from, port(at)?), SocketAddr::new(to, port(at + 2)?));
        Some(crate::packet::segment(from, to).flags(*frame.get(at + 13)?))
    })
}

/// Frames that passed the filter since the last call, and those of them that were dropped.
fn read_statistics(fd: &OwnedFd) -> Result<[u32; 2]> {
    // The layout of struct tpacket_stats, which is that of TPACKET_V1: the version of a socket that sets none.
    let mut stats = [0_u32; 2];
    let mut bytes = size_of_val(&stats) as libc::socklen_t;
    // SAFETY: `stats` is live and its size is passed along.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    ensure!(got == 0, io::Error::last_os_error());
    ensure!(bytes as usize == size_of_val(&stats), "PACKET_STATISTICS has {bytes} bytes");
    Ok(stats)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_added_up_and_dropped_frames_are_not_queued() {
        let mut sum = Statistics::default();
        for read in [[5, 0], [0, 0], [7, 3], [u32::MAX, 1]] {
            sum.add(read);
        }
        assert_eq!(sum, Statistics { packets: 12 + u64::from(u32::MAX), drops: 4 });
        assert_eq!(sum.queued(), 8 + u64::from(u32::MAX));
    }

    #[test]
    fn all_are_read_when_as_many_were_seen_as_queued() {
        let of = |seen, queued| Counts { seen, queued, missed: 2, ..Counts::default() };
        assert!(of(7, 7).are_all_read());
        assert!(!of(6, 7).are_all_read(), "one waits");
        assert!(!of(8, 7).are_all_read(), "one came after the kernel was asked");
    }
}

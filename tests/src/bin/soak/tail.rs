//! The last TCP packets on all devices of the node, for reports. Packets may be missed.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::socket::{self, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use tests::net::Namespace;
use tests::resets::capture::{self, Frame, give, jump, load};

use crate::book::locked;

/// Packets that are remembered: some seconds.
const KEPT: usize = 150_000;
/// Bytes of each: Ethernet, IPv6, TCP with all options.
const FRAME_BYTES: usize = 14 + 40 + 60;
const BUFFER_BYTES: usize = 32 << 20;

/// Passes TCP of both families.
const FILTER: [libc::sock_filter; 8] = [
    load(libc::BPF_H, 12),
    jump(libc::BPF_JEQ, 0x0800, 0, 2),
    load(libc::BPF_B, 23),
    jump(libc::BPF_JEQ, 6, 2, 3),
    load(libc::BPF_B, 20),
    jump(libc::BPF_JEQ, 6, 0, 1),
    give(FRAME_BYTES as u32),
    give(0),
];

/// The headers of a packet.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) at: Instant,
    pub(crate) device: u32,
    pub(crate) sent: bool,
    length: u8,
    frame: [u8; FRAME_BYTES],
}

impl Packet {
    /// Reads the headers; `None`: not TCP behind an IP header without options.
    pub(crate) fn headers(&self) -> Option<Headers> {
        let frame = self.frame.get(..self.length.into())?;
        let v4 = frame[12] == 0x08;
        let tcp = frame.get(if v4 { 34 } else { 54 }..)?;
        let two = |from: &[u8], at: usize| Some(u16::from_be_bytes(*from.get(at..)?.first_chunk()?));
        let four = |at: usize| Some(u32::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
        let address = |at: usize| -> Option<IpAddr> {
            Some(match v4 {
                true => frame.get(26 + at * 4..)?.first_chunk::<4>().copied()?.into(),
                false => frame.get(22 + at * 16..)?.first_chunk::<16>().copied()?.into(),
            })
        };
        let header_bytes = usize::from(tcp.get(12)? >> 4) * 4;
        let ip_bytes = if v4 { two(frame, 16)?.saturating_sub(20) } else { two(frame, 18)? };
        Some(Headers {
            from: SocketAddr::new(address(0)?, two(tcp, 0)?),
            to: SocketAddr::new(address(1)?, two(tcp, 2)?),
            seq: four(4)?,
            ack: four(8)?,
            flags: *tcp.get(13)?,
            bytes: usize::from(ip_bytes).saturating_sub(header_bytes),
            hops: frame[if v4 { 22 } else { 21 }],
            options: tcp.get(20..header_bytes.min(tcp.len())).unwrap_or_default().to_vec(),
        })
    }
}

/// What a report shows of a packet.
#[derive(Debug)]
pub(crate) struct Headers {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    /// Of the payload.
    pub(crate) bytes: usize,
    pub(crate) hops: u8,
    pub(crate) options: Vec<u8>,
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, seq, ack, flags, bytes, hops, options } = self;
        write!(f, "{from} > {to} seq {seq} ack {ack} flags {flags:#x} bytes {bytes} hops {hops} ")?;
        options.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A running capture of all packets.
pub(crate) struct Tail {
    last: Arc<Mutex<VecDeque<Packet>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tail {
    /// Starts on all devices of the namespace.
    pub(crate) fn start(node: &Namespace) -> Result<Self> {
        let fd = node.run(|| capture::open(&FILTER)).context("opening a packet socket")?;
        socket::setsockopt(&fd, sockopt::RcvBufForce, &BUFFER_BYTES).context("a large buffer")?;
        socket::setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::milliseconds(20))?;
        let (last, stop) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(AtomicBool::new(false)));
        let (theirs, over) = (Arc::clone(&last), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("tail".into()).spawn(move || {
            while !over.load(Ordering::Relaxed) {
                keep(&fd, &theirs);
            }
        })?;
        Ok(Self { last, stop, thread: Some(thread) })
    }

    /// The packets that are remembered, oldest first.
    pub(crate) fn last(&self) -> Vec<Packet> {
        locked(&self.last).iter().cloned().collect()
    }
}

fn keep(fd: &OwnedFd, last: &Mutex<VecDeque<Packet>>) {
    let mut frame = [0; FRAME_BYTES];
    let Some(Frame { length, device, sent }) = capture::next(fd, &mut frame) else { return };
    let mut last = locked(last);
    if last.len() == KEPT {
        last.pop_front();
    }
    last.push_back(Packet { at: Instant::now(), device, sent, length: length as u8, frame });
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use common::wire::{arp, heartbeat};

use crate::net::Namespace;
use crate::tap;

/// EtherType of [`mark`] (IEEE 802, for experiments).
const MARK: u16 = 0x88b6;

/// A frame that passed a device.
#[derive(Debug)]
pub struct Passed {
    /// Index of the device.
    pub device: u32,
    /// Whether it left by the device; otherwise it came by it.
    pub is_out: bool,
    /// The whole frame.
    pub bytes: Vec<u8>,
}

/// Captures on all devices of a namespace ARP, ICMPv6, heartbeats and marks, in the order in which they pass: those of one CPU, and what is
/// caused by a frame after that frame.
#[derive(Debug)]
pub struct Ports(OwnedFd);

impl Ports {
    /// Captures from now on.
    pub fn open(namespace: &Namespace) -> Result<Self> {
        let open = || {
            let socket = tap::open(0)?;
            choose(&socket)?;
            Ok::<_, io::Error>(Self(socket))
        };
        let this = namespace.run(open).with_context(|| format!("capturing in {}", namespace.name()))?;
        // What came before the filter was there.
        this.drain()?;
        Ok(this)
    }

    /// Returns all frames that wait.
    pub fn drain(&self) -> io::Result<Vec<Passed>> {
        let mut buffer = vec![0; 65_536];
        let mut all = Vec::new();
        loop {
            match tap::receive(self.0.as_fd(), &mut buffer) {
                Ok((length, from, _)) => all.push(Passed {
                    device: from.sll_ifindex as u32,
                    is_out: from.sll_pkttype == libc::PACKET_OUTGOING,
                    bytes: buffer[..length].to_vec(),
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                // A device went down.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns how many frames were lost for want of room since it was asked last.
    pub fn lost(&self) -> io::Result<u32> {
        tap::lost(self.0.as_fd())
    }
}

/// Returns a frame that does nothing but show in a capture when it was sent.
pub fn mark(from: [u8; 6], number: u32) -> Vec<u8> {
    let number = number.to_be_bytes();
    [&arp::BROADCAST[..], &from, &MARK.to_be_bytes(), &number, &[0; 42]].concat()
}

/// Returns the number of a [`mark`].
pub fn marked(frame: &[u8]) -> Option<u32> {
    let number = frame.get(14..18)?.first_chunk()?;
    (frame.get(12..14)? == MARK.to_be_bytes()).then(|| u32::from_be_bytes(*number))
}

/// Has a packet socket receive only what [`Ports`] captures.
fn choose(socket: &OwnedFd) -> io::Result<()> {
    let load = |size: u32, offset| instruction(libc::BPF_LD | size | libc::BPF_ABS, [0, 0], offset);
    let equal = |value: u32, [yes, no]: [u8; 2]| {
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, [yes, no], value)
    };
    let mut program = [
        load(libc::BPF_H, 12),
        equal(arp::ETHER_TYPE.into(), [5, 0]),
        equal(heartbeat::ETHER_TYPE.into(), [4, 0]),
        equal(MARK.into(), [3, 0]),
        equal(libc::ETH_P_IPV6 as u32, [0, 3]),
        load(libc::BPF_B, 20),
        equal(libc::IPPROTO_ICMPV6 as u32, [0, 1]),
        instruction(libc::BPF_RET | libc::BPF_K, [0, 0], u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, [0, 0], 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: filter and program live through the call, with the lengths given; the kernel copies them.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn instruction(code: u32, [jt, jf]: [u8; 2], k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

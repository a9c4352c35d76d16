//! Sends frames, as they are, out of a device, and receives those of one kind.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use common::wire::{arp, ndp};

/// Bytes of frames that a socket holds at most.
const BUFFER: libc::c_int = 4 << 20;

/// A packet socket that receives nothing (packet(7)).
#[derive(Debug)]
pub struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let fd = socket()?;
        set(&fd, libc::SO_SNDBUFFORCE, &BUFFER)?;
        Ok(Self(fd))
    }

    /// Sends a frame, which begins with its Ethernet header, out of the device with this index.
    pub fn send(&self, device: u32, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the structure contains only numbers, for which zero is a valid value.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = device as i32;
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: frame and address live through the call, with the lengths given.
        let sent = unsafe {
            let to = std::ptr::from_ref(&to).cast();
            libc::sendto(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                to,
                length,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What a [`FrameReader`] receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Frames of this EtherType.
    Type(u16),
    /// Neighbour advertisements of hosts of the segment.
    Advertisements,
}

impl Kind {
    fn ether_type(self) -> u16 {
        match self {
            Self::Type(ether_type) => ether_type,
            Self::Advertisements => 0x86dd,
        }
    }
}

/// ICMPv6, hop limit 255, type advertisement: offsets count from the frame's first byte.
const ADVERTISEMENTS: [libc::sock_filter; 8] = [
    load(20),
    unless(58, 5),
    load(21),
    unless(ndp::HOP_LIMIT as u32, 3),
    load(54),
    unless(ndp::ADVERTISEMENT as u32, 1),
    answer(u32::MAX),
    answer(0),
];

const fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Skips this many instructions unless what was loaded is equal to `value`.
const fn unless(value: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k: value,
    }
}

const fn answer(bytes: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: bytes }
}

/// A packet socket that receives the frames of one kind from all devices of the network namespace (packet(7)), after our programs.
#[derive(Debug)]
pub struct FrameReader(OwnedFd);

impl FrameReader {
    /// Opens a socket in the network namespace of the calling thread. It waits for a frame for this long.
    pub fn open(kind: Kind, wait: Duration) -> io::Result<Self> {
        let fd = socket()?;
        let limit =
            libc::timeval { tv_sec: wait.as_secs() as libc::time_t, tv_usec: wait.subsec_micros().into() };
        set(&fd, libc::SO_RCVTIMEO, &limit)?;
        // A table of bids is many frames at once.
        set(&fd, libc::SO_RCVBUFFORCE, &BUFFER)?;
        if kind == Kind::Advertisements {
            let filter = libc::sock_fprog {
                len: ADVERTISEMENTS.len() as u16,
                filter: ADVERTISEMENTS.as_ptr().cast_mut(),
            };
            set(&fd, libc::SO_ATTACH_FILTER, &filter)?;
        }
        // SAFETY: the structure contains only numbers, for which zero is a valid value. Device 0: all.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = kind.ether_type().to_be();
        // SAFETY: the address lives through the call, with the length given.
        let bound = unsafe {
            let address = std::ptr::from_ref(&to).cast();
            libc::bind(fd.as_raw_fd(), address, size_of::<libc::sockaddr_ll>() as u32)
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(fd)) }
    }

    /// Waits for a frame from another host. Returns the device's index and the frame's bytes, of which a longer one than `buffer` loses
    /// the rest; `None`: none came in time.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<(u32, &'a [u8])>> {
        loop {
            // SAFETY: the structure contains only numbers, for which zero is a valid value.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut length = size_of::<libc::sockaddr_ll>() as u32;
            // SAFETY: buffer and address live through the call, with the lengths given.
            let received = unsafe {
                let address = std::ptr::from_mut(&mut from).cast();
                let (bytes, most) = (buffer.as_mut_ptr().cast(), buffer.len());
                libc::recvfrom(self.0.as_raw_fd(), bytes, most, 0, address, &raw mut length)
            };
            if received < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                    _ => Err(error),
                };
            }
            // Also of a VLAN that has no device here: its frames come without tag, as if they were this device's.
            if !matches!(from.sll_pkttype, libc::PACKET_OUTGOING | libc::PACKET_OTHERHOST) {
                return Ok(Some((from.sll_ifindex as u32, &buffer[..received as usize])));
            }
        }
    }
}

/// Sets an option of a socket.
fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel copies the value, which lives through the call, with the length given; a filter that it points to does, too.
    let result = unsafe {
        let (value, length) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a packet socket that receives nothing.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed. Protocol 0: nothing is received.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the address that the sender of an ARP message or of a neighbour advertisement says it has, and its link address.
pub fn claim(frame: &[u8]) -> Option<(std::net::IpAddr, [u8; 6])> {
    match *frame.get(12..14)? {
        [8, 6] => arp::claim(frame).map(|(address, link)| (address.into(), link)),
        _ => ndp::claim(frame).map(|(address, link)| (address.into(), link)),
    }
}

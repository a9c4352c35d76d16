//! Receives and sends whole frames on a device: through an AF_PACKET socket, or as the far end of our own TAP
//! device.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Receive buffer in bytes, enough for a burst of super-packets.
const BUFFER_BYTES: libc::c_int = 16 << 20;

/// Frame-by-frame access to one device.
#[derive(Debug)]
pub struct Tap {
    socket: OwnedFd,
    /// Whether `socket` is a TAP device's own file and not a packet socket.
    own: bool,
    /// Whether frames have the VLAN tags that the kernel keeps beside them.
    tagged: bool,
}

impl Tap {
    /// Opens the device; frames that this host sends on it are not received.
    pub fn open(namespace: &Namespace, device: &str) -> Result<Self> {
        namespace.run(|| Self::open_here(device)).with_context(|| format!("in {}", namespace.name()))
    }

    /// Opens a device of the calling thread's namespace.
    pub fn open_here(device: &str) -> Result<Self> {
        let ifindex = nix::net::if_::if_nametoindex(device).with_context(|| format!("no device {device}"))?;
        let socket = open(ifindex).with_context(|| format!("packet socket on {device}"))?;
        Ok(Self { socket, own: false, tagged: false })
    }

    /// The same, but a frame's VLAN tag, which the kernel takes out of it, is put back where it was.
    pub fn open_tagged(namespace: &Namespace, device: &str) -> Result<Self> {
        let tap = Self::open(namespace, device)?;
        let on: libc::c_int = 1;
        // SAFETY: the option value is a live c_int and its size is passed along.
        let set = unsafe {
            libc::setsockopt(
                tap.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_AUXDATA,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if set < 0 {
            return Err(io::Error::last_os_error()).context("asking for VLAN tags");
        }
        Ok(Self { tagged: true, ..tap })
    }

    /// Returns how many frames were lost for want of room since it was asked last.
    pub fn lost(&self) -> io::Result<u32> {
        lost(self.socket.as_fd())
    }

    /// Creates a TAP device, which exists as long as the returned value. A frame passed to `send` arrives on
    /// the device, and the kernel has finished processing it when `send` returns. `receive` returns the
    /// frames that the kernel sends out of the device.
    pub fn create(namespace: &Namespace, device: &str) -> Result<Self> {
        let socket =
            namespace.run(|| create(device)).with_context(|| format!("making the TAP device {device}"))?;
        Ok(Self { socket, own: true, tagged: false })
    }

    /// Returns the next frame, if one is waiting.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b mut [u8]>> {
        if self.own {
            return match nix::unistd::read(&self.socket, buffer) {
                Ok(length) => Ok(Some(&mut buffer[..length])),
                Err(nix::errno::Errno::EAGAIN) => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
        loop {
            let (length, from, tag) = match receive(self.socket.as_fd(), buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            if from.sll_pkttype == libc::PACKET_OUTGOING {
                continue;
            }
            let Some(tag) = tag.filter(|_| self.tagged) else { return Ok(Some(&mut buffer[..length])) };
            // Behind both link addresses.
            buffer.copy_within(12..length, 16);
            buffer[12..16].copy_from_slice(&tag);
            return Ok(Some(&mut buffer[..length + 4]));
        }
    }

    /// Sends a frame: out of the device, or into our own TAP device.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        if self.own {
            return nix::unistd::write(&self.socket, frame).map(drop).map_err(Into::into);
        }
        // SAFETY: the slice is live and its length is passed along.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns all waiting frames.
    pub fn drain(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut buffer = vec![0; 65_536 + 64];
        let mut frames = Vec::new();
        while let Some(frame) = self.receive(&mut buffer)? {
            frames.push(frame.to_vec());
        }
        Ok(frames)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns how many frames a packet socket lost for want of room since it was asked last.
pub(crate) fn lost(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: all-zero is a valid tpacket_stats.
    let mut statistics: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: value and length are live, and the length is the value's.
    let read = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if read < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics.tp_drops) }
}

/// A frame's length, on which device it passed and whether it left, and the VLAN tag beside it, if the socket asks for that.
type Received = (usize, libc::sockaddr_ll, Option<[u8; 4]>);

/// Receives a frame from a packet socket.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    // SAFETY: all-zero is a valid sockaddr_ll, and a valid msghdr.
    let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) = unsafe { std::mem::zeroed() };
    // For one message of `struct tpacket_auxdata`, aligned.
    let mut control = [0_u64; 8];
    let mut bytes = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: buffer, address and room for control messages are live and their lengths are passed along.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has written the message, whose parts are live.
    let tag = unsafe { tag_of(&message) };
    Ok((length as usize, from, tag))
}

/// Returns the VLAN tag in the control message of a received frame.
///
/// # Safety
/// The message is as the kernel wrote it, and its control messages are live.
unsafe fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: as the caller guarantees; the header, if there is one, is within the control messages.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: a message of this type is a `struct tpacket_auxdata`, at any alignment.
    let about = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    let [a, b] = about.tp_vlan_tpid.to_be_bytes();
    let [c, d] = about.tp_vlan_tci.to_be_bytes();
    (about.tp_status & libc::TP_STATUS_VLAN_VALID != 0).then_some([a, b, c, d])
}

fn create(device: &str) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF takes a pointer to an ifreq, which is live.
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl(2) on our own descriptor with constants.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(file.into()) }
}

/// Opens a packet socket on a device, or on all of them (0).
pub(crate) fn open(ifindex: u32) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: socket(2) with constants. Protocol 0: nothing is queued before bind names the device.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let bytes = BUFFER_BYTES;
    // SAFETY: the option value is a live c_int and its size is passed along.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = ifindex as i32;
    // SAFETY: the address is live and its size is passed along.
    let bound = unsafe {
        libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

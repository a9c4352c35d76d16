//! Sends frames, as they are, out of a device.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A packet socket that receives nothing (packet(7)).
#[derive(Debug)]
pub struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        // SAFETY: no pointer is passed. Protocol 0: nothing is received.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
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

//! Reads the offloads of a device with the `ETHTOOL_*` ioctls, which every driver supports. Needs no library.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `SIOCETHTOOL` (linux/sockios.h).
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// The single-value commands (linux/ethtool.h).
const GET_RX_CHECKSUM: u32 = 0x14;
const GET_TX_CHECKSUM: u32 = 0x16;
const GET_FLAGS: u32 = 0x25;
/// A flag in the result of `GET_FLAGS`.
const FLAG_LRO: u32 = 1 << 15;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ifreq` with `ifr_data`; the union is 24 bytes on 64-bit machines.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut Value,
    rest: [u64; 2],
}

/// What a device does with packets before programs receive them, or after programs sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// The device verifies checksums of received packets.
    pub rx_checksum: bool,
    /// The device computes checksums of sent packets.
    pub tx_checksum: bool,
    /// The device merges segments irreversibly, so that they must not be forwarded.
    pub large_receive: bool,
}

/// Queries a device in the calling thread's network namespace.
pub fn offloads(device: &str) -> io::Result<Offloads> {
    Ok(Offloads {
        rx_checksum: ask(device, GET_RX_CHECKSUM)? != 0,
        tx_checksum: ask(device, GET_TX_CHECKSUM)? != 0,
        large_receive: ask(device, GET_FLAGS)? & FLAG_LRO != 0,
    })
}

fn ask(device: &str, command: u32) -> io::Result<u32> {
    let mut value = Value { command, data: 0 };
    let mut request = Request { name: [0; libc::IFNAMSIZ], data: &raw mut value, rest: [0; 2] };
    // The last byte stays zero.
    let place = request.name.get_mut(..device.len()).filter(|place| place.len() < libc::IFNAMSIZ);
    place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(device.as_bytes());
    // SAFETY: socket(2) with constants; a negative result is handled below.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just created, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `request` is an ifreq and `value` an ethtool_value; both live through the call, which writes
    // only `value`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(value.data) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_tells_its_offloads_and_what_is_no_device_is_an_error() {
        // Loopback always reports valid checksums and never merges segments.
        let found = offloads("lo").unwrap();
        assert!(found.rx_checksum && found.tx_checksum && !found.large_receive, "{found:?}");
        assert_eq!(offloads("no-such").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(offloads("sixteen-letters!").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

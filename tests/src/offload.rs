//! Switches a device's offloads with the `ETHTOOL_*` ioctls, so that `ethtool` need not be installed.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

use crate::net::Namespace;

// include/uapi/linux/ethtool.h: the single-value commands, still supported by every driver.
const ETHTOOL_SRXCSUM: u32 = 0x15;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SSG: u32 = 0x19;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_SGRO: u32 = 0x2c;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ifreq` with `ifr_data`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    data: *mut EthtoolValue,
    /// The union is 24 bytes on 64-bit machines.
    rest: [u64; 2],
}

/// Switches segmentation (TSO, GSO), aggregation (GRO), scatter-gather and checksum offloads of a device on
/// or off. When off, frames are no larger than the MTU and carry real checksums.
pub fn set(namespace: &Namespace, device: &str, on: bool) -> Result<()> {
    // TSO depends on checksums and scatter-gather: switched on in this order, and off in reverse order.
    let mut commands =
        [ETHTOOL_SRXCSUM, ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_SGSO, ETHTOOL_STSO, ETHTOOL_SGRO];
    if !on {
        commands.reverse();
    }
    namespace.run(|| {
        commands.into_iter().try_for_each(|command| {
            ioctl(device, command, u32::from(on))
                .with_context(|| format!("ETHTOOL command {command:#x} on {device}"))
        })
    })
}

/// Switches only segmentation (TSO, GSO) on or off. When off, frames are no larger than the MTU, but their
/// checksums may still be left to the device. Aggregation (GRO) is off in both cases, as on a new veth.
pub fn set_large_packets(namespace: &Namespace, device: &str, on: bool) -> Result<()> {
    namespace.run(|| {
        [(ETHTOOL_STSO, on), (ETHTOOL_SGSO, on), (ETHTOOL_SGRO, false)].into_iter().try_for_each(
            |(command, on)| {
                ioctl(device, command, u32::from(on))
                    .with_context(|| format!("ETHTOOL command {command:#x} on {device}"))
            },
        )
    })
}

fn ioctl(device: &str, command: u32, data: u32) -> Result<()> {
    if device.len() >= libc::IFNAMSIZ {
        bail!("device name {device} is too long");
    }
    // SAFETY: socket(2) with constants; a negative result is handled below.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).context("socket");
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut value = EthtoolValue { command, data };
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], data: &raw mut value, rest: [0; 2] };
    request.name[..device.len()].copy_from_slice(device.as_bytes());
    // SAFETY: `request` has the layout of struct ifreq and points to a live struct ethtool_value.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context("ioctl(SIOCETHTOOL)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{End, veth};

    #[test]
    fn offloads_of_a_veth_can_be_switched() {
        crate::skip_without_root!();
        let a = Namespace::new("a").unwrap();
        let b = Namespace::new("b").unwrap();
        veth(
            End { namespace: &a, device: "one", addresses: &["192.0.2.1/24", "2001:db8::1/64"] },
            End { namespace: &b, device: "two", addresses: &["192.0.2.2/24", "2001:db8::2/64"] },
            1500,
        )
        .unwrap();
        set(&a, "one", false).unwrap();
        set(&a, "one", true).unwrap();
        assert!(set(&a, "none", true).is_err());
    }
}

//! Switches a device's offloads with the `ETHTOOL_*` ioctls, so that `ethtool` need not be installed.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use userspace::net::ethtool;

use crate::net::Namespace;

// include/uapi/linux/ethtool.h: the single-value commands, still supported by every driver.
const ETHTOOL_SRXCSUM: u32 = 0x15;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SSG: u32 = 0x19;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_SGRO: u32 = 0x2c;
/// `struct ethtool_sfeatures`: blocks of 32 features, each as (valid, requested).
const ETHTOOL_SFEATURES: u32 = 0x3b;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// `struct ifreq` with `ifr_data`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    data: *mut u32,
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
            ioctl(device, &mut [command, u32::from(on)])
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
                ioctl(device, &mut [command, u32::from(on)])
                    .with_context(|| format!("ETHTOOL command {command:#x} on {device}"))
            },
        )
    })
}

/// Switches only aggregation (GRO) on or off. With it, a veth also takes frames that XDP at its other end sends.
pub fn set_aggregation(namespace: &Namespace, device: &str, on: bool) -> Result<()> {
    namespace.run(|| {
        ioctl(device, &mut [ETHTOOL_SGRO, u32::from(on)])
            .with_context(|| format!("switching aggregation on {device}"))
    })
}

/// Switches a feature by the name that `ethtool -k` shows.
pub fn set_feature(namespace: &Namespace, device: &str, name: &str, on: bool) -> Result<()> {
    namespace.run(|| {
        let number = ethtool::feature(device, name)?.with_context(|| format!("no feature {name}"))?;
        let blocks = number / 32 + 1;
        let mut words = vec![0; 2 + 2 * blocks];
        words[..2].copy_from_slice(&[ETHTOOL_SFEATURES, blocks as u32]);
        words[2 * blocks] = 1 << (number % 32);
        words[2 * blocks + 1] = u32::from(on) << (number % 32);
        ioctl(device, &mut words).with_context(|| format!("switching {name} on {device}"))
    })
}

/// The number of a netlink message that changes a device, and flags: a request whose receipt is acknowledged
/// (include/uapi/linux/rtnetlink.h, include/uapi/linux/netlink.h).
const RTM_NEWLINK: u16 = 16;
const REQUEST_AND_ACK: u16 = 1 | 4;
/// Attributes of a device (include/uapi/linux/if_link.h): sizes of the largest super-packets that are sent and put together, for
/// IPv6 and for IPv4.
const SUPER_PACKETS: [u16; 4] = [41, 58, 63, 64];

/// Lets super-packets of the device, those it sends and those made of what it receives, have up to this many bytes: more than
/// 65,536 is BIG TCP.
pub fn set_super_packets(namespace: &Namespace, device: &str, bytes: u32) -> Result<()> {
    let mut message = Vec::new();
    message.extend((32 + 8 * SUPER_PACKETS.len() as u32).to_ne_bytes());
    message.extend([RTM_NEWLINK.to_ne_bytes(), REQUEST_AND_ACK.to_ne_bytes()].concat());
    message.extend([0; 8]);
    // `struct ifinfomsg`.
    message.extend([0; 4]);
    message.extend(namespace.ifindex(device)?.to_ne_bytes());
    message.extend([0; 8]);
    for attribute in SUPER_PACKETS {
        message.extend([8u16.to_ne_bytes(), attribute.to_ne_bytes()].concat());
        message.extend(bytes.to_ne_bytes());
    }
    namespace.run(|| {
        let kind =
            (AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute);
        let socket = socket(kind.0, kind.1, kind.2, kind.3).context("a netlink socket")?;
        send(socket.as_raw_fd(), &message, MsgFlags::empty()).context("asking")?;
        let mut answer = [0; 256];
        recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).context("reading the answer")?;
        // `struct nlmsgerr`, behind the header.
        let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        match error {
            0 => Ok(()),
            _ => bail!(
                "super-packets of {bytes} bytes on {device}: {}",
                std::io::Error::from_raw_os_error(-error)
            ),
        }
    })
}

/// Executes the command in the first word.
fn ioctl(device: &str, words: &mut [u32]) -> Result<()> {
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
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], data: words.as_mut_ptr(), rest: [0; 2] };
    request.name[..device.len()].copy_from_slice(device.as_bytes());
    // SAFETY: `request` has the layout of struct ifreq and points to the words of a live command.
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

//! Membership of devices in multicast groups, in two parts. The device's filter lets frames to the group pass: that outlives the
//! process, and the device's going down. The kernel reports the membership to switches that forward only to members (MLD, RFC
//! 3810): that needs a socket, and lasts as long as the process.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Adds a link address to a device's filter, and takes one away (linux/sockios.h).
const ADD_TO_FILTER: libc::Ioctl = 0x8931;
const REMOVE_FROM_FILTER: libc::Ioctl = 0x8932;

/// A device, by index and name, and a group that it is a member of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Index of the device.
    pub device: u32,
    /// Name of the device, which the device's filter is changed by.
    pub name: String,
    /// The group.
    pub group: Ipv6Addr,
}

/// Memberships that the kernel reports, each by a socket.
#[derive(Debug, Default)]
pub struct Groups {
    /// The last one takes more, unless the kernel has no memory for it: that is limited for each socket (`net.core.optmem_max`).
    sockets: Vec<OwnedFd>,
    reported: BTreeSet<(u32, Ipv6Addr)>,
}

impl Groups {
    /// Makes a device a member. One that is a member already stays one.
    pub fn join(&mut self, member: &Member) -> io::Result<()> {
        change_filter(&member.name, link_address(member.group), ADD_TO_FILTER)?;
        if self.reported.contains(&(member.device, member.group)) {
            return Ok(());
        }
        let joined = match self.sockets.last() {
            Some(socket) => change_report(socket, member, libc::IPV6_ADD_MEMBERSHIP),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        if joined.is_err() {
            let socket = socket(libc::AF_INET6)?;
            change_report(&socket, member, libc::IPV6_ADD_MEMBERSHIP)?;
            self.sockets.push(socket);
        }
        self.reported.insert((member.device, member.group));
        Ok(())
    }

    /// Ends a membership. One that is over already is no error.
    pub fn leave(&mut self, member: &Member) -> io::Result<()> {
        if self.reported.remove(&(member.device, member.group)) {
            let is_of = |socket| change_report(socket, member, libc::IPV6_DROP_MEMBERSHIP).is_ok();
            self.sockets.iter().any(is_of);
        }
        refuse(&member.name, link_address(member.group))
    }
}

/// Lets frames to the group with this link address pass a device's filter. That outlives the process.
pub fn admit(device: &str, group: [u8; 6]) -> io::Result<()> {
    change_filter(device, group, ADD_TO_FILTER)
}

/// Ends what [`admit`] did. What is over already is no error.
pub fn refuse(device: &str, group: [u8; 6]) -> io::Result<()> {
    match change_filter(device, group, REMOVE_FROM_FILTER) {
        // The device or the entry is gone.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Ok(()),
        outcome => outcome,
    }
}

/// Returns a datagram socket in the network namespace of the calling thread.
fn socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn change_report(socket: &OwnedFd, member: &Member, option: i32) -> io::Result<()> {
    let request = libc::ipv6_mreq {
        ipv6mr_multiaddr: libc::in6_addr { s6_addr: member.group.octets() },
        ipv6mr_interface: member.device,
    };
    // SAFETY: the structure lives through the call, with the length given.
    let result = unsafe {
        let (value, length) = (std::ptr::from_ref(&request).cast(), size_of::<libc::ipv6_mreq>() as u32);
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IPV6, option, value, length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns a group's link address (RFC 2464 section 7).
fn link_address(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Adds a group's link address to the device's filter, or takes it away.
fn change_filter(device: &str, group: [u8; 6], command: libc::Ioctl) -> io::Result<()> {
    // SAFETY: the structure contains only numbers, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the structure contains only numbers, for which zero is a valid value.
    let mut link: libc::sockaddr = unsafe { std::mem::zeroed() };
    for (to, from) in link.sa_data.iter_mut().zip(group) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = link;
    let socket = socket(libc::AF_INET)?;
    // SAFETY: the request lives through the call, and both commands take one of this form.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut request) };
    match io::Error::last_os_error() {
        _ if result >= 0 => Ok(()),
        // The device has no filter: all frames pass.
        error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        error => Err(error),
    }
}

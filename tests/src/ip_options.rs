//! Sockets whose packets carry IPv4 options or IPv6 extension headers.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Router alert (RFC 2113), two no-operations, and the end of options.
const V4: [u8; 8] = [148, 4, 0, 0, 1, 1, 0, 0];
/// As the kernel expects it: next header (filled in by the kernel), length, one padding option (RFC 8200
/// section 4.2).
const V6: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];

/// Adds options to all further packets of the socket: in the IPv4 header, or as IPv6 hop-by-hop and
/// destination options.
pub fn set(socket: &TcpStream) -> io::Result<()> {
    if socket.peer_addr()?.is_ipv4() {
        return option(socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &V4);
    }
    option(socket, libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS, &V6)?;
    option(socket, libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &V6)
}

fn option(socket: &TcpStream, level: libc::c_int, name: libc::c_int, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the bytes are live and their length is passed along.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            bytes.as_ptr().cast(),
            bytes.len() as libc::socklen_t,
        )
    };
    if set != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

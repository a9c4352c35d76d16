//! Notices that devices, addresses or routes changed.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::netlink::NetError;

/// Multicast groups of rtnetlink (linux/rtnetlink.h): links, then addresses, routes and rules of both families.
const GROUPS: [u32; 7] = [1, 5, 7, 8, 9, 11, 19];

/// Changes come in bursts; one look afterwards is enough.
const QUIET: Duration = Duration::from_millis(50);

/// Listens for changes.
pub struct Watch {
    socket: AsyncFd<Socket>,
}

impl Watch {
    /// Begins to listen, in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        // SAFETY: the socket owns its descriptor, which is open and the same until the socket is dropped.
        let socket = unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)?;
        Ok(Self { socket })
    }

    /// Comes back when something changed, shortly after the first sign of it.
    pub async fn changed(&mut self) -> Result<(), NetError> {
        loop {
            let mut ready = self.socket.readable().await?;
            let heard = drain(ready.get_inner())?;
            ready.clear_ready();
            if heard {
                break;
            }
        }
        sleep(QUIET).await;
        drain(self.socket.get_ref())?;
        Ok(())
    }
}

/// Reads what there is; whether there was anything.
fn drain(socket: &Socket) -> io::Result<bool> {
    let mut heard = false;
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        match socket.recv(&mut buffer.as_mut_slice(), 0) {
            Ok(_) => heard = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(heard),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Too many to keep: all the more reason to look.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => heard = true,
            Err(e) => return Err(e),
        }
    }
}

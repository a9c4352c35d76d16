//! Notices changes of devices, addresses or routes.

use std::io;
use std::thread;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

use super::netlink::NetError;
use super::pair::{self, PROTOCOL};

/// Multicast groups of rtnetlink (linux/rtnetlink.h): links, then addresses, routes and rules of both families.
const GROUPS: [u32; 7] = [1, 5, 7, 8, 9, 11, 19];

/// Changes arrive in bursts; one look afterwards is enough.
const QUIET: Duration = Duration::from_millis(50);

/// Listens for changes, in a thread that only waits.
#[derive(Debug)]
pub struct Watch {
    /// Contains at most one sign: further ones add nothing.
    signs: Receiver<io::Result<()>>,
    /// The time to return, after a sign was received.
    due: Option<Instant>,
}

impl Watch {
    /// Starts to listen, in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        let (sender, signs) = channel(1);
        thread::Builder::new().name("watch".into()).spawn(move || listen(&socket, &sender))?;
        Ok(Self { signs, due: None })
    }

    /// Waits for a change, and returns shortly after its first sign. Cancel safe: the next call continues
    /// where this one was interrupted.
    pub async fn changed(&mut self) -> Result<(), NetError> {
        let due = match self.due {
            Some(due) => due,
            None => {
                let gone = || io::Error::other("the thread that listens is gone");
                self.signs.recv().await.ok_or_else(gone)??;
                *self.due.insert(Instant::now() + QUIET)
            }
        };
        sleep_until(due).await;
        self.due = None;
        // The caller's next look covers changes that arrived in between, too.
        let _ = self.signs.try_recv();
        Ok(())
    }
}

fn listen(socket: &Socket, sender: &Sender<io::Result<()>>) {
    let mut buffer = vec![0u8; 1 << 16];
    while !sender.is_closed() {
        let sign = match socket.recv(&mut buffer.as_mut_slice(), 0) {
            Ok(length) if is_own(buffer.get(..length).unwrap_or_default(), pair::writer()) => continue,
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // Too many changes for the buffer: a look is needed all the more.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            Err(e) => Err(e),
        };
        let failed = sign.is_err();
        if failed {
            // The last message; it may block until the channel has room.
            let _ = sender.blocking_send(sign);
            return;
        }
        // The channel is full: a sign is already waiting.
        let _ = sender.try_send(sign);
    }
}

/// Whether a datagram only says that routes of our protocol were changed by the socket with this number, which is this process's own:
/// it knows. What another program changes of them is news. Integers are in the host's byte order (netlink(7), rtnetlink(7)).
fn is_own(mut datagram: &[u8], writer: u32) -> bool {
    /// Bytes of `nlmsghdr`, where `rtmsg` begins, and the offset of its `rtm_protocol`.
    const HEADER: usize = 16;
    const RTM_PROTOCOL: usize = HEADER + 5;
    if writer == 0 {
        return false;
    }
    while let Some((header, _)) = datagram.split_first_chunk::<HEADER>() {
        let [l0, l1, l2, l3, t0, t1, .., p0, p1, p2, p3] = *header;
        let kind = u16::from_ne_bytes([t0, t1]);
        let is_of_route = [libc::RTM_NEWROUTE, libc::RTM_DELROUTE].contains(&kind);
        let is_own = u32::from_ne_bytes([p0, p1, p2, p3]) == writer;
        if !is_of_route || !is_own || datagram.get(RTM_PROTOCOL) != Some(&PROTOCOL) {
            return false;
        }
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        datagram = datagram.get(length.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about a route.
    fn route(kind: u16, port: u32, protocol: u8) -> Vec<u8> {
        let mut bytes = 28u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 6]);
        bytes.extend(port.to_ne_bytes());
        bytes.extend([2, 32, 0, 0, 254, protocol, 0, 1, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn what_this_process_changes_of_its_own_routes_is_no_sign_and_all_else_is() {
        let (new, gone) = (libc::RTM_NEWROUTE, libc::RTM_DELROUTE);
        let own = [route(new, 7, PROTOCOL), route(gone, 7, PROTOCOL)];
        assert!(own.iter().all(|message| is_own(message, 7)) && is_own(&own.concat(), 7));
        let others = [
            route(new, 7, 4),
            route(gone, 8, PROTOCOL),
            // By the kernel, with the device.
            route(gone, 0, PROTOCOL),
            route(libc::RTM_NEWLINK, 7, PROTOCOL),
        ];
        for other in others {
            assert!(!is_own(&other, 7) && !is_own(&[own[0].clone(), other].concat(), 7));
        }
        assert!(!is_own(&route(gone, 0, PROTOCOL), 0), "this process has written none");
        assert!(!is_own(&own[0][..20], 7));
    }

    #[test]
    fn a_sign_survives_that_the_waiting_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (sender, signs) = channel(1);
            let mut watch = Watch { signs, due: None };
            sender.send(Ok(())).await.unwrap();
            let given_up = tokio::time::timeout(Duration::from_millis(5), watch.changed()).await;
            assert!(given_up.is_err(), "it looks only when things are quiet");
            tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.unwrap().unwrap();
            drop(sender);
            assert!(watch.changed().await.is_err());
        });
    }
}

//! Notices changes of devices, addresses or routes.

use std::io;
use std::thread;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

use super::netlink::NetError;

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

#[cfg(test)]
mod tests {
    use super::*;

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

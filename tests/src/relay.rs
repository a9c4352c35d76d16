//! A TCP relay from the loopback address of one namespace to that of another.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::net::{self, Namespace};

/// How often a new connection is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// A relay. Dropping it ends its connections.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// Relays connections to this port of `from`'s 127.0.0.1 to the same port of `to`'s.
    pub fn start(from: &Namespace, to: &Namespace, port: u16) -> Result<Self> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = from.run(|| TcpListener::bind(at)).with_context(|| format!("binding {at}"))?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared { is_over: AtomicBool::new(false), streams: Mutex::default() });
        let (in_thread, to) = (Arc::clone(&shared), to.path());
        thread::spawn(move || in_thread.accept(&listener, &to, at));
        Ok(Self { shared })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let streams = self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in streams.iter() {
            // One of them may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn accept(&self, listener: &TcpListener, to: &Path, at: SocketAddr) {
        if net::enter(to).is_err() {
            return;
        }
        while !self.is_over.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((stream, _)) => {
                    // A connection that cannot be relayed is closed, as by a server that is away.
                    let _ = self.connect(stream, at);
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    fn connect(&self, near: TcpStream, at: SocketAddr) -> io::Result<()> {
        near.set_nonblocking(false)?;
        let far = TcpStream::connect(at)?;
        let pairs = [(near.try_clone()?, far.try_clone()?), (far.try_clone()?, near.try_clone()?)];
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.extend([near, far]);
        for (mut from, mut to) in pairs {
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
        Ok(())
    }
}

//! Threads that wait for frames of other hosts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use common::wire::{arp, heartbeat};
use tracing::warn;

use super::task::{Received, Task, Waiting};
use crate::net::frames::{FrameReader, Kind};

/// The longest frame that is read: one of bids.
const BYTES: usize = 14 + heartbeat::BYTES + heartbeat::ENTRIES_MAX * heartbeat::ENTRY_BYTES;
/// Further frames that arrive while this many wait are dropped, as on a link that is too slow.
const WAITING: usize = 4_096;
/// A thread that is to end notices it after this time.
const LOOK: Duration = Duration::from_secs(1);

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Readers {
    is_over: Arc<AtomicBool>,
}

impl Readers {
    /// Starts the threads, in the network namespace of the caller.
    pub(super) fn start(tasks: &Sender<Task>) -> io::Result<Self> {
        let this = Self { is_over: Arc::default() };
        let kinds = [
            ("l2-heartbeats", Kind::Type(heartbeat::ETHER_TYPE)),
            ("l2-arp", Kind::Type(arp::ETHER_TYPE)),
            ("l2-ndp", Kind::Advertisements),
        ];
        for (name, kind) in kinds {
            let socket = FrameReader::open(kind, LOOK)?;
            let reader = Reader {
                socket,
                is_heartbeat: kind == Kind::Type(heartbeat::ETHER_TYPE),
                tasks: tasks.clone(),
                waiting: Arc::default(),
                is_over: Arc::clone(&this.is_over),
            };
            thread::Builder::new().name(name.into()).spawn(move || reader.read())?;
        }
        Ok(this)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

struct Reader {
    socket: FrameReader,
    is_heartbeat: bool,
    tasks: Sender<Task>,
    waiting: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Reader {
    fn read(self) {
        let mut buffer = [0; BYTES];
        while !self.is_over.load(Ordering::Relaxed) {
            match self.socket.receive(&mut buffer) {
                Ok(Some((device, bytes))) => {
                    if !self.pass(device, bytes) {
                        return;
                    }
                }
                Ok(None) => {}
                // A device went down: others are still read.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                Err(error) => {
                    warn!(%error, "frames of other hosts cannot be read; tried again every second");
                    thread::sleep(LOOK);
                }
            }
        }
    }

    /// Passes a frame on; `false`: nobody takes it any more.
    fn pass(&self, device: u32, bytes: &[u8]) -> bool {
        let Some(waiting) = Waiting::one_more(&self.waiting, WAITING) else { return true };
        let (bytes, time) = (bytes.to_vec(), Instant::now());
        let received = Received { device, is_heartbeat: self.is_heartbeat, bytes, time, _waiting: waiting };
        self.tasks.send(Task::Received(received)).is_ok()
    }
}

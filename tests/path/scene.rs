//! The start of every test: a lab with Vestibule running in it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::maps::flow::{BackendTuple, ClientTuple, Flow, Pending, Reply};
use common::maps::name;
use tests::config::Config;
use tests::daemon::Daemon;
use tests::pinned::pinned_entries;
use tests::server::Server;
use tests::topology::{Lab, Options};

/// The port of the echo servers.
pub(crate) const ECHO_PORT: u16 = 7000;

/// The time limit for a refusal: less than a client's first retransmission of a SYN (1 s, RFC 6298), but
/// enough for a client whose thread waits for a busy core. The counters show that no client waited for a
/// retransmission.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(400);

/// Runs heavy tests one at a time, so that they measure Vestibule and not each other.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab with Vestibule. Fields drop in order: the daemon first.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) daemon: Daemon,
    pub(crate) echoes: Vec<Server>,
    pub(crate) lab: Lab,
}

impl Scene {
    /// Starts the plain lab, with TLS backends that follow the protocol of [`tests::server`].
    pub(crate) fn new() -> Self {
        Self::with(&Options::default(), &Config::lab())
    }

    /// Starts a lab with these options and this configuration.
    pub(crate) fn with(options: &Options, config: &Config) -> Self {
        let lab = Lab::with(options).unwrap();
        let daemon = lab.vestibule(config).unwrap();
        Self { daemon, echoes: Vec::new(), lab }
    }

    /// Starts a lab whose backends send their name and echo all they receive, for hand-made hellos.
    pub(crate) fn echo() -> Self {
        Self::echo_with(&Options::default(), &Config::lab_on(ECHO_PORT))
    }

    /// The same with other options and another configuration.
    pub(crate) fn echo_with(options: &Options, config: &Config) -> Self {
        let lab = Lab::with(&Options { servers: false, ..options.clone() }).unwrap();
        let echoes = lab.echo_servers(ECHO_PORT).unwrap();
        let daemon = lab.vestibule(config).unwrap();
        Self { daemon, echoes, lab }
    }

    /// Returns which counters moved while `story` ran, and by how much.
    pub(crate) fn counted<T>(&self, story: impl FnOnce() -> T) -> (T, BTreeMap<String, u64>) {
        self.counted_until(story, |_| true)
    }

    /// Returns the same once `counted` holds of it, or after a second: on a busy machine, what a client sends last may not
    /// have reached the program when the client has closed its socket.
    pub(crate) fn counted_until<T>(
        &self,
        story: impl FnOnce() -> T,
        counted: impl Fn(&BTreeMap<String, u64>) -> bool,
    ) -> (T, BTreeMap<String, u64>) {
        let before = self.daemon.reasons().unwrap();
        let told = story();
        let mut moved = BTreeMap::new();
        eventually(Duration::from_secs(1), || {
            moved = self.daemon.reasons().unwrap();
            for (reason, count) in &mut moved {
                *count -= before.get(reason).copied().unwrap_or(0);
            }
            moved.retain(|_, count| *count != 0);
            counted(&moved)
        });
        (told, moved)
    }

    /// Returns the number of entries in FLOWS, PENDING and NATS.
    pub(crate) fn entries(&self) -> [usize; 3] {
        let pin = |name: &str| self.daemon.pins().join(name);
        [
            pinned_entries::<ClientTuple, Flow>(&pin(name::FLOWS)).unwrap().len(),
            pinned_entries::<ClientTuple, Pending>(&pin(name::PENDING)).unwrap().len(),
            pinned_entries::<BackendTuple, Reply>(&pin(name::NATS)).unwrap().len(),
        ]
    }

    /// Asserts that no flow, hello or NAT port is left within the time that closed flows are kept.
    pub(crate) fn assert_nothing_leaks(&self) {
        self.assert_empty_within(Duration::from_secs(30));
    }

    /// Asserts that no flow, hello or NAT port is left after this time.
    pub(crate) fn assert_empty_within(&self, time: Duration) {
        let gone = eventually(time, || {
            std::thread::sleep(Duration::from_millis(100));
            self.entries() == [0; 3]
        });
        let nats = pinned_entries::<BackendTuple, Reply>(&self.daemon.pins().join(name::NATS)).unwrap();
        assert!(gone, "entries of FLOWS, PENDING, NATS: {:?}; NATS: {nats:#?}", self.entries());
    }
}

/// Calls `ask` until it returns true or the time is over.
pub(crate) fn eventually(within: Duration, mut ask: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ask() {
            return true;
        }
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `work` for every item on `threads` threads in the client's namespace; panics with all errors.
pub(crate) fn all<T: Sync + std::fmt::Debug>(
    lab: &Lab,
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> anyhow::Result<()> + Sync,
) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                lab.client.enter();
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(item) {
                        failures.lock().unwrap().push(format!("{item:?}: {error:#}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} failed:\n{}", failures.len(), items.len(), shortened(&failures));
}

fn shortened(failures: &[String]) -> String {
    failures[..failures.len().min(20)].join("\n")
}

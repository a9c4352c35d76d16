//! Clients that hold connections and open new ones while something is changed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustls::ClientConfig;
use serde_json::Value;
use tests::cluster::Cluster;
use tests::tls::{ClientStream, connect};

use crate::scene::PATIENCE;

/// Number of connections that are held.
pub(crate) const HELD: usize = 200;
/// New connections per second.
pub(crate) const NEW: u32 = 100;
/// Threads that open new connections.
const OPENERS: u32 = 4;
/// Interval between two requests on a held connection.
const PAUSE: Duration = Duration::from_millis(500);

/// Where clients connect, and whom they trust there.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) name: &'static str,
    pub(crate) config: Arc<ClientConfig>,
}

impl Target {
    /// Connects until this many pods have answered: nodes follow the slices of endpoints a moment later.
    pub(crate) fn meet(&self, pods: usize) -> Result<()> {
        let begun = Instant::now();
        let mut met = BTreeSet::new();
        while met.len() < pods {
            if begun.elapsed() > PATIENCE {
                bail!("only {met:?} answer");
            }
            met.insert(begin(self)?.1);
        }
        Ok(())
    }
}

/// A held connection that ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// The pod that it was connected to.
    pub(crate) pod: String,
    /// Time from its last answer until its end was noticed.
    pub(crate) silence: Duration,
    pub(crate) how: String,
}

/// The clients' results.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// New connections that were answered.
    pub(crate) opened: u64,
    /// Errors of new connections that were not answered, including those that should have replaced held ones.
    pub(crate) failed: Vec<String>,
    /// Held connections that ended.
    pub(crate) ended: Vec<Ended>,
    /// The pods of the connections that are held at the end.
    pub(crate) held: Vec<String>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    opened: AtomicU64,
    failed: Mutex<Vec<String>>,
    ended: Mutex<Vec<Ended>>,
}

/// The running clients.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    openers: Vec<JoinHandle<()>>,
    holders: Vec<JoinHandle<Option<String>>>,
}

impl Traffic {
    /// Starts the clients beyond the router, and waits until every connection is held.
    pub(crate) fn start(cluster: &Cluster, target: &Target) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let ready = Arc::new(AtomicU64::new(0));
        // Threads inherit the network namespace of the one that starts them.
        let (openers, holders) = cluster.at_client(|| {
            let holders = (0..HELD).map(|_| {
                let (shared, target, ready) = (Arc::clone(&shared), target.clone(), Arc::clone(&ready));
                spawn(move || hold(&shared, &target, &ready))
            });
            let holders: Vec<_> = holders.collect();
            let openers = (0..OPENERS).map(|_| {
                let (shared, target) = (Arc::clone(&shared), target.clone());
                spawn(move || open(&shared, &target))
            });
            (openers.collect(), holders)
        })?;
        let this = Self { shared, openers, holders };
        let begun = Instant::now();
        while ready.load(Ordering::Relaxed) < HELD as u64 {
            if begun.elapsed() > Duration::from_secs(60) {
                bail!(
                    "after a minute only {} connections are held: {:?}",
                    ready.load(Ordering::Relaxed),
                    this.end()
                );
            }
            sleep(Duration::from_millis(50));
        }
        Ok(this)
    }

    /// Stops the clients and returns their results.
    pub(crate) fn end(self) -> Outcome {
        self.shared.ends.store(true, Ordering::Relaxed);
        let held = self.holders.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        self.openers.into_iter().for_each(|thread| thread.join().unwrap());
        Outcome {
            opened: self.shared.opened.load(Ordering::Relaxed),
            failed: std::mem::take(&mut self.shared.failed.lock().unwrap()),
            ended: std::mem::take(&mut self.shared.ended.lock().unwrap()),
            held,
        }
    }
}

/// Holds one connection and reconnects when it ends. Returns the pod that it is connected to at the end.
fn hold(shared: &Shared, target: &Target, ready: &AtomicU64) -> Option<String> {
    let mut is_first = true;
    let mut answered = None;
    while !shared.ends.load(Ordering::Relaxed) {
        let (mut stream, pod) = match begin(target) {
            Ok(begun) => begun,
            Err(error) => {
                shared.failed.lock().unwrap().push(format!("{error:#}"));
                sleep(PAUSE);
                continue;
            }
        };
        ready.fetch_add(u64::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
        answered = Some(pod.clone());
        let mut last = Instant::now();
        while !shared.ends.load(Ordering::Relaxed) {
            sleep(PAUSE);
            match ask(&mut stream) {
                Ok(_) => last = Instant::now(),
                Err(error) => {
                    let ended = Ended { pod, silence: last.elapsed(), how: format!("{error:#}") };
                    shared.ended.lock().unwrap().push(ended);
                    answered = None;
                    break;
                }
            }
        }
    }
    answered
}

fn open(shared: &Shared, target: &Target) {
    let gap = Duration::from_secs(1) * OPENERS / NEW;
    let mut due = Instant::now();
    while !shared.ends.load(Ordering::Relaxed) {
        match begin(target) {
            Ok(_) => drop(shared.opened.fetch_add(1, Ordering::Relaxed)),
            Err(error) => shared.failed.lock().unwrap().push(format!("{error:#}")),
        }
        due += gap;
        sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Opens a connection; returns it with the pod that answers.
fn begin(target: &Target) -> Result<(ClientStream, String)> {
    let mut stream = connect(target.address, Arc::clone(&target.config), target.name)?;
    let pod = ask(&mut stream)?;
    Ok((stream, pod))
}

/// Requests the name of its pod from the suite's echo server.
fn ask(stream: &mut ClientStream) -> Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: echo\r\n\r\n").context("sending a request")?;
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).context("reading an answer")? == 0 {
            bail!("closed by the server");
        }
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse()?,
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).context("reading an answer")?;
    let answer: Value = serde_json::from_slice(&body)?;
    answer["pod"].as_str().map(str::to_owned).context("an answer without a pod")
}

//! Many agents in one process, of the modules that make an agent's load on the API server: its watches, which read every event, and
//! its Lease, which reports what it has read. They have no maps.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use tests::net::Namespace;
use tokio::task::JoinSet;
use userspace::model::cluster::Policy;
use userspace::node::Identity;
use userspace::node::report::Reporter;
use userspace::sources::kubernetes::api::lease_report::LeaseReport;
use userspace::sources::kubernetes::api::node_state::NodeStateSpec;
use userspace::sources::kubernetes::{Options, Reads, Store, connect};

use crate::process::RELEASE;

/// Each runs its agents by turns.
const THREADS: usize = 2;
/// From the start of one agent to that of the next: nodes of a cluster do not boot in the same instant.
const APART: Duration = Duration::from_millis(100);

/// The agents. They end when dropped.
pub(in crate::together) struct Thin {
    /// The version of Claims that each has read in full, while it follows all that it reads; 0: it does not.
    versions: Arc<Vec<AtomicU64>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Thin {
    /// Starts this many, in the API server's namespace.
    pub(in crate::together) fn start(namespace: &Namespace, kubeconfig: PathBuf, count: usize) -> Self {
        let versions: Arc<Vec<AtomicU64>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
        let ends = Arc::new(AtomicBool::new(false));
        let threads = (0..THREADS).map(|thread| {
            let numbers: Vec<usize> = (thread..count).step_by(THREADS).collect();
            let (versions, ends, kubeconfig) = (Arc::clone(&versions), Arc::clone(&ends), kubeconfig.clone());
            let namespace = namespace.path();
            std::thread::spawn(move || {
                tests::net::enter(&namespace).unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(run(numbers, &versions, &ends, kubeconfig));
            })
        });
        let threads = threads.collect();
        Self { versions, ends, threads }
    }

    /// Waits until all have read every Claim up to this version, and follow all that they read.
    pub(in crate::together) fn wait_for(&self, version: u64, patience: Duration) {
        let begun = Instant::now();
        loop {
            let lack = self.versions.iter().filter(|held| held.load(Ordering::Relaxed) < version).count();
            if lack == 0 {
                return;
            }
            assert!(begun.elapsed() < patience, "{lack} agents do not hold version {version}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("agents panicked");
            }
        }
    }
}

async fn run(numbers: Vec<usize>, versions: &Arc<Vec<AtomicU64>>, ends: &AtomicBool, kubeconfig: PathBuf) {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut agents = JoinSet::new();
    for number in numbers {
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.unwrap();
        agents.spawn(agent(number, config, Arc::clone(versions)));
        tokio::time::sleep(APART * THREADS as u32).await;
        if ends.load(Ordering::Relaxed) {
            return;
        }
    }
    while !ends.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Follows Claims and EndpointSlices, and reports what it has read, as an agent whose maps take no time.
async fn agent(number: usize, config: kube::Config, versions: Arc<Vec<AtomicU64>>) {
    let node = format!("thin-{number}");
    let client = connect(config, &format!("agent ({node})")).unwrap();
    let identity = Identity { node: node.clone(), pod: node.clone(), namespace: RELEASE.to_owned() };
    let reporter = Reporter::start(&client, &identity);
    let mut store = Store::start(Options { client, policy: Policy::default(), reads: Reads::Claims });
    loop {
        store.changed().await;
        store.changes();
        let version = store.claims_version();
        versions[number].store(if store.is_confirmed() { version } else { 0 }, Ordering::Relaxed);
        if store.is_complete() {
            let state = NodeStateSpec { node: node.clone(), ..NodeStateSpec::default() };
            reporter.tell(LeaseReport { claims_version: version, ..LeaseReport::default() }, state);
        }
    }
}

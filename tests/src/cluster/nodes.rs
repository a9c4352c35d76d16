//! Three nodes, a router and a client: `client - router - nodes`. The scripts in `tests/cluster/` create and
//! control them.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Kubectl;
use super::places;

/// Tests that only use the cluster share it; a test that stops nodes has it to itself.
static USE: RwLock<()> = RwLock::new(());

/// Time limit for a node to be Ready after its start, or NotReady after its loss.
const TURN: Duration = Duration::from_secs(60);

/// The running cluster.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    /// Prefix of its namespaces' names.
    name: String,
    kubectl: Kubectl,
}

/// The cluster, shared with other running tests; use your own namespaces.
#[derive(Debug)]
pub struct Shared {
    cluster: Cluster,
    _others: RwLockReadGuard<'static, ()>,
}

/// The cluster, used by this test only. Dropping it starts the API server and the nodes that are off, and
/// routes to all nodes again.
#[derive(Debug)]
pub struct Alone {
    cluster: Cluster,
    _nobody: RwLockWriteGuard<'static, ()>,
}

impl Deref for Shared {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Deref for Alone {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if self.cluster.folder.join("api.off").exists()
            && let Err(error) = self.cluster.start_api_server()
        {
            eprintln!("the API server stays off: {error:#}");
        }
        for node in self.cluster.nodes() {
            if !node.is_on()
                && let Err(error) = node.start().and_then(|()| node.wait_ready(true))
            {
                eprintln!("{} stays off: {error:#}", node.name());
            }
        }
        if let Err(error) = self.cluster.route(&[]) {
            eprintln!("{error:#}");
        }
    }
}

impl Cluster {
    /// Opens the cluster that `cargo xtask test cluster` created, shared with other tests.
    pub fn shared() -> Result<Shared> {
        // Poisoning is ignored: the lock protects no data that a panic could leave inconsistent.
        let others = USE.read().unwrap_or_else(PoisonError::into_inner);
        Ok(Shared { cluster: Self::open()?, _others: others })
    }

    /// Opens the cluster for a test that kills nodes or changes routes: no other test uses it at the same
    /// time.
    pub fn alone() -> Result<Alone> {
        let nobody = USE.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Alone { cluster: Self::open()?, _nobody: nobody })
    }

    fn open() -> Result<Self> {
        let folder = places::told("VESTIBULE_CLUSTER_FOLDER", "cluster")?;
        let settings = folder.join("env");
        let settings =
            std::fs::read_to_string(&settings).with_context(|| format!("reading {}", settings.display()))?;
        let setting = |name: &str| {
            let mut lines = settings.lines().filter_map(|line| line.split_once('='));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let name = setting("NAME").context("the cluster's folder has no name")?;
        let programs = PathBuf::from(setting("BIN").context("the cluster's folder has no programs")?);
        let control = PathBuf::from(format!("/run/netns/{name}-control"));
        let kubeconfig = folder.join("pki/admin.kubeconfig");
        Ok(Self { kubectl: Kubectl::new(programs.join("kubectl"), kubeconfig, Some(control)), folder, name })
    }

    /// The administrator's kubectl.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Runs helm as administrator; if it fails, the error contains its messages.
    pub fn helm(&self, arguments: &[&str]) -> Result<String> {
        let mut command = places::command(Some(&self.netns("control")), &places::helm()?);
        command.arg("--kubeconfig").arg(self.kubectl.kubeconfig()).args(arguments);
        said(command.output().context("starting helm")?, "helm", arguments)
    }

    /// The audit log, outside of kube-system: one line of JSON (an `audit.k8s.io/v1` Event) for each request
    /// of a ServiceAccount.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("log/audit.json")
    }

    /// Imports an image archive (docker or OCI) into every node.
    pub fn load(&self, archive: &Path) -> Result<()> {
        self.script("load.sh", &[&archive.to_string_lossy()]).map(drop)
    }

    /// Makes the router send packets for 198.51.100.0/24 and 2001:db8:51::/64 to these nodes, each flow to
    /// one of them; to all nodes if none is named.
    pub fn route(&self, nodes: &[u8]) -> Result<()> {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        self.script("route.sh", &nodes).map(drop)
    }

    /// Makes the router answer that these addresses are unreachable.
    pub fn route_to_nobody(&self) -> Result<()> {
        self.script("route.sh", &["none"]).map(drop)
    }

    /// Ends the API server at once, as a crash does. etcd, the controller manager and the scheduler go on.
    pub fn stop_api_server(&self) -> Result<()> {
        self.script("control.sh", &["stop"]).map(drop)
    }

    /// Starts it again, and waits until it is ready.
    pub fn start_api_server(&self) -> Result<()> {
        self.script("control.sh", &["start"]).map(drop)
    }

    /// A node, counted from 1.
    pub fn node(&self, number: u8) -> Node<'_> {
        Node { cluster: self, number }
    }

    /// All nodes.
    pub fn nodes(&self) -> Vec<Node<'_>> {
        (1..=3).map(|number| self.node(number)).collect()
    }

    /// Builds a command that runs at the client, beyond the router.
    pub fn client(&self, program: &str) -> Command {
        places::command(Some(&self.netns("client")), Path::new(program))
    }

    /// Runs a closure at the client. Sockets it opens stay there.
    pub fn at_client<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> Result<T> {
        places::inside(Some(&self.netns("client")), closure)
    }

    /// Runs a closure at the router, which is a host of the nodes' network. Sockets it opens stay there.
    pub fn at_router<T: Send>(&self, closure: impl FnOnce() -> T + Send) -> Result<T> {
        places::inside(Some(&self.netns("router")), closure)
    }

    /// Builds a command that runs in the router's network namespace.
    pub fn router(&self, program: &str) -> Command {
        places::command(Some(&self.netns("router")), Path::new(program))
    }

    fn netns(&self, role: &str) -> PathBuf {
        PathBuf::from(format!("/run/netns/{}-{role}", self.name))
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("bash");
        command.arg(places::root().join("tests/cluster").join(name)).arg(&self.folder).args(arguments);
        // A starting node writes its output to its own log, so that it does not keep our pipe open.
        said(command.output().with_context(|| format!("starting {name}"))?, name, arguments)
    }
}

/// A node of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    cluster: &'a Cluster,
    number: u8,
}

impl Node<'_> {
    /// Its name in Kubernetes.
    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }

    /// Its IPv4 address on the nodes' network.
    pub fn ipv4(&self) -> String {
        format!("10.77.0.1{}", self.number)
    }

    /// Its IPv6 address on the nodes' network.
    pub fn ipv6(&self) -> String {
        format!("fd77::1{}", self.number)
    }

    /// Whether it is powered on.
    pub fn is_on(&self) -> bool {
        self.cluster.folder.join(format!("{}.pid", self.name())).exists()
    }

    /// Cuts its power: processes, links and maps are gone at once; disks remain.
    pub fn kill(&self) -> Result<()> {
        self.cluster.script("node.sh", &["kill", &self.number.to_string()]).map(drop)
    }

    /// Powers it on again.
    pub fn start(&self) -> Result<()> {
        self.cluster.script("node.sh", &["start", &self.number.to_string()]).map(drop)
    }

    /// Runs a command inside all of the node's namespaces, as root there.
    pub fn run(&self, command: &[&str]) -> Result<String> {
        self.cluster.script("node.sh", &[&["run", &self.number.to_string()], command].concat())
    }

    /// Waits until the API reports the node as Ready (condition True) or as not Ready (condition Unknown).
    pub fn wait_ready(&self, ready: bool) -> Result<()> {
        let name = self.name();
        let wanted = if ready { "True" } else { "Unknown" };
        let is = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == wanted)
        };
        let what = format!("{name} has Ready={wanted}");
        self.cluster.kubectl.wait_for(&what, &["node", &name], TURN, is).map(drop)
    }
}

/// Returns what a program printed; if it failed, the error contains its messages.
fn said(output: Output, program: &str, arguments: &[&str]) -> Result<String> {
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), told.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

use crate::admin::Asked;
use crate::config::ChartFile;
use crate::metrics::{self, AgentMetrics, PerRoute};
use crate::node::error::NodeError;
use crate::node::facts::Sources;
use crate::node::inputs::{Input, Inputs};
use crate::node::orders::{Cause, Orders};
use crate::node::pace::Pace;
use crate::node::reconcile::{Node, reconcile};
use crate::node::role::Role;
use crate::node::saving::Saving;
use crate::node::telemetry::Telemetry;
use crate::node::told::Told;
use crate::outputs::memory::Memory;
use crate::outputs::{Output, Pins};
use crate::sources::kubernetes::script::Script;

/// The time limit for expected events.
const PATIENCE: Duration = Duration::from_secs(20);
/// The wait to check that something does not happen: three times the interval of the loop's checks.
const QUIET: Duration = Duration::from_millis(750);

/// A test's folder, removed when it is dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("vestibule-node-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Writes the static file: routes `a`, `b` ... of listener 192.0.2.200:443, with backends 10.1.0.x for
    /// each given x.
    pub(super) fn write(&self, routes: &[(&str, &[u8])]) {
        let route = |(name, hosts): &(&str, &[u8])| {
            let backends: Vec<_> = hosts.iter().map(|host| format!("10.1.0.{host}:6443")).collect();
            serde_json::json!({"name": name, "listeners": ["l"], "hostnames": [format!("{name}.example")],
                               "backends": backends.iter().map(|at| {
                                   let (address, port) = at.split_once(':').unwrap();
                                   serde_json::json!({"address": address, "port": port.parse::<u16>().unwrap()})
                               }).collect::<Vec<_>>()})
        };
        let routes: Vec<_> = routes.iter().map(route).collect();
        let listener =
            serde_json::json!({"name": "l", "addresses": ["192.0.2.200"], "port": 443, "protocol": "TLS"});
        self.write_text(
            &serde_json::json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "StaticConfig",
                                "listeners": [listener], "routes": routes})
            .to_string(),
        );
    }

    pub(super) fn write_text(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
    }

    pub(super) fn file(&self) -> PathBuf {
        self.0.join("config.json")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A loop that is about to start.
pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) inputs: UnboundedSender<Input>,
    pub(super) told: Arc<Told>,
}

/// The cluster has one Service with one endpoint, and the output serves it.
pub(super) async fn serve_one(cluster: &Script, output: &Memory) {
    cluster.list_slices();
    cluster.list_services(&[("s", [192, 0, 2, 1])]);
    cluster.put_endpoints("s", &[1]);
    until("the first state", || routes(output) == ["service/ns/s:443: 10.0.0.1"]).await;
}

impl Scene {
    /// Uses these sources and outputs, and the folder's lock. `meets`: hands the maps over, as agents do.
    pub(super) fn new(folder: &Folder, sources: Sources, outputs: &[&Memory], meets: bool) -> Self {
        let pins = Pins::new(&folder.0);
        let mut registry = metrics::registry();
        let metrics = AgentMetrics::register(&mut registry, &pins, PerRoute::Never);
        let telemetry = Telemetry::new(Told::new(registry, metrics.served.clone()), metrics);
        let inputs = Inputs::new();
        let outputs = outputs.iter().map(|output| Box::new((*output).clone()) as Box<dyn Output>);
        Self {
            inputs: inputs.sender(),
            told: telemetry.told(),
            node: Node {
                inputs,
                sources,
                chart: None,
                prober: None,
                orders: Orders::new(outputs.collect()),
                role: Role::new(pins, meets.then(|| folder.0.clone())),
                state: None,
                cause: Cause::default(),
                keys: None,
                telemetry,
                saving: Saving::new(meets.then(|| folder.0.clone())),
                pace: Pace::new(),
            },
        }
    }

    /// Starts like `vestibule run`: with only the static file, which must be valid.
    pub(super) fn of_file(folder: &Folder, output: &Memory) -> Self {
        let mut sources = Sources::of_file(&folder.file());
        sources.read_file().unwrap();
        Self::new(folder, sources, &[output], false)
    }

    /// Starts like `vestibule agent`: with a cluster that has reported nothing yet, and a static file.
    pub(super) fn of_cluster(folder: &Folder, output: &Memory) -> (Self, Script) {
        let (script, store) = Script::begin();
        let mut sources = Sources::of_cluster(store, ChartFile::default(), Some(folder.file()), "node");
        sources.read_file().unwrap();
        (Self::new(folder, sources, &[output], true), script)
    }

    /// Runs the loop until the story ends, then ends the loop.
    pub(super) async fn play(self, story: impl Future<Output = ()>) {
        let inputs = self.inputs.clone();
        let story = async {
            story.await;
            inputs.send(Input::End).unwrap();
        };
        let (outcome, ()) = tokio::join!(reconcile(self.node), story);
        outcome.unwrap();
    }

    /// Runs the loop until it ends on its own.
    pub(super) async fn end(self) -> Result<(), NodeError> {
        timeout(PATIENCE, reconcile(self.node)).await.expect("the loop ends")
    }
}

/// Waits until the condition is true.
pub(super) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "in vain: {what}");
}

/// Checks that the condition does not become true.
pub(super) async fn never(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(QUIET, waiting).await.is_err(), "{what}");
}

/// Returns the routes and their backends as clients find them: `a: 10.1.0.1`.
pub(super) fn routes(output: &Memory) -> Vec<String> {
    let desired = Arc::clone(&output.image().desired);
    let route = |route: &Arc<crate::model::DesiredRoute>| {
        let backends: Vec<_> = route.backends.iter().map(|backend| backend.address.to_string()).collect();
        format!("{}: {}", route.name, backends.join(" "))
    };
    desired.routes.iter().map(route).collect()
}

/// Returns the answer of `/readyz`.
pub(super) fn ready(told: &Told) -> String {
    told.ready().text
}

//! `vestibule agent`. Inputs: API server, probes, the shared cookie keys, an optional file, the network.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tracing::info;

use super::api_servers;
use super::chart::ChartSource;
use super::daemon_set::Membership;
use super::error::NodeError;
use super::facts::Sources;
use super::identity::Identity;
use super::inputs::Inputs;
use super::open_files;
use super::orders::{Cause, Orders};
use super::pace::Pace;
use super::reconcile::{Node, reconcile};
use super::role::Role;
use super::saving::Saving;
use super::telemetry::Telemetry;
use super::told::Told;
use crate::admin::bind_socket;
use crate::health::Prober;
use crate::http_server::Access;
use crate::metrics::{self, AgentMetrics, PerRoute};
use crate::model::Change;
use crate::outputs::health::HealthOutput;
use crate::outputs::l2::L2Output;
use crate::outputs::maps::{self, Choice, MapsOutput};
use crate::outputs::{Pins, StartError, share_one_heap};
use crate::sources::kubernetes;

/// The limit for the wait at exit for threads that wait for the kernel or a disk.
const END: Duration = Duration::from_secs(1);

/// The options of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// The chart's file. Read again when it changes.
    pub config: PathBuf,
    /// A static file with listeners and routes in addition to the cluster's. Read again when it changes.
    pub file: Option<PathBuf>,
    /// The folder where maps, programs and links are pinned.
    pub pins: PathBuf,
    /// The folder where the last compiled state and the keys are saved for the next boot.
    pub state: PathBuf,
    /// The run folder, where agents of this node find each other.
    pub run: PathBuf,
    /// The path of the socket for probes.
    pub admin: PathBuf,
    /// The port of `/metrics`; 0: none.
    pub metrics_port: u16,
    /// Where that port is served, and for whom.
    pub metrics_access: Access,
    /// Whether each route has metrics of its own.
    pub metrics_per_route: PerRoute,
    /// The DaemonSet of whose pod it is; `None`: of none, and what it leaves takes new connections.
    pub daemon_set: Option<String>,
    /// Its identity.
    pub identity: Identity,
}

/// Serves until SIGTERM or SIGINT. What is in the kernel keeps serving after that.
pub fn run(options: &Options) -> Result<(), NodeError> {
    share_one_heap();
    open_files::raise();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let node = node(options).await?;
        info!(node = options.identity.node, pod = options.identity.pod, "begins");
        let outcome = reconcile(node).await;
        // Safe even if another agent is already running: each pod's socket has a name of its own.
        let _ = fs::remove_file(&options.admin);
        outcome
    });
    runtime.shutdown_timeout(END);
    outcome
}

async fn node(options: &Options) -> Result<Node, NodeError> {
    let pace = Pace::new();
    let mut inputs = Inputs::new();
    inputs.follow_end()?;
    for folder in [&options.state, &options.run] {
        fs::create_dir_all(folder).map_err(|source| NodeError::Path { path: folder.clone(), source })?;
    }
    inputs.follow_chart(&options.config);
    let refused = |problems| NodeError::File { file: options.config.clone(), problems };
    let (mut source, mut chart) = ChartSource::start(&options.config, &options.state).map_err(refused)?;
    let pins = Pins::new(&options.pins);
    pins.prepare().map_err(StartError::from)?;
    source.keep_sizes(&pins, &mut chart)?;
    let mut registry = metrics::registry();
    let metrics = AgentMetrics::register(&mut registry, &pins, options.metrics_per_route);
    let (swept, segments) = (metrics.swept.clone(), metrics.segments.clone());
    let mut telemetry = Telemetry::new(Told::new(registry, metrics.served.clone()), metrics);
    let bound = bind_socket(&options.admin);
    telemetry.answer(bound.map_err(|source| NodeError::Path { path: options.admin.clone(), source })?);
    telemetry.serve_port(options.metrics_port, options.metrics_access.clone());
    let network = inputs.follow_network()?;
    let who = format!("agent ({})", options.identity.node);
    let api = kube::Config::infer().await?;
    let configured = api_servers::named(api.cluster_url.host().unwrap_or_default()).await;
    let client = kubernetes::connect(api, &who)?;
    telemetry.tell_api(&client, &options.identity);
    if let Some(set) = &options.daemon_set {
        inputs.belong_to(Membership::new(&client, &options.identity, set));
    }
    inputs.learn_zone(&client, &options.identity.node);
    inputs.follow_keys(&client, &options.identity.namespace);
    inputs.follow_file(options.file.as_deref())?;
    // Also ends what `vestibule run` announced with these pins.
    let l2 = L2Output::start(pins.clone(), Some(options.identity.node.as_str().into()), segments)?;
    telemetry.show_vips(l2.asker());
    let (served, foreign) = (Some(l2.served()), l2.foreign());
    let health = HealthOutput::start()?;
    let options_of_maps = maps::Options {
        pins: pins.clone(),
        unnamed: Choice::Routed,
        is_strict: false,
        served,
        foreign,
        health: Some(health.sender()),
        swept,
    };
    let maps = MapsOutput::start(options_of_maps)?;
    let reads = kubernetes::Reads::Claims;
    let store = kubernetes::Store::start(kubernetes::Options { client, policy: chart.policy.clone(), reads });
    let mut sources = Sources::of_cluster(store, chart, options.file.clone(), &options.identity.node);
    sources.change(Change::Network(network));
    let mut saving = Saving::new(Some(options.state.clone()));
    sources.know_api_servers(configured, &saving.load_api_servers());
    sources.note_chart(source.hash(), source.problems());
    let mut node = Node {
        inputs,
        sources,
        chart: Some(source),
        prober: Some(Prober::start()),
        orders: Orders::new(vec![Box::new(health), Box::new(maps), Box::new(l2)]),
        role: Role::new(pins, Some(options.run.clone())),
        state: None,
        cause: Cause::default(),
        keys: None,
        telemetry,
        saving,
        pace,
    };
    node.read_file();
    Ok(node)
}

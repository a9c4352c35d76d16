//! `vestibule run`. Its inputs: a file, and the node's network.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::NodeError;
use super::facts::Sources;
use super::inputs::Inputs;
use super::open_files;
use super::orders::{Cause, Orders};
use super::pace::Pace;
use super::reconcile::{Node, reconcile};
use super::role::Role;
use super::saving::Saving;
use super::telemetry::Telemetry;
use super::told::Told;
use crate::metrics::{self, AgentMetrics, PerRoute};
use crate::model::{Change, Segments};
use crate::outputs::l2::L2Output;
use crate::outputs::maps::{self, Choice, MapsOutput};
use crate::outputs::{Pins, share_one_heap};

/// The limit for the wait at exit for threads that wait for the kernel.
const END: Duration = Duration::from_secs(1);

/// The options of `vestibule run`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The path of the file.
    pub config: PathBuf,
    /// Devices by name; empty: chosen by the routes.
    pub devices: Vec<String>,
    /// The folder where maps, programs and links are pinned.
    pub pins: PathBuf,
}

/// Serves until SIGTERM or SIGINT. What is in the kernel keeps serving after that.
pub fn run(options: &Options) -> Result<(), NodeError> {
    share_one_heap();
    open_files::raise();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { reconcile(node(options)?).await });
    runtime.shutdown_timeout(END);
    outcome
}

/// Builds the node. An invalid configuration or an unusable device is refused before anything is changed.
fn node(options: &Options) -> Result<Node, NodeError> {
    let pace = Pace::new();
    let mut inputs = Inputs::new();
    inputs.follow_end()?;
    inputs.follow_file(Some(&options.config))?;
    let network = inputs.follow_network()?;
    let mut sources = Sources::of_file(&options.config);
    sources.change(Change::Devices(options.devices.iter().map(|name| Arc::from(&**name)).collect()));
    sources.change(Change::Network(network));
    sources.read_file().map_err(|problems| NodeError::File { file: options.config.clone(), problems })?;
    let pins = Pins::new(&options.pins);
    let l2 = L2Output::start(pins.clone(), None, Segments::default())?;
    let (served, foreign) = (Some(l2.served()), l2.foreign());
    let mut registry = metrics::registry();
    let metrics = AgentMetrics::register(&mut registry, &pins, PerRoute::Never);
    let swept = metrics.swept.clone();
    let options = maps::Options {
        pins: pins.clone(),
        unnamed: Choice::Routes,
        is_strict: true,
        served,
        foreign,
        health: None,
        swept,
    };
    let maps = MapsOutput::start(options)?;
    Ok(Node {
        inputs,
        sources,
        chart: None,
        prober: None,
        orders: Orders::new(vec![Box::new(maps), Box::new(l2)]),
        role: Role::new(pins, None),
        state: None,
        cause: Cause::default(),
        keys: None,
        telemetry: Telemetry::new(Told::new(registry, metrics.served.clone()), metrics),
        saving: Saving::new(None),
        pace,
    })
}

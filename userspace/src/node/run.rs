//! `vestibule run`: a file, and the node's network.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error::NodeError;
use super::facts::Sources;
use super::inputs::Inputs;
use super::orders::{Cause, Orders};
use super::pace::Pace;
use super::reconcile::{Node, reconcile};
use super::role::Role;
use super::saving::Saving;
use super::telemetry::Telemetry;
use super::told::Told;
use crate::metrics::{self, AgentMetrics};
use crate::model::Change;
use crate::outputs::Pins;
use crate::outputs::maps::{self, Choice, MapsOutput};

/// Threads that wait for the kernel do not hold up the end longer than this.
const END: Duration = Duration::from_secs(1);

/// What `vestibule run` is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub config: PathBuf,
    /// Devices by name; empty: by the routes.
    pub devices: Vec<String>,
    /// Where maps, programs and links are pinned.
    pub pins: PathBuf,
}

/// Serves until SIGTERM or SIGINT; what is in the kernel goes on serving after that.
pub fn run(options: &Options) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { reconcile(node(options)?).await });
    runtime.shutdown_timeout(END);
    outcome
}

/// A configuration that is refused, and a device that cannot be used, are refused before anything is touched.
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
    let output =
        MapsOutput::start(maps::Options { pins: pins.clone(), unnamed: Choice::Routes, is_strict: true })?;
    let mut registry = metrics::registry();
    let metrics = AgentMetrics::register(&mut registry, &pins, false);
    Ok(Node {
        inputs,
        sources,
        prober: None,
        orders: Orders::new(vec![Box::new(output)]),
        role: Role::new(pins, None),
        state: None,
        cause: Cause::default(),
        keys: None,
        telemetry: Telemetry::new(Told::new(registry), metrics),
        saving: Saving::new(None),
        pace,
    })
}

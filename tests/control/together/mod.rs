//! Agent and controller on one API server.

/// The requests to an API server that does not stream lists.
mod lists;
/// Claims between both, and what happens without them.
mod claims;
/// What is announced.
mod announcement;
/// Key rotation.
mod keys;
/// Backends that fail their probe.
mod probes;
/// The metrics that both serve.
mod metrics;
/// A static file next to the cluster's routes.
mod file;
/// The chart's file while both run.
mod chart;
/// Ingresses.
mod ingress;
/// Source ranges of Services.
mod source_ranges;
/// Health checks of Services that nodes answer.
mod health_checks;
/// Nodes that share a segment.
mod segment;
/// Ten agents.
mod fleet;
/// Vestibule is withdrawn from the cluster, or from a node.
mod withdraw;
/// A backup that is restored.
mod restored;
/// The release before and this one.
mod upgrade;

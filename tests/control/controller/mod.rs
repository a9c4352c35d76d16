//! `vestibule controller` against a real API server, with the rights of the chart. The tests simulate the agents.

/// The controller's process, and simulated agents.
mod scene;
/// Conditions and addresses of Gateways.
mod gateways;
/// Finalizers of GatewayClasses.
mod classes;
/// Ingress of Services, and Events.
mod services;
/// Addresses of MetalLB's pools.
mod pools;
/// A thousand Services.
mod many;
/// Services that MetalLB served.
mod adopted;
/// MetalLB's own controller beside ours.
mod witness;
/// Entries of routes.
mod routes;
/// Claims.
mod claims;
/// What is announced.
pub(crate) mod announcement;
/// A file that is refused from the start.
mod bad_file;
/// A kind that may not be listed.
mod unlisted;
/// A webhook that does not answer.
mod webhook;
/// Leader election.
mod leader;
/// A backup that is restored.
mod restored;

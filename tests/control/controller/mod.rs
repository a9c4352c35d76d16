//! `vestibule controller` against a real API server, with the rights of the chart; agents are played by the test.

/// The controller's process, and agents that are none.
mod scene;
/// Conditions and addresses of Gateways.
mod gateways;
/// Ingress of Services, and Events.
mod services;
/// Entries of routes.
mod routes;
/// Who leads.
mod leader;

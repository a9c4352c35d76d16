//! The Helm chart: what it renders, what its schema refuses, which rights it grants, and how an API server
//! handles it.

/// Rendering, and finding objects in the result.
pub(crate) mod rendered;
/// Pods.
mod pods;
/// Values that are accepted.
mod values;
/// A release: installed, upgraded, uninstalled.
mod install;
/// Rights that are granted.
mod rights;
/// What each form of an agent's token may write.
mod tokens;
/// Priorities of our requests at the API server.
mod priorities;
/// Alerts, the dashboard and the list of metrics.
mod metrics;
/// When alerts fire.
mod alerts;
/// What the dashboard shows where no route has series of its own.
mod dashboard;

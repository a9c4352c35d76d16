//! The Helm chart: what it renders, what its schema refuses, which rights it gives, what an API server makes of it.

/// Rendering, and finding things in what was rendered.
mod rendered;
/// What pods look like.
mod pods;
/// Which values are taken.
mod values;
/// A release: installed, upgraded, taken away.
mod install;
/// Which rights are given.
mod rights;
/// Alerts, the dashboard and the list of metrics.
mod metrics;

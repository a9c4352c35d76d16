//! Ports at which nodes say whether they lead to endpoints of a Service.

use super::object::ObjectName;
use std::num::NonZeroU16;
use std::sync::Arc;

/// A port at which nodes say whether they lead to endpoints of a Service (its `spec.healthCheckNodePort`), and one of the routes that do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HealthCheck {
    /// The port.
    pub port: NonZeroU16,
    /// The Service.
    pub service: ObjectName,
    /// Name of the route of one of the Service's ports.
    pub route: Arc<str>,
    /// No endpoint on this node is ready: those that take connections here drain.
    pub is_draining: bool,
}

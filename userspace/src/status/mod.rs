//! Computes the status of an object from its verdict and from what the nodes hold. Pure: the current status
//! and the time are arguments. `None` means that nothing needs to be written.

/// Conditions, merged by type.
pub(crate) mod condition;
/// Listeners of Gateways and ListenerSets.
mod listener;
/// Which nodes hold each of many objects.
mod counted;
/// Which nodes hold an object.
pub(crate) mod progress;
/// GatewayClass.
pub mod class;
/// Gateway.
pub mod gateway;
/// ListenerSet.
pub mod listener_set;
/// TLSRoute and TCPRoute.
pub mod route;
/// Service.
pub mod service;
/// `status.loadBalancer`.
pub(crate) mod balancer;
/// IPAddressPool.
pub mod pool;
/// ServiceL2Status.
pub mod l2_status;
/// ConfigurationState.
pub mod configuration;
/// What is taken out when Vestibule leaves the cluster.
pub mod withdrawn;

pub(crate) use condition::cut;
pub use condition::{is_programmed, owned};
pub use counted::Counted;
pub(crate) use progress::node_names;
pub use progress::{Complaint, Held, Missing, Nodes, Progress, Refused, Unknown, key};

use serde_json::{Map, Value};

/// The controller name in GatewayClasses; it also marks our entries of `parents`.
pub const CONTROLLER_NAME: &str = "vestibule.dev/gateway-controller";

/// Returns those of `fields` that differ from `current`, as the `status` of a merge patch.
pub(crate) fn changed(
    current: &Value,
    fields: impl IntoIterator<Item = (&'static str, Value)>,
) -> Option<Value> {
    let differs = |(name, value): &(&str, Value)| current.get(name).unwrap_or(&Value::Null) != value;
    let changed: Map<String, Value> =
        fields.into_iter().filter(differs).map(|(name, value)| (name.to_owned(), value)).collect();
    (!changed.is_empty()).then_some(Value::Object(changed))
}

/// Returns the elements of a list that may be absent.
pub(crate) fn elements(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;

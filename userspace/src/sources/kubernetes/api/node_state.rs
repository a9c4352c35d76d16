//! `NodeState`: what one agent says of its node, besides what its Lease does. The CRD in `deploy/` is generated from these types.

use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most sources, backends and problems of a NodeState, and the most bytes of a text of a problem. The API server refuses more, so that
/// no node can fill its memory and the controllers'.
pub const STALE_MAX: usize = 16;
/// See [`STALE_MAX`].
pub const FAILING_MAX: usize = 1_000;
/// See [`STALE_MAX`].
pub const PROBLEMS_MAX: usize = 102;
/// See [`STALE_MAX`]. Of devices with announced addresses, and of addresses on each.
pub const DEVICES_MAX: usize = 64;
/// See [`DEVICES_MAX`]. An address has one owner on a segment, so that all nodes together list hardly more than there are.
pub const ANNOUNCED_MAX: usize = 2_048;
/// See [`STALE_MAX`]. Of foreign hosts' addresses, and of silent nodes, on each device.
pub const CONFLICTS_MAX: usize = 32;
/// See [`STALE_MAX`].
pub const TEXT_BYTES_MAX: usize = 2_048;

/// See [`STALE_MAX`]. Of objects that agents of the release before Claims hold: more than any of them could list within the size that an
/// API server takes.
const DIGESTS_MAX: usize = 32_768;

/// The remedy of a problem by which a node's outputs do not hold what they should, and the node falls behind: the controller knows it by
/// this, also where a former agent reports it.
pub const HELD_BACK: &str = "see the agent's log; it tries again and what was in force stays";

/// What an agent could not do on its node, and which backends its probes find down. What the node holds is in the annotations of its
/// Lease. Written by that agent alone, read by the
/// controller; cluster-scoped and named like the node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "vestibule.dev",
    version = "v1alpha1",
    kind = "NodeState",
    plural = "nodestates",
    doc = "What an agent could not do on its node. What the node holds is in the annotations of its Lease.",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.node"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".spec.version"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeStateSpec {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Name of the agent's pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// Version of the agent.
    #[schemars(length(max = 253))]
    pub version: String,
    /// Sources that cannot be followed at present, each with the reason: what they said last serves on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = STALE_MAX), inner(length(max = TEXT_BYTES_MAX)))]
    pub stale: Vec<String>,
    /// Backends that the node's own probes find down: `192.0.2.1:6443`, `[2001:db8::1]:6443`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FAILING_MAX), inner(length(max = 64)))]
    pub failing: Vec<String>,
    /// What the node holds, as agents of the release before Claims say it. Only in the schema, so that the API server keeps it while such
    /// agents and their controller run; nobody else writes or reads it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = DIGESTS_MAX, "additionalProperties" = {"type": "string", "maxLength": 253}))]
    pub digests: BTreeMap<String, String>,
    /// What this node could not do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PROBLEMS_MAX))]
    pub problems: Vec<NodeProblem>,
    /// Addresses that the node answers for by ARP and neighbour discovery, of each device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = DEVICES_MAX))]
    pub announced: Vec<NodeAnnounced>,
    /// How many more it answers for than are listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub announced_more: i64,
}

impl NodeState {
    /// Its definition, as the API server takes it. As JSON, whose objects have their keys sorted.
    pub fn definition() -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(Self::crd())
    }
}

/// Addresses that a node answers for on a device, and what it knows of the segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnnounced {
    /// Name of the device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// The addresses: `192.0.2.1`, `2001:db8::1`.
    #[schemars(length(max = ANNOUNCED_MAX), inner(length(max = 64)))]
    pub addresses: Vec<String>,
    /// Hosts that are no nodes of the cluster and answer for addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CONFLICTS_MAX))]
    pub conflicts: Vec<NodeConflict>,
    /// Names of nodes that may announce addresses there, too, and have been silent for a minute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CONFLICTS_MAX), inner(length(max = 253)))]
    pub unheard: Vec<String>,
}

/// A host that is no node of the cluster and answers for an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeConflict {
    /// The address.
    #[schemars(length(max = 64))]
    pub address: String,
    /// The host's link address: `02:00:00:00:00:01`.
    #[schemars(length(max = 17))]
    pub link_address: String,
}

/// Something that a node could not do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProblem {
    /// The object concerned: `Gateway/namespace/name`; absent: the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = TEXT_BYTES_MAX))]
    pub object: Option<String>,
    /// Whether the node does not serve the object because of it; without an object: nothing at all. Such a node does not count among
    /// those that hold it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub missing: bool,
    /// Path of the field in the object; empty: the whole object.
    #[schemars(length(max = TEXT_BYTES_MAX))]
    pub field: String,
    /// What is wrong.
    #[schemars(length(max = TEXT_BYTES_MAX))]
    pub message: String,
    /// What to do about it.
    #[schemars(length(max = TEXT_BYTES_MAX))]
    pub remedy: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Adds what has no bound in a schema to `found`, by path.
    fn look(path: &str, schema: &Value, found: &mut Vec<String>) {
        let (bound, inner): (&str, Vec<(&str, &Value)>) = match schema["type"].as_str() {
            Some("string") => ("maxLength", Vec::new()),
            Some("array") => ("maxItems", vec![("items", &schema["items"])]),
            Some("object") => match (&schema["additionalProperties"], schema["properties"].as_object()) {
                (Value::Object(_), _) => ("maxProperties", vec![("*", &schema["additionalProperties"])]),
                (_, Some(fields)) => ("type", fields.iter().map(|(name, field)| (&**name, field)).collect()),
                _ => ("maxProperties", Vec::new()),
            },
            _ => ("type", Vec::new()),
        };
        if schema.get(bound).is_none() {
            found.push(format!("{path}: {bound}"));
        }
        inner.into_iter().for_each(|(name, inner)| look(&format!("{path}.{name}"), inner, found));
    }

    /// Or one node could fill the API server's memory, and that of the controllers.
    #[test]
    fn all_that_a_node_may_say_has_a_bound() {
        let definition = NodeState::definition().unwrap();
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec["properties"]["problems"]["maxItems"], PROBLEMS_MAX);
        assert_eq!(spec["properties"]["digests"]["additionalProperties"]["maxLength"], 253);
        let mut found = Vec::new();
        look("spec", spec, &mut found);
        assert_eq!(found, [""; 0]);
    }
}

//! Service, EndpointSlice, CustomResourceDefinition.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// `Service.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Service {
    pub(in super::super) r#type: Option<String>,
    pub(in super::super) ports: Option<Vec<ServicePort>>,
    pub(in super::super) load_balancer_class: Option<String>,
    #[serde(rename = "loadBalancerIP")]
    pub(in super::super) load_balancer_ip: Option<String>,
    pub(in super::super) load_balancer_source_ranges: Option<Vec<Value>>,
    pub(in super::super) session_affinity: Option<String>,
    pub(in super::super) session_affinity_config: Option<Value>,
    pub(in super::super) external_traffic_policy: Option<String>,
    pub(in super::super) health_check_node_port: Option<i64>,
    pub(in super::super) selector: Option<BTreeMap<String, String>>,
    pub(in super::super) ip_families: Option<Vec<String>>,
    pub(in super::super) ip_family_policy: Option<String>,
}

/// `Service.spec.ports[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct ServicePort {
    pub(in super::super) name: Option<String>,
    pub(in super::super) port: Option<i64>,
    pub(in super::super) protocol: Option<String>,
}

/// What an EndpointSlice has beside its metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Slice {
    pub(in super::super) address_type: Option<String>,
    pub(in super::super) endpoints: Option<Vec<Endpoint>>,
    pub(in super::super) ports: Option<Vec<EndpointPort>>,
}

/// `endpoints[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Endpoint {
    pub(in super::super) addresses: Option<Vec<String>>,
    pub(in super::super) conditions: Option<Conditions>,
    pub(in super::super) hints: Option<Hints>,
    pub(in super::super) node_name: Option<String>,
}

/// `endpoints[].conditions`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Conditions {
    pub(in super::super) ready: Option<bool>,
    pub(in super::super) serving: Option<bool>,
    pub(in super::super) terminating: Option<bool>,
}

/// `endpoints[].hints`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Hints {
    pub(in super::super) for_zones: Option<Vec<Zone>>,
}

/// `endpoints[].hints.forZones[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Zone {
    pub(in super::super) name: Option<String>,
}

/// `EndpointSlice.ports[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct EndpointPort {
    pub(in super::super) name: Option<String>,
    pub(in super::super) port: Option<i64>,
    pub(in super::super) protocol: Option<String>,
}

/// `CustomResourceDefinition.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Definition {
    pub(in super::super) versions: Option<Vec<DefinitionVersion>>,
}

/// `versions[]`, without the schemas, which are most of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct DefinitionVersion {
    pub(in super::super) name: Option<String>,
    pub(in super::super) served: Option<bool>,
}

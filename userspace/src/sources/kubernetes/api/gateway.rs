//! `gateway.networking.k8s.io`: Gateway API 1.6, and what was the same in TLSRoute v1alpha2 and v1alpha3.
//!
//! Numbers are as wide as JSON has them: whether they fit is for the fold to say, of the field.

use serde::Deserialize;

/// `GatewayClass.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct GatewayClass {
    pub(in super::super) controller_name: Option<String>,
    pub(in super::super) parameters_ref: Option<Present>,
}

/// Something that is there; what it says is not read.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in super::super) struct Present {}

/// `Gateway.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Gateway {
    pub(in super::super) gateway_class_name: Option<String>,
    pub(in super::super) listeners: Option<Vec<Listener>>,
    pub(in super::super) addresses: Option<Vec<Address>>,
    pub(in super::super) infrastructure: Option<Infrastructure>,
    pub(in super::super) allowed_listeners: Option<Allowed>,
}

/// The part of `Gateway.status` with the Gateway's own addresses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct GatewayStatus {
    pub(in super::super) addresses: Option<Vec<Address>>,
}

/// An address in spec or status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Address {
    pub(in super::super) r#type: Option<String>,
    pub(in super::super) value: Option<String>,
}

/// `Gateway.spec.infrastructure`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Infrastructure {
    pub(in super::super) parameters_ref: Option<Present>,
}

/// `ListenerSet.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct ListenerSet {
    pub(in super::super) parent_ref: Option<Parent>,
    pub(in super::super) listeners: Option<Vec<Listener>>,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Listener {
    pub(in super::super) name: Option<String>,
    pub(in super::super) hostname: Option<String>,
    pub(in super::super) port: Option<i64>,
    pub(in super::super) protocol: Option<String>,
    pub(in super::super) tls: Option<Tls>,
    pub(in super::super) allowed_routes: Option<Allowed>,
}

/// `listeners[].tls`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Tls {
    pub(in super::super) mode: Option<String>,
}

/// `allowedRoutes` of a listener, `allowedListeners` of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Allowed {
    pub(in super::super) namespaces: Option<Namespaces>,
    pub(in super::super) kinds: Option<Vec<Kind>>,
}

/// `namespaces` of these.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Namespaces {
    pub(in super::super) from: Option<String>,
    pub(in super::super) selector: Option<Selector>,
}

/// `metav1.LabelSelector`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Selector {
    pub(in super::super) match_labels: Option<std::collections::BTreeMap<String, String>>,
    pub(in super::super) match_expressions: Option<Vec<Expression>>,
}

/// `matchExpressions[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Expression {
    pub(in super::super) key: Option<String>,
    pub(in super::super) operator: Option<String>,
    pub(in super::super) values: Option<Vec<String>>,
}

/// `allowedRoutes.kinds[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Kind {
    pub(in super::super) group: Option<String>,
    pub(in super::super) kind: Option<String>,
}

/// `parentRef`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Parent {
    pub(in super::super) group: Option<String>,
    pub(in super::super) kind: Option<String>,
    pub(in super::super) namespace: Option<String>,
    pub(in super::super) name: Option<String>,
    pub(in super::super) section_name: Option<String>,
    pub(in super::super) port: Option<i64>,
}

/// `TLSRoute.spec` and `TCPRoute.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Route {
    pub(in super::super) parent_refs: Option<Vec<Parent>>,
    pub(in super::super) hostnames: Option<Vec<String>>,
    pub(in super::super) rules: Option<Vec<Rule>>,
}

/// `rules[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Rule {
    pub(in super::super) backend_refs: Option<Vec<Backend>>,
}

/// `backendRefs[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Backend {
    pub(in super::super) group: Option<String>,
    pub(in super::super) kind: Option<String>,
    pub(in super::super) namespace: Option<String>,
    pub(in super::super) name: Option<String>,
    pub(in super::super) port: Option<i64>,
    pub(in super::super) weight: Option<i64>,
}

/// `ReferenceGrant.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Grant {
    pub(in super::super) from: Option<Vec<Granted>>,
    pub(in super::super) to: Option<Vec<Granted>>,
}

/// `from[]` and `to[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Granted {
    pub(in super::super) group: Option<String>,
    pub(in super::super) kind: Option<String>,
    pub(in super::super) namespace: Option<String>,
    pub(in super::super) name: Option<String>,
}

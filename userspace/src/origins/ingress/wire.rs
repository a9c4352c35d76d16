//! `networking.k8s.io/v1`: Ingress and IngressClass.

use serde::Deserialize;
use serde_json::Value;

/// `IngressClass.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct IngressClass {
    pub(super) controller: Option<String>,
}

/// `Ingress.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Ingress {
    pub(super) ingress_class_name: Option<String>,
    pub(super) default_backend: Option<Value>,
    pub(super) rules: Option<Vec<Rule>>,
}

/// `Ingress.spec.rules[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rule {
    pub(super) host: Option<String>,
    pub(super) http: Option<Http>,
}

/// `http`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Http {
    pub(super) paths: Option<Vec<Path>>,
}

/// `http.paths[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Path {
    pub(super) path: Option<String>,
    pub(super) backend: Option<Backend>,
}

/// `backend`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Backend {
    pub(super) service: Option<BackendService>,
}

/// `backend.service`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BackendService {
    pub(super) name: Option<String>,
    pub(super) port: Option<BackendPort>,
}

/// `backend.service.port`: one of the two.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BackendPort {
    pub(super) number: Option<i64>,
    pub(super) name: Option<String>,
}

//! `networking.k8s.io/v1`: Ingress and IngressClass.

use serde::Deserialize;
use serde_json::Value;

/// `IngressClass.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct IngressClass {
    pub(in super::super) controller: Option<String>,
}

/// `Ingress.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Ingress {
    pub(in super::super) ingress_class_name: Option<String>,
    pub(in super::super) default_backend: Option<Value>,
    pub(in super::super) rules: Option<Vec<Rule>>,
}

/// `Ingress.spec.rules[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Rule {
    pub(in super::super) host: Option<String>,
    pub(in super::super) http: Option<Http>,
}

/// `http`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Http {
    pub(in super::super) paths: Option<Vec<Path>>,
}

/// `http.paths[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Path {
    pub(in super::super) path: Option<String>,
    pub(in super::super) backend: Option<Backend>,
}

/// `backend`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct Backend {
    pub(in super::super) service: Option<BackendService>,
}

/// `backend.service`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct BackendService {
    pub(in super::super) name: Option<String>,
    pub(in super::super) port: Option<BackendPort>,
}

/// `backend.service.port`: one of the two.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct BackendPort {
    pub(in super::super) number: Option<i64>,
    pub(in super::super) name: Option<String>,
}

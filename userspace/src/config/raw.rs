//! The file as written: nothing is checked but the shape.

use serde::Deserialize;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawConfig {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) settings: Option<RawSettings>,
    pub(super) listeners: Option<Vec<RawListener>>,
    pub(super) routes: Option<Vec<RawRoute>>,
}

/// `settings`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawSettings {
    pub(super) source_addresses: Option<Vec<String>>,
    pub(super) source_ports: Option<String>,
    pub(super) idle_timeout: Option<String>,
    pub(super) hello_timeout: Option<String>,
    pub(super) max_flows: Option<i64>,
    pub(super) max_names: Option<i64>,
    pub(super) max_hellos: Option<i64>,
}

/// `listeners[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawListener {
    pub(super) name: Option<String>,
    pub(super) addresses: Option<Vec<String>>,
    pub(super) port: Option<i64>,
    pub(super) protocol: Option<String>,
    pub(super) default_route: Option<String>,
}

/// `routes[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawRoute {
    pub(super) name: Option<String>,
    pub(super) listeners: Option<Vec<String>>,
    pub(super) hostnames: Option<Vec<String>>,
    pub(super) backends: Option<Vec<RawBackend>>,
}

/// `routes[].backends[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawBackend {
    pub(super) address: Option<String>,
    pub(super) port: Option<i64>,
    pub(super) weight: Option<i64>,
}

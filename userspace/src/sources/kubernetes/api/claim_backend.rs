//! Where a Claim leads: Services or addresses, their shares, and how endpoints are probed.

use crate::model::claim::ClaimTarget;
use crate::model::cluster::{ProbeKind, ProbeSpec};
use crate::model::{self, BackendSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A share of new connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimBackend {
    /// Share, among those of the claim.
    pub weight: i64,
    /// Whose endpoints take them. Without it and an address, the share is refused, for the reference leads nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ClaimService>,
    /// What takes them instead of a Service. Agents of former releases admit no connection to such a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<ClaimEndpoint>,
}

/// A backend of no Service. Those of a claim that fail their probe get no new connections, unless more fail than may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEndpoint {
    /// IP address.
    pub address: String,
    /// Port.
    pub port: i32,
    /// How it is probed; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ClaimProbe>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// What its EndpointSlices call the port; empty where the Service has one port without name.
    pub port_name: String,
    /// How its endpoints are probed; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ClaimProbe>,
}

/// How an endpoint is asked whether it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimProbe {
    /// `TCP`: a connection is accepted. `TLS`: a ClientHello gets a TLS record.
    pub kind: String,
    /// From one probe to the next.
    pub interval_ms: i64,
    /// No answer within this is a failure.
    pub timeout_ms: i64,
    /// Failures in a row that make a backend failing.
    pub failures: i64,
    /// Successes in a row that make it good again.
    pub successes: i64,
}

impl ClaimBackend {
    pub(super) fn of(backend: &model::claim::ClaimBackend) -> Self {
        let (mut service, mut address) = (None, None);
        match &backend.to {
            Some(ClaimTarget::Service(own)) => {
                service = Some(ClaimService {
                    namespace: own.name.namespace.to_string(),
                    name: own.name.name.to_string(),
                    port_name: own.port.to_string(),
                    probe: own.probe.as_ref().map(ClaimProbe::of),
                });
            }
            Some(ClaimTarget::Address(own)) => {
                let (at, probe) = (own.at(), own.probe.as_ref().map(ClaimProbe::of));
                address = Some(ClaimEndpoint { address: at.ip().to_string(), port: at.port().into(), probe });
            }
            None => {}
        }
        Self { weight: backend.weight.into(), service, address }
    }

    pub(super) fn of_address(backend: &BackendSpec) -> Self {
        let BackendSpec { address, port, weight, .. } = backend;
        let endpoint = ClaimEndpoint { address: address.to_string(), port: (*port).into(), probe: None };
        Self {
            weight: (*weight).into(),
            service: None,
            address: (!backend.is_refusing()).then_some(endpoint),
        }
    }
}

impl ClaimProbe {
    fn of(probe: &ProbeSpec) -> Self {
        let kind = match probe.kind {
            ProbeKind::Tcp => "TCP",
            ProbeKind::Tls => "TLS",
        };
        Self {
            kind: kind.to_owned(),
            interval_ms: probe.interval_ms.into(),
            timeout_ms: probe.timeout_ms.into(),
            failures: probe.failures.into(),
            successes: probe.successes.into(),
        }
    }
}

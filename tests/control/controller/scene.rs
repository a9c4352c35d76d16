use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options, ReportingAgent, Reports, newest_claim};
use tests::daemon::binary;
use tests::temp::TempDir;

pub(super) use crate::process::{Controller, RELEASE, SOON};
use crate::process::{refusals, server};

const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]}}"#;

/// The tenants' objects: a class, a Gateway, and a Service of our class.
pub(super) const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: tenant}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec: {controllerName: vestibule.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: tenant}
spec:
  gatewayClassName: vestibule
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
";

/// Returns a Service of our class, which asks for this address or, without one, for any.
pub(super) fn balancer(name: &str, address: Option<&str>, port: u16) -> Value {
    let mut service = balancer_of("tenant", name, Some("vestibule.dev/lb"), port);
    if let Some(address) = address {
        service["metadata"]["annotations"] = json!({"vestibule.dev/addresses": address});
    }
    service
}

/// Returns a Service of type LoadBalancer of this namespace and class.
pub(super) fn balancer_of(namespace: &str, name: &str, class: Option<&str>, port: u16) -> Value {
    let mut spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                          "ports": [{"port": port, "protocol": "TCP"}]});
    if let Some(class) = class {
        spec["loadBalancerClass"] = json!(class);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// An API server with the rights of the chart, and a folder for logs.
pub(super) struct Scene {
    pub(super) server: ApiServer,
    folder: TempDir,
    /// What the simulated agents report.
    reports: Reports,
}

impl Scene {
    pub(super) fn new() -> Self {
        let server = server(&Options::default());
        let folder = TempDir::new().unwrap();
        folder.write("vestibule.json", CONFIG).unwrap();
        Self { server, folder, reports: Reports::default() }
    }

    /// Replaces the chart's file, which is followed.
    pub(super) fn configure(&self, text: &str) {
        self.folder.write("vestibule.json", text).unwrap();
    }

    pub(super) fn kubectl(&self) -> &Kubectl {
        self.server.kubectl()
    }

    /// Starts a controller of this name, with the ServiceAccount's rights.
    pub(super) fn controller(&self, pod: &str) -> Controller {
        self.controller_with(pod, &[])
    }

    /// The same with more flags.
    pub(super) fn controller_with(&self, pod: &str, flags: &[&str]) -> Controller {
        Controller::start(Command::new(binary().unwrap()), &self.server, &self.folder, pod, flags)
    }

    /// Waits until an object of the tenant is as expected.
    pub(super) fn wait(&self, what: &str, object: [&str; 2], wanted: impl Fn(&Value) -> bool) -> Value {
        let arguments = ["-n", "tenant", object[0], object[1]];
        self.kubectl().wait_for(what, &arguments, SOON, wanted).unwrap()
    }

    /// Returns the controller's requests that were refused.
    pub(super) fn refusals(&self) -> Vec<String> {
        refusals(&self.server)
    }

    /// From now on a node's agent reports that it has applied all Claims up to this version, or up to the newest where
    /// that is older.
    pub(super) fn report(&self, node: &str, version: u64) {
        self.reports.up_to(node, version);
    }

    /// The same, whatever the API server has.
    pub(super) fn report_exactly(&self, node: &str, version: u64) {
        self.reports.exactly(node, version);
    }

    /// Returns the newest version of a Claim.
    pub(super) fn newest_claim(&self) -> u64 {
        let begun = Instant::now();
        loop {
            // A server that has just started may not list them yet.
            match newest_claim(self.server.rest()) {
                Some(version) => return version,
                None => assert!(begun.elapsed() < SOON, "Claims cannot be listed"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Renews the Lease of a node's agent until it is dropped.
pub(super) struct Agent {
    _reporting: ReportingAgent,
}

impl Agent {
    pub(super) fn start(scene: &Scene, node: &str) -> Self {
        Self { _reporting: ReportingAgent::start(scene.server.rest(), &scene.reports, node) }
    }
}

/// Returns a condition by type; null if it does not exist.
pub(super) fn condition<'a>(conditions: &'a Value, kind: &str) -> &'a Value {
    let conditions = conditions.as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Returns whether the object's condition has this status and reason.
pub(super) fn is(object: &Value, kind: &str, status: &str, reason: &str) -> bool {
    let condition = condition(&object["status"]["conditions"], kind);
    condition["status"] == status && condition["reason"] == reason
}

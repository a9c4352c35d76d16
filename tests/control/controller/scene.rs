use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl, Options, Rest};
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

/// The version up to which a simulated agent reports that it has applied all Claims.
#[derive(Clone, Copy)]
enum Report {
    /// This one, or the newest of all Claims where that is older.
    UpTo(u64),
    /// This one, whatever the API server has.
    Exactly(u64),
}

/// An API server with the rights of the chart, and a folder for logs.
pub(super) struct Scene {
    pub(super) server: ApiServer,
    folder: TempDir,
    /// What the simulated agents report, by node.
    reports: Arc<Mutex<BTreeMap<String, Report>>>,
}

impl Scene {
    pub(super) fn new() -> Self {
        let server = server(&Options::default());
        let folder = TempDir::new().unwrap();
        folder.write("vestibule.json", CONFIG).unwrap();
        Self { server, folder, reports: Arc::default() }
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
        self.reports.lock().unwrap().insert(node.to_owned(), Report::UpTo(version));
    }

    /// The same, whatever the API server has.
    pub(super) fn report_exactly(&self, node: &str, version: u64) {
        self.reports.lock().unwrap().insert(node.to_owned(), Report::Exactly(version));
    }

    /// Returns the newest version of a Claim.
    pub(super) fn newest_claim(&self) -> u64 {
        let begun = Instant::now();
        loop {
            // A server that has just started may not list them yet.
            match newest(self.server.rest()) {
                Some(version) => return version,
                None => assert!(begun.elapsed() < SOON, "Claims cannot be listed"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Renews the Lease of a node's agent until it is dropped. Its clock is years off.
pub(super) struct Agent {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub(super) fn start(scene: &Scene, node: &str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (rest, node, ended) = (scene.server.rest().clone(), node.to_owned(), Arc::clone(&ends));
        let reports = Arc::clone(&scene.reports);
        let thread = std::thread::spawn(move || {
            let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases");
            let name = format!("vestibule-agent-{node}");
            let mut second = 0;
            while !ended.load(Ordering::Relaxed) {
                let renewed = format!("2001-01-01T00:{:02}:{:02}.000000Z", second / 60, second % 60);
                let spec = json!({"holderIdentity": node, "leaseDurationSeconds": 10, "renewTime": renewed});
                let labels = json!({"app.kubernetes.io/component": "agent"});
                let mut annotations = json!({});
                let report = reports.lock().unwrap().get(&node).copied();
                let version = report.and_then(|report| match report {
                    Report::UpTo(version) => newest(&rest).map(|newest| version.min(newest)),
                    Report::Exactly(version) => Some(version),
                });
                if let Some(version) = version {
                    annotations = json!({"vestibule.dev/report-version": "2",
                                         "vestibule.dev/claims-version": version.to_string()});
                }
                let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
                let lease = json!({"metadata": metadata, "spec": spec});
                // In some tests the API server is away, so failed writes are repeated.
                if let Ok(mut api) = rest.connect()
                    && api.merge(&format!("{leases}/{name}"), &lease).is_err()
                {
                    let _ = api.create(&leases, &lease);
                }
                second += 1;
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

/// Returns the newest version of a Claim; 0 without one, `None` while the API server is away.
fn newest(rest: &Rest) -> Option<u64> {
    let claims = rest.connect().ok()?.read("/apis/vestibule.dev/v1alpha1/claims").ok()?;
    let versions = claims["items"].as_array()?.iter();
    let versions = versions.map(|claim| claim["metadata"]["resourceVersion"].as_str()?.parse().ok());
    versions.max().unwrap_or(Some(0))
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("an agent panicked");
        }
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

//! The chart as an operator installs it, and a tenant behind it.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tests::cluster::{Cluster, OwnNamespace, image};
use tests::tls::Authority;

use crate::l2;
use crate::traffic::Target;

/// Where the chart is installed.
pub(crate) const RELEASE: &str = "vestibule-system";
/// Maximum time for a rollout, or for its effects, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The server name that the tenant's clients request.
pub(crate) const NAME: &str = "tenant.k8s.example.com";

/// Installs the image and the chart, once for all tests, and waits until its pods are ready.
pub(crate) fn install(cluster: &Cluster) {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| try_install(cluster).unwrap());
}

fn try_install(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl();
    kubectl.apply_files(&tests::cluster::gateway_definitions()?)?;
    kubectl.wait_for_definitions()?;
    cluster.load(&image()?)?;
    install_again(cluster)
}

/// Installs the chart, and waits until its pods are ready.
pub(crate) fn install_again(cluster: &Cluster) -> Result<()> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/charts/vestibule");
    let values = "image.tag=dev,addresses.l2=true,\
                  addresses.ranges={198.51.100.0/24,2001:db8:51::/64,10.77.0.192/28,fd77::c0/124},settings.maxFlows=100000,\
                  settings.maxNames=100000,settings.maxHellos=4096,resources.requests.memory=64Mi,\
                  controller.cookieKeys.rotateEvery=30s,controller.cookieKeys.spreadFor=5s,\
                  controller.forgetNodesAfter=15s";
    let install =
        ["install", "vestibule", chart, "--namespace", RELEASE, "--create-namespace", "--set", values];
    cluster.helm(&[&install[..], &["--wait", "--timeout", "2m"]].concat()).map(drop)
}

/// A tenant: three echo pods that speak TLS, a Service, a Gateway and a TLSRoute.
pub(crate) struct Tenant {
    pub(crate) namespace: OwnNamespace,
    pub(crate) target: Target,
}

impl Tenant {
    /// Creates the tenant and waits until its Gateway is programmed and every node has its route.
    pub(crate) fn new(cluster: &Cluster, role: &str) -> Result<Self> {
        Self::at(cluster, role, &[])
    }

    /// The same at these addresses; at any two if none is named.
    pub(crate) fn at(cluster: &Cluster, role: &str, addresses: &[&str]) -> Result<Self> {
        let namespace = cluster.kubectl().namespace(role)?;
        let authority = Authority::new("tenant")?;
        let files = authority.files(&authority.server(&[NAME])?)?;
        let (certificate, key) = (files.certificate.to_string_lossy(), files.key.to_string_lossy());
        let (certificate, key) = (format!("--cert={certificate}"), format!("--key={key}"));
        namespace.run(&["create", "secret", "tls", "server", &certificate, &key])?;
        let wanted: Vec<_> = addresses.iter().map(|address| json!({ "value": address })).collect();
        namespace
            .apply(&TENANT.replace("@name@", NAME).replace("@addresses@", &json!(wanted).to_string()))?;
        let ready = |set: &Value| set["status"]["readyReplicas"] == 3;
        namespace.wait_for("the tenant's pods", &["deployment", "tenant"], PATIENCE, ready)?;
        // Slices follow the pods, and on a busy machine late: a client would meet those alone that are in one.
        namespace.wait_for("the pods' endpoints", &["endpointslices"], PATIENCE, lists_all)?;
        let programmed = |gateway: &Value| condition(&gateway["status"], "Programmed") == Some("True".into());
        let gateway =
            namespace.wait_for("a programmed Gateway", &["gateway", "tenant"], PATIENCE, programmed)?;
        wait_for_routes(cluster, &namespace)?;
        let address =
            gateway["status"]["addresses"][0]["value"].as_str().context("a Gateway without address")?;
        if !addresses.is_empty() {
            l2::settled(cluster, addresses)?;
        }
        let target = Target {
            address: SocketAddr::new(address.parse()?, 443),
            name: NAME,
            config: authority.client_config(None)?,
        };
        cluster.at_client(|| target.meet(3))??;
        Ok(Self { namespace, target })
    }

    /// Returns the names of the pods that are not terminating.
    pub(crate) fn pods(&self) -> Result<Vec<String>> {
        let pods = self.namespace.get(&["pods"])?;
        let pods = pods["items"].as_array().into_iter().flatten();
        let living = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        Ok(living.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect())
    }
}

/// Waits until every node holds the Claims of a namespace's routes, which no Gateway's condition shows.
fn wait_for_routes(cluster: &Cluster, namespace: &OwnNamespace) -> Result<()> {
    let kubectl = cluster.kubectl();
    let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
    let versions = |claims: &Value| -> Vec<i64> {
        let of_route = |claim: &&Value| {
            let origin = &claim["spec"]["origin"];
            // The first one may have been written before the Gateway had its addresses.
            let has_names = claim["spec"]["grants"].as_array().is_some_and(|grants| !grants.is_empty());
            origin["kind"] == "TLSRoute" && origin["namespace"] == namespace.name() && has_names
        };
        let version = |claim: &Value| claim["metadata"]["resourceVersion"].as_str()?.parse().ok();
        items(claims).iter().filter(of_route).filter_map(version).collect()
    };
    let claims =
        kubectl.wait_for("a route's Claim", &["claims"], PATIENCE, |claims| !versions(claims).is_empty())?;
    let newest = versions(&claims).into_iter().max();
    let nodes = items(&kubectl.get(&["nodes"])?);
    let hold = |leases: &Value| {
        let leases = items(leases);
        nodes.iter().all(|node| {
            let name = format!("vestibule-agent-{}", node["metadata"]["name"].as_str().unwrap_or_default());
            let lease = leases.iter().find(|lease| lease["metadata"]["name"] == *name);
            lease.is_some_and(|lease| {
                let version = &lease["metadata"]["annotations"]["vestibule.dev/claims-version"];
                version.as_str().and_then(|version| version.parse().ok()) >= newest
            })
        })
    };
    kubectl.wait_for("every node to hold it", &["-n", "vestibule-system", "leases"], PATIENCE, hold)?;
    Ok(())
}

/// Returns whether the slices of both families list three ready endpoints.
fn lists_all(slices: &Value) -> bool {
    let slices = slices["items"].as_array().into_iter().flatten();
    let endpoints = |slice: &Value| slice["endpoints"].as_array().cloned().unwrap_or_default();
    let ready = slices.flat_map(endpoints).filter(|endpoint| endpoint["conditions"]["ready"] == true);
    ready.count() == 6
}

/// Returns the status of a condition.
pub(crate) fn condition(status: &Value, kind: &str) -> Option<String> {
    let mut conditions = status["conditions"].as_array()?.iter();
    Some(conditions.find(|condition| condition["type"] == kind)?["status"].as_str()?.to_owned())
}

const TENANT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: tenant}
spec:
  replicas: 3
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: tenant}}
  template:
    metadata: {labels: {app: tenant}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: server
        image: vestibule.test/echo:1
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: TLS_SERVER_CERT, value: /tls/tls.crt}
        - {name: TLS_SERVER_PRIVKEY, value: /tls/tls.key}
        # As servers do that are to be rolled without loss: it goes on serving while everybody hears that it goes.
        lifecycle: {preStop: {sleep: {seconds: 3}}}
        readinessProbe: {httpGet: {path: /, port: 3000}, periodSeconds: 1}
        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes: [{name: tls, secret: {secretName: server}}]
---
apiVersion: v1
kind: Service
metadata: {name: tenant}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: tenant}
  ports: [{name: tls, port: 6443, targetPort: 8443}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: tenant}
spec:
  gatewayClassName: vestibule
  addresses: @addresses@
  listeners:
  - {name: tls, protocol: TLS, port: 443, tls: {mode: Passthrough}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: tenant}
spec:
  parentRefs: [{name: tenant}]
  hostnames: ["@name@"]
  rules:
  - backendRefs: [{name: tenant, port: 6443}]
"#;

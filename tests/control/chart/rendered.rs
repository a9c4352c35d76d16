//! Rendering, and finding objects in the result.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tests::cluster::helm;

/// The namespace for which everything is rendered.
pub(super) const NAMESPACE: &str = "vestibule-system";

/// Options that switch on everything.
pub(super) const EVERYTHING: &[&str] = &[
    "--api-versions=gateway.networking.k8s.io/v1/GatewayClass",
    "--set=addresses.ranges={192.0.2.0/26,2001:db8::10-2001:db8::ff}",
    "--set=listeners[0].name=https,listeners[0].addresses={192.0.2.1},listeners[0].port=443,listeners[0].protocol=TLS",
    "--set=ingress.listeners={https},ingress.adopt[0].class=nginx",
    "--set=defaultLoadBalancerClass=true,loadBalancerClasses={example.com/metallb}",
    "--set=namespace.create=true,networkPolicy.enabled=true",
    "--set=podMonitor.enabled=true,prometheusRule.enabled=true,grafana.dashboards.enabled=true",
    "--set=formerRights=false,addresses.l2=true,agentGraceSeconds=20,serveHealthCheckNodePorts=true",
    "--set=capabilities.sysAdmin=true,seccompProfile.type=Unconfined,seLinuxOptions.type=spc_t",
];

/// Returns a path below the root of the tree.
pub(super) fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns what helm prints for the chart, or its error message.
pub(crate) fn template(options: &[&str]) -> Result<String, String> {
    let output = run(options);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn run(options: &[&str]) -> Output {
    let mut command = Command::new(helm().unwrap());
    command.arg("template").arg("vestibule").arg(root("deploy/charts/vestibule"));
    command.arg(format!("--namespace={NAMESPACE}")).arg("--kube-version=1.31.0").args(options);
    command.output().unwrap()
}

/// Returns every rendered object.
pub(super) fn objects(options: &[&str]) -> Vec<Value> {
    let text = template(options).unwrap();
    let documents = text.split("\n---\n").map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    documents.filter(|object| !object.is_null()).collect()
}

/// Returns the one object of this kind and name.
pub(super) fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let fits = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let mut found = objects.iter().filter(fits);
    let object = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
    assert!(found.next().is_none(), "two {kind} {name}");
    object
}

/// Returns all objects of this kind.
pub(super) fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// Returns the strings of a list.
pub(super) fn words(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// Returns the items of a list; none if there is no list.
pub(super) fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

use std::fs;

use serde_json::{Value, json};
use tests::cluster::Kubectl;
use tests::corpus;

use super::scene::{Agent, OBJECTS, RELEASE, SOON, Scene};
use crate::chart::rendered::template;

/// A Service that asks for the pool of MetalLB's own example.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: asks
  namespace: tenant
  annotations: {metallb.io/address-pool: example, metallb.universe.tf/ip-allocated-from-pool: former}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  allocateLoadBalancerNodePorts: false
  ports: [{port: 443, protocol: TCP}]
";
/// A Pod of MetalLB.
const SPEAKER: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: metallb-system}
---
apiVersion: v1
kind: Pod
metadata: {name: speaker, namespace: metallb-system, labels: {app: metallb, component: speaker}}
spec: {nodeName: n1, containers: [{name: speaker, image: none}]}
";
/// kubectl reads what it patches.
const KUBECTL: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: kubectl, namespace: tenant}
rules: [{apiGroups: [''], resources: [services, services/status], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: kubectl, namespace: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: kubectl}
subjects: [{kind: ServiceAccount, name: vestibule-controller, namespace: vestibule-system}]
";
pub(super) const READS: &str =
    r#"{"addresses": {"ranges": ["192.0.2.0/28"]}, "metallb": {"namespaces": ["metallb-system"]}}"#;

/// What the chart says is announced, and an object that asks for what cannot be read.
const ADVERTISEMENT: &str = "
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: some, namespace: metallb-system}
spec: {serviceSelectors: [{matchExpressions: [{key: a, operator: Has}]}]}
";

/// What an agent says that its node announces.
fn announces(kubectl: &Kubectl, addresses: &[&str]) {
    let mut spec = json!({"node": "n1", "pod": "p", "version": "0"});
    if !addresses.is_empty() {
        spec["announced"] = json!([{"device": "eth0", "addresses": addresses}]);
    }
    let state = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "NodeState", "metadata": {"name": "n1"}, "spec": spec});
    kubectl.apply(&state.to_string()).unwrap();
}

/// Who announces the Service, and what cannot be read, is in objects of MetalLB's kinds.
fn who_announces_is_in_metallbs_objects(kubectl: &Kubectl, address: &str) {
    let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
    let statuses = ["-n", "metallb-system", "servicel2statuses"];
    announces(kubectl, &[address, "203.0.113.1"]);
    let is_said = |list: &Value| items(list).iter().any(|one| !one["status"].is_null());
    let list = kubectl.wait_for("who announces it", &statuses, SOON, is_said).unwrap();
    let [one] = items(&list).try_into().unwrap();
    let status = json!({
        "node": "n1", "serviceName": "asks", "serviceNamespace": "tenant", "interfaces": [{"name": "eth0"}],
    });
    assert_eq!(one["status"], status);
    let labels = json!({
        "metallb.io/node": "n1", "metallb.io/service-name": "asks", "metallb.io/service-namespace": "tenant",
        "vestibule.dev/reporter": "controller",
    });
    assert_eq!(one["metadata"]["labels"], labels);
    assert_eq!(one["metadata"]["ownerReferences"][0]["kind"], "NodeState");
    let state = ["-n", "metallb-system", "configurationstate", "vestibule"];
    let says = |what: &'static str| move |state: &Value| state["status"]["result"] == what;
    let invalid = kubectl.wait_for("what cannot be read", &state, SOON, says("Invalid")).unwrap();
    let summary = "L2Advertisement metallb-system/some: spec.serviceSelectors[0].matchExpressions[0].operator: is not known";
    assert!(invalid["status"]["errorSummary"].as_str().unwrap().starts_with(summary), "{invalid:#}");
    // At rest nothing is written.
    let versions = || {
        let seen = [kubectl.get(&statuses).unwrap(), kubectl.get(&state).unwrap()];
        let one = |object: &Value| object["metadata"]["resourceVersion"].clone();
        (items(&seen[0]).iter().map(one).collect::<Vec<_>>(), one(&seen[1]))
    };
    let before = versions();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(versions(), before);
    // Another client deletes it.
    kubectl.run(&["-n", "metallb-system", "delete", "servicel2statuses", "--all"]).unwrap();
    kubectl.wait_for("who announces it, again", &statuses, SOON, is_said).unwrap();
    announces(kubectl, &[]);
    kubectl.wait_for("nobody", &statuses, SOON, |list| items(list).is_empty()).unwrap();
    kubectl.run(&["-n", "metallb-system", "delete", "l2advertisement", "some"]).unwrap();
    kubectl.wait_for("nothing is wrong", &state, SOON, says("Valid")).unwrap();
}

/// The addresses in a Service's status.
fn ips(service: &Value) -> Vec<&str> {
    let entries = service["status"]["loadBalancer"]["ingress"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().filter_map(|entry| entry["ip"].as_str()).collect()
}

fn notes(events: &Value) -> Vec<&str> {
    let items = events["items"].as_array().map_or(&[][..], Vec::as_slice);
    items.iter().filter_map(|event| event["note"].as_str()).collect()
}

/// Applies the definition of pools, and waits until they are served.
pub(super) fn define_pools(kubectl: &Kubectl, definition: &str) {
    define(kubectl, "ipaddresspools.metallb.io", definition);
}

/// Applies a definition, and waits until its kind is served.
pub(super) fn define(kubectl: &Kubectl, name: &str, definition: &str) {
    kubectl.apply(definition).unwrap();
    kubectl
        .wait_for("the definition", &["crd", name], SOON, |definition| {
            definition["status"]["conditions"].as_array().is_some_and(|all| {
                all.iter()
                    .any(|one| (&one["type"], &one["status"]) == (&json!("Established"), &json!("True")))
            })
        })
        .unwrap();
}

/// The right to the status is one to metadata, too, but for the admission policy.
fn the_controller_writes_nothing_else(kubectl: &Kubectl) {
    let account = format!("--as=system:serviceaccount:{RELEASE}:vestibule-controller");
    kubectl.apply(KUBECTL).unwrap();
    let patch = |metadata: Value| {
        let patch = json!({ "metadata": metadata }).to_string();
        let service = ["-n", "tenant", "patch", "service", "asks", "--subresource=status", "--type=merge"];
        kubectl.run(&[&service[..], &["-p", &patch, "--dry-run=server", &account]].concat())
    };
    let pool = "metallb.io/ip-allocated-from-pool";
    for metadata in [
        json!({"labels": {"x": "y"}}),
        json!({"finalizers": ["example.com/x"]}),
        json!({"annotations": {"metallb.io/address-pool": "other"}}),
        json!({"annotations": {"metallb.io/address-pool": null}}),
        json!({"annotations": {"example.com/x": "y", pool: "p"}}),
    ] {
        let refusal = patch(metadata.clone()).unwrap_err().to_string();
        assert!(refusal.contains("vestibule-services-by-status-only"), "{metadata}: {refusal}");
    }
    patch(json!({"annotations": {pool: "p"}})).unwrap();
    patch(json!({"annotations": {pool: null}})).unwrap();
}

#[test]
fn a_service_gets_an_address_of_a_metallb_pool_and_keeps_it_when_the_pool_goes() {
    let Some(folder) = corpus::folder() else {
        return eprintln!(
            "SKIPPED: no definitions of MetalLB; set VESTIBULE_FIXTURES to the folder that holds crds/"
        );
    };
    let metallb = |file: &str| fs::read_to_string(folder.join("crds/metallb").join(file)).unwrap();
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SERVICE).unwrap();
    // Nothing that the controller does is refused by it.
    kubectl.apply(&template(&["--show-only=templates/servicewriter.yaml"]).unwrap()).unwrap();
    let _controller = scene.controller("a");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    // What the chart does not name is not read, and need not be there.
    let events = ["-n", "tenant", "events.events.k8s.io"];
    let says =
        |what: &'static str| move |events: &Value| notes(events).iter().any(|note| note.contains(what));
    let wait = |what: &'static str| kubectl.wait_for(what, &events, SOON, says(what)).unwrap();
    wait("there is no pool example");

    kubectl
        .apply(
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "metallb-system"}})
                .to_string(),
        )
        .unwrap();
    let rights = ["--set=metallb.namespaces={metallb-system}", "--show-only=templates/rbac.yaml"];
    kubectl.apply(&template(&rights).unwrap()).unwrap();
    define_pools(kubectl, &metallb("metallb.io_ipaddresspools.yaml"));
    for kind in ["l2advertisements", "servicel2statuses", "configurationstates"] {
        define(kubectl, &format!("{kind}.metallb.io"), &metallb(&format!("metallb.io_{kind}.yaml")));
    }
    kubectl.apply(&metallb("samples/ipaddresspool_simple.yaml")).unwrap();
    kubectl.apply(ADVERTISEMENT).unwrap();
    kubectl.apply(SPEAKER).unwrap();
    scene.configure(READS);
    wait("MetalLB runs (Pod metallb-system/speaker)");
    kubectl
        .run(&["-n", "metallb-system", "delete", "pod", "speaker", "--grace-period=0", "--force"])
        .unwrap();
    wait("less than a minute ago: MetalLB runs");
    // MetalLB, too, gives .0 unless the pool avoids it.
    let is_given = |service: &Value| ips(service) == ["192.168.10.0"];
    let service = ["-n", "tenant", "service", "asks"];
    kubectl.wait_for("an address of the pool", &service, 2 * SOON, is_given).unwrap();
    let of_pool = |service: &Value| {
        let annotations = &service["metadata"]["annotations"];
        annotations["metallb.io/ip-allocated-from-pool"] == "example"
            && annotations["metallb.universe.tf/ip-allocated-from-pool"].is_null()
            && annotations["metallb.io/address-pool"] == "example"
    };
    kubectl.wait_for("its pool", &service, SOON, of_pool).unwrap();
    the_controller_writes_nothing_else(kubectl);

    let counts = json!({"assignedIPv4": 1, "assignedIPv6": 0, "availableIPv4": 260, "availableIPv6": 16});
    let pool = ["-n", "metallb-system", "ipaddresspool", "example"];
    kubectl.wait_for("its counts", &pool, SOON, |pool| pool["status"] == counts).unwrap();
    who_announces_is_in_metallbs_objects(kubectl, "192.168.10.0");

    kubectl.run(&["-n", "metallb-system", "delete", "ipaddresspool", "example"]).unwrap();
    // Without the pool's name it has what it had, and an Event says that nobody else would get it.
    kubectl.run(&["-n", "tenant", "annotate", "service", "asks", "metallb.io/address-pool-"]).unwrap();
    wait("was taken out of the installation");
    let asks = kubectl.get(&["-n", "tenant", "service", "asks"]).unwrap();
    let of_pool = &asks["metadata"]["annotations"]["metallb.io/ip-allocated-from-pool"];
    assert!(is_given(&asks) && of_pool == "example", "{asks:#}");
    let patch = r#"{"spec": {"type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null}}"#;
    kubectl.run(&["-n", "tenant", "patch", "service", "asks", "--type=merge", "-p", patch]).unwrap();
    let is_clean = |service: &Value| {
        service["metadata"]["annotations"]["metallb.io/ip-allocated-from-pool"].is_null()
            && ips(service).is_empty()
    };
    kubectl.wait_for("it gives all back", &service, SOON, is_clean).unwrap();
    assert_eq!(scene.refusals(), [""; 0]);
}

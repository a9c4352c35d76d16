use serde_json::{Value, json};

use super::scene::{OBJECTS, SOON, Scene, is};

const OURS: &str = "gateway-exists-finalizer.gateway.networking.k8s.io";
const OTHER: &str = "example.com/other";

/// A class that no Gateway uses.
const UNUSED: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: unused}
spec: {controllerName: vestibule.dev/gateway-controller}
";

#[test]
fn a_class_stays_while_gateways_use_it() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(UNUSED).unwrap();
    let class = ["gatewayclass", "vestibule"];
    let patch = |finalizers: Value| {
        let patch = json!({"metadata": {"finalizers": finalizers}}).to_string();
        kubectl.run(&[&["patch"], &class[..], &["--type=merge", "-p", &patch]].concat()).unwrap();
    };
    patch(json!([OTHER]));
    let _controller = scene.controller("a");
    let has = |finalizers: Value| move |class: &Value| class["metadata"]["finalizers"] == finalizers;
    let held = kubectl.wait_for("the finalizer", &class, SOON, has(json!([OTHER, OURS]))).unwrap();
    assert_eq!(held["metadata"]["generation"], 1, "the spec is never written: {held:#}");

    kubectl.run(&[&["delete", "--wait=false"], &class[..]].concat()).unwrap();
    let used =
        scene.wait("its status", ["gateway", "gw"], |gateway| is(gateway, "Accepted", "True", "Accepted"));
    assert_eq!(used["spec"]["gatewayClassName"], "vestibule");
    let held = kubectl.get(&class).unwrap();
    assert!(!held["metadata"]["deletionTimestamp"].is_null(), "{held:#}");
    assert_eq!(held["metadata"]["finalizers"], json!([OTHER, OURS]));

    kubectl.run(&["-n", "tenant", "delete", "gateway", "gw"]).unwrap();
    kubectl.wait_for("ours to go", &class, SOON, has(json!([OTHER]))).unwrap();
    patch(json!([]));
    assert!(kubectl.get(&class).is_err());
    let unused = kubectl.get(&["gatewayclass", "unused"]).unwrap();
    assert!(unused["metadata"]["finalizers"].is_null(), "{unused:#}");
    assert_eq!(scene.refusals(), [""; 0]);
}

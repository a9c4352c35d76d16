use serde_json::Value;

use super::scene::{OBJECTS, RELEASE, SOON, Scene};

/// Both replicas would end again and again, and nobody keep the keys.
#[test]
fn a_controller_that_starts_with_a_bad_file_keeps_the_keys_and_begins_once_it_is_right() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    scene.configure(r#"{"addresses": {"ranges": ["192.0.2.0/28", "127.0.0.1"]}}"#);
    let controller = scene.controller("a");
    let ready = controller.wait_for_answer("/readyz", |ready| ready.contains("addresses.ranges[1]"));
    assert!(ready.starts_with("HTTP/1.0 503"), "{ready}");
    assert!(ready.contains("vestibule.json:1: error: ") && ready.contains("loopback"), "{ready}");
    let metrics = controller.ask("/metrics").unwrap();
    assert!(metrics.lines().any(|line| line == "vestibule_config_stale{source=\"config\"} 1"), "{metrics}");

    let keys = ["-n", RELEASE, "secret", "vestibule-keys"];
    kubectl.wait_for("the keys", &keys, SOON, |keys| keys["data"].is_object()).unwrap();
    let gateway = kubectl.get(&["-n", "tenant", "gateway", "gw"]).unwrap();
    assert!(gateway["status"]["addresses"].is_null(), "{gateway:#}");
    let claims = kubectl.get(&["claims"]).unwrap();
    assert_eq!(claims["items"].as_array().map(Vec::len), Some(0), "{claims:#}");

    scene.configure(r#"{"addresses": {"ranges": ["192.0.2.0/28"]}}"#);
    let has_address = |gateway: &Value| gateway["status"]["addresses"][0]["value"].is_string();
    scene.wait("an address", ["gateway", "gw"], has_address);
    let ready = controller.ask("/readyz").unwrap();
    assert!(ready.starts_with("HTTP/1.0 200") && !ready.contains("stale"), "{ready}");
}

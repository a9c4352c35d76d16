use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use tests::server::{Server, Speech};
use tests::skip_without_root;
use tests::tls::{self, Authority};

use crate::agent::scene::{Scene, tenant, until};
use crate::chart::rendered::template;
use crate::process::SOON;

/// The chart's file with a listener, on which Ingresses are not served yet.
const WITHOUT: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]},
    "settings": {"maxFlows": 10000, "maxNames": 40000, "maxHellos": 1024},
    "listeners": [{"name": "https", "addresses": ["192.0.2.9"], "port": 443, "protocol": "TLS"}]"#;

/// Our class, and an Ingress with a rule that can be served, and one that cannot.
const OURS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: vestibule}
spec: {controller: vestibule.dev/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: ours, namespace: tenant}
spec:
  ingressClassName: vestibule
  rules:
  - {host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {name: tls}}}}]}}
  - {host: "*.a.example.com", http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 6443}}}}]}}
  - {host: b.example.com, http: {paths: [{path: /api, pathType: Prefix, backend: {service: {name: a, port: {number: 6443}}}}]}}
"#;

/// An Ingress of another controller's class that asks for passthrough, and one that does not.
const OTHERS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: annotated, namespace: tenant, annotations: {nginx.ingress.kubernetes.io/ssl-passthrough: "true"}}
spec:
  ingressClassName: nginx
  rules: [{host: c.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 6443}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: plain, namespace: tenant}
spec:
  ingressClassName: nginx
  rules: [{host: d.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 6443}}}}]}}]
"#;

fn ips(ingress: &Value) -> Vec<&str> {
    let entries = ingress["status"]["loadBalancer"]["ingress"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().filter_map(|entry| entry["ip"].as_str()).collect()
}

/// Clients end TLS at the backend, by the hosts of the Ingresses and by no other.
fn tls_passes_through(scene: &Scene) {
    let served = ["a.example.com", "x.a.example.com", "c.example.com"];
    let authority = Authority::new("a").unwrap();
    let config = authority.server_config(&authority.server(&served).unwrap()).unwrap();
    let at = "10.99.1.1:6443".parse().unwrap();
    let server = Server::start(&scene.outside, at, "a", Speech::Tls(config)).unwrap();
    let client = authority.client_config(None).unwrap();
    let connect = |name: &str| {
        let vip = "192.0.2.9:443".parse().unwrap();
        scene.outside.run(|| tls::connect(vip, Arc::clone(&client), name).map(drop))
    };
    for name in served {
        connect(name).unwrap();
    }
    assert!(connect("d.example.com").is_err(), "the other controller ends TLS for it");
    assert_eq!(server.accepted(), served.len() as u64);
}

#[test]
fn ingresses_are_served_on_a_listener_of_the_chart() {
    skip_without_root!();
    let scene = Scene::bare(&format!("{WITHOUT}}}"), &[]);
    let [service, slice, _] = tenant("a", "10.99.1.1");
    for (_, object) in [service, slice] {
        scene.kubectl().apply(&object.to_string()).unwrap();
    }
    scene.kubectl().apply(OURS).unwrap();
    scene.kubectl().apply(OTHERS).unwrap();
    let controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    until("the agent serves", &[&agent], || agent.is_ready());
    assert_eq!(scene.backends(), [] as [String; 0], "the chart says nothing of Ingresses");

    // What an upgrade of the release changes.
    let values = "--set=ingress.listeners={https},ingress.adopt[0].class=nginx";
    let rights = template(&[values, "--show-only=templates/rbac.yaml"]).unwrap();
    scene.kubectl().apply(&rights).unwrap();
    let config =
        format!(r#"{WITHOUT}, "ingress": {{"listeners": ["https"], "adopt": [{{"class": "nginx"}}]}}}}"#);
    fs::write(scene.folder.path().join("vestibule.json"), config).unwrap();
    let backends = |hosts: &[&str]| {
        let line = |host: &&str| format!("ingress/tenant/{host} 10.99.1.1:6443");
        let wanted: Vec<String> = hosts.iter().map(line).collect();
        let mut found = scene.backends();
        found.sort();
        found == wanted
    };
    let hosts = ["annotated:c.example.com", "ours:*.a.example.com", "ours:a.example.com"];
    until("they are served", &[&agent], || backends(&hosts));
    let ours = ["-n", "tenant", "ingress", "ours"];
    scene.kubectl().wait_for("an address", &ours, SOON, |found| ips(found) == ["192.0.2.9"]).unwrap();
    let explain = |name: &str| {
        let output = scene
            .vestibule()
            .args(["explain", "--name", name, "--from", "192.0.2.77", "--listener", "192.0.2.9:443"])
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let explained = explain("x.a.example.com");
    assert!(explained.contains("ingress/tenant/ours:*.a.example.com"), "{explained}");
    assert!(
        !explain("x.y.a.example.com").contains("ingress/tenant/ours"),
        "{}",
        explain("x.y.a.example.com")
    );
    tls_passes_through(&scene);
    let told = |events: &Value| {
        events["items"].as_array().unwrap().iter().any(|event| {
            let regarding = &event["regarding"];
            (&regarding["kind"], &regarding["name"]) == (&json!("Ingress"), &json!("ours"))
                && event["note"].as_str().unwrap().contains("paths are not seen")
        })
    };
    let events = ["-n", "tenant", "events.events.k8s.io"];
    scene.kubectl().wait_for("the Event", &events, SOON, told).unwrap();
    for other in ["annotated", "plain"] {
        let found = scene.kubectl().get(&["-n", "tenant", "ingress", other]).unwrap();
        assert_eq!(ips(&found), [] as [&str; 0], "another controller writes it: {found:#}");
    }
    let claims = scene.kubectl().get(&["claims"]).unwrap();
    let mut origins =
        claims["items"].as_array().unwrap().iter().map(|claim| &claim["spec"]["origin"]["kind"]);
    assert_eq!(origins.by_ref().filter(|kind| **kind == "Ingress").count(), 3, "{claims:#}");

    // Without its class it is nobody's, and the address would lead nowhere.
    scene.kubectl().run(&["delete", "ingressclass", "vestibule"]).unwrap();
    until("only the adopted one is served", &[&agent], || backends(&hosts[..1]));
    scene.kubectl().wait_for("no address", &ours, SOON, |found| ips(found).is_empty()).unwrap();
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
    controller.end();
}

//! Health checks of Services with `externalTrafficPolicy: Local`, which nodes answer where the chart says so.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tests::skip_without_root;

use crate::agent::scene::{CONFIG, NODE, Scene, slice, until};
use crate::process::SOON;

/// A host on the node's link: no router is in between.
const POD: &str = "10.98.0.2";

/// Applies a Service, and returns the port for its health checks.
fn serve(scene: &Scene, name: &str, port: Option<u16>) -> u16 {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "tenant"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "vestibule.dev/lb", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": port, "allocateLoadBalancerNodePorts": false,
            "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}, {"name": "other", "port": 6444, "protocol": "TCP"}]}});
    scene.kubectl().apply(&service.to_string()).unwrap();
    let service = scene.kubectl().get(&["-n", "tenant", "service", name]).unwrap();
    service["spec"]["healthCheckNodePort"].as_u64().unwrap().try_into().unwrap()
}

/// Sets the only endpoint of a Service.
fn lead(scene: &Scene, name: &str, node: &str, is_ready: bool) {
    let mut slice = slice(name, POD);
    slice["endpoints"] = json!([{"addresses": [POD], "conditions": {"ready": is_ready}, "nodeName": node}]);
    scene.kubectl().apply(&slice.to_string()).unwrap();
}

/// The answer to a request at an address of the node; `None`: nobody serves the port.
fn ask(scene: &Scene, at: SocketAddr) -> Option<String> {
    let namespace = if at.ip().is_loopback() { &scene.namespace } else { &scene.outside };
    namespace.run(|| {
        let mut stream = TcpStream::connect_timeout(&at, Duration::from_millis(400)).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    })
}

/// The status and the body of an answer.
fn parts(text: &str) -> (String, Value) {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let weight = lines.find_map(|line| line.strip_prefix("x-load-balancing-endpoint-weight: ")).unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["localEndpoints"].to_string(), weight);
    (status.to_owned(), body)
}

/// Whether the port of a Service says this at the node's addresses of both families.
fn says(
    scene: &Scene,
    (name, port): (&str, u16),
    status: &str,
    endpoints: u64,
    is_proxy_healthy: bool,
) -> bool {
    let expected = json!({"service": {"namespace": "tenant", "name": name}, "localEndpoints": endpoints,
        "serviceProxyHealthy": is_proxy_healthy});
    ["10.98.0.1", "::1"].iter().all(|address| {
        let at = SocketAddr::new(address.parse().unwrap(), port);
        ask(scene, at).is_some_and(|text| parts(&text) == (status.to_owned(), expected.clone()))
    })
}

#[test]
fn a_node_answers_health_checks_of_local_services_where_the_chart_says_so() {
    skip_without_root!();
    let config =
        |serves: bool| CONFIG.replacen('{', &format!(r#"{{"serveHealthCheckNodePorts": {serves}, "#), 1);
    let mut scene = Scene::bare(&config(true), &[]);
    scene.settle();
    let port = serve(&scene, "lb", None);
    let lb = ("lb", port);
    lead(&scene, "lb", NODE, true);
    let first = scene.agent("first");
    until("it is healthy", &[&first], || says(&scene, lb, "200", 1, true));
    // A Claim for each of its two ports says where.
    let claims = scene.kubectl().get(&["claims"]).unwrap();
    let asked = claims["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|claim| claim["spec"]["healthCheckNodePort"] == port);
    assert_eq!(asked.count(), 2);

    lead(&scene, "lb", NODE, false);
    until("its endpoint is gone", &[&first], || says(&scene, lb, "503", 0, true));
    lead(&scene, "lb", NODE, true);
    until("it is healthy again", &[&first], || says(&scene, lb, "200", 1, true));
    lead(&scene, "lb", "elsewhere", true);
    until("its endpoint is on another node", &[&first], || says(&scene, lb, "503", 0, true));
    lead(&scene, "lb", NODE, true);
    until("its endpoint is here", &[&first], || says(&scene, lb, "200", 1, true));

    // A node that drains takes no new connections.
    assert!(scene.vestibule().arg("drain").output().unwrap().status.success());
    until("the node drains", &[&first], || says(&scene, lb, "503", 1, false));
    assert!(scene.vestibule().args(["drain", "--cancel"]).output().unwrap().status.success());
    until("the node is back", &[&first], || says(&scene, lb, "200", 1, true));

    // A port that another process has, as kube-proxy would.
    let taken = 32_123;
    let other = scene.namespace.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, taken))).unwrap();
    assert_eq!(serve(&scene, "taken", Some(taken)), taken);
    lead(&scene, "taken", NODE, true);
    until("an Event on the Service says so", &[&first], || {
        let events = scene.kubectl().get(&["-n", "tenant", "events"]).unwrap();
        events["items"].as_array().unwrap().iter().any(|event| {
            let text = event["message"].as_str().unwrap_or_default();
            event["involvedObject"]["name"] == "taken"
                && text.contains(&format!("health checks at port {taken}: Address already in use"))
                && text.contains("serveHealthCheckNodePorts: false")
        })
    });
    assert!(says(&scene, lb, "200", 1, true));
    // It is served all the same.
    let address = |service: &Value| service["status"]["loadBalancer"]["ingress"][0]["ip"].is_string();
    scene.kubectl().wait_for("its address", &["-n", "tenant", "service", "taken"], SOON, address).unwrap();
    drop(other);
    until("it is answered once the port is free", &[&first], || {
        says(&scene, ("taken", taken), "200", 1, true)
    });

    // The next agent has the ports.
    let second = scene.agent("second");
    until("the second writes", &[&first, &second], || second.metric("vestibule_writer") == Some(1.0));
    first.crash();
    until("the second answers", &[&second], || says(&scene, lb, "200", 1, true));

    let at = |port| SocketAddr::new([10, 98, 0, 1].into(), port);
    scene.kubectl().run(&["-n", "tenant", "delete", "service", "taken"]).unwrap();
    until("its port is closed", &[&second], || ask(&scene, at(taken)).is_none());
    assert!(says(&scene, lb, "200", 1, true));
    scene.folder.write("vestibule.json", config(false)).unwrap();
    until("no port is open any more", &[&second], || ask(&scene, at(port)).is_none());
    assert_eq!(scene.refusals(), [""; 0]);
}

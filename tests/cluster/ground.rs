//! What other tests rely on: nodes, pods, the route from the client, power cuts.

use std::time::Duration;

use serde_json::Value;
use tests::cluster::{Cluster, OwnNamespace};

const PATIENCE: Duration = Duration::from_secs(60);

/// An echo server on every node.
const ECHO: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: echo}
spec:
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: echo
        image: vestibule.test/echo:1
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        readinessProbe: {httpGet: {path: /, port: 3000}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: echo}
  ports: [{port: 8080, targetPort: 3000}]
"#;

/// Starts the echo servers and returns their port on the nodes.
fn echo(namespace: &OwnNamespace) -> u64 {
    namespace.apply(ECHO).unwrap();
    let ready = |set: &Value| set["status"]["numberReady"] == 3;
    namespace.wait_for("echo servers", &["daemonset", "echo"], PATIENCE, ready).unwrap();
    namespace.get(&["service", "echo"]).unwrap()["spec"]["ports"][0]["nodePort"].as_u64().unwrap()
}

/// Returns the pod that answers at an address when the client queries it.
fn asked(cluster: &Cluster, address: &str) -> String {
    let output = cluster
        .client("curl")
        .args(["-s", "--max-time", "5", &format!("http://{address}/")])
        // kube-proxy may not know yet which pods are ready.
        .args(["--retry", "10", "--retry-delay", "1", "--retry-connrefused"])
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    answer["pod"].as_str().unwrap_or_else(|| panic!("no answer from {address}: {output:?}")).to_owned()
}

#[test]
fn the_client_reaches_pods_and_node_ports_by_both_families() {
    let cluster = Cluster::shared().unwrap();
    let namespace = cluster.kubectl().namespace("ways").unwrap();
    let port = echo(&namespace);
    let pods = namespace.get(&["pods"]).unwrap();
    for pod in pods["items"].as_array().unwrap() {
        let addresses = pod["status"]["podIPs"].as_array().unwrap();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        for address in addresses.iter().map(|address| address["ip"].as_str().unwrap()) {
            let address =
                if address.contains(':') { format!("[{address}]:3000") } else { format!("{address}:3000") };
            assert_eq!(pod["metadata"]["name"], asked(&cluster, &address));
        }
    }
    for node in cluster.nodes() {
        asked(&cluster, &format!("{}:{port}", node.ipv4()));
        asked(&cluster, &format!("[{}]:{port}", node.ipv6()));
    }
}

#[test]
fn the_router_sends_addresses_of_balancers_to_the_chosen_nodes() {
    let cluster = Cluster::alone().unwrap();
    let way = |address: &str| {
        let output =
            cluster.router("ip").args(["-o", "route", "get", address, "ipproto", "tcp"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    cluster.route(&[2]).unwrap();
    assert!(way("198.51.100.7").contains("via 10.77.0.12 "), "{}", way("198.51.100.7"));
    assert!(way("2001:db8:51::7").contains("via fd77::12 "), "{}", way("2001:db8:51::7"));
    cluster.route_to_nobody().unwrap();
    assert!(!way("198.51.100.7").contains("via"), "{}", way("198.51.100.7"));
}

#[test]
fn a_node_without_power_is_not_ready_and_comes_back_with_its_pods() {
    let cluster = Cluster::alone().unwrap();
    let namespace = cluster.kubectl().namespace("power").unwrap();
    let port = echo(&namespace);
    let node = cluster.node(3);
    // Mounts are lost with the power; what is on disk stays.
    node.run(&["touch", "/run/volatile", "/var/lib/vestibule/kept"]).unwrap();
    node.kill().unwrap();
    node.wait_ready(false).unwrap();
    assert!(node.run(&["true"]).is_err());
    node.start().unwrap();
    node.wait_ready(true).unwrap();
    let kept = node.run(&["ls", "/var/lib/vestibule"]).unwrap();
    assert!(kept.lines().any(|line| line == "kept"), "{kept}");
    assert!(node.run(&["ls", "/run/volatile"]).is_err());
    let back = |pods: &Value| {
        let pods = pods["items"].as_array().unwrap();
        pods.len() == 3
            && pods.iter().all(|pod| {
                pod["status"]["containerStatuses"][0]["ready"] == true
                    && (pod["spec"]["nodeName"] != "node3"
                        || pod["status"]["containerStatuses"][0]["restartCount"] != 0)
            })
    };
    namespace.wait_for("pods on node3 again", &["pods"], PATIENCE, back).unwrap();
    asked(&cluster, &format!("{}:{port}", node.ipv4()));
}

//! Rollouts under traffic: of a tenant's pods, and of our own agents.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::{Cluster, Kubectl};

use crate::asker::Asker;
use crate::l2;
use crate::scene::{RELEASE, Tenant, install};
use crate::traffic::{HELD, NEW, Traffic};

/// Addresses on the nodes' segment, which one of them announces.
const ADDRESSES: [&str; 2] = ["10.77.0.196", "fd77::c4"];

/// A connection to a pod that is gone ends within this time, plus the half second between two requests on it.
const RESET: Duration = Duration::from_millis(2500);

#[test]
fn a_tenants_pods_are_replaced_and_only_their_own_connections_end() {
    let cluster = Cluster::shared().unwrap();
    install(&cluster);
    let tenant = Tenant::new(&cluster, "roll").unwrap();
    let before = tenant.pods().unwrap();
    let traffic = Traffic::start(&cluster, &tenant.target).unwrap();
    tenant.namespace.run(&["rollout", "restart", "deployment/tenant"]).unwrap();
    tenant.namespace.run(&["rollout", "status", "deployment/tenant", "--timeout=120s"]).unwrap();
    // The rollout is complete, but the last old pods are still terminating.
    while tenant.namespace.get(&["pods"]).unwrap()["items"].as_array().unwrap().len() > before.len() {
        sleep(Duration::from_millis(200));
    }
    sleep(RESET);
    let outcome = traffic.end();
    assert_eq!(outcome.failed, [] as [String; 0]);
    assert!(outcome.opened > u64::from(NEW), "{outcome:?}");
    assert_eq!(outcome.held.len(), HELD, "{outcome:?}");
    for pod in &outcome.held {
        assert!(!before.contains(pod), "a connection to {pod}, which is gone, is still held");
    }
    assert!(outcome.ended.len() >= HELD, "{} ended", outcome.ended.len());
    for ended in &outcome.ended {
        assert!(before.contains(&ended.pod), "{} was not replaced, but: {}", ended.pod, ended.how);
        assert!(ended.silence < RESET, "{} after {:?}", ended.how, ended.silence);
    }
}

#[test]
fn agents_are_replaced_and_neither_is_anything_lost_nor_does_an_address_move() {
    let cluster = Cluster::alone().unwrap();
    install(&cluster);
    let tenant = Tenant::at(&cluster, "agents", &ADDRESSES).unwrap();
    let owners = l2::settled(&cluster, &ADDRESSES).unwrap();
    let asker = Asker::start(&cluster, owners.keys()).unwrap();
    let traffic = Traffic::start(&cluster, &tenant.target).unwrap();
    let kubectl = cluster.kubectl();
    kubectl.run(&["-n", RELEASE, "rollout", "restart", "daemonset/vestibule-agent"]).unwrap();
    kubectl
        .run(&["-n", RELEASE, "rollout", "status", "daemonset/vestibule-agent", "--timeout=180s"])
        .unwrap();
    sleep(RESET);
    let outcome = traffic.end();
    assert_eq!(outcome.failed, [] as [String; 0]);
    assert!(outcome.ended.is_empty(), "{:?}", outcome.ended);
    assert!(outcome.opened > u64::from(NEW), "{outcome:?}");
    assert_eq!(outcome.held.len(), HELD);
    l2::assert_unmoved(&asker.end().unwrap(), &owners);
    assert_eq!(l2::settled(&cluster, &ADDRESSES).unwrap(), owners, "an address moved");
    let address = tenant.target.address.ip();
    assert_eq!(l2::neighbour(&cluster, &address).unwrap().as_ref(), Some(&owners[&address].link));
}

/// Makes the node schedulable again when the test is over.
struct Uncordon<'a>(&'a Kubectl, String);

impl Drop for Uncordon<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.run(&["uncordon", &self.1]) {
            eprintln!("uncordon {}: {error:#}", self.1);
        }
    }
}

/// Returns the names of the agents' pods, each with its node.
fn agents(kubectl: &Kubectl) -> Vec<(String, String)> {
    let selector = "app.kubernetes.io/component=agent";
    let pods = kubectl.get(&["-n", RELEASE, "pods", "-l", selector]).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |pod: &Value| (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]));
    let mut agents: Vec<_> = pods["items"].as_array().unwrap().iter().map(of).collect();
    agents.sort();
    agents
}

#[test]
fn a_drained_node_keeps_its_agent_and_all_flows_but_those_to_evicted_pods() {
    let cluster = Cluster::alone().unwrap();
    install(&cluster);
    let tenant = Tenant::new(&cluster, "drained").unwrap();
    let kubectl = cluster.kubectl();
    let pods = tenant.namespace.get(&["pods"]).unwrap();
    let node = pods["items"][0]["spec"]["nodeName"].as_str().unwrap().to_owned();
    let there: Vec<&str> = pods["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == node.as_str())
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .collect();
    let before = agents(kubectl);
    assert_eq!(before.len(), cluster.nodes().len(), "{before:?}");
    let traffic = Traffic::start(&cluster, &tenant.target).unwrap();
    let uncordon = Uncordon(kubectl, node.clone());
    kubectl
        .run(&["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"])
        .unwrap();
    tenant.namespace.run(&["rollout", "status", "deployment/tenant", "--timeout=120s"]).unwrap();
    sleep(RESET);
    let outcome = traffic.end();
    drop(uncordon);
    assert_eq!(agents(kubectl), before, "an agent was evicted");
    assert_eq!(outcome.failed, [] as [String; 0]);
    assert!(outcome.opened > u64::from(NEW) && outcome.held.len() == HELD, "{outcome:?}");
    assert!(!outcome.ended.is_empty(), "no connection led to {there:?}");
    for ended in &outcome.ended {
        assert!(there.contains(&ended.pod.as_str()), "{} was not evicted, but: {}", ended.pod, ended.how);
        assert!(ended.silence < RESET, "{} after {:?}", ended.how, ended.silence);
    }
}

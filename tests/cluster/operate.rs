//! What an operator needs from a pod at three in the morning: the command line and metrics.

use std::time::{Duration, Instant};

use serde_json::Value;
use tests::cluster::Cluster;

use crate::scene::{NAME, RELEASE, Tenant, install};

/// A walk over the maps begins every ten seconds.
const PATIENCE: Duration = Duration::from_secs(40);

#[test]
fn the_command_line_answers_in_the_agents_pod() {
    let cluster = Cluster::shared().unwrap();
    install(&cluster);
    let tenant = Tenant::new(&cluster, "operate").unwrap();
    let kubectl = cluster.kubectl();
    let exec = |arguments: &[&str]| {
        kubectl.run(
            &[&["-n", RELEASE, "exec", "daemonset/vestibule-agent", "--", "vestibule"], arguments].concat(),
        )
    };
    let route = format!("tlsroute/{}/tenant", tenant.namespace.name());
    let routes = exec(&["routes"]).unwrap();
    assert!(routes.contains(&route) && routes.contains(NAME), "{routes}");
    let backends = exec(&["backends"]).unwrap();
    assert!(backends.lines().filter(|line| line.contains(&route)).count() >= 3, "{backends}");
    exec(&["flows"]).unwrap();
    let to = tenant.target.address.to_string();
    let explained = exec(&["explain", "--name", NAME, "--from", "192.0.2.7", "--listener", &to]).unwrap();
    assert!(explained.contains(&route), "{explained}");
    // Programs of others are listed by number, without names: the pod has no CAP_SYS_ADMIN.
    let doctor = kubectl
        .output(&["-n", RELEASE, "exec", "daemonset/vestibule-agent", "--", "vestibule", "doctor"], "")
        .unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("ingress") && doctor.contains("eth0"), "{doctor}");
    assert!(doctor.contains(" leads"), "{doctor}");
}

#[test]
fn metrics_are_served_on_every_node() {
    let cluster = Cluster::shared().unwrap();
    install(&cluster);
    let _tenant = Tenant::new(&cluster, "metrics").unwrap();
    for node in cluster.nodes() {
        let address = format!("http://{}:9120/metrics", node.ipv4());
        let output = cluster.router("curl").args(["-s", "--max-time", "5", &address]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        for metric in ["vestibule_packets_total{", "vestibule_writer 1", "vestibule_flows "] {
            assert!(text.contains(metric), "{} has no {metric}:\n{text}", node.name());
        }
    }
}

/// One node of three may lack what it should hold: what was said stays, and Events name the node. The pod may not look at programs of
/// others.
#[test]
fn a_program_that_was_detached_is_attached_again_and_the_node_says_so() {
    let cluster = Cluster::alone().unwrap();
    install(&cluster);
    let tenant = Tenant::new(&cluster, "drift").unwrap();
    let node = cluster.node(2);
    let links = || node.run(&["ls", "/sys/fs/bpf/vestibule/links"]).unwrap();
    let before = links();
    assert!(!before.trim().is_empty());
    let programmed = || {
        let gateway = tenant.namespace.get(&["gateway", "tenant"]).unwrap();
        let conditions = gateway["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|one| one["type"] == "Programmed").unwrap().clone()
    };
    let said = programmed();
    assert_eq!(said["status"], "True");
    let says = |state: &Value| {
        let problems = state["spec"]["problems"].as_array().cloned().unwrap_or_default();
        problems
            .iter()
            .any(|one| one["missing"] == true && one["message"].to_string().contains("was detached"))
    };
    let state = ["nodestate", &*node.name()];
    let detach = || node.run(&["sh", "-c", "rm -f /sys/fs/bpf/vestibule/links/*"]).unwrap();
    detach();
    cluster.kubectl().wait_for("the exception", &state, PATIENCE, says).unwrap();
    // Were more nodes concerned, ten seconds would be enough to take it back.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        detach();
        std::thread::sleep(Duration::from_secs(1));
    }
    cluster.kubectl().wait_for("the exception again", &state, PATIENCE, says).unwrap();
    let names = |event: &Value| {
        let regarding = &event["regarding"];
        regarding["kind"] == "NodeState"
            && regarding["name"] == *node.name()
            && event["note"].as_str().is_some_and(|note| note.contains("was detached"))
    };
    let told = |events: &Value| events["items"].as_array().is_some_and(|events| events.iter().any(names));
    cluster.kubectl().wait_for("an Event", &["-A", "events.events.k8s.io"], PATIENCE, told).unwrap();
    cluster.kubectl().wait_for("no exception any more", &state, PATIENCE, |state| !says(state)).unwrap();
    // Devices of pods may be gone by now. The program of the pair for clients on the node is looked for every ten seconds.
    let begun = Instant::now();
    let are_back = || {
        let devices = node.run(&["sh", "-c", "ip -o link | cut -d: -f1"]).unwrap();
        let (devices, links): (Vec<&str>, String) = (devices.lines().collect(), links());
        let links: Vec<&str> = links.lines().collect();
        let all: Vec<&str> = before.lines().filter(|device| devices.contains(device)).collect();
        !all.is_empty() && all.iter().all(|device| links.contains(device))
    };
    while !are_back() {
        assert!(begun.elapsed() < PATIENCE, "{} of {before}", links());
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(programmed(), said, "it was never taken back");
}

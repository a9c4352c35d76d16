use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use common::maps::route::PICK_ADDRESS;
use serde_json::{Value, json};
use tests::server::{Server, Speech};
use tests::skip_without_root;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use crate::agent::scene::{Agent, CONFIG, Scene, slice, until};
use crate::process::SOON;

const VIP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)), 6443);

fn service(ranges: &[&str]) -> String {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "tenant",
            "annotations": {"vestibule.dev/addresses": "192.0.2.9"}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "vestibule.dev/lb", "loadBalancerSourceRanges": ranges,
            "allocateLoadBalancerNodePorts": false, "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}]}})
    .to_string()
}

fn dial(scene: &Scene) -> std::io::Result<TcpStream> {
    scene.outside.run(|| TcpStream::connect_timeout(&VIP, Duration::from_millis(400)))
}

/// Whether SYNs are dropped: neither answered nor refused.
fn is_unanswered(scene: &Scene) -> bool {
    dial(scene).is_err_and(|error| error.kind() == ErrorKind::TimedOut)
}

/// Changes the ranges, and waits until the agent's maps have them.
fn limit(scene: &Scene, agent: &Agent, ranges: &[&str]) {
    let patch = json!({"spec": {"loadBalancerSourceRanges": ranges}}).to_string();
    let patch = ["-n", "tenant", "patch", "service", "lb", "--type=merge", "-p", &patch];
    scene.kubectl().run(&patch).unwrap();
    until("the ranges are in the maps", &[agent], || policies(scene) == ranges.len());
}

fn policies(scene: &Scene) -> usize {
    let maps = read::open(&Pins::new(scene.pins.path())).unwrap();
    read::content(&maps).unwrap().policies.len()
}

#[test]
fn a_service_admits_its_source_ranges_as_they_are_set_changed_and_cleared() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    let at = "10.99.1.1:6443".parse().unwrap();
    let _server = Server::start(&scene.outside, at, "backend", Speech::Echo).unwrap();
    scene.kubectl().apply(&service(&["198.51.100.0/24", "2001:db8::/32"])).unwrap();
    scene.kubectl().apply(&slice("lb", "10.99.1.1").to_string()).unwrap();
    let _controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    let ingress = |service: &Value| service["status"]["loadBalancer"]["ingress"][0]["ip"] == "192.0.2.9";
    let of = ["-n", "tenant", "service", "lb"];
    scene.kubectl().wait_for("the address in its status", &of, SOON, ingress).unwrap();
    until("its SYNs are dropped", &[&agent], || policies(&scene) == 2 && is_unanswered(&scene));

    limit(&scene, &agent, &["10.98.0.0/24"]);
    // The only connection: another one, though it was closed, might be reset with it.
    let mut admitted = None;
    until("the client is admitted", &[&agent], || {
        admitted = dial(&scene).ok();
        admitted.is_some()
    });
    let mut open = admitted.unwrap();
    open.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = [0; 8];
    open.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"backend\n");

    limit(&scene, &agent, &["10.98.0.0/28", "10.98.1.0/24", "2001:db8::/32"]);
    open.write_all(b"still there").unwrap();
    open.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"still th", "it is in the narrower range, too");

    limit(&scene, &agent, &["198.51.100.0/24"]);
    let ended = loop {
        match open.read(&mut bytes) {
            Ok(0) => panic!("the connection was closed, and not reset"),
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(ended, ErrorKind::ConnectionReset);
    until("its SYNs are dropped again", &[&agent], || is_unanswered(&scene));
    let reasons = scene.read("reasons").unwrap();
    let count = |label: &str, stage: &str| {
        let is_it = |reason: &&Value| reason["reason"] == label && reason["stage"] == stage;
        reasons.iter().find(is_it).unwrap()["packets"].as_u64().unwrap()
    };
    assert_eq!(count("source_range", "expire"), 1);
    assert!(count("source_range_syn", "admit") >= 2);

    limit(&scene, &agent, &[]);
    until("everybody is admitted", &[&agent], || dial(&scene).is_ok());

    let patch = r#"{"spec": {"sessionAffinity": "ClientIP"}}"#;
    scene.kubectl().run(&["-n", "tenant", "patch", "service", "lb", "--type=merge", "-p", patch]).unwrap();
    let maps = read::open(&Pins::new(scene.pins.path())).unwrap();
    let picks = || read::content(&maps).unwrap().routes.iter().any(|(_, route)| route.pick == PICK_ADDRESS);
    until("its route picks by address", &[&agent], picks);
    assert!(dial(&scene).is_ok());
    assert_eq!(scene.refusals(), [""; 0]);
}

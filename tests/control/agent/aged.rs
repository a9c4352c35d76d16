//! A boot without the API server, with a state that was saved too long ago.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde_json::json;
use tests::server::{Server, Speech};
use tests::skip_without_root;

use super::scene::{RELEASE, Scene, until};

const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28", "2001:db8::/124"]}, "savedState": {"maxAge": "2h"},
    "settings": {"maxFlows": 10000, "maxNames": 40000, "maxHellos": 1024}}"#;
const BACKENDS: [&str; 2] = ["10.99.1.1", "fd97::1"];

/// A Service with an address and a backend of each family.
fn objects() -> Vec<serde_json::Value> {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "tenant",
            "annotations": {"vestibule.dev/addresses": "192.0.2.9,2001:db8::9"}},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "vestibule.dev/lb", "ipFamilyPolicy": "RequireDualStack",
            "allocateLoadBalancerNodePorts": false, "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}]}});
    let slices =
        [("lb-4", "IPv4", BACKENDS[0]), ("lb-6", "IPv6", BACKENDS[1])].map(|(name, family, backend)| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "tenant", "labels": {"kubernetes.io/service-name": "lb"}},
            "addressType": family, "ports": [{"name": "tls", "port": 6443, "protocol": "TCP"}],
            "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}]})
        });
    std::iter::once(service).chain(slices).collect()
}

fn vips() -> [SocketAddr; 2] {
    ["192.0.2.9:6443", "[2001:db8::9]:6443"].map(|vip| vip.parse().unwrap())
}

fn dial(scene: &Scene, vip: SocketAddr) -> std::io::Result<TcpStream> {
    scene.outside.run(|| TcpStream::connect_timeout(&vip, Duration::from_secs(1)))
}

/// Whether the backend greets a new connection to each address.
fn are_served(scene: &Scene) -> bool {
    vips().into_iter().all(|vip| {
        let Ok(mut stream) = dial(scene, vip) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).is_ok() && &bytes == b"backend\n"
    })
}

/// Puts the time at which the API server confirmed the state back.
fn age(scene: &Scene, by: Duration) {
    let file = scene.folder.path().join("state/desired");
    let text = std::fs::read_to_string(&file).unwrap();
    let (heading, rest) = text.split_once('\n').unwrap();
    let (content, _) = rest.trim_end().rsplit_once('\n').unwrap();
    let mut state: serde_json::Value = serde_json::from_str(content).unwrap();
    let confirmed = state["confirmed_secs"].as_u64().expect("the API server has confirmed it");
    state["confirmed_secs"] = (confirmed - by.as_secs()).into();
    let checked = format!("{heading}\n{state}\n");
    let sum: String =
        digest(&SHA256, checked.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(&file, format!("{checked}{sum}\n")).unwrap();
}

/// How many packets had no backend to go to.
fn without_backend(scene: &Scene) -> u64 {
    let reasons = scene.read("reasons").unwrap();
    let found = reasons.iter().find(|one| one["stage"] == "pick" && one["reason"] == "no_backend");
    found.map_or(0, |one| one["packets"].as_u64().unwrap())
}

/// The addresses of its backends may be other pods' by now.
#[test]
fn what_was_saved_too_long_ago_resets_new_connections_and_counts_why() {
    skip_without_root!();
    let mut scene = Scene::bare(CONFIG, &[]);
    scene.namespace.ip("addr add fd98::1/64 dev uplink nodad\nroute add fd97::/64 via fd98::2\n").unwrap();
    scene.outside.ip("addr add fd98::2/64 dev beyond nodad\naddr add fd97::1/128 dev lo nodad\n").unwrap();
    scene.outside.ip("route add default via fd98::1\n").unwrap();
    let _servers = BACKENDS.map(|backend| {
        let at = SocketAddr::new(backend.parse().unwrap(), 6443);
        Server::start(&scene.outside, at, "backend", Speech::Echo).unwrap()
    });
    let items = json!({"apiVersion": "v1", "kind": "List", "items": objects()});
    scene.kubectl().apply(&items.to_string()).unwrap();
    scene.settle();
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let agent = scene.agent("first");
    until("both addresses are served", &[&agent], || agent.is_ready() && are_served(&scene));
    // It saves the state when it ends.
    agent.end();
    scene.server.crash().unwrap();

    assert!(scene.vestibule().arg("detach").status().unwrap().success());
    age(&scene, Duration::from_secs(3_600));
    let agent = scene.agent_by("young", account.kubeconfig());
    until("what is young enough is served", &[&agent], || are_served(&scene));
    assert_eq!(without_backend(&scene), 0);
    agent.crash();

    assert!(scene.vestibule().arg("detach").status().unwrap().success());
    age(&scene, Duration::from_secs(2 * 3_600));
    let agent = scene.agent_by("old", account.kubeconfig());
    let is_reset =
        |vip: SocketAddr| dial(&scene, vip).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    for vip in vips() {
        until("new connections are reset", &[&agent], || is_reset(vip));
        let before = without_backend(&scene);
        assert!(is_reset(vip) && is_reset(vip), "{vip}");
        assert_eq!(without_backend(&scene), before + 2, "{vip}: each is counted, with its reason");
    }
}

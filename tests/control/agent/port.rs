//! The node's port of `/metrics`, which two agents share during an update.

use std::fs::File;

use nix::fcntl::{Flock, FlockArg};
use tests::net::Namespace;
use tests::skip_without_root;

use super::scene::{Agent, Scene, until};

const PORT: &str = "--metrics-port=9120";
const ACCESS: &str = "--metrics-address=127.0.0.1,10.98.0.1";

fn agent(scene: &Scene, pod: &str) -> Agent {
    let account = scene.kubectl().of_service_account(super::scene::RELEASE, "vestibule-agent").unwrap();
    scene.agent_with(pod, account.kubeconfig(), &[PORT, ACCESS])
}

/// Returns the value of `vestibule_writer` as a scraper sees it; `None`: no process serves the port.
fn writer(scene: &Scene) -> Option<String> {
    let mut curl = scene.namespace.command("curl");
    let output = curl.args(["-s", "--max-time", "5", "http://127.0.0.1:9120/metrics"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("vestibule_writer ").map(str::to_owned))
}

/// Nothing but the host itself reaches a port that is for others, and its VIPs and other addresses have none.
#[test]
fn the_port_is_served_on_the_nodes_own_address_for_those_who_may() {
    skip_without_root!();
    let scene = Scene::new();
    scene.namespace.ip("address add 10.98.0.77/24 dev uplink\n").unwrap();
    let account = scene.kubectl().of_service_account(super::scene::RELEASE, "vestibule-agent").unwrap();
    let flags = [PORT, ACCESS, "--metrics-source=10.98.0.2/32"];
    let first = scene.agent_with("first", account.kubeconfig(), &flags);
    let is_served = |from: &Namespace, source: &str, address: &str| {
        let mut curl = from.command("curl");
        curl.args(["-s", "--max-time", "5", "--interface", source])
            .arg(format!("http://{address}:9120/metrics"));
        String::from_utf8(curl.output().unwrap().stdout).unwrap().contains("vestibule_writer")
    };
    until("the node itself reaches it", &[&first], || is_served(&scene.namespace, "127.0.0.1", "127.0.0.1"));
    assert!(is_served(&scene.namespace, "10.98.0.1", "10.98.0.1"));
    assert!(is_served(&scene.outside, "10.98.0.2", "10.98.0.1"), "a scraper that may");
    scene.outside.ip("address add 10.98.0.3/24 dev beyond\n").unwrap();
    assert!(!is_served(&scene.outside, "10.98.0.3", "10.98.0.1"), "one that may not");
    assert!(!is_served(&scene.outside, "10.98.0.2", "10.98.0.77"), "another address of the node");
    first.end();
}

#[test]
fn an_agent_that_cannot_write_says_so_on_the_port() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    // Another process has the lock and does not hand the maps over, as `vestibule run` does.
    std::fs::create_dir_all(scene.pins.path()).unwrap();
    let folder = File::open(scene.pins.path()).unwrap();
    let lock = Flock::lock(folder, FlockArg::LockExclusiveNonblock).unwrap();
    let first = agent(&scene, "first");
    until("it says that it does not write", &[&first], || writer(&scene).as_deref() == Some("0"));
    until("its readiness says so", &[&first], || {
        first.probe("--readyz").1.contains("does not hand them over")
    });
    drop(lock);
    until("it says that it writes", &[&first], || writer(&scene).as_deref() == Some("1"));

    let second = agent(&scene, "second");
    until("the second writes", &[&first, &second], || second.is_ready());
    until("the second says so", &[&first, &second], || writer(&scene).as_deref() == Some("1"));
    assert_eq!(first.metric("vestibule_writer"), Some(0.0));
    second.crash();
    until("the first says that it writes again", &[&first], || writer(&scene).as_deref() == Some("1"));
}

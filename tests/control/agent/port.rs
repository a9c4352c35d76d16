//! The node's port of `/metrics`, which two agents share during an update.

use std::fs::File;

use nix::fcntl::{Flock, FlockArg};
use tests::skip_without_root;

use super::scene::{Agent, Scene, until};

const PORT: &str = "--metrics-port=9120";

fn agent(scene: &Scene, pod: &str) -> Agent {
    let account = scene.kubectl().of_service_account(super::scene::RELEASE, "vestibule-agent").unwrap();
    scene.agent_with(pod, account.kubeconfig(), &[PORT])
}

/// Returns the value of `vestibule_writer` as a scraper sees it; `None`: no process serves the port.
fn writer(scene: &Scene) -> Option<String> {
    let mut curl = scene.namespace.command("curl");
    let output = curl.args(["-s", "--max-time", "5", "http://127.0.0.1:9120/metrics"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("vestibule_writer ").map(str::to_owned))
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

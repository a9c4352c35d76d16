use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::skip_without_root;

use crate::agent::scene::{CONFIG, NODE, Scene, until};
use crate::process::{RELEASE, SOON};

/// A Service of our class.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: lb, namespace: tenant, annotations: {vestibule.dev/addresses: 192.0.2.6}}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  allocateLoadBalancerNodePorts: false
  ports: [{name: tls, port: 6443, protocol: TCP}]
";

/// The DaemonSet that agents are of.
const DAEMON_SET: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: vestibule-agent, namespace: vestibule-system}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      nodeSelector: {edge: \"true\"}
      containers: [{name: agent, image: none}]
";

/// The names of what `vestibule doctor` has found.
fn findings(scene: &Scene) -> Vec<String> {
    let output = scene.vestibule().args(["doctor", "-o", "json"]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let what = |line: &str| serde_json::from_str::<Value>(line).unwrap()["what"].as_str().unwrap().to_owned();
    lines.lines().map(what).collect()
}

fn is_withdrawn(scene: &Scene) -> bool {
    findings(scene).iter().any(|finding| finding == "withdrawn")
}

fn address(gateway: &Value) -> Option<&str> {
    gateway["status"]["addresses"].as_array()?.first()?["value"].as_str()
}

fn ingress(service: &Value) -> Option<&str> {
    service["status"]["loadBalancer"]["ingress"].as_array()?.first()?["ip"].as_str()
}

fn programmed(gateway: &Value) -> Option<&str> {
    let mut conditions = gateway["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == "Programmed")?["status"].as_str()
}

/// Runs `vestibule withdraw` by the controller's account.
fn withdraw(scene: &Scene, wait: &str) -> (bool, String) {
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-controller").unwrap();
    let mut command: Command = scene.vestibule();
    command.args(["withdraw", &format!("--wait={wait}")]).env("KUBECONFIG", account.kubeconfig());
    let output = command.envs([("POD_NAME", "hook"), ("POD_NAMESPACE", RELEASE)]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// As before an uninstallation; and it is not uninstalled after all.
#[test]
fn a_cluster_that_is_left_has_no_addresses_and_a_controller_takes_it_back() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    scene.kubectl().apply(SERVICE).unwrap();
    let controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    let route = ["tlsroute/tenant/a 10.99.1.1:6443"];
    until("the route is served", &[&agent], || scene.backends() == route);
    let gateway = ["-n", "tenant", "gateway", "gw"];
    let service = ["-n", "tenant", "service", "lb"];
    let is_programmed = |gateway: &Value| programmed(gateway) == Some("True");
    let before = scene.kubectl().wait_for("it is programmed", &gateway, SOON, is_programmed).unwrap();
    assert_eq!(address(&before), Some("192.0.2.5"));
    let has_ingress = |service: &Value| ingress(service).is_some();
    let granted = scene.kubectl().wait_for("an ingress", &service, SOON, has_ingress).unwrap();
    let granted = ingress(&granted).unwrap().to_owned();
    let finalizers =
        || scene.kubectl().get(&["gatewayclass", "vestibule"]).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(finalizers().as_array().map(Vec::len), Some(1), "{}", finalizers());

    let (is_done, said) = withdraw(&scene, "20s");
    assert!(
        is_done && said.contains("withdrawn: 1 nodes refuse new connections, 0 are not known to"),
        "{said}"
    );
    assert!(is_withdrawn(&scene));
    assert_eq!(scene.backends(), route, "what is open goes on");
    let check = || {
        let now = scene.kubectl().get(&gateway).unwrap();
        assert_eq!((address(&now), programmed(&now)), (None, Some("Unknown")), "{now:#}");
        let now = scene.kubectl().get(&service).unwrap();
        assert_eq!((ingress(&now), now["status"]["conditions"].is_null()), (None, true), "{now:#}");
        assert_eq!(finalizers(), Value::Null);
    };
    check();
    // The controller looks at the Lease every 2 s.
    std::thread::sleep(Duration::from_secs(5));
    check();
    assert!(controller.log().contains("does not lead any more"), "{}", controller.log());
    // `drain --cancel` is about what `drain` did.
    let output = scene.vestibule().args(["drain", "--cancel"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("stay refused"));
    assert!(is_withdrawn(&scene));

    // An agent that starts now does not take it back: it is the cluster that is left.
    drop(agent);
    let agent = scene.agent("second");
    until("the next agent writes", &[&agent], || agent.is_ready());
    assert!(is_withdrawn(&scene));

    // Instead of a minute's wait.
    scene.kubectl().run(&["-n", RELEASE, "delete", "lease", "vestibule-controller"]).unwrap();
    let after = scene.kubectl().wait_for("it is programmed again", &gateway, SOON, is_programmed).unwrap();
    assert_eq!(address(&after), Some("192.0.2.5"));
    assert!(!is_withdrawn(&scene), "programmed before the node serves it");
    let is_same = |service: &Value| ingress(service) == Some(&granted);
    scene.kubectl().wait_for("the same ingress", &service, SOON, is_same).unwrap();
    until("the finalizer", &[&agent], || finalizers().as_array().map(Vec::len) == Some(1));
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
    controller.end();
}

/// Its Lease is valid for 40 s after it was renewed last.
#[test]
fn a_node_whose_agent_hangs_is_named_and_not_waited_for_longer() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    let controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    until("the route is served", &[&agent], || !scene.backends().is_empty());
    let gateway = ["-n", "tenant", "gateway", "gw"];
    scene
        .kubectl()
        .wait_for("it is programmed", &gateway, SOON, |gw| programmed(gw) == Some("True"))
        .unwrap();
    agent.signal(Signal::SIGSTOP);
    // The controller gives the Lease back, so that the former leader is not waited for.
    controller.end();
    let begun = Instant::now();
    let (is_done, said) = withdraw(&scene, "3s");
    let took = begun.elapsed();
    agent.signal(Signal::SIGCONT);
    assert!(is_done && took < Duration::from_secs(25), "{took:?}: {said}");
    for part in ["0 nodes refuse new connections, 1 are not known to", "has not renewed its Lease"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(address(&scene.kubectl().get(&gateway).unwrap()), None);
    until("the agent goes on, and is withdrawn", &[&agent], || is_withdrawn(&scene));
}

/// Nobody follows its endpoints any more.
#[test]
fn a_node_that_the_daemon_set_leaves_refuses_new_connections() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let node = |edge: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"edge": edge}}});
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    // Starts an agent, and returns whether the node is withdrawn once it has ended.
    let ends = |pod: &str| {
        let agent = scene.agent_with(pod, account.kubeconfig(), &["--daemon-set=vestibule-agent"]);
        until("it serves", &[&agent], || agent.is_ready() && !scene.backends().is_empty());
        assert!(!is_withdrawn(&scene), "{pod}: it serves, and takes new connections");
        agent.end();
        assert_eq!(scene.backends(), ["tlsroute/tenant/a 10.99.1.1:6443"], "what is open goes on");
        let lease =
            scene.kubectl().get(&["-n", RELEASE, "lease", &format!("vestibule-agent-{NODE}")]).unwrap();
        let has_left = lease["metadata"]["annotations"]["vestibule.dev/left"] == pod;
        assert_eq!(
            has_left,
            is_withdrawn(&scene),
            "{pod}: others wait for the node as long as an agent follows"
        );
        has_left
    };
    scene.kubectl().apply(&node("true").to_string()).unwrap();
    assert!(ends("without-set"), "there is no DaemonSet");
    scene.kubectl().apply(DAEMON_SET).unwrap();
    assert!(!ends("selected"), "the DaemonSet starts another one");
    scene.kubectl().apply(&node("false").to_string()).unwrap();
    assert!(ends("unselected"), "the node is not selected any more");
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}

/// A restart of everything at once is no reason to refuse anybody.
#[test]
fn a_node_stays_when_the_api_server_does_not_answer() {
    skip_without_root!();
    let mut scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let serving = |scene: &Scene, pod: &str| {
        let agent = scene.agent_with(pod, account.kubeconfig(), &["--daemon-set=vestibule-agent"]);
        until("it serves", &[&agent], || agent.is_ready() && !scene.backends().is_empty());
        agent
    };
    // It hangs, with all connections open.
    let agent = serving(&scene, "first");
    scene.server.freeze().unwrap();
    agent.end();
    assert!(!is_withdrawn(&scene));
    scene.server.thaw().unwrap();
    // It is gone.
    let agent = serving(&scene, "second");
    scene.server.stop().unwrap();
    agent.end();
    assert!(!is_withdrawn(&scene));
}

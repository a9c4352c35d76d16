use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tests::cluster::Kubectl;
use tests::corpus;

use super::pools::define;
use super::scene::{Agent, OBJECTS, SOON, Scene};
use crate::chart::rendered::template;

/// Announces the chart's range.
const ON: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"], "l2": true}, "agentGraceSeconds": 7}"#;
/// Reads MetalLB's pools, too.
const METALLB: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"], "l2": true},
    "metallb": {"namespaces": ["metallb-system"]}}"#;

/// Creates a node.
pub(crate) fn node(kubectl: &Kubectl, name: &str) {
    let labels = json!({"kubernetes.io/hostname": name});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
    kubectl.apply(&node.to_string()).unwrap();
}

/// Grants the rights of a chart that announces.
pub(crate) fn rights(kubectl: &Kubectl) {
    let options = [
        "--set=addresses.l2=true",
        "--set=metallb.namespaces={metallb-system}",
        "--show-only=templates/rbac.yaml",
    ];
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "metallb-system"}});
    kubectl.apply(&namespace.to_string()).unwrap();
    kubectl.apply(&template(&options).unwrap()).unwrap();
}

/// Waits until this is announced. Returns the object.
pub(crate) fn wait(kubectl: &Kubectl, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    kubectl.wait_for(what, &["announcement", "vestibule"], SOON, wanted).unwrap()
}

fn members(object: &Value) -> Value {
    object["spec"]["members"].clone()
}

/// Returns what each rule covers, and on which nodes.
fn rules(object: &Value) -> Vec<(String, Value)> {
    let rules = object["spec"]["rules"].as_array().map_or(&[][..], Vec::as_slice);
    rules.iter().map(|rule| (rule["addresses"].to_string(), rule["nodes"].clone())).collect()
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

const OWN: &str = r#"["192.0.2.0/28"]"#;

#[test]
fn what_is_announced_follows_chart_and_nodes_and_is_put_back() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    rights(kubectl);
    ["n1", "n2"].iter().for_each(|name| node(kubectl, name));
    let controller = scene.controller("a");
    let agents = ["n1", "n2"].map(|node| Agent::start(&scene, node));
    let nothing = wait(kubectl, "nothing is announced", |object| object["spec"]["agentGraceSeconds"] == 15);
    assert_eq!((members(&nothing), rules(&nothing)), (json!([]), vec![]));
    scene.configure(ON);
    let is_on = |object: &Value| members(object) == json!(["n1", "n2"]);
    let on = wait(kubectl, "the chart's ranges are announced", is_on);
    assert_eq!(rules(&on), [(OWN.to_owned(), json!(null))]);
    assert_eq!(on["spec"]["agentGraceSeconds"], 7);
    let shown = kubectl.run(&["get", "announcements"]).unwrap();
    assert!(shown.contains(r#"["n1","n2"]"#) && shown.contains("192.0.2.0/28"), "{shown}");

    // Another client deletes it, and then changes it.
    kubectl.run(&["delete", "announcement", "vestibule"]).unwrap();
    wait(kubectl, "it is written again", is_on);
    let stolen = json!({"spec": {"members": ["thief"], "rules": []}}).to_string();
    kubectl.run(&["patch", "announcement", "vestibule", "--type=merge", "-p", &stolen]).unwrap();
    let on = wait(kubectl, "it is put back", is_on);
    for what in ["deleted", "changed"] {
        let selector = "--field-selector=involvedObject.kind=Announcement";
        let says = |events: &Value| {
            let notes = events["items"].as_array().unwrap();
            notes.iter().any(|one| one["message"].to_string().contains(what) && one["reason"] == "PutBack")
        };
        kubectl.wait_for("the Event", &["events", "-n", "default", selector], SOON, says).unwrap();
    }

    // A node that must not announce, and one whose agent is silent: only the former changes anything.
    let [first, second] = agents;
    drop(first);
    kubectl
        .run(&["label", "node", "n2", "node.kubernetes.io/exclude-from-external-load-balancers="])
        .unwrap();
    let one = wait(kubectl, "n2 is left out", |object| rules(object) == [(OWN.to_owned(), json!(["n1"]))]);
    assert_eq!(members(&one), json!(["n1", "n2"]));
    kubectl
        .run(&["label", "node", "n2", "node.kubernetes.io/exclude-from-external-load-balancers-"])
        .unwrap();
    let both = wait(kubectl, "n2 is back", |object| rules(object) == [(OWN.to_owned(), json!(null))]);
    // Two members' Leases are renewed, one's ends, and another controller leads: nothing is written.
    std::thread::sleep(Duration::from_secs(12));
    controller.end();
    let _next = scene.controller("b");
    std::thread::sleep(Duration::from_secs(8));
    let later = wait(kubectl, "it is there", |_| true);
    assert_eq!((version(&later), members(&later)), (version(&both), json!(["n1", "n2"])), "{on:#}");
    // A node is deleted, and the Lease of another's agent.
    kubectl.run(&["delete", "node", "n1"]).unwrap();
    wait(kubectl, "n1 leaves", |object| members(object) == json!(["n2"]));
    drop(second);
    kubectl.run(&["-n", crate::process::RELEASE, "delete", "lease", "vestibule-agent-n2"]).unwrap();
    wait(kubectl, "n2 leaves", |object| members(object) == json!([]));
    assert_eq!(scene.refusals(), [""; 0]);
}

#[test]
fn l2_advertisements_say_where_addresses_of_pools_are_announced() {
    let Some(folder) = corpus::folder() else {
        return eprintln!(
            "SKIPPED: no definitions of MetalLB; set VESTIBULE_FIXTURES to the folder that holds crds/"
        );
    };
    let metallb = |file: &str| fs::read_to_string(folder.join("crds/metallb").join(file)).unwrap();
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    rights(kubectl);
    for plural in ["ipaddresspools", "l2advertisements"] {
        define(kubectl, &format!("{plural}.metallb.io"), &metallb(&format!("metallb.io_{plural}.yaml")));
    }
    ["kind-control-plane", "n2"].iter().for_each(|name| node(kubectl, name));
    kubectl.apply(&metallb("samples/ipaddresspool_simple.yaml")).unwrap();
    kubectl.apply(&metallb("samples/l2adv_with_node_selector.yaml")).unwrap();
    scene.configure(METALLB);
    let _controller = scene.controller("a");
    let _agents = ["kind-control-plane", "n2"].map(|node| Agent::start(&scene, node));
    // It is not known for a minute yet that MetalLB is away.
    let own = (OWN.to_owned(), json!(null));
    let first = wait(kubectl, "the chart's ranges", |object| rules(object).contains(&own));
    assert_eq!(rules(&first).len(), 1, "{first:#}");
    let pool = kubectl.get(&["-n", "metallb-system", "ipaddresspool", "example"]).unwrap();
    let of_pool = |object: &Value, nodes: Value| {
        rules(object).get(1).is_some_and(|(addresses, on)| {
            let ranges = pool["spec"]["addresses"].as_array().unwrap();
            ranges.iter().any(|range| addresses.contains(range.as_str().unwrap())) && *on == nodes
        })
    };
    kubectl
        .wait_for("the pool's", &["announcement", "vestibule"], 2 * SOON, |object| {
            of_pool(object, json!(["kind-control-plane"]))
        })
        .unwrap();
    // Another one, which names a pool that is not there.
    let spec = json!({"spec": {"ipAddressPools": ["example", "gone"], "nodeSelectors": null, "interfaces": ["eth7"]}});
    let patch = ["-n", "metallb-system", "patch", "l2advertisement", "example", "--type=merge", "-p"];
    kubectl.run(&[&patch[..], &[&spec.to_string()]].concat()).unwrap();
    let changed = wait(kubectl, "all nodes", |object| of_pool(object, json!(null)));
    assert_eq!(changed["spec"]["rules"][1]["interfaces"], json!(["eth7"]));
    let says = |events: &Value| {
        let notes = events["items"].as_array().unwrap();
        notes
            .iter()
            .any(|one| one["note"].as_str().is_some_and(|note| note.contains("spec.ipAddressPools[1]")))
    };
    let events = ["-n", "metallb-system", "events.events.k8s.io"];
    kubectl.wait_for("the Event", &events, SOON, says).unwrap();
    kubectl.run(&["-n", "metallb-system", "delete", "l2advertisement", "example"]).unwrap();
    wait(kubectl, "only the chart's", |object| rules(object).len() == 1);
    assert_eq!(scene.refusals(), [""; 0]);
}

/// As where the chart does not bring its definitions.
#[test]
fn without_the_definition_of_announcements_everything_else_is_done() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.run(&["delete", "crd", "announcements.vestibule.dev"]).unwrap();
    kubectl.apply(OBJECTS).unwrap();
    let _controller = scene.controller("a");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    scene.wait("it is programmed", ["gateway", "gw"], |gateway| {
        super::scene::is(gateway, "Programmed", "True", "Programmed")
    });
}

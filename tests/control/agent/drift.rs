//! Another program takes away again and again what the agent writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::maps::backend::Backend;
use common::maps::name;
use common::maps::route::{NameRoute, ShortNameKey};
use serde_json::Value;
use tests::pinned::{clear_pinned, insert_pinned, pinned_entries, remove_pinned};
use tests::skip_without_root;
use tests::stop::Stop;

use super::scene::{CONFIG, NODE, RELEASE, Scene, until};

/// A walk each ten seconds finds it, and for ten seconds what was said is not taken back.
const LONG: Duration = Duration::from_secs(60);
/// From one walk to the next.
const WALK: Duration = Duration::from_secs(10);
/// For the walk itself, the report, and looking.
const SLACK: Duration = Duration::from_secs(9);

#[test]
fn a_route_whose_elements_are_taken_away_is_not_programmed_and_the_node_says_why() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    scene.tenant("b", "10.99.1.2");
    let agent = scene.agent("first");
    until("both routes are in the maps", &[&agent], || scene.backends().len() == 2);
    let wait = |name: &str, status: &str| wait_for(&scene, name, status);
    wait("a", "True");
    wait("b", "True");

    let backends = scene.pins.path().join(name::BACKENDS);
    let of_a = || {
        let all = pinned_entries::<u32, Backend>(&backends).unwrap();
        let address = common::maps::address::Address::from(std::net::IpAddr::from([10, 99, 1, 1]));
        all.into_iter().find(|(_, backend)| backend.address == address).map(|(id, _)| id)
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if let Some(id) = of_a() {
                    // The agent may be about to do the same.
                    let _ = remove_pinned::<u32, Backend>(&backends, id);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let _stop = Stop(&is_over);
        let lost = |state: &Value| {
            let problems = state["spec"]["problems"].as_array().cloned().unwrap_or_default();
            problems.iter().any(|one| one["object"] == "TLSRoute/tenant/a" && one["missing"] == true)
        };
        scene.kubectl().wait_for("the node's exception", &["nodestate", NODE], LONG, lost).unwrap();
        let message = wait("a", "False");
        assert!(message.contains(NODE) && message.contains("by another program"), "{message}");
        wait("b", "True");
        let account = scene.kubectl().of_service_account(RELEASE, "vestibule-controller").unwrap();
        let mut command = scene.vestibule();
        command.args(["claims", "--missing"]).env("POD_NAMESPACE", RELEASE);
        let output = command.env("KUBECONFIG", account.kubeconfig()).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("TLSRoute tenant/a") && said.contains("0/1") && said.contains(NODE), "{said}");
        assert!(!said.contains("TLSRoute tenant/b"), "{said}");
    });
    wait("a", "True");
    until("nothing is reported any more", &[&agent], || {
        scene.kubectl().get(&["nodestate", NODE]).unwrap()["spec"].get("problems").is_none()
    });
}

/// Once, as with `bpftool map delete`: found within one walk, and written again.
#[test]
fn an_element_that_is_deleted_once_is_found_within_one_walk() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let agent = scene.agent("first");
    until("the route is in the maps", &[&agent], || scene.backends().len() == 1);
    wait_for(&scene, "a", "True");
    let backends = scene.pins.path().join(name::BACKENDS);
    let all = || pinned_entries::<u32, Backend>(&backends).unwrap();
    let [(id, before)] = all()[..] else { panic!("the route has one backend") };
    remove_pinned::<u32, Backend>(&backends, id).unwrap();
    let begun = Instant::now();
    let lost = |state: &Value| {
        let problems = state["spec"]["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().any(|one| one["object"] == "TLSRoute/tenant/a" && one["missing"] == true)
    };
    scene.kubectl().wait_for("the node's exception", &["nodestate", NODE], WALK + SLACK, lost).unwrap();
    until("the element is there again", &[&agent], || all() == [(id, before)]);
    assert!(begun.elapsed() < WALK + SLACK, "{:?}", begun.elapsed());
}

/// Another program has filled a map: what is missing there cannot be written again until there is room.
#[test]
fn a_route_whose_name_cannot_be_written_is_not_programmed_until_it_can() {
    skip_without_root!();
    let mut scene = Scene::bare(&CONFIG.replace("40000", "64"), &[]);
    scene.settle();
    scene.tenant("a", "10.99.1.1");
    let agent = scene.agent("first");
    until("the route is in the maps", &[&agent], || scene.backends().len() == 1);
    wait_for(&scene, "a", "True");

    let names = scene.pins.path().join(name::ROUTES_EXACT);
    let [(own, value)] = pinned_entries::<ShortNameKey, NameRoute>(&names).unwrap()[..] else {
        panic!("the route has one name")
    };
    let mut others = (0_u32..).map(|number| {
        let mut other = own;
        other.name[..4].copy_from_slice(&number.to_be_bytes());
        other
    });
    while insert_pinned(&names, others.next().unwrap(), value).is_ok() {}
    remove_pinned::<ShortNameKey, NameRoute>(&names, own).unwrap();
    insert_pinned(&names, others.next().unwrap(), value).unwrap();
    let lost = |state: &Value| {
        let problems = state["spec"]["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().any(|one| one["object"] == "TLSRoute/tenant/a" && one["missing"] == true)
    };
    scene.kubectl().wait_for("the node's exception", &["nodestate", NODE], LONG, lost).unwrap();
    let message = wait_for(&scene, "a", "False");
    assert!(message.contains(NODE), "{message}");
    let is_there = || {
        let all = pinned_entries::<ShortNameKey, NameRoute>(&names).unwrap();
        all.iter().any(|(key, _)| key.name == own.name)
    };
    assert!(!is_there(), "it cannot be written");

    clear_pinned::<ShortNameKey, NameRoute>(&names).unwrap();
    wait_for(&scene, "a", "True");
    assert!(is_there());
    until("nothing is reported any more", &[&agent], || {
        scene.kubectl().get(&["nodestate", NODE]).unwrap()["spec"].get("problems").is_none()
    });
}

/// Found without any event: nobody reports a change of the setting.
#[test]
fn what_a_device_that_does_not_forward_serves_is_not_programmed() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let agent = scene.agent("first");
    until("the route is in the maps", &[&agent], || scene.backends().len() == 1);
    wait_for(&scene, "a", "True");
    let forwarding = "net/ipv4/conf/uplink/forwarding";
    scene.namespace.sysctl(forwarding, "0").unwrap();
    let message = wait_for(&scene, "a", "False");
    assert!(message.contains("does not forward IPv4 on device uplink"), "{message}");
    let state = scene.kubectl().get(&["nodestate", NODE]).unwrap();
    let objects: Vec<&Value> =
        state["spec"]["problems"].as_array().unwrap().iter().map(|one| &one["object"]).collect();
    assert_eq!(objects, ["Gateway/tenant/gw", "TLSRoute/tenant/a"]);
    scene.namespace.sysctl(forwarding, "1").unwrap();
    wait_for(&scene, "a", "True");
}

/// Waits until a route's condition `vestibule.dev/Programmed` has this status. Returns its message.
fn wait_for(scene: &Scene, name: &str, status: &str) -> String {
    let programmed = |route: &Value| {
        let conditions = route["status"]["parents"][0]["conditions"].as_array().cloned().unwrap_or_default();
        let ours = conditions.into_iter().find(|one| one["type"] == "vestibule.dev/Programmed");
        ours.filter(|one| one["status"] == status)
    };
    let what = format!("route {name} with Programmed={status}");
    let route = ["-n", "tenant", "tlsroute", name];
    let found = scene.kubectl().wait_for(&what, &route, LONG, |route| programmed(route).is_some()).unwrap();
    programmed(&found).unwrap()["message"].as_str().unwrap().to_owned()
}

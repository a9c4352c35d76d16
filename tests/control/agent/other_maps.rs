//! Maps of another version, and an agent that finds them: what `deploy/README.md` says under "Other maps".

use common::maps::{ABI_VERSION, name};
use tests::pinned::set_pinned;
use tests::skip_without_root;
use userspace::dataplane::load::pinned_sizes;
use userspace::dataplane::pin;

use super::scene::{CONFIG, Scene, until};

#[test]
fn an_agent_that_finds_other_maps_waits_until_they_are_detached_in_its_own_pod() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let old = scene.agent("old");
    until("the route is in the maps", &[&old], || scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]);
    until("the agent is ready", &[&old], || old.is_ready());
    let detach = || scene.vestibule().arg("detach").output().unwrap();
    assert!(!detach().status.success(), "the old agent writes");

    // As while an update goes on: the new agent asks for nothing that it cannot read.
    let maps = pin::Pins::new(scene.pins.path());
    set_pinned(&maps.map(name::ABI), 0, ABI_VERSION - 1).unwrap();
    scene.folder.write("vestibule.json", CONFIG.replace("10000", "20000")).unwrap();
    let mut new = scene.agent("new");
    let says = format!("have ABI version {}", ABI_VERSION - 1);
    until("the new agent says what it found", &[&old, &new], || new.log().contains(&says));
    let (is_ready, why) = new.probe("--readyz");
    assert!(!is_ready && why.contains(&says), "{why}");
    assert!(new.probe("--livez").0 && new.is_running());
    assert_eq!(old.metric("vestibule_writer"), Some(1.0), "the old agent serves on");

    old.end();
    assert!(maps.holds_maps() && !new.is_ready());
    let detached = detach();
    assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    until("the new agent writes maps of its own", &[&new], || {
        scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]
    });
    until("the new agent is ready", &[&new], || new.is_ready());
    assert_eq!(pinned_sizes(&maps).unwrap().unwrap().flows, 10_000, "sizes were taken over as it started");
}

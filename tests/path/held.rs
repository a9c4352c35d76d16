//! Connections that a client holds without taking part: the daemon itself ends them.

use std::time::Duration;

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, Flow};
use common::maps::name;
use tests::addresses::server_name;
use tests::config::Config;
use tests::hello::hello;
use tests::pinned::pinned_entries;
use tests::topology::Options;

use crate::crowd::Crowd;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// How many clients say hello and never acknowledge what the backend answers.
const SILENT: usize = 5;
/// They have a minute, and the daemon looks at all flows every ten seconds.
const LATEST: Duration = Duration::from_secs(100);

/// Returns how many flows are open.
fn open(scene: &Scene) -> usize {
    let flows = pinned_entries::<ClientTuple, Flow>(&scene.daemon.pins().join(name::FLOWS)).unwrap();
    flows.iter().filter(|(_, flow)| flow.connection.state == FLOW_ESTABLISHED).count()
}

/// Each of them held a source port of its backend for 25 hours.
#[test]
fn clients_that_never_acknowledge_are_ended_after_a_minute() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &Config::lab_on(ECHO_PORT));
    let mut crowd = Crowd::new(&scene, SILENT);
    crowd.connect();
    crowd.say_all(&hello().name(server_name(0)).bytes());
    assert!(eventually(Duration::from_secs(10), || open(&scene) == SILENT), "{:?}", scene.daemon.reasons());
    // Longer than a walk: they are not ended early.
    std::thread::sleep(Duration::from_secs(45));
    assert_eq!(open(&scene), SILENT, "{:?}", scene.daemon.reasons());
    assert!(eventually(LATEST, || open(&scene) == 0), "{:?}", scene.daemon.reasons());
    assert_eq!(scene.daemon.reasons().unwrap().get("ExpireHeld"), Some(&(SILENT as u64)));
}

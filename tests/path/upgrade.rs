//! Upgrades to another version of vestibule and back, under traffic.

use common::maps::{ABI_VERSION, name};
use nix::sys::signal::Signal;
use tests::daemon::Daemon;
use tests::pinned::{pinned_program, set_pinned};
use tests::topology::Lab;

use crate::scene::Scene;
use crate::traffic::under_traffic;

/// The number of upgrades in each test.
const ROUNDS: usize = 20;

/// Returns the kernel's id of the program that the last start pinned.
fn program(daemon: &Daemon) -> u32 {
    pinned_program(&daemon.pins().join("programs/ingress")).unwrap()
}

/// Returns our programs on all devices with their ids, as `vestibule doctor` reports them.
fn on_devices(daemon: &Daemon, lab: &Lab) -> Vec<String> {
    let output = daemon.command(&lab.balancer).unwrap().args(["doctor", "-o", "json"]).output().unwrap();
    let findings = tests::report::objects(&String::from_utf8_lossy(&output.stdout)).unwrap();
    let hooks =
        findings.iter().filter(|one| one["what"].as_str().is_some_and(|w| w.ends_with("tcx/ingress")));
    hooks.map(|one| one["found"].as_str().unwrap().to_owned()).collect()
}

/// Makes the maps look as if another version had created them.
fn set_version(daemon: &Daemon, version: u32) {
    set_pinned(&daemon.pins().join(name::ABI), 0, version).unwrap();
}

/// With the same map layout, the next start adopts the maps and replaces the old programs with its own.
#[test]
fn twenty_upgrades_lose_nothing() {
    tests::skip_without_root!();
    under_traffic(Scene::echo(), |daemon, lab, traffic| {
        for round in 0..ROUNDS {
            let before = program(daemon);
            daemon.end(if round % 2 == 0 { Signal::SIGTERM } else { Signal::SIGKILL }).unwrap();
            daemon.launch(&lab.balancer).unwrap();
            let after = program(daemon);
            assert_ne!(before, after, "round {round}: the programs are the old ones");
            let devices = on_devices(daemon, lab);
            assert!(devices.len() >= 4, "{devices:?}");
            assert!(devices.iter().all(|found| *found == format!("#{after} (ours)")), "{devices:?}");
            traffic.assert_goes_on("after an upgrade");
        }
    });
}

/// If the pinned maps have another ABI version, newer and older in turn, a start refuses before it changes
/// anything, and the running programs keep serving.
#[test]
fn twenty_upgrades_and_rollbacks_to_other_maps_are_refused_and_lose_nothing() {
    tests::skip_without_root!();
    under_traffic(Scene::echo(), |daemon, lab, traffic| {
        daemon.end(Signal::SIGTERM).unwrap();
        let (serving, devices) = (program(daemon), on_devices(daemon, lab));
        for round in 0..ROUNDS {
            let pinned = if round % 2 == 0 { ABI_VERSION + 1 } else { ABI_VERSION - 1 };
            set_version(daemon, pinned);
            let refused = format!("{:#}", daemon.launch(&lab.balancer).unwrap_err());
            let versions = format!("have ABI version {pinned}, this vestibule has {ABI_VERSION}");
            assert!(refused.contains(&versions) && refused.contains("nothing was touched"), "{refused}");
            assert!(refused.contains("vestibule drain") && refused.contains("vestibule detach"), "{refused}");
            assert_eq!((program(daemon), on_devices(daemon, lab)), (serving, devices.clone()));
            traffic.assert_goes_on("after a refused upgrade");
        }
        set_version(daemon, ABI_VERSION);
        daemon.launch(&lab.balancer).unwrap();
        traffic.assert_goes_on("with the version that made the maps");
    });
}

/// A release may have maps that the one before it had not: the next start makes them. One that does not know them, after a rollback, lets
/// them be.
#[test]
fn maps_that_another_release_has_are_made_and_let_be() {
    tests::skip_without_root!();
    under_traffic(Scene::echo(), |daemon, lab, traffic| {
        let pins = daemon.pins().to_owned();
        let pin = |map: &str| pins.join(map);
        let newer = [
            name::POLICIES,
            name::DNAT_FLOWS,
            name::ANNOUNCED,
            name::SEGMENTS,
            name::HEARD,
            name::BIDS,
            name::OWNED,
            name::PREVIOUS,
            name::PEERS,
            name::FRONT,
            name::FRONT_HOPS,
        ];
        daemon.end(Signal::SIGTERM).unwrap();
        for map in newer {
            std::fs::remove_file(pin(map)).unwrap();
        }
        std::fs::hard_link(pin(name::LABELS), pin("LATER")).unwrap();
        traffic.assert_goes_on("before the upgrade");
        daemon.launch(&lab.balancer).unwrap();
        traffic.assert_goes_on("after the upgrade");
        assert!(newer.into_iter().all(|map| pin(map).exists()) && pin("LATER").exists());
    });
}

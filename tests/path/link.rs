//! Changes to devices and neighbours under open connections.

use std::io::{Read, Write};
use std::time::Duration;

use tests::addresses::{FAMILIES, server_name};
use tests::net::Namespace;
use tests::topology::{CLIENT_DEVICE, UPLINK};

use crate::open::Open;
use crate::scene::{Scene, eventually};

/// Moves the addresses to another router, as VRRP does: the same addresses at another MAC, announced.
fn take_over(router: &Namespace) {
    router.sysctl(&format!("net/ipv4/conf/{UPLINK}/arp_notify"), "1").unwrap();
    router.sysctl(&format!("net/ipv6/conf/{UPLINK}/ndisc_notify"), "1").unwrap();
    router.ip(&format!("link set {UPLINK} address 02:00:5e:00:01:07\n")).unwrap();
}

/// Returns the neighbours on a device of the balancer, with their MACs.
fn neighbours(balancer: &Namespace, device: &str) -> String {
    let output = balancer.command("ip").args(["neigh", "show", "dev", device]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn connections_go_on_when_the_next_hop_gets_another_mac() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let mut kept = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)));
    for (router, device) in
        [(&scene.lab.client, CLIENT_DEVICE), (&scene.lab.tenants[0].namespace, scene.lab.tenants[0].name)]
    {
        take_over(router);
        kept.iter_mut().for_each(Open::assert_alive);
        let now = neighbours(&scene.lab.balancer, device);
        assert!(now.contains("02:00:5e:00:01:07"), "{device}: {now}");
    }
    for family in FAMILIES {
        Open::by_name(&scene, family, &server_name(0)).assert_alive();
    }
    drop(kept);
    scene.assert_nothing_leaks();
}

#[test]
fn connections_outlast_a_device_that_goes_and_returns() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let mut kept = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)));
    let mut others = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(1)));
    scene.lab.unlink_tenant(0).unwrap();
    let ways = |wanted: bool| {
        eventually(Duration::from_secs(5), || {
            // Runs in the balancer's namespace, where the devices have names.
            let mut command = scene.daemon.command(&scene.lab.balancer).unwrap();
            let output = command.args(["backends", "-o", "json"]).output().unwrap();
            let backends = tests::report::objects(&String::from_utf8_lossy(&output.stdout)).unwrap();
            let mut theirs = backends.iter().filter(|one| one["route"] == "tenant-a");
            theirs.all(|one| (one["device"] == "tenant-a") == wanted)
        })
    };
    assert!(ways(false), "the daemon does not notice that the device is gone");
    for open in &mut kept {
        open.stream.write_all(b"into the dark").unwrap();
    }
    others.iter_mut().for_each(Open::assert_alive);
    scene.lab.relink_tenant(0).unwrap();
    assert!(ways(true), "the daemon does not notice that the device is back");
    for open in &mut kept {
        let mut echo = [0; 13];
        open.stream.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"into the dark");
        open.assert_alive();
    }
    for family in FAMILIES {
        Open::by_name(&scene, family, &server_name(0)).assert_alive();
    }
    drop((kept, others));
    scene.assert_nothing_leaks();
}

//! Super-packets of more than 64 KiB (BIG TCP). In IPv6 the kernel, up to 6.19, puts a hop-by-hop header with the length into
//! them (RFC 2675); in IPv4 the length field is zero.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::clients::User;
use tests::config::Config;
use tests::offload;
use tests::tap::Tap;
use tests::tls;
use tests::topology::{CLIENT_DEVICE, Options, UPLINK};

use crate::bulk::{MIB, exchange};
use crate::scene::{Scene, Stop, turn};

/// The largest super-packet of the devices in these tests, and the largest without BIG TCP.
const LARGEST: u32 = 180_000;
const USUAL: u32 = 65_536;

/// Where packets may be large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// On all devices.
    Everywhere,
    /// Only where packets come from: the device that they leave on gets them cut.
    AtSenders,
}

/// Sets the largest super-packet of each device between the ends; `false`: this kernel has no such setting.
fn widen(scene: &Scene, place: Where) -> bool {
    let lab = &scene.lab;
    let ends = [(&lab.client, UPLINK), (&lab.tenants[0].namespace, UPLINK)];
    let near = [(&lab.balancer, CLIENT_DEVICE), (&lab.balancer, tenant_name(0))];
    for (namespace, device) in ends.into_iter().chain(near.into_iter().filter(|_| place == Where::Everywhere))
    {
        if let Err(error) = offload::set_super_packets(namespace, device, LARGEST) {
            eprintln!("SKIPPED: BIG TCP: {error:#}");
            return false;
        }
    }
    true
}

/// Counts frames of a family that come in on a device of the balancer and are larger than any without BIG TCP.
fn count_large(tap: &Tap, family: Family, stop: &AtomicBool) -> u64 {
    let mut buffer = vec![0; 2 * LARGEST as usize];
    let (mut large, protocol) = (0, if family.is_v4() { [8, 0] } else { [0x86, 0xdd] });
    loop {
        let over = stop.load(Ordering::Relaxed);
        while let Some(frame) = tap.receive(&mut buffer).unwrap() {
            large += u64::from(frame.len() > USUAL as usize + 14 && frame[12..14] == protocol);
        }
        if over {
            return large;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn story(place: Where) {
    tests::skip_without_root!();
    let _turn = turn();
    let scene = Scene::with(&Options::default(), &Config::lab());
    if !widen(&scene, place) {
        return;
    }
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    for family in FAMILIES {
        let stop = AtomicBool::new(false);
        let taps =
            [CLIENT_DEVICE, tenant_name(0)].map(|device| Tap::open(&scene.lab.balancer, device).unwrap());
        let (large, moved) = std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let counts = taps.each_ref().map(|tap| scope.spawn(|| count_large(tap, family, &stop)));
            let (done, moved) = scene.counted(|| {
                scene.lab.client.run(|| {
                    let to = scene.lab.vip(family, TLS_PORT);
                    exchange(tls::connect(to, user.config(), &server_name(0))?, 32 * MIB, 7)
                })
            });
            done.unwrap_or_else(|error| panic!("{family:?} {place:?}: {error:#}; {moved:?}"));
            stop.store(true, Ordering::Relaxed);
            (counts.map(|count| count.join().unwrap()), moved)
        });
        eprintln!("{family:?} {place:?}: {large:?} large packets from client and backend; {moved:?}");
        assert!(large.iter().all(|count| *count > 0), "{family:?} {place:?}: {large:?}");
    }
    scene.assert_nothing_leaks();
}

#[test]
fn super_packets_over_64_kib_pass_in_both_directions() {
    story(Where::Everywhere);
}

#[test]
fn super_packets_over_64_kib_are_cut_for_a_device_that_takes_none() {
    story(Where::AtSenders);
}

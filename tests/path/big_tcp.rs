//! Super-packets of more than 64 KiB (BIG TCP). In IPv6 the kernel, up to 6.19, puts a hop-by-hop header with the length into
//! them (RFC 2675); in IPv4 the length field is zero.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::clients::User;
use tests::config::Config;
use tests::machine;
use tests::offload;
use tests::tap::Tap;
use tests::tls;
use tests::topology::{CLIENT_DEVICE, Options, UPLINK};

use crate::bulk::{MIB, exchange};
use crate::scene::{Scene, turn};
use tests::stop::Stop;

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

/// The first kernel that has them in IPv4, too.
const KERNEL: (u32, u32) = (6, 3);

/// Sets the largest super-packet of each device between the ends; `false`: this kernel has no such setting.
fn widen(scene: &Scene, place: Where) -> bool {
    let lab = &scene.lab;
    let ends = [(&lab.client, UPLINK), (&lab.tenants[0].namespace, UPLINK)];
    let near = [(&lab.balancer, CLIENT_DEVICE), (&lab.balancer, tenant_name(0))];
    for (namespace, device) in ends.into_iter().chain(near.into_iter().filter(|_| place == Where::Everywhere))
    {
        if let Err(error) = offload::set_super_packets(namespace, device, LARGEST) {
            let version = machine::kernel();
            let is_old = machine::numbers(&version).is_some_and(|numbers| numbers < KERNEL);
            assert!(is_old || !machine::is_ci(), "BIG TCP: {error:#}, although this is Linux {version}");
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

/// Runs `story` in the client's namespace; returns how many large packets the balancer got from the client and from the backend,
/// and which counters moved.
fn watched(
    scene: &Scene,
    family: Family,
    story: impl FnOnce() -> Result<()> + Send,
) -> ([u64; 2], BTreeMap<String, u64>) {
    let stop = AtomicBool::new(false);
    let taps = [CLIENT_DEVICE, tenant_name(0)].map(|device| Tap::open(&scene.lab.balancer, device).unwrap());
    let (large, moved) = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let counts = taps.each_ref().map(|tap| scope.spawn(|| count_large(tap, family, &stop)));
        let (done, moved) = scene.counted(|| scene.lab.client.run(story));
        done.unwrap_or_else(|error| panic!("{family:?}: {error:#}; {moved:?}"));
        stop.store(true, Ordering::Relaxed);
        (counts.map(|count| count.join().unwrap()), moved)
    });
    eprintln!("{family:?}: {large:?} large packets; {moved:?}");
    (large, moved)
}

/// Starts a scene whose devices take large packets; `None`: this kernel has none.
fn scene(place: Where) -> Option<(Scene, User)> {
    let scene = Scene::with(&Options::default(), &Config::lab());
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    widen(&scene, place).then_some((scene, user))
}

fn story(place: Where) {
    tests::skip_without_root!();
    let _turn = turn();
    let Some((scene, user)) = scene(place) else { return };
    for family in FAMILIES {
        let (large, _) = watched(&scene, family, || {
            let to = scene.lab.vip(family, TLS_PORT);
            exchange(tls::connect(to, user.config(), &server_name(0))?, 32 * MIB, 7)
        });
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

#[test]
fn the_sender_of_a_super_packet_over_64_kib_learns_the_mtu() {
    tests::skip_without_root!();
    let _turn = turn();
    let Some((scene, user)) = scene(Where::Everywhere) else { return };
    // Both before the MTU changes: later connections get a smaller segment size.
    let streams = FAMILIES.map(|family| {
        let to = scene.lab.vip(family, TLS_PORT);
        scene.lab.client.run(|| tls::connect(to, user.config(), &server_name(0))).unwrap()
    });
    for (family, mut stream) in FAMILIES.into_iter().zip(streams) {
        // Until large packets are in flight.
        watched(&scene, family, || exchange(&mut stream, 16 * MIB, 7));
        scene.lab.balancer.ip(&format!("link set {} mtu 1400\n", tenant_name(0))).unwrap();
        let (large, moved) = watched(&scene, family, || exchange(&mut stream, 16 * MIB, 8));
        assert!(
            large[0] > 0 && moved.contains_key(Reason::IcmpTooBig.name()),
            "{family:?}: {large:?} {moved:?}"
        );
        scene.lab.balancer.ip(&format!("link set {} mtu 1500\n", tenant_name(0))).unwrap();
    }
    scene.assert_nothing_leaks();
}

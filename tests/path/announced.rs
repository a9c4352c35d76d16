//! Addresses that are announced by ARP and neighbour discovery, to hosts of the same segment.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use common::maps::announced::{Announced, AnnouncedKey};
use common::maps::name;
use common::reason::Reason;
use common::wire::arp::{self, About, Message};
use common::wire::ndp;
use nix::sys::signal::Signal;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, vip};
use tests::config::{Config, L2};
use tests::net::Namespace;
use tests::pinned::pinned_entries;
use tests::tap::Tap;
use tests::tls;
use tests::topology::{CLIENT_DEVICE, Options, UPLINK};

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// The lab's configuration, with addresses announced.
fn announcing() -> Config {
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.l2 = Some(L2 { enabled: true });
    config
}

/// Starts the lab with a client that has the VIPs on its own segment.
fn scene(config: &Config) -> Scene {
    let scene = Scene::echo_with(&Options::default(), config);
    for family in FAMILIES {
        scene.lab.client.ip(&format!("route add {} dev {UPLINK}\n", vip(family))).unwrap();
    }
    scene
}

/// Runs a command in a namespace and returns what it prints.
fn output(namespace: &Namespace, program: &str, arguments: &[&str]) -> String {
    let mut command: Command = namespace.command(program);
    let output = command.args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the client's kernel knows the address by this link address.
fn knows(scene: &Scene, family: Family, link: [u8; 6]) -> bool {
    let text = output(&scene.lab.client, "ip", &["neigh", "show", &vip(family).to_string()]);
    text.contains(&format!("lladdr {}", written(link)))
}

fn written(link: [u8; 6]) -> String {
    link.map(|byte| format!("{byte:02x}")).join(":")
}

fn forget(scene: &Scene) {
    scene.lab.client.ip(&format!("neigh flush dev {UPLINK}\n")).unwrap();
}

fn announced(scene: &Scene) -> BTreeMap<(u32, IpAddr), [u8; 6]> {
    let entries =
        pinned_entries::<AnnouncedKey, Announced>(&scene.daemon.pins().join(name::ANNOUNCED)).unwrap();
    entries.into_iter().map(|(key, value)| ((key.device, key.address.into()), value.link)).collect()
}

/// Whether the balancer's device towards the client is a member of the VIP's group: whether its filter lets frames to it pass, and
/// whether the kernel reports it.
fn membership(scene: &Scene) -> [bool; 2] {
    let IpAddr::V6(address) = vip(Family::V6) else { unreachable!("a VIP of IPv6") };
    let group = ndp::solicited_node(address);
    let [.., a, b, c, d] = group.octets();
    let link = written([0x33, 0x33, a, b, c, d]);
    let shown = output(&scene.lab.balancer, "ip", &["maddr", "show", "dev", CLIENT_DEVICE]);
    let has =
        |kind: &str, member: &str| shown.lines().any(|line| line.contains(kind) && line.contains(member));
    [has("static", &link), has("inet6", &group.to_string())]
}

fn counted(scene: &Scene, reason: Reason) -> u64 {
    scene.daemon.reasons().unwrap().get(reason.name()).copied().unwrap_or_default()
}

#[test]
fn hosts_of_the_segment_find_an_address_that_is_on_no_device_or_on_the_loopback_device() {
    tests::skip_without_root!();
    let scene = scene(&announcing());
    let link = scene.lab.balancer.mac(CLIENT_DEVICE).unwrap();
    for addresses in ["no device", "the loopback device"] {
        for family in FAMILIES {
            let before = counted(&scene, Reason::NeighbourAnswered);
            Open::by_name(&scene, family, &server_name(0)).assert_alive();
            assert!(knows(&scene, family, link), "with the addresses on {addresses}");
            // The kernel would answer for an address of its own.
            assert!(counted(&scene, Reason::NeighbourAnswered) > before, "{family:?} on {addresses}");
        }
        forget(&scene);
        for address in FAMILIES.map(vip) {
            scene.lab.balancer.ip(&format!("addr replace {address} dev lo\n")).unwrap();
        }
    }
    assert_eq!(membership(&scene), [true; 2]);
    let shown = scene.daemon.cli_text(&["vips"]).unwrap();
    let is_shown = |address: IpAddr| {
        shown.lines().any(|line| line.contains(&address.to_string()) && line.contains("this node"))
    };
    assert!(FAMILIES.map(vip).into_iter().all(is_shown), "{shown}");
}

#[test]
fn nothing_is_answered_or_announced_without_the_setting() {
    tests::skip_without_root!();
    let scene = scene(&Config::lab_on(ECHO_PORT));
    let tap = Tap::open(&scene.lab.client, UPLINK).unwrap();
    for family in FAMILIES {
        let to = SocketAddr::new(vip(family), TLS_PORT);
        assert!(scene.lab.client.run(|| tls::dial(to)).is_err(), "{family:?}");
    }
    assert_eq!(claims(&tap, &[]), []);
    assert_eq!((announced(&scene), membership(&scene)), (BTreeMap::new(), [false; 2]));
    let own = scene.daemon.reload(&announcing()).unwrap();
    for family in FAMILIES {
        Open::by_name(&scene, family, &server_name(0)).assert_alive();
    }
    assert!(own < Duration::from_secs(5));
    scene.daemon.reload(&Config::lab_on(ECHO_PORT)).unwrap();
    forget(&scene);
    for family in FAMILIES {
        let to = SocketAddr::new(vip(family), TLS_PORT);
        assert!(scene.lab.client.run(|| tls::dial(to)).is_err(), "{family:?}");
    }
    assert_eq!((announced(&scene), membership(&scene)), (BTreeMap::new(), [false; 2]));
}

/// An announcement: its address, and the ARP operation or 0.
type Claim = (IpAddr, u16);

/// Returns the announcements of the VIPs that arrived since the last call, after those seen before.
fn claims(tap: &Tap, seen: &[Claim]) -> Vec<Claim> {
    let claim = |frame: Vec<u8>| {
        // To all hosts: not the answer to a question.
        if frame.get(12..14) == Some(&[8, 6]) && frame.get(..6) == Some(&arp::BROADCAST) {
            let message = Message::read(frame[14..].first_chunk()?)?;
            let (About::Claims, address) = message.about() else { return None };
            return Some((IpAddr::from(address), message.operation));
        }
        let is_advertisement =
            frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(54) == Some(&ndp::ADVERTISEMENT);
        let target: &[u8; 16] = frame.get(62..)?.first_chunk()?;
        let is_to_all = frame.get(..6) == Some(&ndp::ALL_HOSTS_LINK);
        (is_advertisement && is_to_all).then_some((IpAddr::from(*target), 0))
    };
    let new = tap.drain().unwrap().into_iter().filter_map(claim);
    let is_vip = |claim: &Claim| FAMILIES.map(vip).contains(&claim.0);
    seen.iter().copied().chain(new.filter(is_vip)).collect()
}

/// Collects announcements until there are this many, or for five seconds.
fn collect(tap: &Tap, count: usize) -> Vec<Claim> {
    let mut seen = Vec::new();
    let begun = Instant::now();
    while seen.len() < count && begun.elapsed() < Duration::from_secs(5) {
        seen = claims(tap, &seen);
        std::thread::sleep(Duration::from_millis(10));
    }
    // Nor more than that.
    std::thread::sleep(Duration::from_millis(300));
    seen = claims(tap, &seen);
    seen.sort();
    seen
}

/// What one take-over announces.
fn once() -> Vec<Claim> {
    vec![(vip(Family::V4), arp::REQUEST), (vip(Family::V4), arp::REPLY), (vip(Family::V6), 0)]
}

#[test]
fn a_take_over_is_announced_three_times_and_a_restart_once() {
    tests::skip_without_root!();
    let mut scene = scene(&Config::lab_on(ECHO_PORT));
    let tap = Tap::open(&scene.lab.client, UPLINK).unwrap();
    let begun = Instant::now();
    scene.daemon.reload(&announcing()).unwrap();
    let mut thrice = once().repeat(3);
    thrice.sort();
    assert_eq!(collect(&tap, thrice.len()), thrice);
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    let held = announced(&scene);
    assert!(held.len() >= 2, "{held:?}");
    // While the daemon is dead, the kernel goes on answering.
    scene.daemon.end(Signal::SIGKILL).unwrap();
    forget(&scene);
    for family in FAMILIES {
        Open::by_name(&scene, family, &server_name(0)).assert_alive();
    }
    assert_eq!(membership(&scene), [true, false]);
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert_eq!((announced(&scene), membership(&scene)), (held, [true; 2]));
    assert_eq!(
        collect(&tap, once().len()),
        once(),
        "nothing moved, but what was sent last may have been lost"
    );
}

#[test]
fn hosts_learn_that_a_device_has_another_link_address() {
    tests::skip_without_root!();
    let scene = scene(&announcing());
    let mut open: Vec<Open> =
        FAMILIES.into_iter().map(|family| Open::by_name(&scene, family, &server_name(0))).collect();
    let link = [2, 0, 0x5e, 0, 9, 9];
    // Otherwise the client could not answer: what its kernel asks for itself, it would learn again.
    scene.lab.balancer.ip(&format!("link set {CLIENT_DEVICE} address {}\n", written(link))).unwrap();
    for family in FAMILIES {
        assert!(eventually(Duration::from_secs(3), || knows(&scene, family, link)), "{family:?}");
    }
    open.iter_mut().for_each(Open::assert_alive);
}

#[test]
fn the_filter_outlives_the_daemon_and_its_device_going_down_and_ends_with_detach() {
    tests::skip_without_root!();
    let mut scene = scene(&announcing());
    assert_eq!(membership(&scene), [true; 2]);
    let flap = format!("link set {CLIENT_DEVICE} down\nlink set {CLIENT_DEVICE} up\n");
    scene.lab.balancer.ip(&flap).unwrap();
    assert!(eventually(Duration::from_secs(3), || membership(&scene) == [true; 2]));
    scene.daemon.end(Signal::SIGTERM).unwrap();
    assert_eq!(membership(&scene), [true, false], "what is in the kernel keeps serving");
    let detached = scene.daemon.command(&scene.lab.balancer).unwrap().arg("detach").output().unwrap();
    assert!(detached.status.success(), "{detached:?}");
    assert_eq!(membership(&scene), [false; 2]);
}

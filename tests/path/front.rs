//! XDP in front of TCX, on veth: the other end has a program, too, without which the driver sends no frame back, and makes checksums
//! itself, for XDP answers no frame whose checksum is left to the device.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use common::maps::name;
use nix::sys::signal::Signal;
use tests::addresses::{
    FAMILIES, Family, TENANT_NETS, TLS_PORT, backend, balancer, server_name, tenant_name,
};
use tests::config::{Config, L2};
use tests::daemon::Daemon;
use tests::hello::hello;
use tests::live_frames::{self, Every, attach_by_netlink, pass_in_link};
use tests::net::{Namespace, Pins};
use tests::packet::segment;
use tests::pinned::{detach_link, pinned_program, pinned_xdp_link, xdp_in_driver, xdp_on, xdp_pin};
use tests::raw;
use tests::stop::Stop;
use tests::topology::{CLIENT_DEVICE, Lab, Options, UPLINK};

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually};
use crate::traffic::under_traffic;

/// A port that nobody serves.
const UNSERVED: u16 = 444;
/// Connections of which most are answered by XDP: TCX answers the first one of each eighth of a second.
const CONNECTIONS: u64 = 40;

fn config(devices: &[&str]) -> Config {
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.xdp_devices = Some(devices.iter().map(|name| (*name).to_owned()).collect());
    config
}

/// Starts a lab with XDP on the device towards the client.
fn scene() -> (Scene, Every) {
    let options = Options { offloads: false, ..Options::default() };
    let scene = Scene::echo_with(&options, &config(&[CLIENT_DEVICE]));
    let peer = Every::passes(&scene.lab.client, UPLINK).unwrap();
    (scene, peer)
}

fn pin(scene: &Scene) -> PathBuf {
    xdp_pin(scene.daemon.pins(), scene.lab.balancer.ifindex(CLIENT_DEVICE).unwrap())
}

/// Returns the XDP program on the device towards the client, as rtnetlink reports it: 1 is the driver's mode.
fn attached(lab: &Lab) -> Option<(u64, u64)> {
    on_device(&lab.balancer)
}

/// The same of the device of that name in any namespace.
fn on_device(namespace: &Namespace) -> Option<(u64, u64)> {
    xdp_on(namespace, CLIENT_DEVICE).unwrap()
}

/// Asserts that our program is on the device, by a link and in the driver; returns the IDs of link and program.
#[track_caller]
fn assert_attached(scene: &Scene) -> (u32, u32) {
    assert_on(&scene.daemon, &scene.lab)
}

/// The same of a daemon and its lab.
#[track_caller]
fn assert_on(daemon: &Daemon, lab: &Lab) -> (u32, u32) {
    xdp_in_driver(daemon.pins(), &lab.balancer, CLIENT_DEVICE).unwrap()
}

fn count(moved: &BTreeMap<String, u64>, reason: &str) -> u64 {
    moved.get(reason).copied().unwrap_or(0)
}

/// Asserts that connections work and who answered their SYNs.
#[track_caller]
fn assert_answered(scene: &Scene, by_xdp: bool) {
    for family in FAMILIES {
        let (_, moved) = scene.counted(|| {
            for _ in 0..CONNECTIONS {
                Open::by_name(scene, family, &server_name(0)).assert_alive();
            }
        });
        let (front, behind) = (count(&moved, "XdpAnswered"), count(&moved, "SynAnswered"));
        assert_eq!(front + behind, CONNECTIONS, "{moved:?}");
        match by_xdp {
            true => assert!(front > CONNECTIONS / 4, "{moved:?}"),
            false => assert_eq!(front, 0, "{moved:?}"),
        }
    }
}

#[test]
fn xdp_answers_and_tcx_goes_on() {
    tests::skip_without_root!();
    let (mut scene, _peer) = scene();
    let before = assert_attached(&scene);
    assert_answered(&scene, true);
    for family in FAMILIES {
        let (_, moved) = scene.counted(|| {
            for _ in 0..CONNECTIONS {
                let refused =
                    scene.lab.client.run(|| std::net::TcpStream::connect(scene.lab.vip(family, UNSERVED)));
                assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
            }
        });
        assert!(count(&moved, "XdpNoListener") > CONNECTIONS / 4, "{moved:?}");
        assert_eq!(count(&moved, "XdpNoListener") + count(&moved, "ClassifyNoListener"), CONNECTIONS);
    }
    let mut open = Open::by_name(&scene, FAMILIES[0], &server_name(1));
    scene.daemon.end(Signal::SIGKILL).unwrap();
    assert_eq!(assert_attached(&scene), before, "it outlives its daemon");
    assert_answered(&scene, true);
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    let after = assert_attached(&scene);
    assert!(
        after.0 == before.0 && after.1 != before.1,
        "the same link has the new program: {before:?}, {after:?}"
    );
    assert_answered(&scene, true);
    assert!(changes(&scene).starts_with("attached; with it the other end sends"), "{}", changes(&scene));
    scene.daemon.reload(&config(&[])).unwrap();
    assert!(changes(&scene).starts_with("not attached; with it"), "{}", changes(&scene));
    assert_eq!((attached(&scene.lab), pin(&scene).exists()), (None, false));
    assert_answered(&scene, false);
    open.assert_alive();
    scene.daemon.reload(&config(&[CLIENT_DEVICE])).unwrap();
    assert_attached(&scene);
    scene.daemon.end(Signal::SIGTERM).unwrap();
    scene.daemon.cli_text(&["detach"]).unwrap();
    // At once: what is only unpinned would answer for a moment longer, with nothing behind it.
    assert!(attached(&scene.lab).is_none() && !scene.daemon.pins().exists());
}

#[test]
fn nothing_is_lost_while_it_comes_and_goes() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    under_traffic(scene, |daemon, lab, traffic| {
        for _ in 0..3 {
            assert_on(daemon, lab);
            traffic.assert_goes_on("with XDP");
            daemon.end(Signal::SIGKILL).unwrap();
            traffic.assert_goes_on("without the daemon");
            daemon.launch(&lab.balancer).unwrap();
            traffic.assert_goes_on("with another daemon");
            daemon.reload(&config(&[])).unwrap();
            assert_eq!(attached(lab), None);
            traffic.assert_goes_on("without XDP");
            daemon.reload(&config(&[CLIENT_DEVICE])).unwrap();
            assert_on(daemon, lab);
        }
        assert!(count(&daemon.reasons().unwrap(), "XdpAnswered") > 0);
    });
}

/// No change of what is served brings it back, and the kernel reports none of the device.
#[test]
fn what_another_program_detached_is_attached_again() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    let (before, _) = assert_attached(&scene);
    detach_link(&pin(&scene)).unwrap();
    // Who connects meanwhile is served by TCX.
    let connect = || FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)).assert_alive());
    // Not by the link that was detached, which is on no device any more.
    let is_another = || {
        connect();
        pinned_xdp_link(&pin(&scene)).is_ok_and(|(link, _)| link != before)
    };
    assert!(eventually(Duration::from_secs(60), is_another), "{}", scene.daemon.log());
    assert_attached(&scene);
    assert!(
        scene.daemon.log().contains("XDP was detached or replaced by another program"),
        "{}",
        scene.daemon.log()
    );
    assert_answered(&scene, true);
}

/// XDP would go on answering where nothing is behind it. Both come back once TCX can be attached.
#[test]
fn xdp_goes_with_a_program_of_tcx_that_cannot_be_attached_again() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    assert_attached(&scene);
    let index = scene.lab.balancer.ifindex(CLIENT_DEVICE).unwrap();
    let link = scene.daemon.pins().join("links").join(index.to_string());
    fs::remove_file(&link).unwrap();
    // Nothing can be pinned where a directory is.
    fs::create_dir(&link).unwrap();
    let log = || scene.daemon.log();
    let is_gone = || attached(&scene.lab).is_none();
    assert!(eventually(Duration::from_secs(60), is_gone), "{}", log());
    assert!(log().contains("and cannot be attached again"), "{}", log());
    fs::remove_dir(&link).unwrap();
    assert!(eventually(Duration::from_secs(60), || attached(&scene.lab).is_some()), "{}", log());
    assert_attached(&scene);
    assert_answered(&scene, true);
    for family in FAMILIES {
        Open::by_name(&scene, family, &server_name(0)).assert_alive();
    }
}

/// As the kernel shows it, the device still has the program of our link.
#[test]
fn a_foreign_program_in_our_link_gives_way_to_ours() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    let (link, ours) = assert_attached(&scene);
    pass_in_link(&pin(&scene), "other").unwrap();
    let is_ours = || pinned_xdp_link(&pin(&scene)).is_ok_and(|found| found == (link, ours));
    assert!(!is_ours());
    assert!(eventually(Duration::from_secs(60), is_ours), "{}", scene.daemon.log());
    assert!(scene.daemon.log().contains("XDP was detached or replaced"), "{}", scene.daemon.log());
    assert_answered(&scene, true);
}

/// A plan that fails again and again ends the walks over the maps, which find that otherwise.
#[test]
fn what_another_program_detached_is_attached_again_though_the_maps_take_no_more() {
    tests::skip_without_root!();
    let names = |generation: usize| -> Vec<String> {
        (0..48).map(|n| format!("n{n}.{generation}.example.net")).collect()
    };
    let mut config = config(&[CLIENT_DEVICE]);
    // Room for all names before the change or after it, and not for both.
    config.settings.max_names = Some(64);
    config.route_mut(tenant_name(2)).hostnames.extend(names(0));
    let scene = Scene::echo_with(&Options { offloads: false, ..Options::default() }, &config);
    let _peer = Every::passes(&scene.lab.client, UPLINK).unwrap();
    let hostnames = &mut config.route_mut(tenant_name(2)).hostnames;
    hostnames.truncate(2);
    hostnames.extend(names(1));
    scene.daemon.write_config(&config.json()).unwrap();
    scene.daemon.signal(Signal::SIGHUP).unwrap();
    let log = || scene.daemon.log();
    let fails = "the maps do not hold all that they should";
    assert!(eventually(Duration::from_secs(5), || log().contains(fails)), "{}", log());
    let (before, _) = assert_attached(&scene);
    detach_link(&pin(&scene)).unwrap();
    let is_another = || pinned_xdp_link(&pin(&scene)).is_ok_and(|(link, _)| link != before);
    assert!(eventually(Duration::from_secs(30), is_another), "{}", log());
    assert_attached(&scene);
    assert!(!log().contains("reloaded"), "the plan failed only once: {}", log());
}

/// What the walk over devices finds later than any order is said, too, and only once.
#[test]
fn a_foreign_program_that_takes_its_place_is_named() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    assert_attached(&scene);
    detach_link(&pin(&scene)).unwrap();
    let foreign = Every::passes(&scene.lab.balancer, CLIENT_DEVICE).unwrap();
    let (_, program) = attached(&scene.lab).unwrap();
    let why = format!(
        "settings.xdpDevices: XDP is not used on it: the XDP program #{program} is attached to it (value \"{CLIENT_DEVICE}\")"
    );
    let said = || scene.daemon.log().matches(&why).count();
    assert!(eventually(Duration::from_secs(60), || said() > 0), "{}", scene.daemon.log());
    // Neither changes of the network nor the next walk repeat it.
    for number in 0..3 {
        scene.lab.balancer.ip(&format!("link add other{number} type bridge\n")).unwrap();
    }
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(said(), 1, "{}", scene.daemon.log());
    drop(foreign);
    assert_answered(&scene, false);
}

/// Makes another device towards the client, with this index, and asserts that a daemon that comes back attaches XDP to it.
#[track_caller]
fn assert_attached_to_another(scene: &mut Scene, index: u32, before: (u32, u32)) {
    scene.lab.relink_client(index).unwrap();
    assert_eq!(scene.lab.balancer.ifindex(CLIENT_DEVICE).unwrap(), index);
    assert_eq!(attached(&scene.lab), None);
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    let after = assert_attached(scene);
    assert!(after.0 != before.0 && after.1 != before.1, "{before:?}, {after:?}");
    let _peer = Every::passes(&scene.lab.client, UPLINK).unwrap();
    assert_answered(scene, true);
}

#[test]
fn a_device_that_has_the_index_of_one_that_is_gone_gets_a_link_of_its_own() {
    tests::skip_without_root!();
    let (mut scene, _peer) = scene();
    let before = assert_attached(&scene);
    let (index, pin) = (scene.lab.balancer.ifindex(CLIENT_DEVICE).unwrap(), pin(&scene));
    scene.daemon.end(Signal::SIGKILL).unwrap();
    scene.lab.balancer.ip(&format!("link del {CLIENT_DEVICE}\n")).unwrap();
    assert_eq!(pinned_xdp_link(&pin).unwrap(), before, "the link is still there, on no device");
    assert_attached_to_another(&mut scene, index, before);
}

/// A device takes its program and its index along to another network namespace. The link with that index is not of the device here.
#[test]
fn a_device_that_has_the_index_of_one_in_another_namespace_gets_a_link_of_its_own() {
    tests::skip_without_root!();
    let (mut scene, _peer) = scene();
    let elsewhere = Namespace::new("elsewhere").unwrap();
    let before = assert_attached(&scene);
    let index = scene.lab.balancer.ifindex(CLIENT_DEVICE).unwrap();
    scene.daemon.end(Signal::SIGKILL).unwrap();
    // The first one there keeps its index.
    for (namespace, device) in [(&scene.lab.balancer, CLIENT_DEVICE), (&scene.lab.client, UPLINK)] {
        namespace.ip(&format!("link set {device} netns {}\n", elsewhere.name())).unwrap();
    }
    assert_eq!(elsewhere.ifindex(CLIENT_DEVICE).unwrap(), index);
    assert_eq!(on_device(&elsewhere), Some((1, u64::from(before.1))), "with its program");
    assert_attached_to_another(&mut scene, index, before);
    assert_eq!(on_device(&elsewhere), None, "what is ours is removed there");
}

/// Such a device would get XDP in its generic mode, which runs after the kernel has made a packet of a frame.
#[test]
fn a_driver_without_xdp_gets_none_in_another_mode() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &config(&["plain"]));
    let make = format!(
        "link add link {CLIENT_DEVICE} name plain type macvlan mode bridge\naddr add 198.51.100.1/24 dev plain\nlink set plain up\nroute add default via 198.51.100.9 dev plain metric 4000\n"
    );
    scene.lab.balancer.ip(&make).unwrap();
    let why = "XDP is not used on it: its driver cannot run XDP programs in their native mode";
    assert!(
        eventually(Duration::from_secs(5), || scene.daemon.log().contains(why)),
        "{}",
        scene.daemon.log()
    );
    let shown = scene.lab.balancer.command("ip").args(["-j", "link", "show", "plain"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("xdp"), "{shown:?}");
}

/// Only a program that takes frames in several pieces may be on a veth with this MTU.
#[test]
fn frames_larger_than_a_page_keep_no_device_from_xdp() {
    tests::skip_without_root!();
    let options = Options { client_mtu: 9_000, ..Options::default() };
    let scene = Scene::echo_with(&options, &config(&[CLIENT_DEVICE]));
    assert_attached(&scene);
    // With its offloads, the client's SYNs have no checksums that XDP could judge.
    assert_answered(&scene, false);
}

/// Floods the VIP with SYNs of forged addresses until `over`, by the device towards the client. Which it takes only while XDP is on it.
fn flood(lab: &Lab, over: &AtomicBool) {
    let index = lab.client.ifindex(UPLINK).unwrap();
    let (to, from) = (lab.balancer.mac(CLIENT_DEVICE).unwrap(), lab.client.mac(UPLINK).unwrap());
    let frame = |host| {
        let source = SocketAddr::from((Ipv4Addr::new(198, 51, 100, host), 1024));
        segment(source, lab.vip(Family::V4, TLS_PORT)).ethernet(to, from).syn(host.into()).mss(1460).bytes()
    };
    let frames: Vec<Vec<u8>> = (1..9).map(frame).collect();
    lab.client.enter();
    for frame in frames.iter().cycle() {
        if over.load(Ordering::Relaxed) {
            return;
        }
        // The kernel refuses while the other end takes no frames.
        let _ = live_frames::send(index, frame, 64);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The driver drops whatever XDP sends back there, and most SYNs would get no answer.
#[test]
fn a_veth_whose_other_end_takes_nothing_of_what_it_answers_has_none() {
    tests::skip_without_root!();
    let options = Options { offloads: false, ..Options::default() };
    let scene = Scene::echo_with(&options, &config(&[CLIENT_DEVICE]));
    assert_attached(&scene);
    let why = format!(
        "settings.xdpDevices: XDP is not used on it: its other end takes nothing of what XDP answers (value \"{CLIENT_DEVICE}\"); attach an XDP program at the other end"
    );
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&scene.lab, &over));
        let _stop = Stop(&over);
        let is_gone = || attached(&scene.lab).is_none() && scene.daemon.log().contains(&why);
        assert!(eventually(Duration::from_secs(20), is_gone), "{}", scene.daemon.log());
        assert_answered(&scene, false);
    });
    // What changes elsewhere does not bring it back.
    scene.lab.balancer.ip("link add other type bridge\n").unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(attached(&scene.lab), None, "{}", scene.daemon.log());
    assert_eq!(scene.daemon.log().matches(&why).count(), 1, "{}", scene.daemon.log());
    let _peer = Every::passes(&scene.lab.client, UPLINK).unwrap();
    scene.daemon.reload(&config(&[])).unwrap();
    scene.daemon.reload(&config(&[CLIENT_DEVICE])).unwrap();
    assert_attached(&scene);
    assert_answered(&scene, true);
}

/// What XDP answers is TCX's to go on with, so XDP goes first. What the node forwards itself goes on.
#[test]
fn detach_takes_xdp_first_and_ends_nothing_else() {
    tests::skip_without_root!();
    let (mut scene, _peer) = scene();
    for family in FAMILIES {
        let back = format!("route add default via {}\n", balancer(family, TENANT_NETS[0]));
        scene.lab.tenants[0].namespace.ip(&back).unwrap();
    }
    assert_attached(&scene);
    let tcx =
        scene.daemon.pins().join(format!("links/{}", scene.lab.balancer.ifindex(CLIENT_DEVICE).unwrap()));
    assert!(tcx.exists(), "{}", tcx.display());
    let (over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    scene.daemon.end(Signal::SIGTERM).unwrap();
    let Scene { daemon, lab, .. } = &mut scene;
    let lab = &*lab;
    let goes_on = || {
        let wanted = made.load(Ordering::Relaxed) + 50;
        assert!(eventually(Duration::from_secs(10), || made.load(Ordering::Relaxed) > wanted));
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            lab.client.enter();
            let bytes = hello().name(server_name(0)).bytes();
            for family in FAMILIES.into_iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                let to = SocketAddr::new(backend(family, 0, 0), ECHO_PORT);
                raw::hello(to, &bytes, &[]).context("a connection that is not ours")?;
                made.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
        scope.spawn(|| flood(lab, &over));
        let watched = scope.spawn(|| {
            let mut is_late = false;
            while !over.load(Ordering::Relaxed) {
                // In this order: XDP that is still there when TCX was gone before is too late.
                let is_gone = !tcx.exists();
                is_late |= is_gone && attached(lab).is_some();
                std::thread::sleep(Duration::from_micros(200));
            }
            is_late
        });
        let stop = Stop(&over);
        goes_on();
        daemon.cli_text(&["detach"]).unwrap();
        assert!(attached(lab).is_none() && !daemon.pins().exists());
        goes_on();
        drop(stop);
        other.join().unwrap().unwrap();
        assert!(!watched.join().unwrap(), "TCX was gone, and XDP still answered");
    });
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert_attached(&scene);
    assert_answered(&scene, true);
}

/// As a release before this one left it, without the maps that only a later one has.
#[test]
fn an_older_program_in_the_link_is_replaced_and_loses_nothing() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    under_traffic(scene, |daemon, lab, traffic| {
        let (link, ours) = assert_on(daemon, lab);
        daemon.end(Signal::SIGKILL).unwrap();
        let pin = xdp_pin(daemon.pins(), lab.balancer.ifindex(CLIENT_DEVICE).unwrap());
        pass_in_link(&pin, "older").unwrap();
        let maps = [name::FRONT, name::FRONT_HOPS].map(|map| daemon.pins().join(map));
        for map in &maps {
            fs::remove_file(map).unwrap();
        }
        let older = assert_on(daemon, lab);
        assert!(older.0 == link && older.1 != ours, "{older:?}");
        traffic.assert_goes_on("with an older program");
        let answered = |daemon: &Daemon| count(&daemon.reasons().unwrap(), "XdpAnswered");
        let before = answered(daemon);
        traffic.assert_goes_on("without an answer of XDP");
        assert_eq!(answered(daemon), before, "the older one answers nothing");
        daemon.launch(&lab.balancer).unwrap();
        let after = assert_on(daemon, lab);
        assert!(after.0 == link && after.1 != older.1, "{older:?}, {after:?}");
        assert!(maps.iter().all(|map| map.exists()));
        traffic.assert_goes_on("with ours again");
        assert!(eventually(Duration::from_secs(10), || answered(daemon) > before), "XDP answers again");
        traffic.assert_goes_on("answered by XDP");
    });
}

#[test]
fn by_default_there_is_no_xdp() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    assert_eq!((attached(&scene.lab), pin(&scene).exists()), (None, false));
}

/// Returns what `vestibule doctor` finds of a subject on the device towards the client: verdict, text and remedy.
fn doctor(scene: &Scene, what: &str) -> Option<[String; 3]> {
    let mut doctor = scene.daemon.command(&scene.lab.balancer).unwrap();
    let output = doctor.args(["doctor", "-o", "json"]).output().unwrap();
    let findings = tests::report::objects(&String::from_utf8_lossy(&output.stdout)).unwrap();
    let one = findings.iter().find(|one| one["what"] == format!("{CLIENT_DEVICE} {what}"))?;
    Some(["verdict", "found", "remedy"].map(|part| one[part].as_str().unwrap_or_default().to_owned()))
}

/// Returns which XDP program it finds there.
fn found(scene: &Scene) -> Option<String> {
    doctor(scene, "xdp").map(|[verdict, found, _]| format!("{verdict}: {found}"))
}

/// Returns what it says that XDP changes there.
fn changes(scene: &Scene) -> String {
    doctor(scene, "with XDP").map(|[_, found, _]| found).expect("each device has it")
}

/// What the driver sends back goes past all that sees what TCX sends, and an operator who has filters there has to know that.
#[test]
fn filters_that_do_not_see_what_xdp_answers_are_noted() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    assert_attached(&scene);
    let add = |arguments: &[&str]| {
        let mut command = scene.lab.balancer.command("tc");
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    add(&["qdisc", "add", "dev", CLIENT_DEVICE, "clsact"]);
    let program = scene.daemon.pins().join("programs/ingress");
    let program = program.to_str().unwrap();
    for hook in ["ingress", "egress"] {
        let filter = ["filter", "add", "dev", CLIENT_DEVICE, hook, "bpf", "direct-action", "object-pinned"];
        add(&[&filter[..], &[program]].concat());
    }
    let remedy = |what: &str| doctor(&scene, what).map(|[_, _, remedy]| remedy).unwrap();
    assert!(remedy("tc/egress").contains("sees nothing of what XDP answers"), "{}", remedy("tc/egress"));
    assert_eq!(remedy("tc/ingress"), "runs behind TCX programs");
    assert!(changes(&scene).contains("1 programs or filters of others do not see what it answers"));
    // On veth the other end leaves tags beside the frame.
    assert!(changes(&scene).contains("a frame of any VLAN looks untagged to it"), "{}", changes(&scene));
    assert!(remedy("with XDP").contains("txvlan off"), "{}", remedy("with XDP"));
    assert_attached(&scene);
    scene.daemon.reload(&config(&[])).unwrap();
    assert_eq!(remedy("tc/egress"), "runs behind TCX programs");
    assert!(changes(&scene).contains("1 programs or filters of others do not see what it answers"));
    assert_eq!(remedy("with XDP"), "");
}

#[test]
fn a_foreign_program_stays_and_is_named() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    let (_, program) = assert_attached(&scene);
    assert_eq!(found(&scene), Some(format!("note: #{program} (ours)")));
    // Another instance, with its own pins: to it, the first one's program is foreign.
    let other = scene.lab.vestibule(&config(&[CLIENT_DEVICE])).unwrap();
    assert_ne!(pinned_program(&other.pins().join("programs/ingress")).unwrap(), program);
    assert_eq!(attached(&scene.lab), Some((1, u64::from(program))));
    let why = format!(
        "XDP is not used on it: the XDP program front (#{program}) is attached to it (value \"{CLIENT_DEVICE}\")"
    );
    assert!(other.log().contains(&why), "{}", other.log());
    let mut doctor = other.command(&scene.lab.balancer).unwrap();
    let doctor = doctor.arg("doctor").output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains(&format!("#{program} front")), "{text}");
}

/// Asserts that the daemon found another's program of this name on the device, leaves it there, and serves without XDP.
#[track_caller]
fn assert_left_alone(scene: &Scene, name: &str, there: (u64, u64)) {
    assert_eq!((attached(&scene.lab), pin(scene).exists()), (Some(there), false));
    let (_, program) = there;
    let why = format!(
        "XDP is not used on it: the XDP program {name} (#{program}) is attached to it (value \"{CLIENT_DEVICE}\")"
    );
    assert!(scene.daemon.log().contains(&why), "{}", scene.daemon.log());
    let found = doctor(scene, "xdp").map(|[_, found, _]| found).expect("a program is there");
    assert!(found.contains(&format!("#{program} {name}")), "{found}");
    assert_answered(scene, false);
    assert_eq!(attached(&scene.lab), Some(there));
}

/// By a link, or by netlink as `ip` attaches it.
#[test]
fn a_program_that_was_there_first_stays_however_it_is_attached() {
    tests::skip_without_root!();
    let lab = Lab::with(&Options { offloads: false, servers: false, ..Options::default() }).unwrap();
    let echoes = lab.echo_servers(ECHO_PORT).unwrap();
    let linked = Every::passes_as(&lab.balancer, CLIENT_DEVICE, "firewall").unwrap();
    let there = attached(&lab).unwrap();
    let daemon = lab.vestibule(&config(&[CLIENT_DEVICE])).unwrap();
    let mut scene = Scene { daemon, echoes, lab };
    assert_left_alone(&scene, "firewall", there);
    scene.daemon.end(Signal::SIGTERM).unwrap();
    drop(linked);
    let pins = Pins::new().unwrap();
    attach_by_netlink(&scene.lab.balancer, CLIENT_DEVICE, "sampler", pins.path()).unwrap();
    let there = attached(&scene.lab).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert_left_alone(&scene, "sampler", there);
    // Its owner removes it, and the kernel reports that.
    scene.lab.balancer.ip(&format!("link set dev {CLIENT_DEVICE} xdpdrv off\n")).unwrap();
    let is_ours = || xdp_in_driver(scene.daemon.pins(), &scene.lab.balancer, CLIENT_DEVICE).is_ok();
    assert!(eventually(Duration::from_secs(90), is_ours), "{}", scene.daemon.log());
}

/// An announced address draws what XDP is there for.
#[test]
fn at_a_start_it_is_attached_before_addresses_are_announced() {
    tests::skip_without_root!();
    let mut config = config(&[CLIENT_DEVICE]);
    config.settings.l2 = Some(L2 { enabled: true });
    let scene = Scene::echo_with(&Options { offloads: false, ..Options::default() }, &config);
    assert_attached(&scene);
    let announced = "addresses announced by ARP and neighbour discovery";
    let is_announced = || scene.daemon.log().contains(announced);
    assert!(eventually(Duration::from_secs(10), is_announced), "{}", scene.daemon.log());
    let log = scene.daemon.log();
    let [first, second] = ["XDP attached", announced].map(|said| log.find(said));
    assert!(first.is_some() && first < second, "{log}");
}

/// Asserts that XDP goes from the device when `command` was carried out, is back after `undo`, and that the log says why.
#[track_caller]
fn assert_refused_while(scene: &Scene, command: &str, undo: &str, why: &str) {
    assert_attached(scene);
    scene.lab.balancer.ip(command).unwrap();
    let gone = eventually(Duration::from_secs(5), || attached(&scene.lab).is_none());
    assert!(gone, "{command}: {}", scene.daemon.log());
    let said = || scene.daemon.log().contains(&format!("XDP is not used on it: {why}"));
    assert!(eventually(Duration::from_secs(2), said), "{}", scene.daemon.log());
    scene.lab.balancer.ip(undo).unwrap();
    let is_back = || xdp_in_driver(scene.daemon.pins(), &scene.lab.balancer, CLIENT_DEVICE).is_ok();
    assert!(eventually(Duration::from_secs(5), is_back), "{}", scene.daemon.log());
}

#[test]
fn parts_of_others_and_devices_with_others_above_have_no_xdp() {
    tests::skip_without_root!();
    let (scene, _peer) = scene();
    let macvlan = "link add link client name above type macvlan mode bridge\n";
    assert_refused_while(&scene, macvlan, "link del above\n", "above is above it");
    assert_answered(&scene, true);
    let bridge = "link add whole type bridge\nlink set client master whole\n";
    assert_refused_while(&scene, bridge, "link del whole\n", "it is a part of whole");
}

#[test]
fn names_of_no_device_and_unusable_devices_are_said() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &config(&["eth77", "lo"]));
    let log = scene.daemon.log();
    for (device, why) in [
        ("eth77", "there is no device of this name here"),
        ("lo", "the programs that go on with what XDP answers are not on it"),
    ] {
        let said = format!("settings.xdpDevices: XDP is not used on it: {why} (value \"{device}\")");
        assert!(log.contains(&said), "{log}");
    }
    assert_eq!(xdp_on(&scene.lab.balancer, "lo").unwrap(), None, "the kernel shows it");
    Open::by_name(&scene, FAMILIES[0], &server_name(0)).assert_alive();
}

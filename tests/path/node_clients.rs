//! Clients on the balancer's own node: its own processes, and a pod behind it, which reach VIPs by a pair of devices.

use std::collections::BTreeSet;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::addresses::{
    FAMILIES, Family, TENANT_NETS, TLS_PORT, backend, balancer, server_name, tenant_name, vip,
};
use tests::config::{Backend, Config, DIRECT_PORT, listener, route};
use tests::hello::hello;
use tests::net::Namespace;
use tests::raw::{self, end_of, write_split};
use tests::server::Speech;
use tests::tls;
use tests::topology::{CLIENT_DEVICE, Lab, Options};
use userspace::net::pair::{self, FAR, NEAR, PROTOCOL};

use crate::open::Open;
use crate::pod;
use crate::scene::{AT_ONCE, ECHO_PORT, Scene, eventually};

/// A port of the VIP whose only backends refuse.
const REFUSING_PORT: u16 = 20_009;
/// A port of the VIP without a listener.
const UNSERVED_PORT: u16 = 20_010;

fn config() -> Config {
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.node_clients = Some(true);
    config.settings.hello_timeout = Some("2s".into());
    config.listeners.push(listener("refusing", REFUSING_PORT, "TCP"));
    let nobody = FAMILIES.map(|family| Backend::new(backend(family, 0, 0), 7999)).to_vec();
    config.routes.push(route("refusing", &["refusing"], &[], nobody));
    config
}

/// A lab with the setting, on a node that takes packets only from where it would send the answer.
fn scene(config: &Config) -> Scene {
    scene_with(&Options::default(), config)
}

fn scene_with(options: &Options, config: &Config) -> Scene {
    let lab = Lab::with(&Options { servers: false, ..options.clone() }).unwrap();
    let mut echoes = Vec::new();
    for (tenant, _) in TENANT_NETS.into_iter().enumerate() {
        for family in FAMILIES {
            for index in 0..2 {
                let at = SocketAddr::new(backend(family, tenant, index), ECHO_PORT);
                let name = format!("{}/{index}", tenant_name(tenant));
                echoes.push(lab.serve(tenant, at, &name, Speech::EchoToWhom).unwrap());
            }
        }
    }
    for device in ["all", "default", CLIENT_DEVICE] {
        lab.balancer.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "1").unwrap();
    }
    let daemon = lab.vestibule(config).unwrap();
    Scene { daemon, echoes, lab }
}

fn output(namespace: &Namespace, program: &str, arguments: &[&str]) -> String {
    let output = namespace.command(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The routes of the daemon's protocol, one a line.
fn routes(scene: &Scene) -> BTreeSet<String> {
    let protocol = PROTOCOL.to_string();
    let of = |family| output(&scene.lab.balancer, "ip", &[family, "route", "show", "proto", &protocol]);
    ["-4", "-6"].map(of).concat().lines().map(|line| line.trim().to_owned()).collect()
}

/// Whether exactly these addresses have a route into the pair.
fn leads_to(scene: &Scene, addresses: &[IpAddr]) -> bool {
    let found = routes(scene);
    let leads =
        |address: &IpAddr| found.iter().any(|line| line.starts_with(&format!("{address} dev {NEAR} ")));
    found.len() == addresses.len() && addresses.iter().all(leads)
}

fn devices(scene: &Scene) -> [Option<u32>; 2] {
    [NEAR, FAR].map(|name| scene.lab.balancer.ifindex(name).ok())
}

fn dial(from: &Namespace, to: SocketAddr) -> std::io::Result<TcpStream> {
    from.run(|| TcpStream::connect_timeout(&to, AT_ONCE))
}

fn direct(scene: &Scene, family: Family, tenant: usize) -> SocketAddr {
    scene.lab.vip(family, DIRECT_PORT + tenant as u16)
}

/// A client reaches all that the VIPs serve, and is refused at once what they do not.
fn assert_served(scene: &Scene, from: &Namespace) {
    for family in FAMILIES {
        let mut by_port = Open::from(from, direct(scene, family, 0), b"hello");
        assert!(by_port.backend.starts_with("tenant-a/"), "{}", by_port.backend);
        by_port.assert_carries();
        let by_name = hello().name(server_name(1)).length(1_800).name_last().bytes();
        let to = scene.lab.vip(family, TLS_PORT);
        let split = from.run(|| raw::hello(to, &by_name, &[700])).unwrap();
        assert!(split.starts_with("tenant-b/"), "{split}");
        let mut by_name = Open::from(from, to, &by_name);
        by_name.assert_carries();
        by_name.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(end_of(&mut by_name.stream, Duration::from_secs(5)).unwrap(), raw::End::Closed);
        for port in [REFUSING_PORT, UNSERVED_PORT] {
            let refused = dial(from, scene.lab.vip(family, port)).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{family:?} {port}");
        }
        let unknown = hello().name("nobody.example.org").bytes();
        let (end, _) = from.run(|| raw::refused(to, &unknown, AT_ONCE)).unwrap();
        assert_eq!(end, raw::End::Reset, "{family:?}");
    }
}

/// One connection by port and one by name, of each family.
fn opened(scene: &Scene, from: &Namespace) -> Vec<Open> {
    let of = |family| {
        let bytes = hello().name(server_name(1)).bytes();
        let by_name = Open::from(from, scene.lab.vip(family, TLS_PORT), &bytes);
        [Open::from(from, direct(scene, family, 0), b"hello"), by_name]
    };
    FAMILIES.into_iter().flat_map(of).collect()
}

#[test]
fn the_nodes_own_processes_are_served_as_other_clients_are_with_or_without_the_daemon() {
    tests::skip_without_root!();
    let mut scene = scene(&config());
    let vips = FAMILIES.map(vip);
    assert!(leads_to(&scene, &vips), "{:?}", routes(&scene));
    let made = devices(&scene);
    assert!(made.iter().all(Option::is_some));
    assert_served(&scene, &scene.lab.balancer);
    let mut open = opened(&scene, &scene.lab.balancer);
    for one in &open {
        let (_, seen) = one.backend.split_once(' ').unwrap();
        let seen: SocketAddr = seen.parse().unwrap();
        assert_ne!(seen, one.stream.local_addr().unwrap(), "by source NAT");
    }
    scene.daemon.end(Signal::SIGKILL).unwrap();
    assert_served(&scene, &scene.lab.balancer);
    open.iter_mut().for_each(Open::assert_alive);
    open.extend(opened(&scene, &scene.lab.balancer));
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert_eq!(devices(&scene), made, "the pair is taken over");
    open.iter_mut().for_each(Open::assert_alive);
    assert!(leads_to(&scene, &vips), "{:?}", routes(&scene));
    // Others are served meanwhile, as before.
    assert_served(&scene, &scene.lab.client);
    let mut doctor = scene.daemon.command(&scene.lab.balancer).unwrap();
    let told = doctor.args(["doctor"]).output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(&format!("2 routes lead into {NEAR}")), "{told}");
    assert!(told.contains(&format!("{FAR} tcx/ingress")), "{told}");
    drop(open);
    scene.assert_nothing_leaks();
    scene.daemon.end(Signal::SIGTERM).unwrap();
    assert!(leads_to(&scene, &vips));
    let mut detach = scene.daemon.command(&scene.lab.balancer).unwrap();
    assert!(detach.arg("detach").status().unwrap().success());
    assert_eq!((devices(&scene), routes(&scene)), ([None, None], BTreeSet::new()));
}

/// The node's own firewall drops what it does not know, and so it has to see both directions.
#[test]
fn a_pod_is_served_through_a_node_that_drops_what_is_no_connection() {
    tests::skip_without_root!();
    let scene = scene(&config());
    let node = &scene.lab.balancer;
    // Packets that are larger than those of the devices to backends.
    let pod = pod::behind(node, 9000);
    node.sysctl("net/ipv4/conf/pod/rp_filter", "1").unwrap();
    let rules = |nat: &str| {
        format!(
            "table inet node {{\n}}\ndelete table inet node\ntable inet node {{\ncounter invalid {{\n}}\nchain forward {{\n\
             type filter hook forward priority filter; policy drop;\nct state invalid counter name invalid drop\n\
             ct state established,related accept\niifname pod ct state new accept\n}}\n{nat}}}\n"
        )
    };
    let masquerade =
        format!("chain post {{\ntype nat hook postrouting priority srcnat;\noifname {NEAR} masquerade\n}}\n");
    for nat in ["", &masquerade] {
        node.nft(&rules(nat)).unwrap();
        assert_served(&scene, &pod);
        let mut open = opened(&scene, &pod);
        std::thread::sleep(Duration::from_millis(300));
        open.iter_mut().for_each(Open::assert_alive);
        let invalid = output(node, "nft", &["list", "counter", "inet", "node", "invalid"]);
        assert!(invalid.contains("packets 0 "), "{invalid}");
    }
    drop(scene);
}

/// What the daemon itself ends, with no packet of either end in hand.
#[test]
fn what_the_daemon_ends_is_reset_at_clients_on_the_node_too() {
    tests::skip_without_root!();
    let mut config = config();
    let scene = scene(&config);
    let node = &scene.lab.balancer;
    // A hello that is never complete: by the time limit.
    for family in FAMILIES {
        let bytes = hello().name(server_name(0)).bytes();
        let mut half = node.run(|| tls::dial(scene.lab.vip(family, TLS_PORT))).unwrap();
        write_split(&mut half, &bytes[..50], &[]).unwrap();
        assert_eq!(end_of(&mut half, Duration::from_secs(6)).unwrap(), raw::End::Reset, "{family:?}");
    }
    let mut open = opened(&scene, node);
    config.route_mut(tenant_name(0)).backends.clear();
    config.route_mut(tenant_name(1)).backends.clear();
    scene.daemon.reload(&config).unwrap();
    open.iter_mut().for_each(|open| open.assert_reset(Duration::from_secs(2)));
}

/// The resets come from the addresses, by the pair: without their routes, a node that takes packets only from where it would send the
/// answer drops them.
#[test]
fn what_was_open_is_reset_when_its_address_goes_and_when_the_setting_does() {
    tests::skip_without_root!();
    let config = config();
    let scene = scene(&config);
    let node = &scene.lab.balancer;
    let mut open = opened(&scene, node);
    let mut nothing = Config::empty();
    nothing.settings.node_clients = Some(true);
    scene.daemon.reload(&nothing).unwrap();
    open.iter_mut().for_each(|open| open.assert_reset(Duration::from_secs(2)));
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[])), "{:?}", routes(&scene));
    scene.daemon.reload(&config).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &FAMILIES.map(vip))));
    let mut open = opened(&scene, node);
    let mut outside = opened(&scene, &scene.lab.client);
    let mut without = config.clone();
    without.settings.node_clients = None;
    scene.daemon.reload(&without).unwrap();
    open.iter_mut().for_each(|open| open.assert_reset(Duration::from_secs(2)));
    outside.iter_mut().for_each(Open::assert_alive);
}

/// Or the node could not send anything over its router any more.
#[test]
fn no_route_leads_to_an_address_over_which_another_route_leads() {
    tests::skip_without_root!();
    let scene = scene(&config());
    let node = &scene.lab.balancer;
    let [v4, v6] = FAMILIES.map(vip);
    assert!(leads_to(&scene, &[v4, v6]));
    for (vip, other, away) in [(v4, v6, "203.0.113.0/24"), (v6, v4, "2001:db8:77::/64")] {
        let route = format!("{away} via {vip} dev {CLIENT_DEVICE} onlink");
        // The kernel takes no IPv6 router that another device leads to.
        node.ip(&format!("route del {vip} dev {NEAR}\nroute add {route}\n")).unwrap();
        let why = format!("are not led to {vip}: it is the next hop of a route of this node");
        let is_told = || scene.daemon.log().contains(&why);
        assert!(eventually(Duration::from_secs(5), is_told), "{}", scene.daemon.log());
        assert!(leads_to(&scene, &[other]), "{:?}", routes(&scene));
        let mut doctor = scene.daemon.command(node).unwrap();
        let told = String::from_utf8(doctor.arg("doctor").output().unwrap().stdout).unwrap();
        assert!(told.contains(&format!("none to {vip}: a route leads over it")), "{told}");
        node.ip(&format!("route del {route}\n")).unwrap();
        assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v4, v6])), "{:?}", routes(&scene));
    }
}

/// Each would change the other's routes for ever.
#[test]
fn of_two_instances_the_second_leaves_the_pair_to_the_first_and_says_so() {
    tests::skip_without_root!();
    let scene = scene(&config());
    let node = &scene.lab.balancer;
    let (vips, made) = (FAMILIES.map(vip), devices(&scene));
    let mut nothing = Config::empty();
    nothing.settings.node_clients = Some(true);
    let second = scene.lab.vestibule(&nothing).unwrap();
    let is_told = || second.log().contains("are of another instance of Vestibule");
    assert!(eventually(Duration::from_secs(2), is_told), "{}", second.log());
    let mut doctor = second.command(node).unwrap();
    let told = String::from_utf8(doctor.arg("doctor").output().unwrap().stdout).unwrap();
    assert!(told.contains("are not of these pins"), "{told}");
    // Also when it leaves.
    second.reload(&Config::empty()).unwrap();
    assert_eq!(devices(&scene), made);
    assert!(leads_to(&scene, &vips), "{:?}", routes(&scene));
    assert!(dial(node, direct(&scene, Family::V4, 0)).is_ok());
    second.reload(&nothing).unwrap();
    // One whose pins are gone has no program there any more.
    let mut scene = scene;
    scene.daemon.end(Signal::SIGKILL).unwrap();
    std::fs::remove_dir_all(scene.daemon.pins()).unwrap();
    let is_taken = || leads_to(&scene, &[]) && devices(&scene) == made;
    assert!(eventually(Duration::from_secs(20), is_taken), "{:?}\n{}", routes(&scene), second.log());
}

/// The routes to backends get narrower while clients on the node send: they are answered with ICMP by the pair.
#[test]
fn clients_on_the_node_learn_of_narrow_paths() {
    tests::skip_without_root!();
    let scene = scene(&config());
    let mut open = opened(&scene, &scene.lab.balancer);
    for tenant in [0, 1] {
        for family in FAMILIES {
            for index in 0..2 {
                let to = backend(family, tenant, index);
                let device = tenant_name(tenant);
                scene.lab.balancer.ip(&format!("route add {to} dev {device} mtu lock 1300\n")).unwrap();
            }
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    open.iter_mut().for_each(Open::assert_carries);
    let told = scene.daemon.reasons().unwrap();
    assert!(told.get("IcmpTooBig").is_some_and(|count| *count > 0), "{told:?}");
}

#[test]
fn routes_follow_what_is_served_and_those_of_others_stay() {
    tests::skip_without_root!();
    let mut config = config();
    let [v4, v6] = FAMILIES.map(vip);
    let scene = scene(&config);
    let node = &scene.lab.balancer;
    assert!(leads_to(&scene, &[v4, v6]));
    // Removed by another program: it is put back.
    node.ip(&format!("route del {v4}/32\n")).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v4, v6])), "{:?}", routes(&scene));
    let is_told = || scene.daemon.log().contains("another program changed routes into");
    assert!(eventually(Duration::from_secs(1), is_told), "{}", scene.daemon.log());
    // Another program's, of a lower rank: it is left, and followed alone.
    let others = format!("{v4} via {} dev {CLIENT_DEVICE} metric 77", tests::addresses::client(Family::V4));
    node.ip(&format!("route add {others}\n")).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v6])), "{:?}", routes(&scene));
    let is_told = || scene.daemon.log().contains("another program's route");
    assert!(eventually(Duration::from_secs(1), is_told), "{}", scene.daemon.log());
    assert!(output(node, "ip", &["route", "show", &v4.to_string()]).contains("metric 77"));
    node.ip(&format!("route del {others}\n")).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v4, v6])), "{:?}", routes(&scene));
    // The node's own address is not routed.
    node.ip(&format!("addr add {v4}/32 dev lo\n")).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v6])), "{:?}", routes(&scene));
    node.ip(&format!("addr del {v4}/32 dev lo\n")).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v4, v6])), "{:?}", routes(&scene));
    // The pair is removed by another program, and made again.
    node.ip(&format!("link del {NEAR}\n")).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[v4, v6])), "{:?}", routes(&scene));
    assert!(eventually(Duration::from_secs(5), || dial(node, direct(&scene, Family::V6, 0)).is_ok()));
    assert_served(&scene, node);
    // The setting goes, and with it all of it.
    config.settings.node_clients = None;
    scene.daemon.reload(&config).unwrap();
    assert!(eventually(Duration::from_secs(5), || devices(&scene) == [None, None]), "{:?}", devices(&scene));
    assert_eq!(routes(&scene), BTreeSet::new());
    assert!(dial(node, direct(&scene, Family::V4, 0)).is_err(), "as without it: nobody answers");
    let mut outside = Open::to(&scene, direct(&scene, Family::V4, 0), b"hello");
    outside.assert_alive();
}

/// Where a node leads to its own backends alone, its own clients get these by source NAT, and where it has none, they are left to the
/// wire.
#[test]
fn with_local_a_node_leads_its_clients_to_its_own_backends_or_not_at_all() {
    tests::skip_without_root!();
    let mut config = Config::empty();
    config.settings.node_clients = Some(true);
    config.listeners.push(listener("direct", DIRECT_PORT, "TCP"));
    let all: Vec<Backend> = FAMILIES.map(|family| Backend::new(backend(family, 0, 0), ECHO_PORT)).to_vec();
    config.routes.push(route("local", &["direct"], &[], all));
    config.route_mut("local").external_traffic_policy = Some("Local");
    let scene = scene(&config);
    assert!(leads_to(&scene, &FAMILIES.map(vip)), "{:?}", routes(&scene));
    for family in FAMILIES {
        let mut open = Open::from(&scene.lab.balancer, direct(&scene, family, 0), b"hello");
        let (_, seen) = open.backend.split_once(' ').unwrap();
        let seen: SocketAddr = seen.parse().unwrap();
        assert_eq!(seen.ip(), balancer(family, TENANT_NETS[0]), "{}", open.backend);
        open.assert_carries();
    }
    config.route_mut("local").backends.clear();
    scene.daemon.reload(&config).unwrap();
    assert!(eventually(Duration::from_secs(5), || leads_to(&scene, &[])), "{:?}", routes(&scene));
    assert!(devices(&scene).iter().all(Option::is_some));
}

/// Another device has the name: it stays, the rest is served, and the log says why.
#[test]
fn a_device_of_another_program_stays() {
    tests::skip_without_root!();
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    let echoes = lab.echo_servers(ECHO_PORT).unwrap();
    lab.balancer.ip(&format!("link add {NEAR} type bridge\n")).unwrap();
    let daemon = lab.vestibule(&config()).unwrap();
    let scene = Scene { daemon, echoes, lab };
    Open::to(&scene, direct(&scene, Family::V4, 0), b"hello").assert_alive();
    let is_told = || scene.daemon.log().contains(&format!("there is a device {NEAR}"));
    assert!(eventually(Duration::from_secs(2), is_told), "{}", scene.daemon.log());
    assert!(scene.lab.balancer.run(pair::find).is_err());
}

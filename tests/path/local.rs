//! Backends on the balancer's own node, as pods are: they see their clients' own addresses, and the node's stack sees nothing of
//! it. It would drop all that it is given to forward.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use common::maps::address::Address;
use common::maps::listener::{AddressRole, ROLE_BACKEND};
use common::maps::name;
use nix::sys::signal::Signal;
use tests::addresses::{
    BACKENDS, FAMILIES, Family, TENANT_NETS, backend, balancer, server_name, tenant_name, vip,
};
use tests::config::{Backend, Config, DIRECT_PORT, L2, listener, route};
use tests::pinned::pinned_entries;
use tests::server::{Server, Speech};
use tests::topology::{CLIENT_DEVICE, Lab, Options};

use crate::open::Open;
use crate::scene::{AT_ONCE, ECHO_PORT, Scene, eventually};

/// The tenant whose backends see their clients.
const LOCAL: usize = 0;
/// Connections are reset within this time once they lead nowhere.
const ENDED: Duration = Duration::from_secs(1);

/// The configuration where the first tenant's route leads to backends on the node.
pub(crate) fn config() -> Config {
    let mut config = Config::lab_on(ECHO_PORT);
    config.route_mut(tenant_name(LOCAL)).external_traffic_policy = Some("Local");
    config
}

fn scene(config: &Config) -> Scene {
    let (lab, echoes) = lab();
    let daemon = lab.vestibule(config).unwrap();
    Scene { daemon, echoes, lab }
}

/// A lab whose first tenant's backends answer everybody, on a node that forwards nothing, and takes packets only from where it would
/// send the answer.
pub(crate) fn lab() -> (Lab, Vec<Server>) {
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    let mut echoes = Vec::new();
    for (tenant, net) in TENANT_NETS.into_iter().enumerate() {
        for family in FAMILIES {
            let gateway = balancer(family, net);
            if tenant == LOCAL {
                lab.tenants[tenant].namespace.ip(&format!("route add default via {gateway}\n")).unwrap();
            }
            for index in 0..BACKENDS.len() {
                let at = SocketAddr::new(backend(family, tenant, index), ECHO_PORT);
                let name = format!("{}/{index}", tenant_name(tenant));
                echoes.push(lab.serve(tenant, at, &name, Speech::EchoToWhom).unwrap());
            }
        }
    }
    for device in ["all", "default", CLIENT_DEVICE, tenant_name(LOCAL)] {
        lab.balancer.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "1").unwrap();
    }
    let drop = "table inet node {\ncounter forwarded {\n}\nchain forward {\n\
                type filter hook forward priority filter; policy drop;\ncounter name forwarded\n}\n}\n";
    lab.balancer.nft(drop).unwrap();
    (lab, echoes)
}

fn by_port(scene: &Scene, family: Family, tenant: usize) -> Open {
    Open::to(scene, scene.lab.vip(family, DIRECT_PORT + tenant as u16), b"hello")
}

/// Asserts that the connection's backend sees the client's own address and port.
#[track_caller]
fn assert_seen(open: &Open) {
    let own = open.stream.local_addr().unwrap();
    let (_, seen) = open.backend.split_once(' ').unwrap();
    assert_eq!(seen, own.to_string(), "{}", open.backend);
}

fn dial(scene: &Scene, to: SocketAddr) -> std::io::Result<TcpStream> {
    scene.lab.client.run(|| TcpStream::connect_timeout(&to, AT_ONCE))
}

#[test]
fn backends_on_the_node_see_their_clients_though_the_node_forwards_nothing() {
    tests::skip_without_root!();
    let mut scene = scene(&config());
    for family in FAMILIES {
        let direct = SocketAddr::new(backend(family, LOCAL, 0), ECHO_PORT);
        assert_eq!(
            dial(&scene, direct).unwrap_err().kind(),
            ErrorKind::TimedOut,
            "the node drops what it forwards"
        );
    }
    let before = forwarded(&scene);
    assert!(before.contains("packets") && !before.contains("packets 0 "), "{before}");
    let mut open = Vec::new();
    for family in FAMILIES {
        let new = [by_port(&scene, family, LOCAL), Open::by_name(&scene, family, &server_name(LOCAL))];
        new.iter().for_each(assert_seen);
        open.extend(new);
        // Beside it, others see the node's address.
        let hidden = by_port(&scene, family, 1);
        assert!(hidden.backend.contains(&balancer(family, TENANT_NETS[1]).to_string()), "{}", hidden.backend);
    }
    scene.daemon.signal(Signal::SIGKILL).unwrap();
    assert!(eventually(Duration::from_secs(5), || !scene.daemon.runs()));
    for family in FAMILIES {
        let mut new = by_port(&scene, family, LOCAL);
        assert_seen(&new);
        new.assert_alive();
        new.assert_carries();
    }
    open.iter_mut().for_each(Open::assert_alive);
    assert_eq!(forwarded(&scene), before, "the node's stack has seen none of it");
}

/// Returns the counter of what the node was to forward.
fn forwarded(scene: &Scene) -> String {
    let mut list = scene.lab.balancer.command("nft");
    let output = list.args(["list", "counter", "inet", "node", "forwarded"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn connections_go_on_while_other_backends_come_and_go_and_end_with_their_own() {
    tests::skip_without_root!();
    let mut config = config();
    let scene = scene(&config);
    let all = config.route_mut(tenant_name(LOCAL)).backends.clone();
    let only = |index: usize| -> Vec<Backend> {
        FAMILIES.map(|family| Backend::new(backend(family, LOCAL, index), ECHO_PORT)).to_vec()
    };
    let until = |family, index: usize| {
        let name = format!("{}/{index} ", tenant_name(LOCAL));
        let found =
            (0..200).map(|_| by_port(&scene, family, LOCAL)).find(|open| open.backend.starts_with(&name));
        found.unwrap_or_else(|| panic!("none of 200 connections reached {name}"))
    };
    let mut kept = FAMILIES.map(|family| until(family, 0));
    let mut ended = FAMILIES.map(|family| until(family, 1));
    config.route_mut(tenant_name(LOCAL)).backends = only(0);
    scene.daemon.reload(&config).unwrap();
    ended.iter_mut().for_each(|open| open.assert_reset(ENDED));
    config.route_mut(tenant_name(LOCAL)).backends = all;
    scene.daemon.reload(&config).unwrap();
    // The resets are repeated after a second.
    std::thread::sleep(Duration::from_millis(1_300));
    kept.iter_mut().for_each(Open::assert_alive);
    // Nobody is left on this node: refused at once, and those that are open end.
    config.route_mut(tenant_name(LOCAL)).backends = Vec::new();
    scene.daemon.reload(&config).unwrap();
    kept.iter_mut().for_each(|open| open.assert_reset(ENDED));
    for family in FAMILIES {
        let refused = dial(&scene, scene.lab.vip(family, DIRECT_PORT)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{family:?}");
    }
    // All is as before where no route asks for it.
    config.route_mut(tenant_name(LOCAL)).backends = only(1);
    config.route_mut(tenant_name(LOCAL)).external_traffic_policy = None;
    scene.daemon.reload(&config).unwrap();
    for family in FAMILIES {
        let hidden = by_port(&scene, family, LOCAL);
        assert!(
            hidden.backend.contains(&balancer(family, TENANT_NETS[LOCAL]).to_string()),
            "{}",
            hidden.backend
        );
    }
}

/// What a pod still sends on connections that are being ended passes through the programs, and nothing does afterwards, with or without
/// another change.
#[test]
fn a_backend_that_is_gone_is_known_until_its_connections_are_ended() {
    tests::skip_without_root!();
    let mut config = config();
    let scene = scene(&config);
    let known = || -> BTreeSet<IpAddr> {
        let pin = scene.daemon.pins().join(name::ADDRESSES);
        let roles = pinned_entries::<Address, AddressRole>(&pin).unwrap().into_iter();
        roles.filter(|(_, role)| role.flags & ROLE_BACKEND != 0).map(|(address, _)| address.into()).collect()
    };
    let all = known();
    assert_eq!(all.len(), FAMILIES.len() * BACKENDS.len(), "{all:?}");
    let mut ended = FAMILIES.map(|family| by_port(&scene, family, LOCAL));
    config.route_mut(tenant_name(LOCAL)).backends = Vec::new();
    scene.daemon.reload(&config).unwrap();
    assert_eq!(known(), all);
    assert!(!scene.daemon.log().contains("detached"), "{}", scene.daemon.log());
    ended.iter_mut().for_each(|open| open.assert_reset(ENDED));
    // The resets are repeated after a second.
    assert!(eventually(Duration::from_secs(5), || known().is_empty()), "{:?}", known());
    let is_left = || scene.daemon.log().contains("detached");
    assert!(eventually(Duration::from_secs(1), is_left), "{}", scene.daemon.log());
}

/// Its replies may not come by a device with the program.
#[test]
fn a_backend_behind_a_router_is_refused_by_name() {
    tests::skip_without_root!();
    let scene = scene(&config());
    let routed = backend(Family::V4, LOCAL, 0);
    let router = backend(Family::V4, LOCAL, 1);
    scene.lab.balancer.ip(&format!("route add {routed}/32 via {router}\n")).unwrap();
    let is_told = || scene.daemon.log().contains(&format!("{routed}:{ECHO_PORT} is reached over a router"));
    assert!(eventually(Duration::from_secs(5), is_told), "{}", scene.daemon.log());
    for _ in 0..20 {
        let open = by_port(&scene, Family::V4, LOCAL);
        assert!(open.backend.starts_with("tenant-a/1 "), "{}", open.backend);
    }
}

/// Nobody else is there to lead clients to a backend: they are refused at once, instead of finding nobody.
#[test]
fn an_address_is_announced_also_while_there_is_no_backend_to_lead_to() {
    tests::skip_without_root!();
    let backends: Vec<Backend> =
        FAMILIES.map(|family| Backend::new(backend(family, LOCAL, 0), ECHO_PORT)).to_vec();
    let mut config = Config::empty();
    config.settings.l2 = Some(L2 { enabled: true });
    config.listeners.push(listener("direct", DIRECT_PORT, "TCP"));
    config.routes.push(route("local", &["direct"], &[], backends));
    config.route_mut("local").external_traffic_policy = Some("Local");
    let scene = scene(&config);
    let shown = || scene.daemon.cli_text(&["vips"]).unwrap();
    let is_shown = || FAMILIES.iter().all(|family| shown().contains(&vip(*family).to_string()));
    assert!(eventually(Duration::from_secs(5), is_shown), "{}", shown());
    config.route_mut("local").backends = Vec::new();
    scene.daemon.reload(&config).unwrap();
    for family in FAMILIES {
        let refused = dial(&scene, scene.lab.vip(family, DIRECT_PORT)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{family:?}");
    }
    // What is withheld is so after the order.
    assert!(!eventually(Duration::from_millis(500), || !is_shown()), "{}", shown());
}

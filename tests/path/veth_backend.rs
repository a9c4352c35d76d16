//! Backends on the balancer's own node: containers behind a bridge, and the node itself.

use std::net::SocketAddr;

use tests::addresses::{FAMILIES, Family, TENANT_NETS, TLS_PORT, balancer, host};
use tests::config::{Backend, Config, SHARED, listener, route};
use tests::net::{End, Namespace, veth};
use tests::server::{Server, Speech};
use tests::topology::{Lab, Options};

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene};

/// The containers' network.
const NET: u8 = 9;

#[test]
fn backends_behind_a_local_bridge_are_served() {
    tests::skip_without_root!();
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    let addresses =
        |number| FAMILIES.map(|f| format!("{}/{}", host(f, NET, number), if f.is_v4() { 24 } else { 64 }));
    let own = addresses(1);
    lab.balancer
        .ip(&format!(
            "link add bridge type bridge\naddr add {} dev bridge\naddr add {} dev bridge nodad\nlink set bridge up\n",
            own[0], own[1]
        ))
        .unwrap();
    let mut containers = Vec::new();
    let mut echoes = Vec::new();
    for number in [2, 3] {
        let container = Namespace::new("container").unwrap();
        let port = format!("port{number}");
        let inside = addresses(number);
        let inside = inside.each_ref().map(String::as_str);
        let near = End { namespace: &lab.balancer, device: &port, addresses: &[] };
        veth(near, End { namespace: &container, device: "eth0", addresses: &inside }, 1500).unwrap();
        lab.balancer.ip(&format!("link set {port} master bridge\n")).unwrap();
        for family in FAMILIES {
            let at = SocketAddr::new(host(family, NET, number), ECHO_PORT);
            echoes.push(Server::start(&container, at, &format!("container/{number}"), Speech::Echo).unwrap());
        }
        containers.push(container);
    }
    let mut config = Config::empty();
    config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
    config.listeners.push(listener("direct", 20_001, "TCP"));
    let backends =
        FAMILIES.into_iter().flat_map(|f| [2, 3].map(|n| Backend::new(host(f, NET, n), ECHO_PORT)));
    config.routes.push(route("local", &[SHARED, "direct"], &["local.example.org"], backends.collect()));
    let daemon = lab.vestibule(&config).unwrap();
    let scene = Scene { daemon, echoes, lab };
    for family in FAMILIES {
        for number in ["container/2", "container/3"] {
            Open::until(&scene, family, "local.example.org", number).assert_alive();
        }
        let mut direct = Open::to(&scene, scene.lab.vip(family, 20_001), b"hello");
        assert!(direct.backend.starts_with("container/"));
        direct.assert_alive();
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_backend_that_is_the_node_itself_is_refused_by_name() {
    tests::skip_without_root!();
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    for family in FAMILIES {
        let own = balancer(family, TENANT_NETS[0]);
        let mut config = Config::empty();
        config.listeners.push(listener(SHARED, TLS_PORT, "TLS"));
        config.routes.push(route(
            "self",
            &[SHARED],
            &["self.example.org"],
            vec![Backend::new(own, ECHO_PORT)],
        ));
        let refused = format!("{:#}", lab.vestibule(&config).unwrap_err());
        assert!(refused.contains(&own.to_string()), "{family:?}: {refused}");
    }
}

#[test]
fn a_way_to_a_backend_that_moves_to_another_device_is_followed() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let name = tests::addresses::server_name(0);
    let backend = Open::by_name(&scene, Family::V4, &name).backend;
    assert!(backend.starts_with("tenant-a/"));
    // A second link to tenant a, over which its backends are reached from now on.
    let second = End { namespace: &scene.lab.balancer, device: "second", addresses: &["10.97.12.1/24"] };
    let far =
        End { namespace: &scene.lab.tenants[0].namespace, device: "second", addresses: &["10.97.12.2/24"] };
    veth(second, far, 1500).unwrap();
    let batch = "route add 10.97.2.2/32 via 10.97.12.2\nroute add 10.97.2.3/32 via 10.97.12.2\n";
    scene.lab.balancer.ip(batch).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    for _ in 0..10 {
        Open::by_name(&scene, Family::V4, &name).assert_alive();
    }
}

//! Ports of a VIP without a listener: left to the node if the address is its own, refused otherwise.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tests::addresses::{CLIENT_NET, FAMILIES, TLS_PORT, balancer, server_name};
use tests::config::Config;
use tests::hello::hello;
use tests::server::{Server, Speech, read_line};
use tests::tls;
use tests::topology::Options;

use crate::open::Open;
use crate::scene::{AT_ONCE, ECHO_PORT, Scene};

/// A port that no listener has.
const OTHER_PORT: u16 = 8080;

#[test]
fn other_ports_of_the_nodes_own_address_are_the_nodes() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    for listener in &mut config.listeners {
        listener.addresses = FAMILIES.map(|family| balancer(family, CLIENT_NET)).to_vec();
    }
    let scene = Scene::echo_with(&Options::default(), &config);
    for family in FAMILIES {
        let own = balancer(family, CLIENT_NET);
        let at = SocketAddr::new(own, OTHER_PORT);
        let _server = Server::start(&scene.lab.balancer, at, "the node", Speech::Echo).unwrap();
        let ((), moved) = scene.counted(|| {
            let mut stream = scene.lab.client.run(|| tls::dial(at)).unwrap();
            assert_eq!(read_line(&mut stream).unwrap().unwrap(), "the node");
        });
        assert!(moved.contains_key("ClassifyOwnPort"), "{family:?}: {moved:?}");
        let by_name = Open::to(&scene, SocketAddr::new(own, TLS_PORT), &hello().name(server_name(1)).bytes());
        assert!(by_name.backend.starts_with("tenant-b/"));
    }
}

#[test]
fn other_ports_of_a_vip_refuse_at_once() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let to = scene.lab.vip(family, OTHER_PORT);
        let start = Instant::now();
        let (refused, moved) = scene.counted(|| scene.lab.client.run(|| tls::dial(to)));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused, "{family:?}: {moved:?}");
        assert!(start.elapsed() < AT_ONCE, "{family:?}: {:?}", start.elapsed());
        assert_eq!(moved.get("ClassifyNoListener"), Some(&1), "{family:?}: {moved:?}");
    }
}

#[test]
fn what_is_not_tcp_is_answered_by_icmp() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let any = if family.is_v4() { "0.0.0.0:0" } else { "[::]:0" };
        let (error, moved) = scene.counted(|| {
            let socket = scene.lab.client.run(|| UdpSocket::bind(any)).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            socket.send(b"anyone?").unwrap();
            socket.recv(&mut [0; 16]).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{family:?}: {moved:?}");
        assert_eq!(moved.get("ClassifyUnreachable"), Some(&1), "{family:?}: {moved:?}");
    }
}

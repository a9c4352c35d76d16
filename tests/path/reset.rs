//! A reset by either end reaches the other at once.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name};
use tests::clients::User;
use tests::config::DIRECT_PORT;
use tests::hello::hello;
use tests::raw::{End, end_of};
use tests::server::{read_line, reset};
use tests::tls;

use crate::scene::{Scene, eventually};

/// An open connection to an echo server of tenant a, through either kind of listener.
fn open(scene: &Scene, family: Family, port: u16) -> TcpStream {
    let mut stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, port))).unwrap();
    if port == TLS_PORT {
        stream.write_all(&hello().name(server_name(0)).bytes()).unwrap();
    }
    assert!(read_line(&mut stream).unwrap().unwrap().starts_with("tenant-a/"));
    stream
}

fn connections(scene: &Scene) -> usize {
    scene.echoes.iter().map(tests::server::Server::connections).sum()
}

#[test]
fn a_clients_reset_ends_the_backends_connection() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for (family, port) in FAMILIES.into_iter().flat_map(|family| [(family, TLS_PORT), (family, DIRECT_PORT)])
    {
        let stream = open(&scene, family, port);
        assert_eq!(connections(&scene), 1);
        reset(&stream).unwrap();
        // On trial, where the backend has not acknowledged the last bytes yet.
        let is_passed = |moved: &BTreeMap<String, u64>| {
            ["ForwardReset", "ForwardTrial"].into_iter().any(|reason| moved.contains_key(reason))
        };
        let ((), moved) = scene.counted_until(|| drop(stream), is_passed);
        assert!(
            eventually(Duration::from_secs(1), || connections(&scene) == 0),
            "{family:?} {port}: {moved:?}"
        );
        assert!(is_passed(&moved), "{family:?} {port}: {moved:?}");
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_backends_reset_reaches_the_client() {
    tests::skip_without_root!();
    let scene = Scene::new();
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    for (family, port) in FAMILIES.into_iter().flat_map(|family| [(family, TLS_PORT), (family, DIRECT_PORT)])
    {
        let to = scene.lab.vip(family, port);
        let mut stream = scene.lab.client.run(|| tls::connect(to, user.config(), &server_name(0))).unwrap();
        stream.write_all(b"RESET\n").unwrap();
        stream.flush().unwrap();
        assert_eq!(
            end_of(&mut stream.sock, Duration::from_secs(1)).unwrap(),
            End::Reset,
            "{family:?} {port}"
        );
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_reset_amid_much_data_is_obeyed() {
    tests::skip_without_root!();
    let scene = Scene::new();
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let mut stream = scene.lab.client.run(|| tls::connect(to, user.config(), &server_name(0))).unwrap();
        stream.write_all(b"SEND 1000000000 1\n").unwrap();
        stream.flush().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        reset(&stream.sock).unwrap();
        drop(stream);
        let served =
            |scene: &Scene| scene.lab.tenants[0].servers.iter().map(|s| s.connections()).sum::<usize>();
        assert!(
            eventually(Duration::from_secs(2), || served(&scene) == 0),
            "{family:?}: the backend sends on"
        );
    }
    scene.assert_nothing_leaks();
}

/// Every aborted client: its RST is ahead of what the backend acknowledged. Whether the backend took it is asked.
#[test]
fn a_client_that_aborts_with_data_under_way_is_forgotten_within_a_minute() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let abort = || {
        for (family, port) in
            FAMILIES.into_iter().flat_map(|family| [(family, TLS_PORT), (family, DIRECT_PORT)])
        {
            for bytes in [1, 1_000, 30_000, 200_000] {
                let mut stream = open(&scene, family, port);
                stream.set_nonblocking(true).unwrap();
                let _ = stream.write(&vec![7; bytes]);
                reset(&stream).unwrap();
            }
        }
    };
    let ((), moved) = scene.counted_until(abort, |moved| moved.contains_key("ForwardTrial"));
    assert!(moved.contains_key("ForwardTrial"), "{moved:?}");
    scene.assert_empty_within(Duration::from_secs(60));
    assert_eq!(connections(&scene), 0);
}

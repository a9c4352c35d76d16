//! A full flow map: connections without progress are evicted to new ones; those that are used do not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tests::addresses::{Family, TLS_PORT, server_name};
use tests::config::Config;
use tests::hello::hello;
use tests::raw;
use tests::server::read_line;
use tests::tls::dial;
use tests::topology::Options;
use userspace::dataplane::expire::Expirer;
use userspace::dataplane::pin::Pins;

use crate::crowd::Crowd;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// Slots of the map of flows.
const SLOTS: usize = 500;

fn assert_echoes(stream: &mut TcpStream) {
    let mut echo = [0; 5];
    stream.write_all(b"still").unwrap();
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"still");
}

/// Clients that send a hello and then nothing, not even an ACK, each from its own address, fill the map.
#[test]
fn silent_connections_are_evicted_in_a_full_map() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(SLOTS as u32);
    let scene = Scene::echo_with(&Options::default(), &config);
    let bytes = hello().name(server_name(0)).bytes();
    let vip = scene.lab.vip(Family::V4, TLS_PORT);
    let mut used = scene.lab.client.run(|| {
        let mut stream = dial(vip).unwrap();
        stream.write_all(&bytes).unwrap();
        read_line(&mut stream).unwrap();
        stream.read_exact(&mut vec![0; bytes.len()]).unwrap();
        stream
    });
    let mut crowd = Crowd::new(&scene, 2 * SLOTS);
    crowd.connect();
    crowd.say_all(&bytes);
    // The lab has fewer than four routes, so each may have the whole map.
    let full = || scene.daemon.reasons().unwrap().get("AdmitRouteFull").is_some_and(|count| *count > 0);
    assert!(eventually(Duration::from_secs(5), full), "{:?}", scene.daemon.reasons());
    // Their minute is far from over.
    let connects = || scene.lab.client.run(|| raw::hello(vip, &bytes, &[])).is_ok();
    let (connected, moved) = scene.counted(|| eventually(Duration::from_secs(30), connects));
    assert!(connected, "{moved:?}");
    assert!(moved.get("ExpireCrowded").is_some_and(|ended| *ended >= (SLOTS / 10) as u64), "{moved:?}");
    assert_eq!(moved.get("ExpireHeld"), None, "{moved:?}");
    assert_echoes(&mut used);
}

/// Among millions of flows, walks are minutes apart; and only the second one after all ports were taken makes room.
#[test]
fn a_backend_without_a_free_source_port_calls_for_a_walk() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.source_ports = Some("20000-20003".into());
    let scene = Scene::echo_with(&Options::default(), &config);
    let bytes = hello().name(server_name(0)).bytes();
    let vip = scene.lab.vip(Family::V4, TLS_PORT);
    // Another than the daemon's, which has not walked.
    let expirer = Expirer::open(&Pins::new(scene.daemon.pins()), 1).unwrap();
    assert!(!expirer.is_awaited().unwrap());
    let count = || scene.daemon.reasons().unwrap().get("ConnectNoPort").copied().unwrap_or(0);
    let mut open = Vec::new();
    while count() == 0 {
        assert!(open.len() < 40, "{:?}", scene.daemon.reasons());
        assert!(!expirer.is_awaited().unwrap());
        let mut stream = scene.lab.client.run(|| dial(vip)).unwrap();
        stream.write_all(&bytes).unwrap();
        // A name, or a reset.
        let _ = read_line(&mut stream);
        open.push(stream);
    }
    assert!(expirer.is_awaited().unwrap());
}

//! Clients that open a connection and say nothing for a while.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use common::reason::Reason;
use nix::sys::socket::{setsockopt, sockopt};
use tests::addresses::{FAMILIES, TLS_PORT, server_name};
use tests::hello::hello;
use tests::server::read_line;
use tests::tls;

use crate::scene::Scene;

/// Has the kernel send a keep-alive after each second of silence and give up after two without an answer.
fn keep_alive(stream: &TcpStream) {
    setsockopt(stream, sockopt::KeepAlive, &true).unwrap();
    setsockopt(stream, sockopt::TcpKeepIdle, &1).unwrap();
    setsockopt(stream, sockopt::TcpKeepInterval, &1).unwrap();
    setsockopt(stream, sockopt::TcpKeepCount, &2).unwrap();
}

#[test]
fn a_client_that_keeps_its_connection_alive_before_its_hello_is_served() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let bytes = hello().name(server_name(0)).bytes();
    let (streams, moved) = scene.counted(|| {
        let streams =
            FAMILIES.map(|family| scene.lab.client.run(|| tls::dial(scene.lab.vip(family, TLS_PORT))));
        let mut streams = streams.map(Result::unwrap);
        streams.iter().for_each(keep_alive);
        std::thread::sleep(Duration::from_secs(5));
        for stream in &mut streams {
            // In two parts, and silence between them.
            stream.write_all(&bytes[..100]).unwrap();
        }
        std::thread::sleep(Duration::from_secs(4));
        for stream in &mut streams {
            stream.write_all(&bytes[100..]).unwrap();
            let name = read_line(stream).unwrap().unwrap_or_default();
            assert!(name.starts_with("tenant-a/"), "{name}");
        }
        streams
    });
    let of = |reason: Reason| moved.get(reason.name()).copied().unwrap_or(0);
    assert!(of(Reason::SynKeepAlive) >= 6 && of(Reason::HelloAcked) >= 6, "{moved:?}");
    drop(streams);
    scene.assert_nothing_leaks();
}

//! Clients and backends whose packets have IPv4 options or IPv6 extension headers.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use common::reason::Reason;
use tests::addresses::{FAMILIES, TLS_PORT, backend, server_name};
use tests::hello::hello;
use tests::ip_options;
use tests::server::{Speech, read_line};
use tests::tls;
use tests::topology::Options;

use crate::scene::{ECHO_PORT, Scene};

/// Enough bytes for super-packets.
const BYTES: usize = 300_000;

/// Sends a hello and then more bytes than fit one super-packet, and reads all of them back.
fn echoes(mut stream: TcpStream) -> Result<()> {
    let hello = hello().name(server_name(0)).bytes();
    stream.write_all(&hello)?;
    let name = read_line(&mut stream)?;
    ensure!(name.as_ref().is_some_and(|name| name.starts_with("tenant-a/")), "answered by {name:?}");
    let mut echo = vec![0; hello.len()];
    stream.read_exact(&mut echo)?;
    ensure!(echo == hello, "another hello came back");
    let sent: Vec<u8> = (0..BYTES).map(|i| (i * 31 % 251) as u8).collect();
    let mut writer = stream.try_clone()?;
    let mut got = vec![0; BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent));
        stream.read_exact(&mut got)
    })?;
    ensure!(got == sent, "other bytes came back");
    Ok(())
}

#[test]
fn a_client_whose_packets_have_options_is_served() {
    tests::skip_without_root!();
    for offloads in [true, false] {
        let config = tests::config::Config::lab_on(ECHO_PORT);
        let scene = Scene::echo_with(&Options { offloads, ..Options::default() }, &config);
        for family in FAMILIES {
            let (done, moved) = scene.counted(|| {
                let stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, TLS_PORT))).unwrap();
                ip_options::set(&stream).unwrap();
                echoes(stream)
            });
            done.unwrap_or_else(|error| panic!("{family:?} {offloads}: {error:#}; {moved:?}"));
            assert_eq!(moved.get(Reason::ParseOptions.name()), None, "{family:?} {offloads}: {moved:?}");
        }
    }
}

#[test]
fn a_backend_whose_packets_have_options_serves() {
    tests::skip_without_root!();
    for offloads in [true, false] {
        let port = ECHO_PORT + 1;
        let config = tests::config::Config::lab_on(port);
        // Room for the options: an IPv6 socket that gets them after its handshake does not make its segments smaller.
        let options = Options { offloads, servers: false, client_mss: Some(1_300), ..Options::default() };
        let scene = Scene::with(&options, &config);
        for family in FAMILIES {
            let at = |index| (backend(family, 0, index), port).into();
            let _servers = [0, 1].map(|index| {
                scene.lab.serve(0, at(index), &format!("tenant-a/{index}"), Speech::EchoWithOptions).unwrap()
            });
            let (done, moved) = scene.counted(|| {
                let stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, TLS_PORT))).unwrap();
                echoes(stream)
            });
            done.unwrap_or_else(|error| panic!("{family:?} {offloads}: {error:#}; {moved:?}"));
            assert_eq!(moved.get(Reason::ParseOptions.name()), None, "{family:?} {offloads}: {moved:?}");
        }
    }
}

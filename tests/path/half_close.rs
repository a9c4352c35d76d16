//! One end has finished sending while the other continues.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use tests::addresses::{FAMILIES, TLS_PORT, server_name};
use tests::bytes;
use tests::clients::User;
use tests::config::DIRECT_PORT;
use tests::hello::hello;
use tests::server::read_line;
use tests::tls;

use crate::scene::Scene;

const BYTES: u64 = 1 << 20;

#[test]
fn a_client_that_ends_its_half_still_gets_the_answer() {
    tests::skip_without_root!();
    let scene = Scene::new();
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    for (family, port) in FAMILIES.into_iter().flat_map(|family| [(family, TLS_PORT), (family, DIRECT_PORT)])
    {
        let to = scene.lab.vip(family, port);
        let mut stream = scene.lab.client.run(|| tls::connect(to, user.config(), &server_name(0))).unwrap();
        stream.write_all(b"COUNT\n").unwrap();
        bytes::send(&mut stream, BYTES, 9).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        stream.sock.shutdown(Shutdown::Write).unwrap();
        let answer = read_line(&mut stream).unwrap();
        assert_eq!(answer.unwrap(), format!("{BYTES} {}", bytes::hash(BYTES, 9)));
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    scene.assert_nothing_leaks();
}

#[test]
fn an_end_may_stay_half_closed_for_a_while() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let hello = hello().name(server_name(1)).bytes();
        let mut stream = scene.lab.client.run(|| tls::dial(to)).unwrap();
        stream.write_all(&hello).unwrap();
        assert!(read_line(&mut stream).unwrap().unwrap().starts_with("tenant-b/"));
        let mut echo = vec![0; hello.len()];
        stream.read_exact(&mut echo).unwrap();
        // More than the backend can take at once, so that it continues to send long after our FIN.
        let mut writer = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            bytes::send(&mut writer, BYTES, 4).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(bytes::receive_all(&mut stream).unwrap(), (BYTES, bytes::hash(BYTES, 4)));
        sending.join().unwrap();
    }
    scene.assert_nothing_leaks();
}

#[test]
fn a_hello_and_the_fin_behind_it_arrive() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let hello = hello().name(server_name(2)).bytes();
        let mut stream = scene.lab.client.run(|| tls::dial(to)).unwrap();
        stream.write_all(&hello).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let name = read_line(&mut stream).unwrap().unwrap();
        assert!(name.starts_with("tenant-c/"), "{name}");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, hello);
    }
    scene.assert_nothing_leaks();
}

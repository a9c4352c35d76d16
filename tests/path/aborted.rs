//! Clients that abort with data in flight that nobody acknowledges it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name};
use tests::config::DIRECT_PORT;
use tests::hello::hello;
use tests::server::{read_line, reset};
use tests::tls;

use crate::scene::Scene;

/// The time within which such a connection is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Makes tenant a's host lose what matches this of all that reaches it.
fn lose(scene: &Scene, what: &str) {
    let text = format!(
        "table inet lossy {{\nchain in {{\ntype filter hook input priority filter\n{what} drop\n}}\n}}\n"
    );
    scene.lab.tenants[0].namespace.nft(&text).unwrap();
}

/// Opens a connection to tenant a, through either kind of listener.
fn open(scene: &Scene, family: Family, port: u16) -> TcpStream {
    let mut stream = scene.lab.client.run(|| tls::dial(scene.lab.vip(family, port))).unwrap();
    if port == TLS_PORT {
        stream.write_all(&hello().name(server_name(0)).bytes()).unwrap();
    }
    assert!(read_line(&mut stream).unwrap().unwrap().starts_with("tenant-a/"));
    stream
}

fn all(scene: &Scene) -> Vec<TcpStream> {
    let kinds = FAMILIES.into_iter().flat_map(|family| [(family, TLS_PORT), (family, DIRECT_PORT)]);
    kinds.map(|(family, port)| open(scene, family, port)).collect()
}

/// Writes until the socket takes no more, at most this much; then aborts.
fn abort(mut stream: TcpStream, bytes: usize) {
    stream.set_nonblocking(true).unwrap();
    let piece = vec![7; 16_384];
    let mut left = bytes;
    while left > 0 {
        match stream.write(&piece[..left.min(piece.len())]) {
            Ok(sent) => left -= sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("writing: {error}"),
        }
    }
    reset(&stream).unwrap();
}

/// The backend's host is gone: data, RST and our probes are lost.
#[test]
fn a_client_that_aborts_while_its_backend_is_gone_is_forgotten_within_a_minute() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let streams = all(&scene);
    lose(&scene, "meta l4proto tcp");
    let abort = || streams.into_iter().for_each(|stream| abort(stream, 30_000));
    let are_on_trial = |moved: &BTreeMap<String, u64>| moved.get("ForwardTrial") >= Some(&4);
    let ((), moved) = scene.counted_until(abort, are_on_trial);
    assert!(are_on_trial(&moved), "{moved:?}");
    let ((), moved) = scene.counted(|| scene.assert_empty_within(FORGOTTEN));
    assert_eq!(moved.get("ExpireTrial"), Some(&4), "three probes without an answer: {moved:?}");
}

/// The probes are the daemon's: without it nothing ends, and the next one takes up what is on trial.
#[test]
fn a_trial_waits_while_the_daemon_is_dead() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let streams = all(&scene);
    lose(&scene, "meta l4proto tcp");
    scene.daemon.end(Signal::SIGKILL).unwrap();
    let abort = || streams.into_iter().for_each(|stream| abort(stream, 30_000));
    let are_on_trial = |moved: &BTreeMap<String, u64>| moved.get("ForwardTrial") >= Some(&4);
    let ((), moved) = scene.counted_until(abort, are_on_trial);
    assert!(are_on_trial(&moved), "{moved:?}");
    // Longer than three probes take.
    let ((), moved) = scene.counted(|| std::thread::sleep(Duration::from_secs(6)));
    assert!(moved.keys().all(|reason| !reason.starts_with("Expire")), "{moved:?}");
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    scene.assert_empty_within(FORGOTTEN);
    let all = scene.daemon.reasons().unwrap();
    assert_eq!(all.get("ExpireTrial"), Some(&4), "{all:?}");
}

/// Its data is lost and its RST is not: the backend answers with a challenge ACK (RFC 5961), which the client resets.
#[test]
fn a_client_that_aborts_after_its_data_was_lost_is_forgotten_within_a_minute() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let streams = all(&scene);
    lose(&scene, "meta length > 300");
    let abort = || streams.into_iter().for_each(|stream| abort(stream, 30_000));
    let ((), moved) = scene.counted_until(abort, |moved| moved.contains_key("ForwardTrial"));
    assert!(moved.contains_key("ForwardTrial"), "{moved:?}");
    scene.assert_empty_within(FORGOTTEN);
    assert_eq!(scene.echoes.iter().map(tests::server::Server::connections).sum::<usize>(), 0);
}

/// Both directions are full: the client does not read, so the echo server stops reading, too.
#[test]
fn a_client_that_aborts_while_its_backend_does_not_read_is_forgotten_within_a_minute() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for stream in all(&scene) {
        for _ in 0..20 {
            fill(&stream);
            std::thread::sleep(Duration::from_millis(50));
        }
        abort(stream, 1 << 20);
    }
    scene.assert_empty_within(FORGOTTEN);
    assert_eq!(scene.echoes.iter().map(tests::server::Server::connections).sum::<usize>(), 0);
}

/// Writes until the socket takes no more.
fn fill(mut stream: &TcpStream) {
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[7; 16_384]).is_ok() {}
}

//! `vestibule drain`.

use std::io::ErrorKind;
use std::net::TcpStream;

use tests::addresses::{FAMILIES, TLS_PORT, server_name};
use tests::tls::PATIENCE;

use crate::open::Open;
use crate::scene::Scene;

#[test]
fn a_node_that_drains_refuses_new_connections_and_waits_for_the_others() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    let mut kept = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)));
    let (drained, counted) = scene.counted(|| {
        let drained = scene.daemon.cli(&["drain", "--deadline", "1s"]).unwrap();
        for port in [TLS_PORT, 20_001] {
            let to = scene.lab.vip(FAMILIES[0], port);
            let refused = scene.lab.client.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "port {port}");
        }
        drained
    });
    assert_eq!(counted.get("SynDraining"), Some(&2), "{counted:?}");
    let said = String::from_utf8_lossy(&drained.stdout);
    assert!(!drained.status.success() && said.starts_with("2 connections are left"), "{drained:?}");
    kept.iter_mut().for_each(Open::assert_alive);

    // Draining continues after a restart of the daemon, and waits for the last connection.
    scene.daemon.end(nix::sys::signal::Signal::SIGKILL).unwrap();
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    let said = std::thread::scope(|scope| {
        let drain = scope.spawn(|| scene.daemon.cli_text(&["drain"]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!drain.is_finished(), "two connections are open");
        drop(kept);
        drain.join().unwrap()
    });
    assert!(said.starts_with("drained"), "{said}");
    scene.daemon.cli_text(&["drain", "--cancel"]).unwrap();
    Open::by_name(&scene, FAMILIES[1], &server_name(1)).assert_alive();
}

//! All connections of a client reach one backend, where its route says so.

use std::collections::BTreeSet;

use tests::addresses::{FAMILIES, server_name, tenant_name};
use tests::config::{Config, DIRECT_PORT};
use tests::topology::Options;

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene};

#[test]
fn all_connections_of_a_client_reach_one_backend_and_open_ones_stay() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    let scene = Scene::echo_with(&Options::default(), &config);
    let reached = |open: &[Open]| open.iter().map(|open| open.backend.clone()).collect::<BTreeSet<String>>();
    // One in a million million is on one backend by chance.
    let some = |family| -> Vec<Open> {
        let by_name = (0..20).map(|_| Open::by_name(&scene, family, &server_name(1)));
        let by_port = (0..20).map(|_| Open::to(&scene, scene.lab.vip(family, DIRECT_PORT + 1), b"hello"));
        by_name.chain(by_port).collect()
    };
    let mut before = FAMILIES.map(some);
    assert!(before.iter().all(|open| reached(open).len() == 2));
    config.route_mut(tenant_name(1)).session_affinity = Some("ClientIP");
    scene.daemon.reload(&config).unwrap();
    for family in FAMILIES {
        let only = reached(&some(family));
        assert_eq!(only.len(), 1, "{family:?}: {only:?}");
        let explained = scene.daemon.cli_text(&[
            "explain",
            "--listener",
            "shared",
            "--name",
            &server_name(1),
            "--from",
            &tests::addresses::client(family).to_string(),
            "-o",
            "json",
        ]);
        let decision: serde_json::Value = serde_json::from_str(&explained.unwrap()).unwrap();
        assert!(decision["backend"].is_string(), "whatever the port: {decision}");
    }
    before.iter_mut().flatten().for_each(Open::assert_alive);
    config.route_mut(tenant_name(1)).session_affinity = None;
    scene.daemon.reload(&config).unwrap();
    assert!(FAMILIES.map(some).iter().all(|open| reached(open).len() == 2));
}

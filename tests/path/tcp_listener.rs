//! Listeners that route by address and port alone.

use std::collections::BTreeSet;
use std::sync::Mutex;

use anyhow::{Context, ensure};
use tests::addresses::{FAMILIES, server_name, tenant_name};
use tests::clients::{KINDS, User};
use tests::config::DIRECT_PORT;
use tests::server::read_line;
use tests::tls;

use crate::scene::{Scene, all};

#[test]
fn every_tenant_is_reached_by_its_port() {
    tests::skip_without_root!();
    let scene = Scene::new();
    for tenant in 0..3 {
        let user = User::new(&scene.lab.tenants[tenant].authority, "alice").unwrap();
        for family in FAMILIES {
            let to = scene.lab.vip(family, DIRECT_PORT + tenant as u16);
            for kind in KINDS {
                let said = user.ask(kind, &scene.lab.client, to, &server_name(tenant), true).unwrap();
                assert!(
                    said.starts_with(tenant_name(tenant)) && said.ends_with(" alice"),
                    "{kind:?}: {said}"
                );
            }
        }
    }
}

#[test]
fn the_server_may_speak_first_and_both_backends_are_used() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let seen = Mutex::new(BTreeSet::new());
        let cases: Vec<u32> = (0..64).collect();
        all(&scene.lab, 8, &cases, |_| {
            let mut stream = tls::dial(scene.lab.vip(family, DIRECT_PORT + 1))?;
            let name = read_line(&mut stream)?.context("ended without a name")?;
            ensure!(name.starts_with("tenant-b/"), "answered by {name}");
            seen.lock().unwrap().insert(name);
            Ok(())
        });
        let seen = seen.into_inner().unwrap();
        assert_eq!(
            seen.iter().map(String::as_str).collect::<Vec<_>>(),
            ["tenant-b/0", "tenant-b/1"],
            "{family:?}"
        );
    }
    scene.assert_nothing_leaks();
}

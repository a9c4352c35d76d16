//! Many connections at once.

use std::sync::Barrier;
use std::sync::Mutex;

use anyhow::{Result, ensure};
use tests::addresses::{FAMILIES, TLS_PORT, server_name, tenant_name};
use tests::clients::{self, User};
use tests::tls;

use crate::scene::{Scene, turn};

const CONNECTIONS: usize = 1000;

#[test]
fn a_thousand_connections_opened_at_once_all_work() {
    tests::skip_without_root!();
    let _turn = turn();
    let scene = Scene::new();
    let users: Vec<User> =
        (0..3).map(|t| User::new(&scene.lab.tenants[t].authority, "alice").unwrap()).collect();
    let (begin, opened) = (Barrier::new(CONNECTIONS), Barrier::new(CONNECTIONS));
    let failures = Mutex::new(Vec::new());
    let one = |n: usize| -> Result<()> {
        let (family, tenant) = (FAMILIES[n % 2], n / 2 % 3);
        begin.wait();
        let stream =
            tls::connect(scene.lab.vip(family, TLS_PORT), users[tenant].config(), &server_name(tenant));
        // All connections are open before the first request.
        opened.wait();
        let said = clients::ask(stream?)?;
        ensure!(said.starts_with(tenant_name(tenant)), "answered by {said}");
        Ok(())
    };
    std::thread::scope(|scope| {
        for n in 0..CONNECTIONS {
            let thread = std::thread::Builder::new().stack_size(512 * 1024);
            let (scene, one, failures) = (&scene, &one, &failures);
            let work = move || {
                scene.lab.client.enter();
                if let Err(error) = one(n) {
                    failures.lock().unwrap().push(format!("connection {n}: {error:#}"));
                }
            };
            thread.spawn_scoped(scope, work).unwrap();
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failed, the first: {}", failures.len(), failures[0]);
    scene.assert_nothing_leaks();
}

//! Through the one VIP, clients reach their tenant by name, and no other tenant.

use std::net::TcpStream;

use anyhow::ensure;
use tests::addresses::{FAMILIES, Family, TLS_PORT, server_name, tenant_name};
use tests::clients::{KINDS, User};
use tests::config::{Config, FALLBACK};
use tests::hello::hello;
use tests::raw::{self, End};

use crate::scene::{AT_ONCE, ECHO_PORT, Scene, all};

#[test]
fn every_kind_of_client_reaches_every_tenant() {
    tests::skip_without_root!();
    let scene = Scene::new();
    let users: Vec<User> =
        (0..3).map(|t| User::new(&scene.lab.tenants[t].authority, "alice").unwrap()).collect();
    let mut cases = Vec::new();
    for family in FAMILIES {
        for kind in KINDS {
            cases.extend((0..3).map(|tenant| (family, kind, tenant)));
        }
    }
    all(&scene.lab, 4, &cases, |&(family, kind, tenant)| {
        let to = scene.lab.vip(family, TLS_PORT);
        let said = users[tenant].ask(kind, &scene.lab.client, to, &server_name(tenant), false)?;
        let (server, client) = said.split_once(' ').unwrap_or_default();
        ensure!(server.starts_with(tenant_name(tenant)) && client == "-", "answered by {said}");
        Ok(())
    });
}

#[test]
fn a_client_certificate_arrives_at_the_tenant() {
    tests::skip_without_root!();
    let scene = Scene::new();
    let user = User::new(&scene.lab.tenants[2].authority, "alice").unwrap();
    let stranger = User::new(&scene.lab.tenants[0].authority, "mallory").unwrap();
    for family in FAMILIES {
        for kind in KINDS {
            let to = scene.lab.vip(family, TLS_PORT);
            let ask = |user: &User| user.ask(kind, &scene.lab.client, to, &server_name(2), true);
            let said = ask(&user).unwrap();
            assert!(said.starts_with("tenant-c/") && said.ends_with(" alice"), "{kind:?}: {said}");
            assert!(ask(&stranger).is_err(), "{kind:?}: tenant c must not be taken for tenant a");
        }
    }
}

/// Returns the lab's routes with echo backends; tenant c has a wildcard below tenant b's.
fn echo_config() -> Config {
    let mut config = Config::lab_on(ECHO_PORT);
    config.route_mut("tenant-c").hostnames.push("*.deep.tenant-b.example.com".into());
    config
}

#[test]
fn names_are_matched_as_written_in_the_gateway_api() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Default::default(), &echo_config());
    let cases = [
        ("tenant-a.k8s.example.com", 0),
        ("TENANT-A.K8S.Example.COM", 0),
        ("tenant-a.k8s.example.com.", 0),
        ("Tenant-B.k8s.example.com.", 1),
        ("x.tenant-b.example.com", 1),
        ("a.b.c.tenant-b.example.com", 1),
        ("X.Y.TENANT-B.example.com.", 1),
        ("deep.tenant-b.example.com", 1),
        ("x.deep.tenant-b.example.com", 2),
        ("x.y.deep.tenant-b.example.com", 2),
        ("_under-score_.tenant-c.example.com", 2),
    ];
    let cases: Vec<_> = FAMILIES.into_iter().flat_map(|family| cases.map(|case| (family, case))).collect();
    all(&scene.lab, 4, &cases, |&(family, (name, tenant))| {
        let backend = raw::hello(scene.lab.vip(family, TLS_PORT), &hello().name(name).bytes(), &[])?;
        ensure!(backend.starts_with(tenant_name(tenant)), "answered by {backend}");
        Ok(())
    });
}

/// Long names have their own map; a change of the file, a restart and the list of routes must all cover it.
#[test]
fn a_long_name_comes_and_goes_with_the_file() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    let long = format!("{}.{}.example.com", "l".repeat(63), "m".repeat(63));
    config.route_mut(tenant_name(2)).hostnames.push(long.clone());
    let mut scene = Scene::echo_with(&Default::default(), &config);
    let ask = |scene: &Scene| {
        raw::hello(scene.lab.vip(Family::V6, TLS_PORT), &hello().name(&long).bytes(), &[])
            .map(|backend| backend.split('/').next().unwrap_or_default().to_owned())
    };
    let asked = |scene: &Scene| scene.lab.client.run(|| ask(scene));
    assert_eq!(asked(&scene).unwrap(), tenant_name(2));
    let routes = scene.daemon.cli_text(&["routes"]).unwrap();
    assert!(routes.contains(&long), "{routes}");
    // The name moves to another tenant while the daemon is down.
    scene.daemon.end(nix::sys::signal::Signal::SIGKILL).unwrap();
    config.route_mut(tenant_name(2)).hostnames.pop();
    config.route_mut(tenant_name(0)).hostnames.push(long.clone());
    scene.daemon.write_config(&config.json()).unwrap();
    assert_eq!(asked(&scene).unwrap(), tenant_name(2));
    scene.daemon.launch(&scene.lab.balancer).unwrap();
    assert_eq!(asked(&scene).unwrap(), tenant_name(0));
    config.route_mut(tenant_name(0)).hostnames.pop();
    scene.daemon.reload(&config).unwrap();
    assert!(asked(&scene).is_err());
    let routes = scene.daemon.cli_text(&["routes"]).unwrap();
    assert!(!routes.contains(&long), "{routes}");
}

#[test]
fn the_default_route_takes_unknown_names_and_no_name() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let hellos = [
        hello().bytes(),
        hello().name("unknown.example.org").bytes(),
        hello().name("tenant-a.k8s.example.com").bytes(),
        hello().name("192.0.2.1").bytes(),
        hello().name("2001:db8::1").bytes(),
    ];
    let cases: Vec<_> =
        FAMILIES.into_iter().flat_map(|family| hellos.clone().map(|bytes| (family, bytes))).collect();
    all(&scene.lab, 4, &cases, |(family, bytes)| {
        let backend = raw::hello(scene.lab.vip(*family, FALLBACK.1), bytes, &[])?;
        ensure!(backend.starts_with("tenant-b/"), "answered by {backend}");
        Ok(())
    });
}

/// Asserts that these bytes are answered by RST at once, and that only this reason is counted, once.
fn assert_refused(scene: &Scene, family: Family, port: u16, bytes: &[u8], reason: &str, what: &str) {
    let to = scene.lab.vip(family, port);
    let (refused, moved) = scene.counted(|| scene.lab.client.run(|| raw::refused(to, bytes, AT_ONCE * 3)));
    let (end, after) = refused.unwrap();
    assert_eq!(end, End::Reset, "{what} over {family:?}: {moved:?}");
    assert!(after < AT_ONCE, "{what} over {family:?}: reset after {after:?}");
    assert_eq!(moved.get(reason), Some(&1), "{what} over {family:?}: {moved:?}");
    let others =
        ["RouteNone", "RouteNoName", "RouteReserved", "HelloMalformed", "HelloNameInvalid", "HelloNotTls"];
    let refusals: u64 = others.iter().filter_map(|name| moved.get(*name)).sum();
    assert_eq!(refusals, 1, "{what} over {family:?}: {moved:?}");
    assert!(!moved.contains_key("ConnectSyn"), "{what} over {family:?}: a backend was dialled: {moved:?}");
}

#[test]
fn what_has_no_route_is_refused_at_once_for_its_reason() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let mut cut = hello().name("tenant-a.k8s.example.com").bytes();
    // The session id is longer than RFC 8446 section 4.1.2 allows.
    cut[5 + 4 + 34] = 33;
    let cases = [
        ("an unknown name", hello().name("unknown.example.org").bytes(), "RouteNone"),
        ("a wildcard's own suffix", hello().name("tenant-a.example.com").bytes(), "RouteNone"),
        ("a suffix that is no label", hello().name("xtenant-a.k8s.example.com").bytes(), "RouteNone"),
        ("no name", hello().bytes(), "RouteNoName"),
        ("an IPv4 literal", hello().name("192.0.2.1").bytes(), "RouteNoName"),
        ("a bad character", hello().name("tenant a.k8s.example.com").bytes(), "HelloNameInvalid"),
        ("an empty label", hello().name("tenant-a..example.com").bytes(), "HelloNameInvalid"),
        ("a malformed hello", cut, "HelloMalformed"),
        (
            "HTTP without TLS",
            b"GET / HTTP/1.1\r\nHost: tenant-a.k8s.example.com\r\n\r\n".to_vec(),
            "HelloNotTls",
        ),
    ];
    for family in FAMILIES {
        for (what, bytes, reason) in &cases {
            assert_refused(&scene, family, TLS_PORT, bytes, reason, what);
        }
    }
}

#[test]
fn reserved_and_malformed_names_are_nobodys_even_where_there_is_a_default() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    let reserved = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "Kubernetes.Default.SVC.cluster.local.",
    ];
    for family in FAMILIES {
        for name in reserved {
            let bytes = hello().name(name).bytes();
            assert_refused(&scene, family, TLS_PORT, &bytes, "RouteReserved", name);
            assert_refused(&scene, family, FALLBACK.1, &bytes, "RouteReserved", name);
        }
        let bytes = hello().name("not a name").bytes();
        assert_refused(&scene, family, FALLBACK.1, &bytes, "HelloNameInvalid", "a malformed name");
    }
}

#[test]
fn an_open_connection_without_a_hello_holds_nothing() {
    tests::skip_without_root!();
    let scene = Scene::echo();
    for family in FAMILIES {
        let to = scene.lab.vip(family, TLS_PORT);
        let silent = scene.lab.client.run(|| TcpStream::connect(to)).unwrap();
        assert_eq!(scene.entries(), [0; 3]);
        drop(silent);
    }
}

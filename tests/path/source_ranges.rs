//! Source ranges of routes change while clients are connected.

use std::io::ErrorKind;
use std::time::Duration;

use common::reason::Reason;
use nix::sys::signal::Signal;
use tests::addresses::{FAMILIES, Family, TLS_PORT, client, server_name, tenant_name};
use tests::config::{Config, DIRECT_PORT};
use tests::hello::hello;
use tests::raw;
use tests::topology::Options;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::read;

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually};

/// Connections that are no longer admitted are reset within this time.
const ENDED: Duration = Duration::from_secs(1);

/// Opens a connection to the tenant's TCP listener.
fn by_port(scene: &Scene, family: Family, tenant: u16) -> Open {
    Open::to(scene, scene.lab.vip(family, DIRECT_PORT + tenant), b"hello")
}

/// Asserts that the client's SYNs to the tenant's TCP listener get no answer, and its hello a reset.
fn assert_refused(scene: &Scene, family: Family, tenant: usize) {
    let counter =
        |reason: Reason| scene.daemon.reasons().unwrap().get(reason.name()).copied().unwrap_or_default();
    let before = [Reason::AdmitSynRange, Reason::AdmitSourceRange].map(counter);
    let direct = scene.lab.vip(family, DIRECT_PORT + tenant as u16);
    let dialled =
        scene.lab.client.run(|| std::net::TcpStream::connect_timeout(&direct, Duration::from_millis(300)));
    assert_eq!(dialled.unwrap_err().kind(), ErrorKind::TimedOut, "as behind a firewall");
    let bytes = hello().name(server_name(tenant)).bytes();
    let named = scene.lab.client.run(|| raw::hello(scene.lab.vip(family, TLS_PORT), &bytes, &[]));
    assert!(named.is_err(), "{named:?}");
    let after = [Reason::AdmitSynRange, Reason::AdmitSourceRange].map(counter);
    assert!(after[0] > before[0] && after[1] == before[1] + 1, "{before:?} {after:?}");
}

#[test]
fn connections_that_are_no_longer_admitted_end_within_a_second_and_others_go_on() {
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    let scene = Scene::echo_with(&Options::default(), &config);
    let beside = |family| [Open::by_name(&scene, family, &server_name(1)), by_port(&scene, family, 1)];
    let mut beside: Vec<Open> = FAMILIES.into_iter().flat_map(beside).collect();
    let open = |family| [Open::by_name(&scene, family, &server_name(0)), by_port(&scene, family, 0)];
    let [v4, v6] = FAMILIES;
    let mut kept = open(v4);
    for (admitted, refused) in [(v4, v6), (v6, v4)] {
        let mut ended = if admitted == v4 { open(refused) } else { std::mem::replace(&mut kept, open(v6)) };
        let range = range_of(client(admitted));
        config.route_mut(tenant_name(0)).source_ranges = Some(vec![range, "198.51.100.0/24".into()]);
        scene.daemon.reload(&config).unwrap();
        ended.iter_mut().for_each(|open| open.assert_reset(ENDED));
        kept.iter_mut().for_each(Open::assert_alive);
        assert_refused(&scene, refused, 0);
        let mut new = open(admitted);
        new.iter_mut().for_each(Open::assert_alive);
        beside.iter_mut().for_each(Open::assert_alive);
        // Everybody, until the next ranges.
        config.route_mut(tenant_name(0)).source_ranges = None;
        scene.daemon.reload(&config).unwrap();
        // The resets of the narrower ranges are repeated after a second, and not for these.
        let mut again = open(refused);
        std::thread::sleep(Duration::from_millis(1_300));
        again.iter_mut().for_each(Open::assert_alive);
    }
    let maps = read::open(&Pins::new(scene.daemon.pins())).unwrap();
    let is_gone = || read::content(&maps).unwrap().policies.is_empty();
    assert!(eventually(Duration::from_secs(5), is_gone), "ranges that no route has are deleted");
}

fn range_of(address: std::net::IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// The reset that a plan calls for was lost where a later write of the plan failed: the next one finds the route as it should be.
#[test]
fn a_change_of_which_a_later_write_fails_ends_what_it_no_longer_admits() {
    tests::skip_without_root!();
    let names = |generation: usize| -> Vec<String> {
        (0..48).map(|n| format!("n{n}.{generation}.example.net")).collect()
    };
    let mut config = Config::lab_on(ECHO_PORT);
    // Room for all names before the change or after it, and not for both.
    config.settings.max_names = Some(64);
    config.route_mut(tenant_name(2)).hostnames.extend(names(0));
    let scene = Scene::echo_with(&Options::default(), &config);
    let mut ended = by_port(&scene, Family::V6, 0);
    let mut kept = by_port(&scene, Family::V4, 0);
    let hostnames = &mut config.route_mut(tenant_name(2)).hostnames;
    hostnames.truncate(2);
    hostnames.extend(names(1));
    config.route_mut(tenant_name(0)).source_ranges = Some(vec![range_of(client(Family::V4))]);
    scene.daemon.write_config(&config.json()).unwrap();
    scene.daemon.signal(Signal::SIGHUP).unwrap();
    ended.assert_reset(Duration::from_secs(5));
    kept.assert_alive();
    let is_told = || scene.daemon.log().contains("ROUTES_EXACT") && scene.daemon.log().contains("maxNames");
    assert!(eventually(Duration::from_secs(5), is_told), "{}", scene.daemon.log());
}

//! More listeners come and go than there are ids for them.

use std::io::{Read, Write};
use std::time::Duration;

use tests::addresses::{FAMILIES, Family, server_name, tenant_name};
use tests::config::{Config, listener, route, tenant_backends};
use tests::hello::hello;
use tests::raw::{self, End, end_of};
use tests::server::read_line;
use tests::tls::dial;
use tests::topology::Options;

use crate::scene::{ECHO_PORT, Scene, eventually, turn};

/// Listeners of one generation, each on one address.
const LISTENERS: u16 = 10_000;
/// Their first port.
const PORT: u16 = 20_000;
/// 110,000 listeners in all, and 65,535 ids.
const GENERATIONS: usize = 11;

/// Returns a configuration of new listeners, all of one tenant.
fn generation(number: usize, labels: u32) -> Config {
    let mut config = Config::empty();
    // Each listener has a label, and those that were just removed still have theirs.
    config.settings.max_names = Some(labels);
    let tenant = number % 3;
    let names: Vec<String> = (0..LISTENERS).map(|n| format!("listener-{number}-{n}")).collect();
    for (name, port) in names.iter().zip(PORT..) {
        let mut listener = listener(name, port, "TLS");
        listener.addresses.truncate(1);
        config.listeners.push(listener);
    }
    // One of them has a name of its own; an id that brought it along would lead others there.
    let own: Vec<&str> = names.iter().map(String::as_str).collect();
    let (own, name) = (&own[number..=number], server_name(tenant));
    config.routes.push(route(tenant_name(tenant), own, &[&name], tenant_backends(tenant, ECHO_PORT)));
    config
}

#[test]
fn a_hundred_thousand_listeners_come_and_go_and_the_node_still_serves() {
    tests::skip_without_root!();
    come_and_go(100_000);
}

/// Ids that a failed write had given out were looked for in connections after they had been given out again.
#[test]
fn so_they_do_while_a_map_that_is_full_for_a_moment_makes_writes_fail() {
    tests::skip_without_root!();
    come_and_go(25_000);
}

/// `labels`: the most listeners, those included that were just removed.
fn come_and_go(labels: u32) {
    let _turn = turn();
    let scene = Scene::echo_with(&Options::default(), &generation(0, labels));
    let vip = scene.lab.vip(FAMILIES[0], PORT);
    assert_eq!(FAMILIES[0], Family::V4);
    let mut open = None;
    for number in 0..GENERATIONS {
        if number > 0 {
            scene.daemon.reload(&generation(number, labels)).unwrap();
        }
        let tenant = number % 3;
        let at = |n: usize| std::net::SocketAddr::new(vip.ip(), PORT + n as u16);
        let ask = |n, tenant| {
            let bytes = hello().name(server_name(tenant)).bytes();
            scene.lab.client.run(|| raw::hello(at(n), &bytes, &[]))
        };
        let served = || ask(number, tenant).is_ok_and(|name| name.starts_with(tenant_name(tenant)));
        assert!(eventually(Duration::from_secs(30), served), "generation {number} is not served");
        // Neither the route of a generation before, nor this one's at another listener.
        for n in 0..=GENERATIONS {
            for other in (0..3).filter(|other| (n, *other) != (number, tenant)) {
                // Listeners are written one after the other.
                let is_refused = || ask(n, other).is_err();
                assert!(
                    eventually(Duration::from_secs(10), is_refused),
                    "generation {number}: listener {n} leads to tenant {other}"
                );
            }
        }
        // Connections of a removed listener end, and none of another that has its id by now.
        if let Some(mut stream) = open.take() {
            assert_eq!(end_of(&mut stream, Duration::from_secs(5)).unwrap(), End::Reset);
        }
        open = Some(scene.lab.client.run(|| {
            let bytes = hello().name(server_name(tenant)).bytes();
            let mut stream = dial(at(number)).unwrap();
            stream.write_all(&bytes).unwrap();
            read_line(&mut stream).unwrap();
            stream.read_exact(&mut vec![0; bytes.len()]).unwrap();
            stream
        }));
    }
    // Removals of the last change are long completed.
    std::thread::sleep(Duration::from_secs(3));
    let mut stream = open.unwrap();
    stream.write_all(b"still").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}

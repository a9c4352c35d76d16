//! Bulk data in both directions, with and without faults on the wire. Every byte is checked by hash, and
//! nothing is left in the maps.

use std::io::{Read, Write};
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use tests::addresses::{BACKEND_PORT, FAMILIES, Family, TLS_PORT, backend, server_name, tenant_name};
use tests::bytes;
use tests::clients::User;
use tests::config::{Config, DIRECT_PORT};
use tests::injector::Faults;
use tests::server::{Server, Speech, read_line};
use tests::tls;
use tests::topology::{Lab, Options};

use crate::scene::{Scene, all, turn};

pub(crate) const MIB: u64 = 1 << 20;

/// Sends bytes up, then receives bytes down, over one connection.
pub(crate) fn exchange(mut stream: impl Read + Write, count: u64, seed: u64) -> Result<()> {
    stream.write_all(format!("SINK {count}\n").as_bytes())?;
    bytes::send(&mut stream, count, seed).context("sending")?;
    let hash = read_line(&mut stream).context("reading the hash")?.context("ended before the hash")?;
    ensure!(hash == bytes::hash(count, seed), "the backend got other bytes than were sent");
    stream.write_all(format!("SEND {count} {}\n", seed + 1).as_bytes())?;
    stream.flush()?;
    let hash = bytes::receive(&mut stream, count).context("receiving")?;
    ensure!(hash == bytes::hash(count, seed + 1), "other bytes came than the backend sent");
    Ok(())
}

/// TLS by name on the shared port, or plain TCP on tenant a's own port.
#[derive(Clone, Copy, Debug)]
enum Way {
    Tls,
    Tcp,
}

/// Returns `times` connections of each family and each kind of listener.
fn cases(times: u64) -> Vec<(Family, Way, u64)> {
    let ways = FAMILIES.into_iter().flat_map(|family| [(family, Way::Tls), (family, Way::Tcp)]);
    ways.flat_map(|(family, way)| (0..times).map(move |n| (family, way, n))).collect()
}

/// Returns the lab's configuration with a separate route for tenant a's TCP listener, to servers of plain TCP.
fn config() -> Config {
    let mut config = Config::lab();
    config.route_mut(tenant_name(0)).listeners.retain(|name| name != "tenant-a-direct");
    let backends = tests::config::tenant_backends(0, PLAIN_PORT);
    config.routes.push(tests::config::route("plain", &["tenant-a-direct"], &[], backends));
    config
}

const PLAIN_PORT: u16 = BACKEND_PORT + 1;

fn plain_servers(lab: &Lab) -> Vec<Server> {
    let ends = FAMILIES.into_iter().flat_map(|family| [(family, 0), (family, 1)]);
    let serve = |(family, index): (Family, usize)| {
        let at = SocketAddr::new(backend(family, 0, index), PLAIN_PORT);
        lab.serve(0, at, &format!("tenant-a/{index}"), Speech::Plain).unwrap()
    };
    ends.map(serve).collect()
}

fn story(options: &Options, times: u64, threads: usize, count: u64) {
    tests::skip_without_root!();
    let _turn = turn();
    let scene = Scene::with(options, &config());
    let _servers = plain_servers(&scene.lab);
    let user = User::new(&scene.lab.tenants[0].authority, "alice").unwrap();
    all(&scene.lab, threads, &cases(times), |&(family, way, n)| match way {
        Way::Tls => {
            let to = scene.lab.vip(family, TLS_PORT);
            exchange(tls::connect(to, user.config(), &server_name(0))?, count, n)
        }
        Way::Tcp => exchange(tls::dial(scene.lab.vip(family, DIRECT_PORT))?, count, n),
    });
    eprintln!("{:#?}", scene.lab.injected());
    scene.assert_nothing_leaks();
}

#[test]
fn super_packets_made_by_the_kernel_carry_64_mib_both_ways() {
    story(&Options::default(), 1, 2, 64 * MIB);
}

#[test]
fn packets_of_the_wires_size_carry_64_mib_both_ways() {
    story(&Options { offloads: false, ..Options::default() }, 1, 2, 64 * MIB);
}

#[test]
fn a_client_with_small_segments_gets_16_mib_both_ways() {
    let options = Options { client_mss: Some(536), backend_mtu: 1400, ..Options::default() };
    story(&options, 1, 2, 16 * MIB);
}

#[test]
fn loss_duplication_and_reordering_on_both_sides_harm_nothing() {
    let options = Options {
        client_faults: Some(Faults::two_percent(11)),
        backend_faults: Some(Faults::two_percent(12)),
        ..Options::default()
    };
    // 64 MiB in each direction for each family and kind of listener, spread over 16 connections.
    story(&options, 16, 64, 4 * MIB);
}

#[test]
fn many_short_connections_survive_faults() {
    let options = Options {
        client_faults: Some(Faults::two_percent(21)),
        backend_faults: Some(Faults::two_percent(22)),
        ..Options::default()
    };
    story(&options, 250, 32, 1000);
}

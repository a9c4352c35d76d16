//! Neighbours that get another link address and do not say so, under open connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::addresses::{CLIENT_NET, FAMILIES, Family, TENANT_NETS, backend, balancer, host, server_name};
use tests::net::Namespace;
use tests::tls;
use tests::topology::{CLIENT_DEVICE, Lab, UPLINK};

use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene};

/// The longest time that an echo may take, over which a connection counts as lost. A neighbour is believed in for up to
/// 1.5 s, asked after a second, and given up after three questions; a repetition of TCP may wait a few seconds more.
const LOST: Duration = Duration::from_secs(25);
/// How much longer than a forwarded connection one through the VIP may take. Repetitions are up to twice as far apart as
/// the ones before.
const LATER: Duration = Duration::from_secs(7);

/// Makes the node believe in neighbours for a second, and ask for those in use after another one.
fn hurry(lab: &Lab) {
    let devices = [CLIENT_DEVICE].into_iter().chain(lab.tenants.iter().map(|tenant| tenant.name));
    for device in devices {
        for family in ["ipv4", "ipv6"] {
            let values = [
                ("base_reachable_time_ms", "1000"),
                ("delay_first_probe_time", "1"),
                ("retrans_time_ms", "200"),
            ];
            for (key, value) in values {
                lab.balancer.sysctl(&format!("net/{family}/neigh/{device}/{key}"), value).unwrap();
            }
        }
        lab.balancer.ip(&format!("neigh flush dev {device}\n")).unwrap();
    }
}

/// Gives a host another link address. It announces nothing, and knows the node's link address already, so that it does
/// not ask for it either: the node would learn from the question.
fn change(lab: &Lab, of: &Namespace, device: &str, net: u8, times: u8) {
    let node: Vec<String> =
        lab.balancer.mac(device).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut batch = format!("link set {UPLINK} address 02:00:5e:00:{net:02x}:{times:02x}\n");
    for family in FAMILIES {
        let at = balancer(family, net);
        batch.push_str(&format!("neigh replace {at} lladdr {} dev {UPLINK} nud permanent\n", node.join(":")));
    }
    of.ip(&batch).unwrap();
}

/// Opens a connection from tenant c's host to tenant b's that the node forwards, without Vestibule.
fn forwarded(lab: &Lab, family: Family) -> TcpStream {
    let bits = if family.is_v4() { 24 } else { 64 };
    for (at, to) in [(1, 2), (2, 1)] {
        let (net, via) = (host(family, TENANT_NETS[to], 0), balancer(family, TENANT_NETS[at]));
        lab.tenants[at].namespace.ip(&format!("route add {net}/{bits} via {via}\n")).unwrap();
    }
    let to = SocketAddr::new(backend(family, 1, 0), ECHO_PORT);
    let mut stream = lab.tenants[2].namespace.run(|| tls::dial(to)).unwrap();
    tests::server::read_line(&mut stream).unwrap().unwrap();
    stream
}

/// Returns how long an echo takes; `None`: none came.
fn echo(stream: &mut TcpStream) -> Option<Duration> {
    let begun = Instant::now();
    stream.set_read_timeout(Some(LOST)).unwrap();
    stream.write_all(b"still there?").unwrap();
    let mut echo = [0; 12];
    stream.read_exact(&mut echo).ok()?;
    (&echo == b"still there?").then(|| begun.elapsed())
}

#[test]
fn connections_go_on_when_a_neighbour_changes_its_link_address_in_silence() {
    tests::skip_without_root!();
    let mut scene = Scene::echo();
    hurry(&scene.lab);
    let mut ours = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)).stream);
    let mut theirs = FAMILIES.map(|family| forwarded(&scene.lab, family));
    let ends = |clients: bool| match clients {
        true => [(CLIENT_NET, 3), (TENANT_NETS[2], 2)],
        false => [(TENANT_NETS[0], 0), (TENANT_NETS[1], 1)],
    };
    // Without the daemon, too.
    for (round, clients) in [(1, false), (2, true), (3, false)] {
        for (net, index) in ends(clients) {
            let lab = &scene.lab;
            let (of, device) = match lab.tenants.get(index) {
                Some(tenant) => (&tenant.namespace, tenant.name),
                None => (&lab.client, CLIENT_DEVICE),
            };
            change(lab, of, device, net, round);
        }
        let took: Vec<(Option<Duration>, bool)> = std::thread::scope(|scope| {
            let asked = ours.iter_mut().map(|stream| (stream, true));
            let asked = asked.chain(theirs.iter_mut().map(|stream| (stream, false)));
            let threads: Vec<_> = asked.map(|(stream, vip)| (scope.spawn(|| echo(stream)), vip)).collect();
            threads.into_iter().map(|(thread, vip)| (thread.join().unwrap(), vip)).collect()
        });
        let longest = |of_vip| took.iter().filter(move |(_, vip)| *vip == of_vip).map(|(time, _)| *time);
        let plain = longest(false).max().flatten();
        assert!(
            longest(false).all(|time| time.is_some()),
            "round {round}: forwarding lost its own: {took:?}"
        );
        let most = plain.unwrap() + LATER;
        for time in longest(true) {
            assert!(
                time.is_some_and(|time| time < most),
                "round {round}: forwarding took {plain:?}: {took:?}"
            );
        }
        println!(
            "round {round}: forwarded {:?}, through the VIP {:?}",
            longest(false).collect::<Vec<_>>(),
            longest(true).collect::<Vec<_>>()
        );
        if scene.daemon.pid().is_some() {
            scene.daemon.end(Signal::SIGKILL).unwrap();
        }
    }
}

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::daemon::binary;
use tests::net::Namespace;

use super::record::{Events, Record};
use crate::together::segment::scene::{CONFIG, Segment, VIPS, join};
use crate::together::segment::{OWNER, cells};

/// Heartbeats that both of two nodes may have sent, once each receives what the other one sends again, while one still answers for what the
/// other one has: the first says that the tables differ, and the table comes before the second. The other two are for a busy machine,
/// on which an agent reads a frame later than it came.
const BEATS: usize = 3;

/// With `VESTIBULE_SOAK=1`, all trials are made, with two and with three nodes.
fn is_long() -> bool {
    std::env::var_os("VESTIBULE_SOAK").is_some_and(|value| value == "1")
}

/// Runs one trial on a segment of this many nodes; in the slow form, this many trials, half of them on two nodes and half on three.
pub(super) fn trials(
    count: usize,
    nodes: usize,
    segment: fn(usize) -> Segment,
    run: fn(&mut Segment, usize),
) {
    if !is_long() {
        return run(&mut segment(nodes), 0);
    }
    for nodes in [2, 3] {
        let mut segment = segment(nodes);
        // Even and odd ones on both: they differ in the address and the direction that is hit.
        for trial in (0..count).filter(|trial| trial * 2 / count == nodes - 2) {
            println!("trial {} of {count}, {nodes} nodes", trial + 1);
            run(&mut segment, trial);
        }
    }
}

/// The times for which an agent is stopped in a trial, at least: where it is longer than the grace, until its addresses have moved.
pub(super) fn stops(trial: usize) -> Vec<Duration> {
    const LONG: [f64; 10] = [0.5, 20.0, 1.0, 12.0, 1.5, 8.0, 2.0, 5.0, 2.5, 3.0];
    let seconds = if is_long() { vec![LONG[trial % LONG.len()]] } else { vec![0.5, 3.0] };
    seconds.into_iter().map(Duration::from_secs_f64).collect()
}

pub(super) fn address(vip: &str) -> IpAddr {
    vip.parse().unwrap()
}

/// Captures at all ports of the segment while its host asks for the VIPs.
pub(super) fn record(segment: &Segment) -> Record {
    let ports: Vec<String> =
        segment.nodes.iter().map(|node| node.name.clone()).chain(["host".to_owned()]).collect();
    Record::start(&segment.bridge, &ports, &[&segment.host], &VIPS.map(address))
}

/// The address's host turns off: its links are down in the same instant, its agent is gone and its programs, too.
pub(super) fn turn_off(segment: &mut Segment, number: usize) {
    segment.link(number, "down");
    forget_all(segment, number);
}

/// Ends a node's agent without a farewell, and removes what is left in its kernel.
pub(super) fn forget_all(segment: &mut Segment, number: usize) {
    segment.signal(number, Signal::SIGKILL);
    segment.crash(number);
    let node = &segment.nodes[number];
    let mut command = node.namespace.command(binary().unwrap());
    let output = command.arg("--pins").arg(node.pins.path()).arg("detach").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Waits until this node's agent knows who announces the VIPs: itself, or another node.
pub(super) fn until_known(segment: &Segment, number: usize, owners: [usize; 2]) {
    segment.until("a returned agent knows who announces the VIPs", |segment| {
        let is_known = |(vip, owner): (&str, usize)| {
            let shown =
                if owner == number { "this node".to_owned() } else { format!("elsewhere (node{owner})") };
            cells(segment, number, vip, [OWNER]) == [shown]
        };
        VIPS.into_iter().zip(owners).all(is_known)
    });
}

/// The segment's host, a Linux neighbour of the VIPs, knows them by these nodes' link addresses without having been made to forget others,
/// reaches them, and `arping` and `ndisc6` get answers of these nodes alone.
pub(super) fn assert_found(segment: &Segment, owners: [usize; 2]) {
    for (vip, owner) in VIPS.into_iter().zip(owners) {
        let link = segment.nodes[owner].link;
        segment.until("the host knows the new link address, and is served", |segment| {
            segment.dial(vip).is_ok() && neighbour(&segment.host, vip) == Some(written(link))
        });
        assert_eq!(found(&segment.host, vip), [written(link)].into(), "{vip}\n{}", segment.logs());
    }
}

/// Asks for an address by `arping` or `ndisc6`. Returns the link addresses of all that answer.
pub(super) fn found(host: &Namespace, vip: &str) -> BTreeSet<String> {
    let (program, arguments, before): (_, &[&str], _) = match address(vip) {
        IpAddr::V4(_) => ("arping", &["-b", "-c", "2", "-w", "3", "-I", "uplink", vip], "["),
        IpAddr::V6(_) => ("ndisc6", &["-m", "-r", "2", "-w", "500", vip, "uplink"], "link-layer address: "),
    };
    let ask = || {
        let output = host.command(program).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let after = |line: &str| Some(line.split_once(before)?.1.split([']', ' ']).next()?.to_lowercase());
        text.lines().filter_map(after).collect::<BTreeSet<String>>()
    };
    // On a busy machine, answers may come after the programs have ended.
    (0..5).map(|_| ask()).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The link address that a host's kernel has for an address.
fn neighbour(host: &Namespace, vip: &str) -> Option<String> {
    let output = host.command("ip").args(["neigh", "show", vip, "dev", "uplink"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.split_once("lladdr ")?.1.split(' ').next()?.to_owned())
}

pub(super) fn written(link: [u8; 6]) -> String {
    link.map(|byte| format!("{byte:02x}")).join(":")
}

/// After a mark, when two nodes receive again what the other one sends, one of them stops to answer within a heartbeat.
pub(super) fn assert_yields(segment: &Segment, events: &Events, vip: &str, nodes: [usize; 2], owner: usize) {
    let loser = if nodes[0] == owner { nodes[1] } else { nodes[0] };
    let [one, other] = [loser, owner].map(|node| segment.nodes[node].link);
    let beats = events.beats_until_silent(address(vip), one, other);
    println!("{vip}: both answered for {beats} heartbeats");
    assert!(beats <= BEATS, "{vip}: node{loser} answered for {beats} heartbeats after node{owner} was back");
}

/// Asserts that an address was answered for by these nodes, one after the other and none beside another.
pub(super) fn assert_turns(segment: &Segment, events: &Events, vip: &str, nodes: &[usize]) {
    let mut expected: Vec<_> = nodes.iter().map(|node| segment.nodes[*node].link).collect();
    expected.dedup();
    assert_eq!(events.turns(address(vip)), expected, "{vip}: nodes {nodes:?}\n{}", segment.logs());
    if let Some(silence) = events.silence(address(vip)) {
        println!("{vip}: moved with {silence:?} between answers");
    }
}

/// Nodes on two bridges that a link joins: the first node and the host on one, the others and `far` on the other one.
pub(super) fn halves(nodes: usize) -> Segment {
    let config = CONFIG.replace("GRACE", "2").replace("REBALANCE", "never").replace("ISOLATION", "Hold");
    let is_made = Cell::new(false);
    Segment::of(nodes, nodes, &config, |bridge, node| {
        if !is_made.replace(true) {
            bridge
                .ip("link add br1 type bridge\nlink set br1 up\nlink add joint0 type veth peer name joint1\n\
                     link set joint0 master br0\nlink set joint1 master br1\nlink set joint1 up\nlink set joint0 up\n")
                .unwrap();
        }
        if node.name != "node0" {
            bridge.ip(&format!("link set {} master br1\n", node.name)).unwrap();
        }
    })
}

/// Connects a host to a bridge, by a port of this name. The one of the trial before is removed first: the kernel removes a namespace, and
/// with it that port, some time after its last reference is gone.
fn host(segment: &Segment, name: &str, v4: &str, v6: &str) -> Namespace {
    let host = Namespace::new(name).unwrap();
    let _ = segment.bridge.ip(&format!("link del {name}\n"));
    join(&segment.bridge, &host, ("uplink", name), v4, v6);
    host
}

/// Connects a host to the second bridge.
pub(super) fn far(segment: &Segment) -> Namespace {
    let far = host(segment, "far", "10.98.0.200/24", "fd98::200/64");
    segment.bridge.ip("link set far master br1\n").unwrap();
    far.ip("route add 192.0.2.0/28 dev uplink\nroute add 2001:db8::/120 dev uplink\n").unwrap();
    far
}

/// Connects another host to the segment.
pub(super) fn foreign(segment: &Segment) -> Namespace {
    host(segment, "foreign", "10.98.0.201/24", "fd98::201/64")
}

//! Flows behind what is removed are found by the keys of their replies, or in the list of those whose backend sees its clients, without
//! a look at all others; the rest is found by the walk that follows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::maps::address::{Address, Port};
use common::maps::backend::DELIVERY_DNAT;
use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, FLOW_CLOSED, FLOW_RESET, Flow, Reply};
use common::maps::listener::{AddressRole, ROLE_SOURCE};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, server_name, tenant_name};
use tests::config::Config;
use tests::copies;
use tests::daemon::Daemon;
use tests::topology::{Lab, Options};
use tests::tuple::client_tuple;
use userspace::dataplane::behind::Behind;
use userspace::dataplane::expire::Expirer;
use userspace::dataplane::maps::Maps;
use userspace::dataplane::pin::Pins;
use userspace::dataplane::precedence::Precedence;
use userspace::dataplane::read;
use userspace::model::SourceRanges;
use userspace::plan::Selector;
use userspace::plan::change::Admission;

use crate::local;
use crate::open::Open;
use crate::scene::{ECHO_PORT, Scene, eventually, turn};

/// This many flows take seconds to walk over.
const MANY: Option<u64> = Some(10_000_000);
/// This many do not.
const FEW: Option<u64> = Some(400_000);

/// Copies of open connections, by what is particular about them.
struct Written<'a> {
    maps: &'a Maps,
    by_name: BTreeMap<String, ClientTuple>,
}

impl Written<'_> {
    /// Writes a copy of a flow to a backend, as `change` makes it. If its backend sees its client, it is listed.
    fn copy(&mut self, what: &str, of: &(ClientTuple, Flow), change: impl FnOnce(&mut Flow)) -> ClientTuple {
        let port = Port::new(10_000 + self.by_name.len() as u16);
        let client = ClientTuple { client_port: port, ..of.0 };
        let mut flow = of.1;
        change(&mut flow);
        if flow.connection.delivery == DELIVERY_DNAT {
            (flow.nat.source, flow.nat.source_port) = (client.client, client.client_port);
            self.list(&client, &flow.connection);
        }
        self.maps.nats.put(&flow.nat, &Reply::to(&client, flow.connection.generation)).unwrap();
        self.maps.flows.put(&client, &flow).unwrap();
        let route = flow.connection.route;
        let mut counters = self.maps.route_counters.look_up(&route).unwrap().unwrap();
        counters.flows += 1;
        self.maps.route_counters.put(&route, &counters).unwrap();
        let family = if client.client.is_v4() { "IPv4" } else { "IPv6" };
        assert_eq!(self.by_name.insert(format!("{family}: {what}"), client), None);
        client
    }

    fn list(&self, client: &ClientTuple, of: &Connection) {
        self.maps.dnat_flows.as_ref().unwrap().put(client, &DnatFlow::of(of)).unwrap();
    }

    /// Returns which of them are reset, or removed.
    fn ended(&self) -> BTreeSet<&str> {
        let is_ended = |client| {
            let flow = self.maps.flows.look_up(client).unwrap();
            flow.is_none_or(|flow| flow.connection.state == FLOW_RESET)
        };
        self.by_name.iter().filter(|(_, client)| is_ended(client)).map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the names of these copies in both families.
    fn named(&self, names: &[&str]) -> BTreeSet<&str> {
        let is_one = |name: &&str| names.iter().any(|one| name.ends_with(&format!(": {one}")));
        let named: BTreeSet<&str> = self.by_name.keys().map(String::as_str).filter(is_one).collect();
        assert_eq!(named.len(), 2 * names.len());
        named
    }
}

fn seen(flow: &mut Flow) {
    flow.connection.delivery = DELIVERY_DNAT;
}

fn source_port(number: u16) -> impl FnOnce(&mut Flow) {
    move |flow| flow.nat.source_port = Port::new(number)
}

/// Returns an address after this one.
fn after(mut address: Address, distance: u8) -> Address {
    address.bytes[15] += distance;
    address
}

/// Returns an open connection as the maps have it.
fn stored(scene: &Scene, maps: &Maps, family: Family, open: &Open) -> (ClientTuple, Flow) {
    let client = client_tuple(open.stream.local_addr().unwrap(), scene.lab.vip(family, TLS_PORT));
    (client, maps.flows.look_up(&client).unwrap().unwrap())
}

/// What only the walk finds.
const UNREACHED: [&str; 3] =
    ["an address without a role", "a port of another range", "the client's own address, not listed"];

/// Writes copies of the flow, and such as must not end with it, which are copies of `other` in part.
fn write(written: &mut Written<'_>, of: &(ClientTuple, Flow), other: &(ClientTuple, Flow)) {
    let own = of.1.nat.source;
    for distance in [100, 101] {
        let role = AddressRole { flags: ROLE_SOURCE };
        written.maps.addresses.put(&after(own, distance), &role).unwrap();
    }
    for (what, port) in [("the first port", 1024), ("a port", 2_000), ("the last port", 29_999)] {
        assert_ne!(of.1.nat.source_port, Port::new(port));
        written.copy(what, of, source_port(port));
    }
    for (what, distance) in [("another address", 100), ("a third address", 101)] {
        written.copy(what, of, |flow| flow.nat.source = after(own, distance));
    }
    written.copy(UNREACHED[0], of, |flow| flow.nat.source = after(own, 102));
    written.copy(UNREACHED[1], of, source_port(30_000));
    let unlisted = written.copy(UNREACHED[2], of, seen);
    assert!(written.maps.dnat_flows.as_ref().unwrap().remove(&unlisted).unwrap());
    written.copy("the client's own address", of, seen);
    written.copy("another route's, which sees its client", other, seen);
    written.copy("over, and its backend saw its client", of, |flow| {
        seen(flow);
        flow.connection.state = FLOW_CLOSED;
    });
    // An entry of an earlier flow of the client, to the backend that is gone.
    let client = written.copy("another route's, listed as an earlier one was", other, seen);
    written.list(&client, &of.1.connection);
    written.copy("another route's", of, |flow| {
        flow.nat.source_port = Port::new(2_001);
        (flow.connection.route, flow.connection.backend) =
            (other.1.connection.route, other.1.connection.backend);
        flow.connection.listener = other.1.connection.listener;
    });
    written.copy("over", of, |flow| {
        flow.nat.source_port = Port::new(2_002);
        flow.connection.state = FLOW_CLOSED;
    });
    // An entry that still leads to a client, whose connection is another one by now.
    let client = written.copy("used again", other, source_port(2_003));
    let stale = BackendTuple { source_port: Port::new(2_004), ..of.1.nat };
    written.maps.nats.put(&stale, &Reply::to(&client, of.1.connection.generation)).unwrap();
}

const REACHED: [&str; 6] = [
    "the first port",
    "a port",
    "the last port",
    "another address",
    "a third address",
    "the client's own address",
];

#[test]
fn flows_behind_a_backend_that_was_drained_before_are_found_by_their_keys_or_listed_and_the_rest_by_the_walk()
{
    tests::skip_without_root!();
    let mut config = Config::lab_on(ECHO_PORT);
    let scene = Scene::echo_with(&Options::default(), &config);
    let pins = Pins::new(scene.daemon.pins());
    let maps = read::open(&pins).unwrap();
    let name = format!("{}/0", tenant_name(0));
    let mut ended = FAMILIES.map(|family| Open::until(&scene, family, &server_name(0), &name));
    let mut beside = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(1)));
    for backend in config.route_mut(tenant_name(0)).backends.iter_mut() {
        let is_drained = FAMILIES.iter().any(|family| backend.address == self::backend(*family, 0, 0));
        backend.weight = u16::from(!is_drained);
    }
    scene.daemon.reload(&config).unwrap();
    let mut written = Written { maps: &maps, by_name: BTreeMap::new() };
    let mut selector = Selector::default();
    for (nth, family) in FAMILIES.into_iter().enumerate() {
        let of = stored(&scene, &maps, family, &ended[nth]);
        let id = of.1.connection.backend;
        assert_eq!(maps.backends.look_up(&id).unwrap().unwrap().weight, 0, "it is drained");
        selector.backends.insert(id);
        write(&mut written, &of, &stored(&scene, &maps, family, &beside[nth]));
    }
    assert_eq!(written.ended(), BTreeSet::new());
    scene.lab.balancer.run(|| {
        // Any device of the namespace does: the program itself chooses where to send.
        let behind = Behind::open(&pins, 1).unwrap();
        let is_old = |_, _| true;
        assert_eq!(behind.end(&selector, is_old, FEW).unwrap(), None, "a walk is quick enough");
        assert_eq!(written.ended(), BTreeSet::new());
        let found = behind.end(&selector, is_old, MANY).unwrap();
        assert_eq!(written.ended(), written.named(&REACHED));
        assert_eq!(found, Some(2 * (REACHED.len() as u32 + 1)), "with those that are open");
        ended.iter_mut().for_each(|open| open.assert_reset(Duration::from_secs(1)));
        assert_eq!(behind.end(&selector, is_old, MANY).unwrap(), Some(0), "none twice");

        let rest = Expirer::open(&pins, 1).unwrap().reset(&selector, is_old).unwrap();
        assert_eq!(rest.flows, 2 * UNREACHED.len() as u32);
        assert_eq!(written.ended(), written.named(&[&REACHED[..], &UNREACHED].concat()));
    });
    beside.iter_mut().for_each(Open::assert_alive);
}

#[test]
fn flows_of_a_route_that_has_no_right_to_them_any_more_are_found_by_the_keys_of_all_its_backends() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &Config::lab_on(ECHO_PORT));
    let pins = Pins::new(scene.daemon.pins());
    let maps = read::open(&pins).unwrap();
    let to = |tenant| {
        let by = |family, index| {
            let name = format!("{}/{index}", tenant_name(tenant));
            (family, Open::until(&scene, family, &server_name(tenant), &name))
        };
        FAMILIES.map(|family| [by(family, 0), by(family, 1)])
    };
    let is_old = |generation, since| generation < since;
    for (tenant, is_refused) in [(0, false), (1, true)] {
        let mut ended: Vec<_> = to(tenant).into_iter().flatten().collect();
        let mut beside: Vec<_> = to(2).into_iter().flatten().collect();
        let is = stored(&scene, &maps, ended[0].0, &ended[0].1).1.connection;
        let since = is.generation.max(1) + 1_000;
        let (mut selector, mut written) =
            (Selector::default(), Written { maps: &maps, by_name: BTreeMap::new() });
        if is_refused {
            let admission = Admission { ranges: Some(SourceRanges::default()), since: Some(since) };
            selector.ranges.insert(is.route, admission);
        } else {
            selector.detached.insert((is.listener, is.route));
        }
        for (family, open) in &ended[1..3] {
            let of = stored(&scene, &maps, *family, open);
            written.copy("admitted later", &of, |flow| {
                flow.nat.source_port = Port::new(2_000);
                flow.set_generation(since);
            });
            written.copy("admitted later, and seen", &of, |flow| {
                seen(flow);
                flow.set_generation(since);
            });
            written.copy("seen", &of, seen);
        }
        scene.lab.balancer.run(|| {
            let found = Behind::open(&pins, 1).unwrap().end(&selector, is_old, MANY).unwrap();
            assert_eq!(found, Some(if is_refused { 6 } else { 10 }));
        });
        ended.iter_mut().for_each(|(_, open)| open.assert_reset(Duration::from_secs(1)));
        let later = ["admitted later", "admitted later, and seen"];
        let all = if is_refused { vec!["seen"] } else { [&later[..], &["seen"]].concat() };
        assert_eq!(written.ended(), written.named(&all), "spared by the time it began");
        beside.iter_mut().for_each(|(_, open)| open.assert_alive());
    }
}

/// More than the keys of two backends with the address of each of three devices take, of which each counts as much as three flows.
const BESIDE: u32 = 600_000;

#[test]
fn the_daemon_ends_flows_that_it_finds_by_their_keys_before_it_walks_over_half_a_million() {
    tests::skip_without_root!();
    let _turn = turn();
    let mut config = Config::lab_on(ECHO_PORT);
    config.settings.max_flows = Some(1_000_000);
    let lab = Lab::with(&Options { servers: false, ..Options::default() }).unwrap();
    let echoes = lab.echo_servers(ECHO_PORT).unwrap();
    let mut daemon = Daemon::prepare(&lab.balancer, &config, &[]).unwrap();
    daemon.log_more("info,userspace::outputs::maps=debug");
    daemon.launch(&lab.balancer).unwrap();
    let scene = Scene { daemon, echoes, lab };
    let maps = read::open(&Pins::new(scene.daemon.pins())).unwrap();
    let [mut ended, mut beside] =
        [0, 1].map(|tenant| Open::by_name(&scene, Family::V4, &server_name(tenant)));
    let (client, _) = stored(&scene, &maps, Family::V4, &beside);
    copies::copy(&maps, &client, 0..BESIDE).unwrap();
    let of = stored(&scene, &maps, Family::V4, &ended);
    let mut written = Written { maps: &maps, by_name: BTreeMap::new() };
    // But not the one that the connection itself has.
    let first = if (3_000..4_000).contains(&of.1.nat.source_port.number()) { 4_000 } else { 3_000 };
    for number in 0..1_000 {
        written.copy(&number.to_string(), &of, source_port(first + number));
    }
    // A walk, which counts them.
    thread::sleep(Duration::from_secs(15));
    config.route_mut(tenant_name(0)).backends.retain(|backend| backend.address.is_ipv6());
    scene.daemon.reload(&config).unwrap();
    ended.assert_reset(Duration::from_secs(5));
    let is_logged = || scene.daemon.log().contains("ended before the walk: removal flows=1001");
    assert!(eventually(Duration::from_secs(5), is_logged), "{}", scene.daemon.log());
    assert_eq!(written.ended().len(), 1_000);
    beside.assert_alive();
}

/// As a Service has them with `externalTrafficPolicy: Local`: what the programs list is found.
#[test]
fn the_daemon_ends_flows_whose_backend_sees_their_clients_before_it_walks_over_half_a_million() {
    tests::skip_without_root!();
    let _turn = turn();
    let mut config = local::config();
    config.settings.max_flows = Some(1_000_000);
    let (lab, echoes) = local::lab();
    let mut daemon = Daemon::prepare(&lab.balancer, &config, &[]).unwrap();
    daemon.log_more("info,userspace::outputs::maps=debug");
    daemon.launch(&lab.balancer).unwrap();
    let scene = Scene { daemon, echoes, lab };
    let maps = read::open(&Pins::new(scene.daemon.pins())).unwrap();
    let mut ended = FAMILIES.map(|family| Open::by_name(&scene, family, &server_name(0)));
    let mut beside = Open::by_name(&scene, Family::V4, &server_name(1));
    let of = [0, 1].map(|nth| stored(&scene, &maps, FAMILIES[nth], &ended[nth]));
    let mut written = Written { maps: &maps, by_name: BTreeMap::new() };
    for of in &of {
        assert_eq!(of.1.connection.delivery, DELIVERY_DNAT);
        for number in 0..500 {
            written.copy(&number.to_string(), of, |_| {});
        }
    }
    let (client, _) = stored(&scene, &maps, Family::V4, &beside);
    copies::copy(&maps, &client, 0..BESIDE).unwrap();
    // A walk, which counts them.
    thread::sleep(Duration::from_secs(15));
    let gone: Vec<IpAddr> = of.iter().map(|(_, flow)| flow.nat.backend.into()).collect();
    config.route_mut(tenant_name(0)).backends.retain(|backend| !gone.contains(&backend.address));
    scene.daemon.reload(&config).unwrap();
    ended.iter_mut().for_each(|open| open.assert_reset(Duration::from_secs(5)));
    let is_logged = || scene.daemon.log().contains("ended before the walk: removal flows=1002");
    assert!(eventually(Duration::from_secs(5), is_logged), "{}", scene.daemon.log());
    assert_eq!(written.ended().len(), 1_000);
    beside.assert_alive();
}

/// Both at once, on two CPUs, took three times as long.
#[test]
fn a_walk_over_all_flows_waits_for_what_goes_first() {
    tests::skip_without_root!();
    let scene = Scene::echo_with(&Options::default(), &Config::lab_on(ECHO_PORT));
    let pins = Pins::new(scene.daemon.pins());
    let mut open = Open::by_name(&scene, FAMILIES[0], &server_name(0));
    let port = Port::new(open.stream.local_addr().unwrap().port());
    let precedence = Precedence::default();
    let first = precedence.first();
    let (sender, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            scene.lab.balancer.run(|| {
                let mut expirer = Expirer::open(&pins, 1).unwrap();
                expirer.set_precedence(precedence.clone());
                let takes_it = |client: &ClientTuple, _: &Connection| {
                    (client.client_port == port).then_some(Reason::ExpireRemoved)
                };
                sender.send(expirer.reset_where(takes_it).unwrap().flows).unwrap();
            });
        });
        assert!(ended.recv_timeout(Duration::from_millis(300)).is_err(), "it took a step");
        drop(first);
        assert_eq!(ended.recv().unwrap(), 1);
    });
    open.assert_reset(Duration::from_secs(1));
}

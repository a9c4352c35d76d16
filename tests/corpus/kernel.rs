//! The loaded program `ingress`: each stream over its own connection, judged by the counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use common::decide::server_name::RESERVED;
use common::maps::address::Port;
use common::maps::flow::Pending;
use common::maps::listener::{Listener, ListenerKey, PROTOCOL_TLS};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TLS_PORT, backend, client, vip};
use tests::corpus::{self, Case, Verdict};
use tests::packet::{Segment, segment};
use tests::program::{Programs, Sizes, verdict};
use tests::tuple::client_tuple;
use tests::world::Device;

/// A listener with the same names and a default route.
const OPEN_PORT: u16 = 8443;
/// The default route of that listener.
const DEFAULT_ROUTE: u32 = 9;
/// The route of the first name.
const FIRST_ROUTE: u32 = 100;
/// Every client's initial sequence number.
const ISN: u32 = 0xffff_f000;

/// The result of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A SYN went to a backend of this route.
    Routed(u32),
    /// Refused for this reason.
    Refused(Reason),
    /// Everything was accepted, and more is expected.
    Waits,
}

/// The loaded programs, and the route of each name in the corpus.
struct Kernel {
    programs: Programs,
    routes: BTreeMap<String, u32>,
}

/// Adds a route with a backend of each family.
fn add_route(programs: &mut Programs, route: u32) {
    let backends =
        FAMILIES.map(|family| (10 * route + family as u32, programs.backend(route, backend(family, 0, 0))));
    programs.route(route, &backends);
}

impl Kernel {
    fn new(cases: &[Case]) -> Self {
        let sizes = Sizes { names: 4096, ..Sizes::default() };
        let mut programs = Programs::with_sizes(sizes).expect("the programs load");
        programs.tls_with_one_route();
        add_route(&mut programs, DEFAULT_ROUTE);
        for family in FAMILIES {
            let address = vip(family);
            let key = ListenerKey { address: address.into(), port: Port::new(TLS_PORT), reserved: [0; 2] };
            let first: Listener = programs.entry(name::LISTENERS, key).expect("listener 1 is there");
            let second = Listener { id: 2, route: DEFAULT_ROUTE, protocol: PROTOCOL_TLS, ..first };
            programs.listener(address, OPEN_PORT, second);
        }
        let names: std::collections::BTreeSet<&String> =
            cases.iter().filter_map(|c| c.name.as_ref()).collect();
        let mut routes = BTreeMap::new();
        for (route, name) in (FIRST_ROUTE..).zip(names) {
            add_route(&mut programs, route);
            programs.name(1, name, route);
            programs.name(2, name, route);
            routes.insert(name.clone(), route);
        }
        Self { programs, routes }
    }

    /// Sends a stream in segments of `mss` bytes until its fate is known.
    fn run(&mut self, bytes: &[u8], way: &Way, mss: usize) -> Fate {
        let p = &mut self.programs;
        let plain =
            || segment(way.from, way.to).ethernet(Device::Client.near_mac(), Device::Client.far_mac());
        let outcome = p.ingress(Device::Client, &plain().syn(ISN).mss(1440).bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let ack = Segment::parse(&outcome.packet).expect("a SYN-ACK").seq.wrapping_add(1);
        let at = |offset: usize| plain().seq(ISN.wrapping_add(1).wrapping_add(offset as u32)).ack(ack);
        let mut fate = Fate::Waits;
        for (index, part) in bytes.chunks(mss).enumerate() {
            let outcome = p.ingress(Device::Client, &at(index * mss).payload(part).bytes());
            let [(reason, 1)] = outcome.counted[..] else { panic!("{:?}", outcome.counted) };
            fate = match reason {
                Reason::HelloBuffered | Reason::HelloAcked => continue,
                Reason::ConnectSyn => {
                    Fate::Routed(way.waiting(p).expect("the hello is kept").connection.route)
                }
                reason => {
                    assert_eq!(outcome.verdict, verdict::REDIRECT, "the client gets RST");
                    let rst = Segment::parse(&outcome.packet).expect("a RST");
                    assert_eq!((rst.flags, rst.seq), (tests::packet::flag::RST, ack));
                    Fate::Refused(reason)
                }
            };
            break;
        }
        // Leaves nothing behind for the next stream.
        if let Some(hello) = way.waiting(p) {
            let rst = at(hello.have as usize).rst();
            let outcome = p.ingress(Device::Client, &rst.bytes());
            assert_eq!(outcome.counted, [(Reason::HelloReset, 1)]);
        }
        assert_eq!(way.waiting(p), None);
        fate
    }

    /// Returns what is wrong with this fate; `None`: nothing.
    fn objection(&self, case: &Case, fate: Fate, with_default: bool) -> Option<String> {
        let own = case.name.as_ref().and_then(|name| self.routes.get(name)).copied();
        let file = case.path.display();
        let verdict = match fate {
            Fate::Routed(DEFAULT_ROUTE) if with_default => Verdict::NoSni,
            Fate::Refused(Reason::RouteNoName) if !with_default => Verdict::NoSni,
            Fate::Routed(route) if Some(route) == own && !case.must_not_route => Verdict::Route,
            Fate::Routed(route) => return Some(format!("{file}: MISROUTE to {route}, its own is {own:?}")),
            Fate::Refused(Reason::RouteReserved) if self.reserved(case) => Verdict::Route,
            Fate::Refused(
                Reason::HelloNotTls
                | Reason::HelloMalformed
                | Reason::HelloTooLong
                | Reason::HelloNameInvalid,
            ) => Verdict::Reject,
            Fate::Waits => Verdict::NeedMore,
            Fate::Refused(reason) => return Some(format!("{file}: {reason:?}")),
        };
        let allowed = &case.allowed;
        (!allowed.contains(&verdict))
            .then(|| format!("{file}: {fate:?} is {verdict:?}, allowed are {allowed:?}"))
    }

    fn reserved(&self, case: &Case) -> bool {
        case.name.as_deref().is_some_and(|name| RESERVED.contains(&name))
    }
}

/// The two ends of one client's connection.
struct Way {
    from: SocketAddr,
    to: SocketAddr,
}

impl Way {
    fn waiting(&self, programs: &Programs) -> Option<Pending> {
        programs.entry(name::PENDING, client_tuple(self.from, self.to))
    }
}

/// Runs every file over this family and port, in segments of `mss` bytes.
fn every_file(family: Family, port: u16, mss: usize) {
    tests::skip_without_root!();
    let Some(cases) = corpus::cases().expect("the manifests are read") else { return };
    assert!(cases.len() >= 900, "only {} files: the manifests were not read whole", cases.len());
    let mut kernel = Kernel::new(&cases);
    let mut objections = Vec::new();
    let mut fates: BTreeMap<String, u32> = BTreeMap::new();
    for (client_port, case) in (10_000..).zip(&cases) {
        let from = SocketAddr::new(client(family), client_port);
        let way = Way { from, to: SocketAddr::new(vip(family), port) };
        let fate = kernel.run(&case.bytes, &way, mss);
        let kind = match fate {
            Fate::Routed(DEFAULT_ROUTE) => "routed by default".to_owned(),
            Fate::Routed(_) => "routed by name".to_owned(),
            Fate::Waits => "waiting".to_owned(),
            Fate::Refused(reason) => format!("refused, {}", reason.label()),
        };
        *fates.entry(kind).or_default() += 1;
        objections.extend(kernel.objection(case, fate, port == OPEN_PORT));
    }
    eprintln!("{} files over {family:?} in segments of {mss}, port {port}: {fates:?}", cases.len());
    assert!(objections.is_empty(), "{} objections: {objections:#?}", objections.len());
}

#[test]
fn every_file_gives_its_verdict_in_segments_of_ethernet() {
    every_file(Family::V4, TLS_PORT, 1448);
}

#[test]
fn every_file_gives_its_verdict_in_small_segments() {
    every_file(Family::V6, TLS_PORT, 536);
}

#[test]
fn a_default_route_takes_hellos_without_a_name_and_no_others() {
    every_file(Family::V6, OPEN_PORT, 1428);
}

//! Source ports towards backends: never one that is in use elsewhere.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use common::decide::maglev::mix;
use common::decide::source_port::strides;
use common::maps::address::Address;
use common::maps::flow::{Flow, Reply};
use common::maps::name;
use common::maps::settings::Settings;
use common::maps::source::Source;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TENANT_NETS, balancer};
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};
use tests::tuple::backend_tuple;

use crate::check::{assert_sent, sent};
use crate::scene::{Backend, Client, dial, ready, usual_hello};
use crate::setup::{backend_socket, forget_all, nats, remove_hello, route_counts, with_backends};

/// Returns settings with the source ports from `first` to `last`.
pub(crate) fn ports(first: u16, last: u16) -> Settings {
    let source_port_strides = strides(first, last);
    let usual = default_settings(Sizes::default());
    Settings { source_port_first: first, source_port_last: last, source_port_strides, ..usual }
}

#[test]
fn ports_come_from_the_range_one_after_the_other() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.settings(ports(2_000, 2_003));
        let mut seen = Vec::new();
        for port in 40_000..40_004 {
            let client = dial(family).port(port).shake(&mut programs);
            seen.push(client.ask(&mut programs, &usual_hello()).source.port());
        }
        let first = seen[0];
        assert!((2_000..=2_003).contains(&first), "{first}");
        let expected: Vec<u16> = (0..4).map(|step| 2_000 + (first - 2_000 + step) % 4).collect();
        assert_eq!(seen, expected);
        forget_all(&mut programs);
    }
}

#[test]
fn one_port_serves_two_backends() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    programs.settings(ports(2_000, 2_000));
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let first = client.ask(&mut programs, &usual_hello());
        let outcome = first.refuse(&mut programs);
        let second = Backend::of(&sent(&outcome));
        assert_eq!((first.source, second.source.port()), (second.source, 2_000));
        // The port is free again at the first backend, and the next client sent there gets it.
        let mut port = 40_001;
        let third = loop {
            let client = dial(family).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello());
            if outcome.counted == [(Reason::ConnectSyn, 1)] {
                break Backend::of(&sent(&outcome));
            }
            assert_eq!(outcome.counted, [(Reason::ConnectNoPort, 1)]);
            port += 1;
        };
        assert_eq!(third, first);
        forget_all(&mut programs);
    }
}

#[test]
fn no_port_for_the_next_backend_resets_the_client() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    programs.settings(ports(2_000, 2_000));
    for family in FAMILIES {
        let mut clients = Vec::new();
        // One client on the only port to each backend.
        for port in 40_000.. {
            let client = dial(family).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello());
            if outcome.counted == [(Reason::ConnectSyn, 1)] {
                clients.push((client, Backend::of(&sent(&outcome))));
            }
            if clients.len() == 2 {
                break;
            }
        }
        let [(first, backend), (second, other)] = clients[..] else { unreachable!() };
        assert_sent(&backend.refuse(&mut programs), Reason::ConnectNoPort, &first.refusal());
        assert_eq!(first.waiting(&programs), None);
        assert_eq!(nats(&programs), [(other.tuple(), second.dial.tuple())]);
        // A backend that does not answer has the same result as one that refuses.
        let first = first.dial.shake(&mut programs);
        let taken = first.ask(&mut programs, &usual_hello());
        assert_eq!(taken, backend);
        first.send(&mut programs, 0, &usual_hello());
        let outcome = first.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::ConnectNoPort, &first.refusal());
        assert_eq!(nats(&programs), [(other.tuple(), second.dial.tuple())]);
        forget_all(&mut programs);
    }
}

#[test]
fn ports_that_a_socket_of_the_node_uses_are_passed_over() {
    tests::skip_without_root!();
    let mut programs = ready();
    // Each family has its own ports: a child process of another test may hold a closed socket for a moment.
    for (family, first) in FAMILIES.into_iter().zip([2_000, 2_010]) {
        programs.settings(ports(first, first + 2));
        let own = balancer(family, TENANT_NETS[0]);
        let any: IpAddr = if family.is_v4() { "0.0.0.0" } else { "::" }.parse().unwrap();
        let sockets = programs
            .world
            .node
            .run(|| [(own, first), (any, first + 2)].map(|address| TcpListener::bind(address).unwrap()));
        for port in 40_000..40_004 {
            let client = dial(family).port(port).shake(&mut programs);
            assert_eq!(client.ask(&mut programs, &usual_hello()).source.port(), first + 1);
            forget_all(&mut programs);
        }
        // With the third port also in use none is left, and no NAT entry is left behind.
        let third = programs.world.node.run(|| TcpListener::bind((own, first + 1)).unwrap());
        let client = dial(family).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::ConnectNoPort, &client.refusal());
        assert_eq!(nats(&programs), []);
        drop((sockets, third));
    }
}

#[test]
fn a_connection_of_the_node_to_the_backend_keeps_its_port() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // The kernel dials the backend itself; nothing answers, and the socket waits in SYN_SENT.
        let to = backend_socket(family, 0);
        let socket = programs.world.node.run(|| dial_without_waiting(to)).unwrap();
        let port = socket.local_addr().unwrap().port();
        programs.settings(ports(port, port));
        let client = dial(family).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::ConnectNoPort, &client.refusal());
    }
}

/// Starts a TCP connection without waiting for it.
fn dial_without_waiting(to: SocketAddr) -> std::io::Result<TcpStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
    use std::os::fd::AsRawFd;
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Err(nix::errno::Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Ok(()) => Err(std::io::Error::other("an unexpected answer")),
        Err(error) => Err(error.into()),
    }
}

/// A CPU claims a port before it stores the connection. Another one that found no connection took the port over, and the
/// first one's client was refused for want of a port: one of 66,000.
#[test]
fn a_port_whose_connection_is_not_stored_yet_is_left_alone() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.settings(ports(2_000, 2_001));
        let first = dial(family).shake(&mut programs);
        let backend = first.ask(&mut programs, &usual_hello());
        remove_hello(&mut programs, first.dial.tuple());
        for port in [40_001, 40_002] {
            let client = dial(family).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello());
            assert_eq!(backend.owner(&programs), Some(first.dial.tuple()));
            let expected = if port == 40_001 { Reason::ConnectSyn } else { Reason::ConnectNoPort };
            assert_eq!(outcome.counted, [(expected, 1)]);
        }
        forget_all(&mut programs);
    }
}

#[test]
fn running_out_of_ports_is_a_refusal_and_no_collision() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 1);
    for family in FAMILIES {
        programs.settings(ports(2_000, 2_001));
        let (connected, refused, retried) = route_counts(&programs);
        for port in [40_000, 40_001] {
            dial(family).port(port).shake(&mut programs).ask(&mut programs, &usual_hello());
        }
        let before = nats(&programs);
        let client = dial(family).port(40_002).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::ConnectNoPort, &client.refusal());
        assert_eq!(client.waiting(&programs), None);
        assert_eq!(nats(&programs), before);
        assert_eq!(route_counts(&programs), (connected, refused + 1, retried));
        forget_all(&mut programs);
    }
}

/// The range of a configuration without settings.
const USUAL: std::ops::RangeInclusive<u16> = 1024..=29_999;

/// Loads programs with room for a NAT entry of each port.
fn roomy() -> Programs {
    let mut programs =
        Programs::with_sizes(Sizes { flows: 30_000, ..Sizes::default() }).expect("the programs load");
    programs.tls_with_one_route();
    programs
}

/// Has a backend dialled for a client and forgets the connection; `None` when there is no port for it.
#[track_caller]
fn passing(programs: &mut Programs, client: Client) -> Option<Backend> {
    let outcome = client.send(programs, 0, &usual_hello());
    if outcome.counted == [(Reason::ConnectNoPort, 1)] {
        return None;
    }
    assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    let backend = Backend::of(&sent(&outcome));
    programs.remove::<_, Reply>(name::NATS, backend.tuple());
    remove_hello(programs, client.dial.tuple());
    programs.clear::<Address, Source>(name::SOURCES);
    Some(backend)
}

/// Gives ports towards the first backend to a connection that stays.
fn occupy(programs: &mut Programs, family: Family, ports: impl Iterator<Item = u16>) {
    let holder = dial(family).port(39_999).tuple();
    programs.insert(name::FLOWS, holder, Flow::zeroed());
    for port in ports {
        let source = SocketAddr::new(balancer(family, TENANT_NETS[0]), port);
        let tuple = backend_tuple(backend_socket(family, 0), source);
        programs.insert(name::NATS, tuple, Reply::to(&holder, 1));
    }
}

#[test]
fn with_nine_ports_of_ten_in_use_at_random_fewer_than_one_in_a_thousand_are_refused() {
    tests::skip_without_root!();
    const CONNECTIONS: usize = 5_000;
    for family in FAMILIES {
        let mut programs = roomy();
        let mut shuffled: Vec<u16> = USUAL.collect();
        shuffled.sort_by_key(|port| mix(u64::from(*port)));
        occupy(&mut programs, family, shuffled[..shuffled.len() * 9 / 10].iter().copied());
        let client = dial(family).shake(&mut programs);
        let refused = (0..CONNECTIONS).filter(|_| passing(&mut programs, client).is_none()).count();
        assert!(refused * 1_000 < CONNECTIONS, "{refused} of {CONNECTIONS} refused");
    }
}

#[test]
fn the_ports_of_a_burst_are_jumped_over() {
    tests::skip_without_root!();
    /// 17 % of the range.
    const BURST: u16 = 4_926;
    for family in FAMILIES {
        let mut programs = roomy();
        let client = dial(family).shake(&mut programs);
        let first = passing(&mut programs, client).unwrap().source.port();
        // The ports that come next.
        let (begin, count) = (*USUAL.start(), USUAL.len() as u16);
        occupy(&mut programs, family, (1..=BURST).map(|step| begin + (first - begin + step) % count));
        let refused = (0..100).filter(|_| passing(&mut programs, client).is_none()).count();
        assert_eq!(refused, 0);
    }
}

#[test]
fn a_port_comes_again_after_all_others() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for count in [1, 2, 7, 8, 12] {
            programs.settings(ports(2_000, 2_000 + count - 1));
            let mut next = || passing(&mut programs, client).unwrap().source.port();
            let first: Vec<u16> = (0..count).map(|_| next()).collect();
            let mut sorted = first.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (2_000..2_000 + count).collect::<Vec<u16>>());
            let second: Vec<u16> = (0..count).map(|_| next()).collect();
            assert_eq!(first, second);
        }
    }
}

#[test]
fn each_backend_has_its_own_next_port() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    for family in FAMILIES {
        let [one, other] = [0, 1].map(|index| {
            let mut clients = (40_000..).map(|port| dial(family).port(port));
            loop {
                let client = clients.next().unwrap().shake(&mut programs);
                if passing(&mut programs, client).unwrap().address == backend_socket(family, index) {
                    break client;
                }
            }
        });
        let before = passing(&mut programs, one).unwrap().source.port();
        for _ in 0..20 {
            passing(&mut programs, other).unwrap();
        }
        assert_eq!(passing(&mut programs, one).unwrap().source.port(), before + 1);
    }
}

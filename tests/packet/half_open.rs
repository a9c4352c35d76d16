//! TCP listeners: the SYN itself is forwarded to the backend, and the flow opens at the client's ACK.

use common::maps::flow::{FLOW_CLOSED, FLOW_ESTABLISHED, HalfOpen};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::{assert_dropped, assert_sent, order, reset_of, sent};
use crate::open::Open;
use crate::scene::{
    BACKEND_ISN, BACKEND_TIME, Backend, CLIENT_TIME, Client, Dial, ISN, Offer, behind, dial, stamped,
};
use crate::setup::{nats, route_counts, with_backends};

/// The port of the TCP listener.
pub(crate) const TCP_PORT: u16 = 20_001;

/// Loads programs with the TCP listener, and this many backends of each family.
pub(crate) fn tcp(sizes: Sizes, backends: u8) -> Programs {
    let mut programs = Programs::with_sizes(sizes).expect("the programs load");
    programs.tls_with_one_route();
    programs.tcp_listener(TCP_PORT);
    with_backends(&mut programs, backends);
    programs
}

/// Returns a client's segment with only addresses, ports and hop limit changed.
pub(crate) fn at_backend(backend: Backend, segment: &Segment) -> Segment {
    let mut s = segment.clone();
    s.ethernet = (Device::Backend.far_mac(), Device::Backend.near_mac());
    (s.from, s.to, s.hop_limit) = (backend.source, backend.address, s.hop_limit - 1);
    s
}

/// Returns a backend's segment with only addresses, ports and hop limit changed.
pub(crate) fn at_client(dial: Dial, segment: &Segment) -> Segment {
    let mut s = segment.clone();
    s.ethernet = (Device::Client.far_mac(), Device::Client.near_mac());
    (s.from, s.to, s.hop_limit) = (dial.vip(), dial.client(), s.hop_limit - 1);
    s
}

/// Dials the TCP listener and asserts that the SYN is forwarded whole.
#[track_caller]
pub(crate) fn knock(programs: &mut Programs, dial: Dial) -> Backend {
    let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
    assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
    let backend = Backend::of(&sent(&outcome));
    assert_sent(&outcome, Reason::SynForwarded, &at_backend(backend, &dial.syn()));
    backend
}

pub(crate) fn half_open(programs: &Programs, dial: Dial) -> Option<HalfOpen> {
    programs.entry(name::HALF_OPENS, dial.tuple())
}

/// The usual client of the TCP listener.
pub(crate) fn caller(family: Family) -> Dial {
    dial(family).to_port(TCP_PORT)
}

/// Returns a client's segment after the handshake.
pub(crate) fn from_client(dial: Dial, seq: u32, ack: u32) -> Segment {
    let s = dial.segment().seq(behind(ISN, seq)).ack(behind(BACKEND_ISN, ack)).window(502);
    if dial.offer.timestamps { stamped(s, CLIENT_TIME + 1, BACKEND_TIME) } else { s }
}

/// Dials, lets the backend answer and the client acknowledge.
#[track_caller]
pub(crate) fn opened(programs: &mut Programs, dial: Dial) -> Backend {
    let backend = knock(programs, dial);
    assert_eq!(backend.give(programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
    let outcome = programs.ingress(Device::Client, &from_client(dial, 0, 0).bytes());
    assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
    backend
}

#[test]
fn the_handshake_passes_from_end_to_end() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let odd = Offer { mss: None, sack: true, timestamps: true, scale: Some(14) };
        for (port, offer) in (40_000..).zip([Offer::linux(8_960, 7), Offer::plain(536), odd]) {
            let dial = caller(family).port(port).offer(offer);
            let backend = knock(&mut programs, dial);
            let held = half_open(&programs, dial).unwrap();
            assert_eq!(
                (held.nat, held.connection.route, held.connection.listener, held.isn),
                (backend.tuple(), 1, 2, ISN)
            );
            let answer = backend.syn_ack_with(Offer::linux(8_960, 3));
            let outcome = backend.give(&mut programs, &answer);
            assert_sent(&outcome, Reason::ForwardClient, &at_client(dial, &answer));
            assert!(half_open(&programs, dial).is_some(), "not before the client has answered");
            let ack = from_client(dial, 0, 0);
            let outcome = programs.ingress(Device::Client, &ack.bytes());
            assert_sent(&outcome, Reason::ForwardBackend, &at_backend(backend, &ack));
            assert_eq!(half_open(&programs, dial), None);
            let client = Client { dial, cookie: BACKEND_ISN, time: 0 };
            let flow = client.flow(&programs).unwrap();
            assert_eq!((flow.nat, flow.connection.route, flow.connection.listener), (backend.tuple(), 1, 2));
            assert_eq!((flow.seq_delta, flow.ts_delta, flow.connection.state), (0, 0, FLOW_ESTABLISHED));
            assert_eq!(backend.owner(&programs), Some(dial.tuple()));
        }
    }
    assert_eq!(route_counts(&programs), (6, 0, 0));
}

#[test]
fn data_passes_with_unchanged_numbers_and_windows() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        let sack = [(behind(BACKEND_ISN, 900), behind(BACKEND_ISN, 950))];
        let nop = tests::tcp_option::TcpOption::Nop;
        for segment in [
            from_client(dial, 0, 0).psh().payload(*b"any bytes at all"),
            from_client(dial, 16, 0).window(65_535),
            from_client(dial, 16, 500).option(nop.clone()).option(nop).sack(&sack),
        ] {
            let outcome = programs.ingress(Device::Client, &segment.bytes());
            assert_sent(&outcome, Reason::ForwardBackend, &at_backend(backend, &segment));
        }
        for segment in [backend.at(0, 16).payload([7; 1_000]), backend.at(1_000, 16).window(1)] {
            let outcome = backend.give(&mut programs, &segment);
            assert_sent(&outcome, Reason::ForwardClient, &at_client(dial, &segment));
        }
        // It closes like any other flow.
        let client = Client { dial, cookie: BACKEND_ISN, time: BACKEND_TIME };
        let open = Open { client, backend, offer: Offer::plain(0), clock: 0 };
        let fin = from_client(dial, 16, 1_000).fin();
        programs.ingress(Device::Client, &fin.bytes());
        backend.give(&mut programs, &backend.at(1_000, 17).fin());
        programs.ingress(Device::Client, &from_client(dial, 17, 1_001).bytes());
        assert_eq!(open.flow(&programs).connection.state, FLOW_CLOSED);
    }
}

#[test]
fn the_ack_may_bring_data_and_may_be_the_second_packet() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        backend.give(&mut programs, &backend.syn_ack());
        let data = from_client(dial, 0, 0).psh().payload(*b"early");
        let outcome = programs.ingress(Device::Client, &data.bytes());
        assert_sent(&outcome, Reason::ForwardBackend, &at_backend(backend, &data));
    }
}

#[test]
fn a_repeated_syn_keeps_backend_and_port() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        for _ in 0..5 {
            assert_eq!(knock(&mut programs, dial), backend);
        }
        assert_eq!(nats(&programs), [(backend.tuple(), dial.tuple())]);
        let rst = dial.segment().rst().seq(behind(ISN, 0));
        programs.ingress(Device::Client, &rst.bytes());
        assert_eq!(nats(&programs), []);
    }
}

/// A map element is reused as soon as it is removed, so a read from the entry being removed may return
/// another client's value, including its generation. That client must keep its NAT entry.
#[test]
fn whoever_is_forgotten_gives_up_no_other_clients_replies() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let [one, other] = [40_000, 40_001].map(|port| caller(family).port(port));
        knock(&mut programs, one);
        let backend = knock(&mut programs, other);
        let read_late = half_open(&programs, other).unwrap();
        programs.insert(name::HALF_OPENS, one.tuple(), read_late);
        programs.expire(&order(one.tuple(), Reason::ExpireHalfOpen));
        assert_eq!(half_open(&programs, one), None);
        assert_eq!(backend.owner(&programs), Some(other.tuple()));
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
    }
}

#[test]
fn a_refusal_passes_to_the_client() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        let rst = backend.segment().rst().ack(behind(ISN, 0)).window(0);
        let outcome = backend.give(&mut programs, &rst);
        assert_sent(&outcome, Reason::ConnectRefused, &at_client(dial, &rst));
        assert_eq!((half_open(&programs, dial), backend.owner(&programs)), (None, None));
    }
}

#[test]
fn a_client_that_resets_is_forgotten_and_the_backend_told() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        backend.give(&mut programs, &backend.syn_ack());
        let rst = dial.segment().rst().seq(behind(ISN, 0)).window(0);
        let outcome = programs.ingress(Device::Client, &rst.bytes());
        assert_sent(&outcome, Reason::ForwardReset, &at_backend(backend, &rst));
        assert_eq!((half_open(&programs, dial), backend.owner(&programs)), (None, None));
    }
}

#[test]
fn segments_of_no_connection_are_reset() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        for stray in [
            from_client(dial, 0, 0),
            from_client(dial, 0, 0).payload(*b"data"),
            from_client(dial, 0, 0).fin(),
            dial.segment().flags(flag::SYN).ack(9),
        ] {
            let outcome = programs.ingress(Device::Client, &stray.bytes());
            assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(&stray));
        }
        let rst = from_client(dial, 0, 0).rst();
        assert_dropped(&programs.ingress(Device::Client, &rst.bytes()), Reason::SynStray);
    }
}

#[test]
fn a_duplicate_of_the_syn_that_opened_the_flow_does_not_disturb_it() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        // A late duplicate of the SYN, as networks that duplicate and reorder deliver it; then the client's
        // first data.
        programs.ingress(Device::Client, &dial.syn().bytes());
        let data = from_client(dial, 0, 0).psh().payload(*b"first data");
        let outcome = programs.ingress(Device::Client, &data.bytes());
        assert_sent(&outcome, Reason::ForwardBackend, &at_backend(backend, &data));
        let answer = backend.at(0, 10).payload(*b"answer");
        let outcome = backend.give(&mut programs, &answer);
        assert_sent(&outcome, Reason::ForwardClient, &at_client(dial, &answer));
    }
}

#[test]
fn a_repeated_syn_ack_on_an_open_flow_is_acknowledged() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        // The client's ACK was lost after we forwarded it.
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        let ack = sent(&outcome);
        assert_eq!((ack.to, ack.flags), (backend.address, flag::ACK));
        assert_eq!((ack.seq, ack.ack), (behind(ISN, 0), behind(BACKEND_ISN, 0)));
    }
}

//! A client that reuses a port for a new connection never reaches the old backend or the old tenant.

use common::maps::flow::{FLOW_ESTABLISHED, FLOW_RESET, FLOW_SYN_SEEN};
use common::maps::listener::{Listener, ListenerKey, PROTOCOL_TCP};
use common::maps::name;
use common::maps::word::{SYN_AGAIN, SYN_OVER};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TLS_PORT, vip};
use tests::hello::hello;
use tests::packet::{Segment, flag};
use tests::program::Programs;

use crate::check::{assert_dropped, sent};
use crate::open::{HELLO, Open, open};
use crate::scene::{BACKEND_ISN, Backend, Client, ISN, behind, ready, usual_hello};
use crate::setup::{backend_address, backend_socket, nats, with_backends};

/// The client's next first sequence number.
pub(crate) const NEXT_ISN: u32 = 0x7000_0000;
/// The name of another tenant.
const OTHER_NAME: &str = "tenant-b.k8s.example.com";

/// Route 2, with the second backend alone, for [`OTHER_NAME`].
fn with_other_tenant(programs: &mut Programs) {
    with_backends(programs, 2);
    let all = FAMILIES.map(|family| {
        let id = if family.is_v4() { 31 } else { 32 };
        (id, programs.backend(2, backend_address(family, 1)))
    });
    programs.route(2, &all);
    programs.name(1, OTHER_NAME, 2);
}

/// Sends the SYN of a new connection on the same four-tuple, and again a second later: it is answered and marks the flow.
#[track_caller]
pub(crate) fn begin_anew(programs: &mut Programs, open: Open) -> Client {
    let syn = open.client.dial.syn().seq(NEXT_ISN);
    if open.flow(programs).connection.state == FLOW_ESTABLISHED {
        challenged(programs, open, &syn);
        open.age_syn(programs);
    }
    let outcome = open.client.give(programs, &syn);
    assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
    let answer = sent(&outcome);
    assert_eq!(answer.ack, behind(NEXT_ISN, 0));
    open.client.told(&answer)
}

/// Sends a SYN on an open flow, and asserts that it gets a challenge ACK (RFC 5961 section 4.2).
#[track_caller]
fn challenged(programs: &mut Programs, open: Open, syn: &Segment) {
    let outcome = open.client.give(programs, syn);
    assert_eq!(outcome.counted, [(Reason::SynChallenged, 1)]);
    let challenge = sent(&outcome);
    let flow = open.flow(programs);
    // One byte behind what the client acknowledged, so that a client that has the connection does not read its window.
    let seq = flow.client.acked.number.wrapping_sub(flow.seq_delta).wrapping_sub(1);
    assert!(challenge.window > 0, "a window of zero may stop the client");
    assert_eq!((challenge.flags, challenge.payload.len()), (flag::ACK, 0));
    assert_eq!((challenge.seq, challenge.ack), (seq, flow.backend.acked.number));
    assert_eq!((challenge.from, challenge.to), (syn.to, syn.from));
}

/// A client that has lost the connection answers the challenge with a RST at the number that it acknowledges. That ends
/// the flow, and the repeated SYN is answered.
#[test]
fn a_syn_is_challenged_and_the_answer_ends_the_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload(*b"data"));
        let syn = open.client.dial.syn().seq(NEXT_ISN);
        for _ in 0..3 {
            challenged(&mut programs, open, &syn);
            assert_eq!(open.flow(&programs).connection.flags, 0);
        }
        let rst = open.client_segment(HELLO, 0).flags(flag::RST);
        let outcome = open.client.give(&mut programs, &Segment { flags: flag::RST, ..rst });
        assert_eq!(outcome.counted, [(Reason::ForwardReset, 1)]);
        assert_eq!(open.client.give(&mut programs, &syn).counted, [(Reason::SynAnswered, 1)]);
        assert_eq!(open.client.flow(&programs), None);
    }
}

/// Other SYNs meanwhile keep no client from its own.
#[test]
fn other_syns_do_not_push_out_the_one_that_is_repeated() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let syn = open.client.dial.syn().seq(NEXT_ISN);
        challenged(&mut programs, open, &syn);
        for other in 1..50 {
            challenged(&mut programs, open, &open.client.dial.syn().seq(NEXT_ISN + other));
        }
        open.age_syn(&mut programs);
        challenged(&mut programs, open, &open.client.dial.syn().seq(NEXT_ISN + 1));
        assert_eq!(open.client.give(&mut programs, &syn).counted, [(Reason::SynAnswered, 1)]);
        assert_eq!(open.flow(&programs).connection.flags, FLOW_SYN_SEEN);
    }
}

/// A stranger has a SYN of his own noted whenever the one before is forgotten. So the client's never is, and gets no cookie; it would
/// get none of a host that it dials directly either. The answer to the challenge ends the flow all the same.
#[test]
fn a_stranger_who_keeps_his_syn_noted_keeps_no_client_from_its_next_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload(*b"data"));
        let syn = open.client.dial.syn().seq(NEXT_ISN);
        for strangers in 1..4 {
            challenged(&mut programs, open, &open.client.dial.syn().seq(NEXT_ISN + strangers));
            challenged(&mut programs, open, &syn);
            open.age_syn(&mut programs);
            challenged(&mut programs, open, &syn);
            let mut flow = open.flow(&programs);
            assert_eq!((flow.syn.isn, flow.connection.flags), (NEXT_ISN + strangers, 0));
            flow.syn.time = flow.syn.time.wrapping_sub(SYN_OVER);
            programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
        }
        let rst = Segment { flags: flag::RST, ..open.client_segment(HELLO, 0) };
        assert_eq!(open.client.give(&mut programs, &rst).counted, [(Reason::ForwardReset, 1)]);
        assert_eq!(open.client.give(&mut programs, &syn).counted, [(Reason::SynAnswered, 1)]);
        assert_eq!(open.client.flow(&programs), None);
    }
}

/// Cookies have 32 bits: a stranger who may guess for long is right in the end.
#[test]
fn after_eight_wrong_cookies_none_is_believed() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let client = begin_anew(&mut programs, open);
        let right = client.at(0).seq(behind(NEXT_ISN, 0)).payload(usual_hello());
        let wrong = |programs: &Programs| open.flow(programs).connection.wrong_cookies.count_ones();
        for guess in 1..=100 {
            let before = wrong(&programs);
            if before == 8 {
                break;
            }
            let outcome = client.give(&mut programs, &right.clone().ack(right.ack.wrapping_add(guess << 8)));
            // One guess in 2,048 looks like a later segment of the new hello.
            let is_early = outcome.counted == [(Reason::SynEarly, 1)];
            assert_eq!(wrong(&programs), before + u32::from(!is_early));
        }
        assert_eq!(wrong(&programs), 8);
        let outcome = client.give(&mut programs, &right);
        assert_dropped(&outcome, Reason::SynStray);
        // The old connection goes on, and its own end still makes room.
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload(*b"data"));
        open.reset(&mut programs);
        begin_anew(&mut programs, open);
        assert_eq!(client.flow(&programs), None);
    }
}

#[test]
fn a_syn_marks_an_open_flow_which_goes_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        begin_anew(&mut programs, open);
        let flow = open.flow(&programs);
        assert_eq!((flow.connection.state, flow.connection.flags), (FLOW_ESTABLISHED, FLOW_SYN_SEEN));
        // The SYN may be forged, so the old connection is not affected.
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0).psh().payload(*b"data"));
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO + 4).payload(*b"data"));
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 4, 4));
        open.close(&mut programs);
    }
}

/// Otherwise it would reach the old connection's backend, which may be another tenant's.
#[test]
fn a_later_segment_of_the_new_hello_is_not_the_old_flows() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let client = begin_anew(&mut programs, open);
        let at = |offset| client.at(0).seq(behind(NEXT_ISN, offset));
        let outcome = client.give(&mut programs, &at(300).payload(&bytes[300..]));
        assert_dropped(&outcome, Reason::SynEarly);
        assert_eq!(open.flow(&programs).connection.flags, FLOW_SYN_SEEN);
        // The first segment ends the old flow; then the segments arrive in order.
        let outcome = client.give(&mut programs, &at(0).payload(&bytes[..300]));
        assert_eq!(outcome.counted, [(Reason::SynFlowReplaced, 1), (Reason::HelloBuffered, 1)]);
        let outcome = client.give(&mut programs, &at(300).payload(&bytes[300..]));
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

#[test]
fn a_valid_cookie_begins_anew_and_goes_to_the_tenant_it_names() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_other_tenant(&mut programs);
    for family in FAMILIES {
        for handshake in [true, false] {
            let open = open(&mut programs, family);
            let old = open.backend;
            let client = begin_anew(&mut programs, open);
            let at = |offset| client.at(0).seq(behind(NEXT_ISN, offset));
            let mut expected = vec![(Reason::SynFlowReplaced, 1), (Reason::ConnectSyn, 1)];
            if handshake {
                // The handshake's ACK is already proof of the new connection.
                let outcome = client.give(&mut programs, &at(0));
                assert_eq!(
                    outcome.counted,
                    [(Reason::SynOldReset, 1), (Reason::SynAcked, 1), (Reason::SynFlowReplaced, 1)]
                );
                // That ACK needs no answer, so the packet becomes a RST to the old backend.
                let rst = old.to_backend().rst().seq(behind(ISN, HELLO)).window(0);
                assert_eq!(sent(&outcome), rst);
                expected.remove(0);
            }
            let bytes = hello().name(OTHER_NAME).length(600).bytes();
            let outcome = client.give(&mut programs, &at(0).payload(bytes.as_slice()));
            assert_eq!(outcome.counted, expected);
            assert_eq!(client.flow(&programs), None);
            assert_eq!(old.owner(&programs), None);
            let syn = sent(&outcome);
            assert_eq!((syn.seq, syn.to), (NEXT_ISN, backend_socket(family, 1)));
            let backend = Backend::of(&syn);
            let accepted = backend.syn_ack().ack(behind(NEXT_ISN, 0));
            let outcome = backend.give(&mut programs, &accepted);
            assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
            assert_eq!(sent(&outcome).payload, bytes);
            let flow = client.flow(&programs).unwrap();
            assert_eq!(
                (flow.connection.route, flow.connection.state, flow.connection.flags),
                (2, FLOW_ESTABLISHED, 0)
            );
            // The old backend's segments no longer belong to a connection.
            let outcome = old.give(&mut programs, &open.backend_segment(0, HELLO).payload(*b"old"));
            assert_eq!(outcome.counted, [(Reason::ClassifyOwnTraffic, 1)]);
            programs.expire(&crate::check::flow_order(&programs, client.dial.tuple(), Reason::ExpireRemoved));
            programs.expire(&crate::check::flow_order(&programs, client.dial.tuple(), Reason::ExpireClosed));
            assert_eq!(nats(&programs), []);
        }
    }
}

#[test]
fn a_hello_in_parts_after_a_flow_begins_anew_too() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let client = begin_anew(&mut programs, open);
        let at = |offset| client.at(0).seq(behind(NEXT_ISN, offset));
        // The first part replaces the old flow, and the second part completes the hello.
        let outcome = client.give(&mut programs, &at(0).payload(&usual_hello()[..300]));
        assert_eq!(outcome.counted, [(Reason::SynFlowReplaced, 1), (Reason::HelloBuffered, 1)]);
        let outcome = client.give(&mut programs, &at(300).payload(&usual_hello()[300..]));
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        assert_eq!(sent(&outcome).seq, NEXT_ISN);
        crate::setup::forget_all(&mut programs);
    }
}

#[test]
fn a_wrong_cookie_does_not_replace_a_marked_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let client = begin_anew(&mut programs, open);
        for forged in [
            client.at(0).seq(behind(NEXT_ISN, 0)).ack(client.cookie),
            client.at(0).seq(behind(NEXT_ISN, 0)).ack(12_345).payload(usual_hello()),
        ] {
            open.pass_to_backend(&mut programs, &forged);
        }
        assert_eq!(open.flow(&programs).connection.state, FLOW_ESTABLISHED);
    }
}

#[test]
fn a_cookie_without_a_syn_before_it_does_not_replace_a_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // The client retransmits its own hello: the cookie is valid, but the flow is the same connection.
        let open = open(&mut programs, family);
        let repeated = open.client_segment(0, 0).payload(usual_hello());
        open.pass_to_backend(&mut programs, &repeated);
        assert_eq!(open.flow(&programs).connection.state, FLOW_ESTABLISHED);
    }
}

#[test]
fn a_syn_on_a_flow_that_is_over_forgets_it() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for reset in [false, true] {
            let open = open(&mut programs, family);
            if reset {
                open.reset(&mut programs)
            } else {
                open.close(&mut programs)
            };
            let client = begin_anew(&mut programs, open);
            assert_eq!((client.flow(&programs), open.backend.owner(&programs)), (None, None));
            let outcome = client.give(&mut programs, &client.at(0).seq(behind(NEXT_ISN, 0)));
            assert_dropped(&outcome, Reason::SynAcked);
            // Late segments of the old connection have no flow. Their cookie fits this four-tuple, so they
            // are not answered.
            let late = open.client_segment(HELLO, 0);
            assert_dropped(&client.give(&mut programs, &late), Reason::SynEarly);
        }
    }
}

#[test]
fn the_new_connection_is_not_forgotten_with_the_old_one() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        let settings = tests::fill::default_settings(tests::program::Sizes::default());
        programs.settings(common::maps::settings::Settings { closed_timeout_secs: 0, ..settings });
        let old = open(&mut programs, family);
        old.reset(&mut programs);
        let again = open(&mut programs, family);
        assert_eq!(again.client.dial.tuple(), old.client.dial.tuple());
        // Others close: the old slot in the ring is examined, but its four-tuple now has an open flow.
        for port in [40_001, 40_002] {
            let other = crate::open::open_with(&mut programs, old.client.dial.port(port), old.offer);
            other.pass_to_client(&mut programs, &other.backend_segment(0, HELLO));
            let outcome = other.client.give(&mut programs, &other.client_segment(HELLO, 0).rst());
            assert_eq!(outcome.counted[0], (Reason::ForwardReset, 1));
        }
        assert_eq!(again.flow(&programs).connection.state, FLOW_ESTABLISHED);
        assert_eq!(again.backend.owner(&programs), Some(old.client.dial.tuple()));
        again.pass_to_backend(&mut programs, &again.client_segment(HELLO, 0));
    }
}

/// Runs a story on an open flow of the TLS listener, whose port now belongs to a TCP listener, and whose client has the SYN-ACK of
/// the backend of a new connection. It gets the flow, and that backend.
fn answered_anew(programs: &mut Programs, family: Family, story: impl FnOnce(&mut Programs, Open, Backend)) {
    let port = common::maps::address::Port::new(TLS_PORT);
    let key = ListenerKey { address: vip(family).into(), port, reserved: [0; 2] };
    let open = open(programs, family);
    let tls: Listener = programs.entry(name::LISTENERS, key).expect("a listener");
    programs.insert(name::LISTENERS, key, Listener { protocol: PROTOCOL_TCP, route: 1, ..tls });
    let syn = open.client.dial.syn().seq(NEXT_ISN);
    challenged(programs, open, &syn);
    open.age_syn(programs);
    let outcome = open.client.give(programs, &syn);
    assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
    let backend = Backend::of(&sent(&outcome));
    assert_ne!(backend.source, open.backend.source);
    // The old connection continues until the client acknowledges the new SYN-ACK.
    open.pass_to_backend(programs, &open.client_segment(HELLO, 0));
    let answer = backend.syn_ack().ack(behind(NEXT_ISN, 0));
    assert_eq!(backend.give(programs, &answer).counted, [(Reason::ForwardClient, 1)]);
    story(programs, open, backend);
    programs.insert(name::LISTENERS, key, tls);
}

#[test]
fn on_a_tcp_listener_the_new_handshake_is_the_proof() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        answered_anew(&mut programs, family, |programs, open, backend| {
            let ack = open.client.at(0).seq(behind(NEXT_ISN, 0)).ack(behind(BACKEND_ISN, 0));
            let outcome = open.client.give(programs, &ack);
            assert_eq!(outcome.counted, [(Reason::SynFlowReplaced, 1), (Reason::ForwardBackend, 1)]);
            assert_eq!(sent(&outcome).to, backend.address);
            assert_eq!(open.flow(programs).nat, backend.tuple());
            assert_eq!(open.backend.owner(programs), None);
            assert_ne!(open.flow(programs).connection.state, FLOW_RESET);
        });
        assert_ne!(ISN, NEXT_ISN);
    }
}

/// It refuses the new connection: that is no reason to end the old one, which it does not concern.
#[test]
fn a_rst_that_acknowledges_the_new_handshake_is_no_proof() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        answered_anew(&mut programs, family, |programs, open, _| {
            let at = open.client.at(0).seq(behind(NEXT_ISN, 0)).ack(behind(BACKEND_ISN, 0));
            let outcome = open.client.give(programs, &at.flags(flag::RST | flag::ACK));
            let replaced = outcome.counted.iter().any(|(reason, _)| *reason == Reason::SynFlowReplaced);
            assert!(!replaced, "{:?}", outcome.counted);
            let flow = open.flow(programs);
            assert_eq!((flow.nat, flow.connection.state), (open.backend.tuple(), FLOW_ESTABLISHED));
            open.pass_to_backend(programs, &open.client_segment(HELLO, 0).psh().payload(*b"data"));
            open.pass_to_client(programs, &open.backend_segment(0, HELLO + 4).payload(*b"data"));
        });
        crate::setup::forget_all(&mut programs);
    }
}

#[test]
fn a_flow_that_owes_bytes_is_replaced_with_them() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = crate::scene::dial(family).shake(&mut programs);
        client.give(&mut programs, &client.at(0).psh().payload(&usual_hello()[..300]));
        let outcome = client.send(&mut programs, 300, &usual_hello()[300..]);
        let old = Backend::of(&sent(&outcome));
        old.accept(&mut programs);
        assert!(client.waiting(&programs).is_some(), "300 bytes are undelivered");
        let syn = client.dial.syn().seq(NEXT_ISN);
        assert_eq!(client.give(&mut programs, &syn).counted, [(Reason::SynChallenged, 1)]);
        let mut flow = client.flow(&programs).unwrap();
        flow.syn.time = flow.syn.time.wrapping_sub(SYN_AGAIN);
        programs.insert(name::FLOWS, client.dial.tuple(), flow);
        let answer = sent(&client.give(&mut programs, &syn));
        let anew = client.told(&answer);
        let first = anew.at(0).seq(behind(NEXT_ISN, 0)).payload(&usual_hello()[..200]);
        let outcome = client.give(&mut programs, &first);
        assert_eq!(outcome.counted, [(Reason::SynFlowReplaced, 1), (Reason::HelloBuffered, 1)]);
        let waiting = client.waiting(&programs).unwrap();
        assert_eq!((waiting.isn, waiting.have, waiting.acked), (NEXT_ISN, 200, 0));
        assert_eq!((client.flow(&programs), old.owner(&programs)), (None, None));
    }
}

#[test]
fn the_syn_that_opened_a_flow_does_not_mark_it_when_it_comes_again() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        challenged(&mut programs, open, &open.client.dial.syn());
        open.age_syn(&mut programs);
        challenged(&mut programs, open, &open.client.dial.syn());
        assert_eq!(open.flow(&programs).connection.flags, 0);
        // Its cookie is still valid, but the retransmitted hello belongs to the flow.
        open.pass_to_backend(&mut programs, &open.client_segment(0, 0).payload(usual_hello()));
        assert_eq!(open.flow(&programs).connection.state, FLOW_ESTABLISHED);
    }
}

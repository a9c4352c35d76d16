//! A client that gave up while its backend was silent, and whose RST was lost, sends another SYN from the same port. Then the
//! backend of the first connection answers. What the client sends is for the second one: it was passed to the first one's
//! backend, and the client waited for a minute.

use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::program::Outcome;

use crate::check::sent;
use crate::open::{HELLO, open};
use crate::renew::NEXT_ISN;
use crate::scene::{Backend, ISN, behind, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, route_flows};

#[test]
fn a_client_that_gave_up_before_its_backend_answered_gets_its_next_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    for (family, with_ack) in FAMILIES.into_iter().flat_map(|family| [(family, true), (family, false)]) {
        let first = dial(family).shake(&mut programs);
        let backend = first.ask(&mut programs, &hello);
        let answer = sent(&first.give(&mut programs, &first.dial.syn().seq(NEXT_ISN)));
        assert_eq!(answer.ack, behind(NEXT_ISN, 0));
        let second = first.told(&answer);
        backend.accept(&mut programs);
        let old = first.flow(&programs).expect("its backend accepted").connection.generation;
        let next = second.at(0).seq(behind(NEXT_ISN, 0));
        if with_ack {
            let outcome = second.give(&mut programs, &next);
            let expected = [Reason::SynOldReset, Reason::SynAcked, Reason::SynFlowReplaced];
            assert_eq!(reasons(&outcome), expected, "{family:?}");
            assert_eq!(sent(&outcome).to, backend.address, "the first one's backend is reset");
        }
        let outcome = second.give(&mut programs, &next.payload(&hello[..]));
        let expected: &[_] = if with_ack { &[] } else { &[Reason::SynFlowReplaced] };
        assert_eq!(reasons(&outcome), [expected, &[Reason::ConnectSyn]].concat(), "{family:?}, {with_ack}");
        let syn = sent(&outcome);
        assert_eq!(syn.seq, NEXT_ISN);
        let backend = Backend::of(&syn);
        let accepted = backend.syn_ack().ack(behind(NEXT_ISN, 0));
        assert_eq!(backend.give(&mut programs, &accepted).counted, [(Reason::ConnectHello, 1)]);
        let flow = second.flow(&programs).expect("its own");
        assert_ne!(flow.connection.generation, old);
        assert_eq!((flow.client_isn, route_flows(&programs, 1), nats(&programs).len()), (NEXT_ISN, 1, 1));
        forget_all(&mut programs);
    }
}

/// A client's earlier handshake on the same ports was refused; a copy of its last segment arrives late, when the next
/// connection has just opened. It has a cookie of ours, but its number is behind.
#[test]
fn a_late_segment_of_an_earlier_handshake_replaces_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let earlier = ISN.wrapping_sub(1_000_000);
        let first = dial(family).shake(&mut programs);
        let answer = sent(&first.give(&mut programs, &first.dial.syn().seq(earlier)));
        let late = first.told(&answer).at(0).seq(behind(earlier, 0));
        let open = open(&mut programs, family);
        let old = open.flow(&programs).connection.generation;
        for segment in [late.clone(), late.payload(usual_hello())] {
            let outcome = open.client.give(&mut programs, &segment);
            assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)], "{family:?}");
        }
        assert_eq!(open.flow(&programs).connection.generation, old);
        forget_all(&mut programs);
    }
}

/// The reasons counted, in the order of their numbers.
fn reasons(outcome: &Outcome) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = outcome.counted.iter().map(|(reason, _)| *reason).collect();
    reasons.sort_by_key(|reason| *reason as u32);
    reasons
}

/// A segment that fits neither the flow nor a cookie is passed, for its ends to judge, and replaces nothing. The first one that
/// fits, or proves the flow's own handshake, is the flow's.
#[test]
fn nothing_else_replaces_a_flow_whose_client_has_acknowledged_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let old = open.flow(&programs);
        let own = open.client.at(HELLO).payload(*b"more");
        let wrong = own.clone().ack(open.client.wrong_ack());
        for segment in [&own, &wrong, &own] {
            let outcome = open.client.give(&mut programs, segment);
            assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)], "{family:?}");
        }
        // With the cookie of a SYN that has the flow's own number.
        let again = open.client.at(0).payload(usual_hello());
        let outcome = open.client.give(&mut programs, &again);
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)], "{family:?}");
        let now = open.flow(&programs);
        assert_eq!(now.connection.generation, old.connection.generation);
        assert_eq!(now.client_isn, ISN);
        forget_all(&mut programs);
    }
}

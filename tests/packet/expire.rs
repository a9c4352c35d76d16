//! Changes that the daemon orders when no packet arrives.

use std::mem::offset_of;

use common::maps::event::{EXPIRE_DONE, EXPIRE_SEVERAL, Expiry, ORDERS_MAX, PROBE_HELD};
use common::maps::flow::{
    FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_CLOSED, FLOW_ENDING, FLOW_ESTABLISHED, FLOW_PROBED,
    FLOW_REMOVED, FLOW_RESET, Flow, HalfOpen,
};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::compare::assert_frame;
use tests::hello::hello;
use tests::program::{Outcome, Programs};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::check::{assert_dropped, assert_emitted, assert_sent, flow_order, order, reset_of, sent};
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{Backend, Dial, ISN, Offer, behind, dial, ready, usual_hello};
use crate::setup::{forget_all, hellos, nats, waiting_of};

/// Orders an expiry and asserts that it is done: the reason is counted once.
#[track_caller]
fn expire(programs: &mut Programs, dial: Dial, reason: Reason) -> Outcome {
    let outcome = programs.expire(&flow_order(programs, dial.tuple(), reason));
    assert_eq!((outcome.verdict, outcome.counted.as_slice()), (0, &[(reason, 1)][..]));
    outcome
}

/// Orders an expiry that cannot be done, and asserts that nothing is sent and nothing counted.
#[track_caller]
fn assert_nothing_there(programs: &mut Programs, dial: Dial, reason: Reason) {
    let order = match reason {
        Reason::HelloEvicted => order(dial.tuple(), reason),
        _ => flow_order(programs, dial.tuple(), reason),
    };
    let outcome = programs.expire(&order);
    assert_eq!((outcome.verdict, outcome.counted.as_slice()), (1, &[][..]), "{reason:?}");
    assert_eq!(outcome.emitted, []);
}

/// Opens a connection from this port.
#[track_caller]
fn open_from(programs: &mut Programs, family: Family, port: u16) -> Open {
    open_with(programs, dial(family).port(port), Offer::linux(1460, 9))
}

/// 100,000 connections of a backend that is removed are ended in 3,125 runs.
#[test]
fn several_flows_are_ended_in_one_run_as_in_one_each() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let opened: Vec<Open> =
            (0..ORDERS_MAX as u16).map(|n| open_from(&mut programs, family, 40_000 + n)).collect();
        let reasons = [
            Reason::ExpireRemoved,
            Reason::ExpireRefused,
            Reason::ExpireIdle,
            Reason::ExpireHeld,
            Reason::ExpireCrowded,
        ];
        let reason = |nth: usize| reasons[nth % reasons.len()];
        let seen = |(nth, open): (usize, &Open)| {
            let Flow { connection, seen_secs, client, backend, .. } = open.flow(&programs);
            let seq = client.acked.number.wrapping_add(backend.acked.number);
            let generation = connection.generation;
            Expiry { seq, generation, seen_secs, ..order(open.client.dial.tuple(), reason(nth)) }
        };
        let orders: Vec<Expiry> = opened.iter().enumerate().map(seen).collect();
        let mut expected = Vec::new();
        for (open, order) in opened.iter().zip(&orders) {
            let flow = open.flow(&programs);
            let outcome = programs.expire(order);
            assert_eq!((outcome.verdict, outcome.emitted.len()), (EXPIRE_DONE, 2), "{order:?}");
            expected.extend(outcome.emitted);
            programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
        }
        // Frames are received device by device.
        expected.sort_by_key(|(device, _)| *device != Device::Client);
        let outcome = programs.expire_several(&orders);
        assert_eq!(outcome.verdict, EXPIRE_SEVERAL + ORDERS_MAX as u32);
        assert!(outcome.emitted == expected, "RSTs to both ends of each: {:#?}", outcome.emitted);
        for counted in reasons {
            let times = (0..ORDERS_MAX).filter(|nth| reason(*nth) == counted).count() as u64;
            assert!(outcome.counted.contains(&(counted, times)), "{counted:?}: {:?}", outcome.counted);
        }
        assert!(opened.iter().all(|open| open.flow(&programs).connection.state == FLOW_RESET));
        let again = programs.expire_several(&orders);
        assert_eq!((again.verdict, again.emitted, again.counted), (EXPIRE_SEVERAL, vec![], vec![]));
        forget_all(&mut programs);
    }
}

#[test]
fn what_changed_since_is_left_alone_among_several_orders_and_nothing_but_flows_is_ended() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let opened = [0, 1, 2, 3].map(|n| open_from(&mut programs, family, 40_000 + n));
        let orders = opened.map(|open| {
            let generation = open.flow(&programs).connection.generation;
            Expiry { generation, ..order(open.client.dial.tuple(), Reason::ExpireRemoved) }
        });
        let [first, second, third, fourth] = orders;
        let other = Expiry { generation: second.generation + 1, ..second };
        let gone = order(dial(family).port(39_999).tuple(), Reason::ExpireRemoved);
        // After one that ends no flow, none is looked at: only flows are ended so.
        let probe = Expiry { reason: Reason::ExpireProbe as u32, seq: PROBE_HELD, ..fourth };
        let outcome = programs.expire_several(&[first, other, gone, third, probe, fourth]);
        assert_eq!(outcome.verdict, EXPIRE_SEVERAL + 2);
        assert_eq!(outcome.counted, [(Reason::ExpireRemoved, 2)]);
        let to: Vec<Device> = outcome.emitted.iter().map(|(device, _)| *device).collect();
        assert_eq!(to, [Device::Client, Device::Client, Device::Backend, Device::Backend]);
        let states = opened.map(|open| open.flow(&programs).connection.state);
        assert_eq!(states, [FLOW_RESET, FLOW_ESTABLISHED, FLOW_RESET, FLOW_ESTABLISHED]);
        forget_all(&mut programs);
    }
}

/// Its port may be another connection's by now.
#[test]
fn nothing_is_sent_for_a_flow_that_another_cpu_removes() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let mut quiet = 0;
        for nth in 1.. {
            let open = open(&mut programs, family);
            let (tuple, state) = (open.client.dial.tuple(), offset_of!(Flow, connection.state));
            let place = Place::new(name::FLOWS, &tuple, state);
            let change = Change::write(name::FLOWS, &tuple, state, &FLOW_REMOVED);
            let order = flow_order(&programs, tuple, Reason::ExpireRemoved);
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            let outcome = programs.expire(&order);
            assert!(schedule.happened());
            drop(schedule);
            forget_all(&mut programs);
            // It ended the flow first.
            if outcome.verdict == EXPIRE_DONE {
                break;
            }
            assert_eq!((outcome.emitted, outcome.counted), (vec![], vec![]));
            quiet += 1;
        }
        // Before it looked at the state, copied the record, and exchanged the state.
        assert!(quiet > 2, "{family:?}: {quiet}");
    }
}

#[test]
fn idle_and_removed_flows_are_reset_on_both_sides_and_linger() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (port, reason) in [(40_000, Reason::ExpireIdle), (40_001, Reason::ExpireRemoved)] {
            let dial = dial(family).port(port);
            let flow = open_with(&mut programs, dial, Offer::linux(1460, 9));
            flow.pass_to_backend(&mut programs, &flow.client_segment(HELLO, 0).payload([1; 100]));
            flow.pass_to_client(&mut programs, &flow.backend_segment(0, HELLO + 60).payload([2; 50]));
            flow.pass_to_backend(&mut programs, &flow.client_segment(HELLO + 100, 50));
            let outcome = expire(&mut programs, dial, reason);
            // Right after the other side's last byte: a RST with an older number would be ignored (RFC 5961).
            let to_client = dial.to_client().rst().seq(behind(flow.client.cookie, 50));
            let to_backend = flow.backend.to_backend().rst().seq(behind(ISN, HELLO + 100)).window(0);
            assert_emitted(&outcome, &[(Device::Client, to_client), (Device::Backend, to_backend)]);
            assert_eq!(flow.flow(&programs).connection.state, FLOW_RESET);
            assert_eq!(flow.backend.owner(&programs), Some(dial.tuple()));
            // A second order does nothing.
            assert_nothing_there(&mut programs, dial, reason);
            // A busy side that ignored the RST gets another one, at the number that it acknowledges.
            let late = flow.client_segment(HELLO + 100, 90).payload(*b"late");
            let outcome = flow.client.give(&mut programs, &late);
            assert_sent(&outcome, Reason::ForwardLinger, &reset_of(&late));
            // The linger time is over.
            let outcome = expire(&mut programs, dial, Reason::ExpireClosed);
            assert_eq!(outcome.emitted, []);
            assert_eq!((flow.client.flow(&programs), flow.backend.owner(&programs)), (None, None));
            assert_nothing_there(&mut programs, dial, Reason::ExpireClosed);
        }
    }
}

/// The daemon looks, then orders: what it saw may be over by then.
#[test]
fn an_order_is_not_carried_out_on_what_changed_since() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let flow = open(&mut programs, family);
        let seen = flow.flow(&programs);
        let (generation, seen_secs) = (seen.connection.generation, seen.seen_secs);
        let progress = seen.client.acked.number.wrapping_add(seen.backend.acked.number);
        let asked = |reason| Expiry { generation, seen_secs, ..order(flow.client.dial.tuple(), reason) };
        let refused = [
            // No connection, and another one of the same client.
            Expiry { generation: 0, ..asked(Reason::ExpireIdle) },
            Expiry { generation: 0, ..asked(Reason::ExpireRemoved) },
            Expiry { generation: 0, seq: PROBE_HELD, ..asked(Reason::ExpireProbe) },
            Expiry { generation: generation + 1, ..asked(Reason::ExpireIdle) },
            Expiry { generation: generation + 1, ..asked(Reason::ExpireRemoved) },
            Expiry { generation: generation + 1, seq: progress, ..asked(Reason::ExpireHeld) },
            // A packet arrived since.
            Expiry { seen_secs: seen_secs.wrapping_sub(1), ..asked(Reason::ExpireIdle) },
            // An end acknowledged more since.
            Expiry { seq: progress.wrapping_sub(1), ..asked(Reason::ExpireHeld) },
            // It is open, and no RST is on trial.
            asked(Reason::ExpireClosed),
            asked(Reason::ExpireTrial),
            asked(Reason::ExpireProbe),
        ];
        for expiry in refused {
            let outcome = programs.expire(&expiry);
            assert_eq!(
                (outcome.verdict, outcome.counted, outcome.emitted),
                (1, vec![], vec![]),
                "{expiry:?}"
            );
        }
        assert_eq!(flow.flow(&programs), seen);
        let held = programs.expire(&Expiry { seq: progress, ..asked(Reason::ExpireHeld) });
        assert_eq!((held.counted, held.emitted.len()), (vec![(Reason::ExpireHeld, 1)], 2));
        assert_eq!(flow.flow(&programs).connection.state, FLOW_RESET);
        let over = programs.expire(&Expiry { generation: generation + 1, ..asked(Reason::ExpireClosed) });
        assert_eq!(over.verdict, 1);
        assert_eq!(programs.expire(&asked(Reason::ExpireClosed)).counted, [(Reason::ExpireClosed, 1)]);
    }
}

/// Whether another CPU's segment finds the flow marked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// It clears all flags, the mark among them.
    Any,
    /// It clears nothing.
    NoMark,
}

/// Gives an order, while another CPU makes these changes behind the nth access to a byte of the flow, for each n: they are what an answer
/// or a segment changes. The flow is ended only where they came too late.
#[track_caller]
fn assert_outrun(
    programs: &mut Programs,
    (family, finds): (Family, Finds),
    reason: Reason,
    byte: usize,
    changes: &[(usize, u8)],
) {
    let mut outrun = 0;
    for nth in 1.. {
        let open = open(programs, family);
        open.pass_to_client(programs, &open.backend_segment(0, HELLO).payload([2; 100]));
        let (tuple, mut flow) = (open.client.dial.tuple(), open.flow(programs));
        flow.connection.flags = FLOW_BACKEND_ON_TRIAL | FLOW_PROBED;
        programs.insert(name::FLOWS, tuple, flow);
        let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
        let seq = flow.client.acked.number.wrapping_add(flow.backend.acked.number);
        let order = Expiry { generation, seen_secs, seq, ..order(tuple, reason) };
        let (state, flags) = (offset_of!(Flow, connection.state), offset_of!(Flow, connection.flags));
        let mut all = vec![Change::expect(name::FLOWS, &tuple, state, u8::MAX, FLOW_ESTABLISHED)];
        all.extend(changes.iter().map(|(at, by)| {
            let byte = zerocopy::IntoBytes::as_bytes(&flow)[*at];
            Change::write(name::FLOWS, &tuple, *at, &byte.wrapping_add(*by))
        }));
        let left = match finds {
            Finds::Any => 0,
            Finds::NoMark => flow.connection.flags,
        };
        if finds == Finds::NoMark {
            all.insert(0, Change::expect(name::FLOWS, &tuple, flags, FLOW_ENDING, 0));
        }
        all.push(Change::write(name::FLOWS, &tuple, flags, &left));
        let place = Place::new(name::FLOWS, &tuple, byte);
        let schedule = programs.behind_access(&place, nth, &all).expect("a hardware breakpoint");
        let outcome = programs.expire(&order);
        let (happened, accesses) = (schedule.happened(), schedule.accesses());
        drop(schedule);
        let after = open.flow(programs).connection;
        if happened {
            assert_eq!((outcome.emitted, outcome.counted), (vec![], vec![]), "{reason:?}, access {nth}");
            assert_eq!((after.state, after.flags), (FLOW_ESTABLISHED, left), "{reason:?}, access {nth}");
            outrun += 1;
        } else {
            assert_eq!((outcome.emitted.len(), after.state), (2, FLOW_RESET), "{reason:?}, access {nth}");
        }
        forget_all(programs);
        if u64::from(nth) >= accesses {
            break;
        }
    }
    // Behind the first look, and unless it finds the mark behind the second one.
    let least = if finds == Finds::Any { 2 } else { 1 };
    assert!(outrun >= least, "{family:?}, {reason:?}, byte {byte}: {outrun}");
}

/// Another CPU acquits the flow after it was looked at: its connection, which had just answered, got two RSTs.
#[test]
fn an_answer_that_comes_as_the_order_is_carried_out_saves_the_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    let flags = offset_of!(Flow, connection.flags);
    for family in FAMILIES {
        assert_outrun(&mut programs, (family, Finds::Any), Reason::ExpireTrial, flags, &[]);
    }
}

/// The same with a segment of an idle flow, and an acknowledgement of one that was held.
#[test]
fn a_segment_that_comes_as_the_order_is_carried_out_saves_the_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    let (flags, seen) = (offset_of!(Flow, connection.flags), offset_of!(Flow, seen_secs));
    let acked = offset_of!(Flow, client.acked.number);
    for case in FAMILIES.into_iter().flat_map(|family| [(family, Finds::Any), (family, Finds::NoMark)]) {
        for byte in [seen, flags] {
            assert_outrun(&mut programs, case, Reason::ExpireIdle, byte, &[(seen, 1)]);
        }
        for byte in [acked, flags] {
            assert_outrun(&mut programs, case, Reason::ExpireHeld, byte, &[(acked, 1)]);
        }
    }
    assert_outrun(&mut programs, (Family::V4, Finds::Any), Reason::ExpireCrowded, acked, &[(acked, 1)]);
}

/// What a packet does for that: it clears the mark of an order that is being carried out.
#[test]
fn a_segment_that_is_believed_clears_the_mark_of_an_order() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for from_client in [false, true] {
            let open = open(&mut programs, family);
            let mut flow = open.flow(&programs);
            flow.connection.flags = FLOW_ENDING | FLOW_CLIENT_ON_TRIAL;
            programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
            // Far behind: nothing is learned from it.
            open.client.give(&mut programs, &open.client_segment(HELLO.wrapping_sub(1 << 31), 0));
            assert_eq!(open.flow(&programs).connection.flags, FLOW_ENDING | FLOW_CLIENT_ON_TRIAL);
            match from_client {
                true => open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0)),
                false => open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO)),
            }
            assert_eq!(open.flow(&programs).connection.flags, FLOW_CLIENT_ON_TRIAL);
            forget_all(&mut programs);
        }
    }
}

#[test]
fn a_flow_without_data_is_reset_behind_its_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let outcome = expire(&mut programs, open.client.dial, Reason::ExpireRemoved);
        let to_backend = open.backend.to_backend().rst().seq(behind(ISN, HELLO)).window(0);
        assert_emitted(&outcome, &[(Device::Client, open.client.refusal()), (Device::Backend, to_backend)]);
    }
}

#[test]
fn a_closed_flow_is_reset_when_removed_and_forgotten_in_time() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let flow = open(&mut programs, family);
        let dial = flow.client.dial;
        // Open flows are not removed by this order.
        assert_nothing_there(&mut programs, dial, Reason::ExpireClosed);
        assert_eq!(flow.flow(&programs).connection.state, FLOW_ESTABLISHED);
        flow.close(&mut programs);
        assert_eq!(flow.flow(&programs).connection.state, FLOW_CLOSED);
        let outcome = expire(&mut programs, dial, Reason::ExpireRemoved);
        assert_eq!(outcome.emitted.len(), 2);
        assert_eq!(flow.flow(&programs).connection.state, FLOW_RESET);
        expire(&mut programs, dial, Reason::ExpireClosed);
        assert_eq!((hellos(&programs), nats(&programs)), (vec![], vec![]));
    }
}

#[test]
fn a_flow_that_owes_bytes_gives_them_up_with_its_end() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.give(&mut programs, &client.at(0).psh().payload(&usual_hello()[..300]));
        let outcome = client.send(&mut programs, 300, &usual_hello()[300..]);
        Backend::of(&sent(&outcome)).accept(&mut programs);
        assert_eq!(hellos(&programs).len(), 1);
        let outcome = expire(&mut programs, client.dial, Reason::ExpireIdle);
        assert_eq!(outcome.emitted.len(), 2);
        assert_eq!(hellos(&programs), []);
        expire(&mut programs, client.dial, Reason::ExpireClosed);
    }
}

#[test]
fn waiting_hellos_are_reset_and_forgotten() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for reason in [Reason::ExpireHello, Reason::HelloTimeout] {
            // An incomplete hello.
            let client = dial(family).shake(&mut programs);
            assert_dropped(&client.send(&mut programs, 0, &usual_hello()[..300]), Reason::HelloBuffered);
            let outcome = expire(&mut programs, client.dial, reason);
            assert_emitted(&outcome, &[(Device::Client, client.refusal())]);
            assert_eq!((hellos(&programs).len(), waiting_of(&programs, client.dial.host)), (0, 0));
            // A hello that waits for its backend: the port is freed, and the backend's answer is not ours any more.
            let backend = client.ask(&mut programs, &usual_hello());
            let outcome = expire(&mut programs, client.dial, reason);
            assert_emitted(&outcome, &[(Device::Client, client.refusal())]);
            assert_eq!((hellos(&programs), nats(&programs)), (vec![], vec![]));
            let outcome = backend.give(&mut programs, &backend.syn_ack());
            assert_eq!(outcome.counted, [(Reason::ClassifyOwnTraffic, 1)]);
            assert_nothing_there(&mut programs, client.dial, reason);
        }
    }
}

#[test]
fn half_open_connections_are_forgotten_without_a_word() {
    tests::skip_without_root!();
    let mut programs = ready();
    programs.tcp_listener(20_001);
    for family in FAMILIES {
        let dial = dial(family).to_port(20_001);
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
        let outcome = expire(&mut programs, dial, Reason::ExpireHalfOpen);
        assert_eq!(outcome.emitted, []);
        assert_eq!(programs.entry::<_, HalfOpen>(name::HALF_OPENS, dial.tuple()), None);
        assert_eq!(nats(&programs), []);
        assert_nothing_there(&mut programs, dial, Reason::ExpireHalfOpen);
    }
}

#[test]
fn an_order_of_another_kind_does_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let flow = open(&mut programs, family);
        let dial = flow.client.dial;
        for reason in [Reason::ExpireHello, Reason::ExpireHalfOpen, Reason::NotOurs, Reason::ForwardReset] {
            assert_nothing_there(&mut programs, dial, reason);
        }
        let unknown = Expiry {
            reason: 1 << 20 | Reason::ExpireIdle as u32,
            ..flow_order(&programs, dial.tuple(), Reason::NotOurs)
        };
        assert_eq!(programs.expire(&unknown).verdict, 1);
        assert_eq!(flow.flow(&programs).connection.state, FLOW_ESTABLISHED);
        let stranger = dial.port(50_000);
        for reason in [Reason::ExpireIdle, Reason::ExpireRemoved, Reason::ExpireClosed, Reason::ExpireHello] {
            assert_nothing_there(&mut programs, stranger, reason);
        }
    }
}

#[test]
fn a_large_hello_in_the_working_memory_does_not_show_in_the_resets() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let flow = open(&mut programs, family);
        let bytes = hello().name("nobody.example.org").length(3_000).bytes();
        let other = dial(family).port(40_001).shake(&mut programs);
        other.send(&mut programs, 0, &bytes);
        let outcome = expire(&mut programs, flow.client.dial, Reason::ExpireIdle);
        assert_frame(&outcome.emitted[0].1, &flow.client.refusal());
    }
}

#[test]
fn an_order_that_is_out_of_date_does_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // The backend answered after the hello was listed; undelivered bytes stay undelivered.
        let client = dial(family).shake(&mut programs);
        client.give(&mut programs, &client.at(0).psh().payload(&usual_hello()[..300]));
        let outcome = client.send(&mut programs, 300, &usual_hello()[300..]);
        let backend = Backend::of(&sent(&outcome));
        backend.accept(&mut programs);
        let kept = client.waiting(&programs);
        for reason in [Reason::ExpireHello, Reason::ConnectAgain] {
            assert_nothing_there(&mut programs, client.dial, reason);
            assert!(kept.is_some() && client.waiting(&programs) == kept, "{reason:?}");
        }
        // The evicted hello belonged to an earlier connection; this flow still has all its bytes.
        assert_nothing_there(&mut programs, client.dial, Reason::HelloEvicted);
        let outcome = backend.give(&mut programs, &backend.at(0, HELLO));
        assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
        assert_nothing_there(&mut programs, client.dial, Reason::HelloEvicted);
        // Or the client started again, and its new hello waits.
        let client = dial(family).port(40_001).shake(&mut programs);
        client.send(&mut programs, 0, &usual_hello()[..300]);
        assert_nothing_there(&mut programs, client.dial, Reason::HelloEvicted);
        assert!(client.waiting(&programs).is_some());
    }
}

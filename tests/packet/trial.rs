//! A RST ahead of what its receiver acknowledged: the receiver may have accepted it or not, so it is asked.

use std::mem::offset_of;

use common::maps::event::{EXPIRE_DONE, EXPIRE_UNRESOLVED, Expiry, PROBE_FAR};
use common::maps::flow::{
    FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ESTABLISHED, FLOW_PROBED, FLOW_REMOVED, FLOW_RESET,
    Flow,
};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::packet::{Segment, flag};
use tests::program::Programs;
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::check::{assert_sent, flow_order};
use crate::open::{HELLO, Open, open};
use crate::scene::{BACKEND_ISN, ISN, behind, ready};

/// The end that sent the RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Client,
    Backend,
}

/// Opens a connection whose client (or backend) sends 100 bytes and then a RST, which arrives before any ACK.
fn aborted(programs: &mut Programs, family: Family, from: From) -> Open {
    let open = open(programs, family);
    open.pass_to_client(programs, &open.backend_segment(0, HELLO));
    if from == From::Client {
        open.pass_to_backend(programs, &open.client_segment(HELLO, 0).payload([1; 100]));
        let rst = open.client_segment(HELLO + 100, 0).rst();
        assert_sent(&open.client.give(programs, &rst), Reason::ForwardTrial, &open.at_backend(&rst));
    } else {
        open.pass_to_client(programs, &open.backend_segment(0, HELLO).payload([1; 100]));
        let rst = open.backend_segment(100, HELLO).rst();
        assert_sent(&open.backend.give(programs, &rst), Reason::ForwardTrial, &open.at_client(&rst));
    }
    assert_state(programs, open, FLOW_ESTABLISHED, trial(from));
    open
}

const fn trial(from: From) -> u8 {
    match from {
        From::Client => FLOW_CLIENT_ON_TRIAL,
        From::Backend => FLOW_BACKEND_ON_TRIAL,
    }
}

#[track_caller]
fn assert_state(programs: &Programs, open: Open, state: u8, flags: u8) {
    let connection = open.flow(programs).connection;
    assert_eq!((connection.state, connection.flags), (state, flags));
}

/// Has the other end asked, and asserts that it gets a keep-alive probe (RFC 9293 section 3.8.4). One that follows another
/// is asked for far behind, and is behind the end's window wherever that is: a stranger may have moved the number that we
/// learned ahead of the end's own, and into its window, from where nothing is answered.
#[track_caller]
fn ask(programs: &mut Programs, open: Open, from: From) {
    let again = open.flow(programs).connection.flags & FLOW_PROBED != 0;
    let probe = flow_order(programs, open.client.dial.tuple(), Reason::ExpireProbe);
    let outcome = programs.expire(&Expiry { seq: if again { PROBE_FAR } else { 0 }, ..probe });
    assert_eq!((outcome.verdict, outcome.counted.as_slice()), (0, &[(Reason::ExpireProbe, 1)][..]));
    let [(device, frame)] = &outcome.emitted[..] else { panic!("one probe: {:?}", outcome.emitted) };
    let probe = Segment::parse(frame).expect("a TCP segment");
    assert_eq!((probe.flags, probe.payload.len()), (flag::ACK, 0));
    assert!(probe.window > 0, "a window of zero may stop an end");
    let (expected_device, from, to, seq, ack) = match from {
        From::Client => {
            let (seq, ack) = (behind(ISN, HELLO - 1), behind(BACKEND_ISN, 0));
            (Device::Backend, open.backend.source, open.backend.address, seq, ack)
        }
        From::Backend => {
            let dial = open.client.dial;
            (Device::Client, dial.vip(), dial.client(), open.client.cookie, behind(ISN, HELLO))
        }
    };
    let seq = if again { seq.wrapping_sub(1 << 30) } else { seq };
    assert_eq!(*device, expected_device);
    assert_eq!((probe.from, probe.to, probe.seq, probe.ack), (from, to, seq, ack));
}

#[test]
fn an_end_that_is_gone_answers_the_probe_with_rst_and_the_flow_ends() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for from in [From::Client, From::Backend] {
            let open = aborted(&mut programs, family, from);
            ask(&mut programs, open, from);
            assert_state(&programs, open, FLOW_ESTABLISHED, trial(from) | FLOW_PROBED);
            // A closed port answers at the number that the probe acknowledges (RFC 9293 section 3.10.7.1).
            let outcome = match from {
                From::Client => {
                    open.backend.give(&mut programs, &open.backend_segment(0, 0).flags(flag::RST))
                }
                From::Backend => {
                    open.client.give(&mut programs, &open.client_segment(HELLO, 0).flags(flag::RST))
                }
            };
            assert_eq!(outcome.counted, [(Reason::ForwardReset, 1)]);
            assert_eq!(open.flow(&programs).connection.state, FLOW_RESET);
            crate::setup::forget_all(&mut programs);
        }
    }
}

/// Another CPU ends or removes the flow as its end is about to be asked. The port of one that is removed may be another
/// connection's.
#[test]
fn no_end_of_a_flow_that_is_over_is_asked() {
    tests::skip_without_root!();
    let mut programs = ready();
    for (family, state) in
        FAMILIES.into_iter().flat_map(|family| [(family, FLOW_RESET), (family, FLOW_REMOVED)])
    {
        let mut quiet = 0;
        for nth in 1.. {
            let tuple = aborted(&mut programs, family, From::Client).client.dial.tuple();
            let at = offset_of!(Flow, connection.state);
            let change = Change::write(name::FLOWS, &tuple, at, &state);
            let place = Place::new(name::FLOWS, &tuple, at);
            let order = flow_order(&programs, tuple, Reason::ExpireProbe);
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            let outcome = programs.expire(&order);
            assert!(schedule.happened());
            drop(schedule);
            crate::setup::forget_all(&mut programs);
            // It was asked first.
            if outcome.verdict == EXPIRE_DONE {
                break;
            }
            assert_eq!((outcome.emitted, outcome.counted), (vec![], vec![]));
            quiet += 1;
        }
        // After it looked at the state, copied the record, and read the state that it exchanges.
        assert!(quiet > 2, "{family:?}, state {state}: {quiet}");
    }
}

/// A device that is away for some seconds, or a neighbour that was forgotten, is no silence of an end.
#[test]
fn a_probe_that_cannot_be_sent_is_reported() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        let open = aborted(&mut programs, family, From::Client);
        let backend = open.backend.address.ip();
        let neighbour = format!("neigh del {backend} dev {}\n", Device::Backend.name());
        programs.world.change(|node| node.ip(&neighbour)).unwrap();
        // What the programs remember of the next hop is over.
        std::thread::sleep(std::time::Duration::from_millis(140));
        let outcome = programs.expire(&flow_order(&programs, open.client.dial.tuple(), Reason::ExpireProbe));
        assert_eq!(outcome.counted, [(Reason::EmitCopyLost, 1)]);
        assert_eq!((outcome.verdict, outcome.emitted), (EXPIRE_UNRESOLVED, vec![]));
    }
}

/// The RST was forged, or bytes before it were lost.
#[test]
fn an_answer_to_the_probe_ends_the_trial_and_the_flow_goes_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for from in [From::Client, From::Backend] {
            let open = aborted(&mut programs, family, from);
            let answer = |programs: &mut Programs| match from {
                From::Client => open.pass_to_client(programs, &open.backend_segment(0, HELLO)),
                From::Backend => open.pass_to_backend(programs, &open.client_segment(HELLO, 0)),
            };
            // A segment sent before the RST came is no answer.
            answer(&mut programs);
            assert_state(&programs, open, FLOW_ESTABLISHED, trial(from));
            ask(&mut programs, open, from);
            // Nor is what the end under suspicion sends.
            match from {
                From::Client => open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 100, 0)),
                From::Backend => open.pass_to_client(&mut programs, &open.backend_segment(100, HELLO)),
            }
            assert_state(&programs, open, FLOW_ESTABLISHED, trial(from) | FLOW_PROBED);
            answer(&mut programs);
            assert_state(&programs, open, FLOW_ESTABLISHED, 0);
            // The daemon is late: no trial, no probe and no end.
            for reason in [Reason::ExpireProbe, Reason::ExpireTrial] {
                let outcome = programs.expire(&flow_order(&programs, open.client.dial.tuple(), reason));
                assert_eq!((outcome.verdict, outcome.emitted), (1, vec![]));
            }
            crate::setup::forget_all(&mut programs);
        }
    }
}

/// A walk over millions of flows, which would find it, is made every four minutes.
#[test]
fn the_daemon_learns_of_each_trial_once() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for from in [From::Client, From::Backend] {
            programs.trials();
            let open = aborted(&mut programs, family, from);
            let client = open.client.dial.tuple();
            assert_eq!(programs.trials(), [client]);
            again(&mut programs, open, from);
            assert_eq!(programs.trials(), [], "it knows");
            ask(&mut programs, open, from);
            match from {
                From::Client => open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO)),
                From::Backend => open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0)),
            }
            assert_state(&programs, open, FLOW_ESTABLISHED, 0);
            assert_eq!(programs.trials(), []);
            again(&mut programs, open, from);
            assert_eq!(programs.trials(), [client], "another trial");
            crate::setup::forget_all(&mut programs);
        }
    }
}

/// The RST of [`aborted`] once more.
fn again(programs: &mut Programs, open: Open, from: From) {
    match from {
        From::Client => {
            let rst = open.client_segment(HELLO + 100, 0).rst();
            assert_sent(&open.client.give(programs, &rst), Reason::ForwardTrial, &open.at_backend(&rst));
        }
        From::Backend => {
            let rst = open.backend_segment(100, HELLO).rst();
            assert_sent(&open.backend.give(programs, &rst), Reason::ForwardTrial, &open.at_client(&rst));
        }
    }
}

/// The client of an evicted hello waits for a RST that only the daemon sends; anybody may put flows on trial.
#[test]
fn half_of_the_ring_is_left_for_evictions() {
    tests::skip_without_root!();
    let mut programs = ready();
    let open = aborted(&mut programs, FAMILIES[0], From::Client);
    let client = open.client.dial.tuple();
    programs.trials();
    // As many records as fit, each of 40 bytes behind a header of 8.
    let rst = open.client_segment(HELLO + 100, 0).rst();
    let mut unreported = 0;
    for _ in 0..262_144 / 48 + 1 {
        let counted = open.client.give(&mut programs, &rst).counted;
        assert!(counted.contains(&(Reason::ForwardTrial, 1)), "{counted:?}");
        unreported += usize::from(counted.contains(&(Reason::ForwardUnreported, 1)));
        let mut flow = open.flow(&programs);
        flow.connection.flags &= !FLOW_CLIENT_ON_TRIAL;
        programs.insert(name::FLOWS, client, flow);
    }
    let reported = programs.trials().len();
    assert!((2_700..2_740).contains(&reported), "{reported} of 5,461");
    // The first one finds it on trial already.
    assert_eq!(reported + unreported, 262_144 / 48, "each one is reported, or counted");
    assert_eq!(open.flow(&programs).connection.flags & FLOW_CLIENT_ON_TRIAL, 0);
    again(&mut programs, open, From::Client);
    assert_eq!(programs.trials(), [client], "once there is room");
}

#[test]
fn silence_ends_the_flow_by_the_daemons_order() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for from in [From::Client, From::Backend] {
            let open = aborted(&mut programs, family, from);
            for _ in 0..3 {
                ask(&mut programs, open, from);
            }
            let flow = open.flow(&programs);
            let asked = flow_order(&programs, open.client.dial.tuple(), Reason::ExpireTrial);
            // Another connection of the same client is not meant.
            let generation = flow.connection.generation;
            let other = Expiry { generation: generation + 1, ..asked };
            assert_eq!(programs.expire(&other).verdict, 1);
            let outcome = programs.expire(&Expiry { generation, ..asked });
            assert_eq!(outcome.counted, [(Reason::ExpireTrial, 1)]);
            assert_eq!(outcome.emitted.len(), 2, "both ends get a RST");
            assert_eq!(open.flow(&programs).connection.state, FLOW_RESET);
            crate::setup::forget_all(&mut programs);
        }
    }
}

//! The kernel refuses to remove an element: another processor has the lock of its bucket, and its host has stopped it. What is
//! left says so, is not counted twice, and is removed by the next packet or order. It was marked as being removed, or locked, for
//! ever: every later packet of the client was dropped.

use common::maps::flow::{FLOW_RESET, Flow, HalfOpen, Pending, RECORD_EMPTY, RECORD_OVER};
use common::maps::name;
use common::maps::settings::Cursors;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::{assert_dropped, flow_order, order};
use crate::half_open::{caller, half_open, knock, tcp};
use crate::open::open;
use crate::scene::{dial, ready, usual_hello};
use crate::setup::{forget_all, nats, route_flows, share_flows, waiting_of};

fn cursors(programs: &Programs) -> Cursors {
    programs.element(name::CURSORS, 0)
}

/// Has `attempt` made again until it says that the lock was held all the time.
fn forced(mut attempt: impl FnMut() -> bool) {
    assert!((0..20).any(|_| attempt()), "the lock was never held for long enough");
}

#[test]
fn a_flow_that_could_not_be_removed_is_over_and_removed_later() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        forced(|| leave_flow(&mut programs, family));
    }
}

fn leave_flow(programs: &mut Programs, family: Family) -> bool {
    let open = open(programs, family);
    let (client, tuple) = (open.client.dial, open.client.dial.tuple());
    assert_eq!(programs.expire(&flow_order(programs, tuple, Reason::ExpireRemoved)).verdict, 0);
    let stall = programs.stall(name::FLOWS, &tuple, &Flow::zeroed()).expect("two processors");
    let syn = client.syn();
    let outcome = programs.ingress(Device::Client, &syn.bytes());
    if !stall.end() {
        forget_all(programs);
        return false;
    }
    // Answered, its handshake would be completed on the flow that is over, and reset.
    assert_dropped(&outcome, Reason::SynBusy);
    assert_eq!(open.flow(programs).connection.state, FLOW_RESET, "{family:?}");
    assert_eq!(route_flows(programs, 1), 1);
    // It is over: what the client sends meanwhile is answered.
    let late = open.client.give(programs, &open.client_segment(0, 0));
    assert_eq!(late.counted, [(Reason::ForwardLinger, 1)]);
    let outcome = programs.ingress(Device::Client, &syn.bytes());
    assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
    assert_eq!(open.client.flow(programs), None, "{family:?}");
    assert_eq!((route_flows(programs, 1), nats(programs).len()), (0, 0));
    assert_eq!(share_flows(programs, client.client().ip(), 1), Some(0));
    true
}

#[test]
fn a_hello_that_could_not_be_removed_is_over_and_counted_once() {
    tests::skip_without_root!();
    let mut programs = ready();
    for (family, connects) in FAMILIES.into_iter().flat_map(|family| [(family, false), (family, true)]) {
        forced(|| leave_hello(&mut programs, family, connects));
    }
}

fn leave_hello(programs: &mut Programs, family: Family, connects: bool) -> bool {
    let hello = usual_hello();
    let client = dial(family).shake(programs);
    let bytes = if connects { &hello[..] } else { &hello[..300] };
    client.send(programs, 0, bytes);
    let stall = programs.stall(name::PENDING, &client.dial.tuple(), &Pending::zeroed());
    let stall = stall.expect("two processors");
    client.give(programs, &client.at(bytes.len() as u32).rst());
    if !stall.end() {
        forget_all(programs);
        return false;
    }
    let left = client.waiting(programs).expect("the kernel refused").connection;
    assert_eq!((left.state, left.flags), (RECORD_EMPTY, RECORD_OVER), "{family:?}");
    let free = |programs: &Programs| {
        assert_eq!(waiting_of(programs, client.dial.client().ip()), 0, "{family:?}, {connects}");
        assert_eq!((cursors(programs).buffered, nats(programs).len()), (0, 0), "{family:?}, {connects}");
    };
    free(programs);
    // The next packet that meets it removes it; here, a hello of the same client.
    let outcome = client.send(programs, 0, &hello);
    assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    client.give(programs, &client.at(hello.len() as u32).rst());
    assert_eq!(client.waiting(programs), None);
    free(programs);
    true
}

#[test]
fn a_half_open_connection_that_could_not_be_removed_is_over_and_counted_once() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        forced(|| leave_half_open(&mut programs, family));
    }
}

fn leave_half_open(programs: &mut Programs, family: Family) -> bool {
    let client = caller(family);
    let backend = knock(programs, client);
    let tuple = client.tuple();
    let stall = programs.stall(name::HALF_OPENS, &tuple, &HalfOpen::zeroed()).expect("two processors");
    backend.refuse(programs);
    if !stall.end() {
        forget_all(programs);
        return false;
    }
    let left = half_open(programs, client).expect("the kernel refused").connection;
    assert_eq!((left.state, left.flags), (RECORD_EMPTY, RECORD_OVER), "{family:?}");
    let count = |programs: &Programs| (cursors(programs).half_opens, nats(programs).len());
    assert_eq!(count(programs), (0, 0), "{family:?}");
    knock(programs, client);
    assert_eq!(count(programs), (1, 1), "{family:?}");
    assert_eq!(programs.expire(&order(tuple, Reason::ExpireHalfOpen)).verdict, 0);
    assert_eq!(count(programs), (0, 0), "{family:?}");
    true
}

//! Flows whose backend sees its clients are listed with what they depend on, for the daemon to find them when that is removed.

use std::mem::offset_of;

use common::maps::backend::Backend as BackendRecord;
use common::maps::dnat_flow::DnatFlow;
use common::maps::flow::{ClientTuple, Connection, FLOW_REMOVED, Flow};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::by_cookie::crowd;
use crate::check::{flow_order, order, sent};
use crate::dnat::{direct, keep_sources, opened, opened_by_name};
use crate::half_open::{caller, from_client, tcp};
use crate::open::open;
use crate::scene::{Backend, dial, ready, usual_hello};
use crate::setup::{backend_id, forget_all, route_counts};

/// The backends of the route of both listeners, of each family.
const BACKENDS: [u32; 2] = [1, 2];

fn listed(programs: &Programs) -> Vec<(ClientTuple, DnatFlow)> {
    programs.entries(name::DNAT_FLOWS)
}

/// Returns the list as it must be when the client's flow alone is in it.
fn only(programs: &Programs, client: ClientTuple) -> Vec<(ClientTuple, DnatFlow)> {
    let flow: Flow = programs.entry(name::FLOWS, client).expect("the connection is open");
    let Connection { generation, backend, route, .. } = flow.connection;
    let record: BackendRecord = programs.entry(name::BACKENDS, backend).expect("it is there");
    assert!(generation != 0 && record.address == flow.nat.backend && record.route == route);
    vec![(client, DnatFlow { generation, backend, route })]
}

/// Returns the backend that is sent a SYN, which has the client's own address.
fn seeing(outcome: &Outcome) -> Backend {
    let syn = sent(outcome);
    Backend { address: syn.to, source: syn.from, timestamps: true }
}

/// Has the daemon end the client's flow, and remove its record.
fn remove(programs: &mut Programs, client: ClientTuple) {
    let before = listed(programs);
    assert_eq!(programs.expire(&flow_order(programs, client, Reason::ExpireRemoved)).verdict, 0);
    assert_eq!(listed(programs), before, "while its record lingers");
    assert_eq!(programs.expire(&flow_order(programs, client, Reason::ExpireClosed)).verdict, 0);
    assert_eq!(programs.entry::<_, Flow>(name::FLOWS, client), None);
}

#[test]
fn a_flow_of_a_tls_listener_is_listed_from_its_opening_to_the_removal_of_its_record() {
    tests::skip_without_root!();
    let mut programs = ready();
    keep_sources(&mut programs, &BACKENDS);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = seeing(&client.send(&mut programs, 0, &usual_hello()));
        assert_eq!(listed(&programs), [], "{family:?}: it has no flow yet");
        backend.refuse(&mut programs);
        assert_eq!(listed(&programs), [], "{family:?}");
        forget_all(&mut programs);
        let open = opened_by_name(&mut programs, family);
        let tuple = open.client.dial.tuple();
        assert_eq!(listed(&programs), only(&programs, tuple), "{family:?}");
        remove(&mut programs, tuple);
        assert_eq!(listed(&programs), [], "{family:?}");
    }
}

#[test]
fn a_flow_of_a_tcp_listener_is_listed_from_the_clients_ack_on() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
        let backend = seeing(&outcome);
        backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(listed(&programs), [], "{family:?}: it is half-open");
        assert_eq!(
            programs.ingress(Device::Client, &from_client(dial, 0, 0).bytes()).verdict,
            verdict::REDIRECT
        );
        assert_eq!(listed(&programs), only(&programs, dial.tuple()), "{family:?}");
        remove(&mut programs, dial.tuple());
        assert_eq!(listed(&programs), [], "{family:?}");
    }
}

#[test]
fn a_flow_of_a_client_that_was_answered_by_a_cookie_is_listed() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        crowd(&mut programs);
        let client = caller(family).shake(&mut programs);
        let backend = seeing(&client.give(&mut programs, &client.at(0)));
        assert_eq!(listed(&programs), [], "{family:?}: its backend has not answered");
        backend.accept(&mut programs);
        assert_eq!(listed(&programs), only(&programs, client.dial.tuple()), "{family:?}");
        forget_all(&mut programs);
    }
}

#[test]
fn a_flow_whose_backend_sees_our_address_is_not_listed() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        open(&mut programs, family);
    }
    assert_eq!((listed(&programs), route_counts(&programs).0), (vec![], 2));
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        crate::half_open::opened(&mut programs, caller(family));
    }
    assert_eq!((listed(&programs), route_counts(&programs).0), (vec![], 2));
}

/// As a former release's programs leave it, which remove the record alone.
#[test]
fn an_entry_that_an_earlier_flow_left_is_taken_over_and_goes_with_the_next() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let tuple = caller(family).tuple();
        programs.insert(name::DNAT_FLOWS, tuple, DnatFlow { generation: 77_777, backend: 99, route: 9 });
        opened(&mut programs, caller(family));
        assert_eq!(listed(&programs), only(&programs, tuple), "{family:?}");
        // Written late, by a CPU that stored the earlier flow.
        programs.insert(name::DNAT_FLOWS, tuple, DnatFlow { generation: 77_777, backend: 99, route: 9 });
        remove(&mut programs, tuple);
        assert_eq!(listed(&programs), [], "{family:?}");
    }
}

#[test]
fn a_flow_opens_and_ends_though_the_list_is_full() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes { dnat_flows: 1, ..Sizes::default() }, 1);
    keep_sources(&mut programs, &FAMILIES.map(|family| backend_id(family, 0)));
    for family in FAMILIES {
        let [first, second] = [40_000, 40_001].map(|port| caller(family).port(port));
        opened(&mut programs, first);
        let full = only(&programs, first.tuple());
        opened(&mut programs, second);
        assert_eq!(listed(&programs), full, "{family:?}");
        let ack = from_client(second, 0, 0).payload(*b"hello");
        assert_eq!(programs.ingress(Device::Client, &ack.bytes()).counted, [(Reason::ForwardBackend, 1)]);
        remove(&mut programs, second.tuple());
        assert_eq!(listed(&programs), full, "{family:?}");
        remove(&mut programs, first.tuple());
        assert_eq!(listed(&programs), [], "{family:?}");
    }
}

/// It would be found for a backend that it has nothing to do with, and nobody would take it off.
#[test]
fn a_flow_that_could_not_be_stored_is_not_listed() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes { flows: 1, ..Sizes::default() }, 1);
    keep_sources(&mut programs, &FAMILIES.map(|family| backend_id(family, 0)));
    for family in FAMILIES {
        let [first, second] = [40_000, 40_001].map(|port| caller(family).port(port));
        opened(&mut programs, first);
        let outcome = programs.ingress(Device::Client, &second.syn().bytes());
        let backend = seeing(&outcome);
        backend.give(&mut programs, &backend.syn_ack());
        let outcome = programs.ingress(Device::Client, &from_client(second, 0, 0).bytes());
        assert_eq!(outcome.counted, [(Reason::ConnectTableFull, 1)]);
        assert_eq!(listed(&programs), only(&programs, first.tuple()), "{family:?}");
        forget_all(&mut programs);
    }
}

/// Until the record is removed, no other CPU makes a flow of the same client, whose entry would be taken off.
#[test]
fn a_flow_is_taken_off_the_list_while_its_record_is_there() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        opened(&mut programs, caller(family));
        let tuple = caller(family).tuple();
        assert_eq!(programs.expire(&flow_order(&programs, tuple, Reason::ExpireRemoved)).verdict, 0);
        let order = flow_order(&programs, tuple, Reason::ExpireClosed);
        let state = offset_of!(Flow, connection) + offset_of!(Connection, state);
        let held = [Change::expect(name::FLOWS, &tuple, state, 0xff, FLOW_REMOVED)];
        let place = Place::looked_up(name::DNAT_FLOWS, &tuple);
        let schedule = programs.behind_access(&place, 1, &held).expect("a hardware breakpoint");
        assert_eq!(programs.expire(&order).verdict, 0);
        assert!(schedule.happened(), "{family:?}");
        drop(schedule);
        assert_eq!((listed(&programs), programs.entry::<_, Flow>(name::FLOWS, tuple)), (vec![], None));
    }
}

/// An order of the daemon that comes too late ends nothing, and takes nothing off.
#[test]
fn another_flow_of_the_client_stays_listed() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        opened(&mut programs, caller(family));
        let tuple = caller(family).tuple();
        let stale = flow_order(&programs, tuple, Reason::ExpireClosed);
        remove(&mut programs, tuple);
        opened(&mut programs, caller(family));
        let before = only(&programs, tuple);
        assert_eq!(programs.expire(&stale).verdict, 1);
        assert_eq!(programs.expire(&order(tuple, Reason::ExpireClosed)).verdict, 1);
        assert_eq!(listed(&programs), before, "{family:?}");
        forget_all(&mut programs);
    }
}

//! Delivery `dnat`: another connection of the client, by another VIP or port, has its port at the backend already.

use common::maps::flow::{Connection, HalfOpen, RECORD_LOCKED};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::packet::Segment;
use tests::program::Programs;
use tests::world::Device;

use crate::check::{assert_dropped, assert_emitted, sent};
use crate::dnat::direct;
use crate::half_open::{caller, half_open};
use crate::scene::{Backend, Client, Dial, behind, dial, usual_hello};
use crate::setup::{backend_socket, forget_all};

/// The second port of the TCP listener.
const OTHER_PORT: u16 = 20_002;
/// The number of a SYN that nobody proves.
const FORGED_ISN: u32 = 0x2222_0000;

/// Returns a client that has our SYN-ACK by another port, and its first segment, while a SYN that a stranger sent in its name has its port at
/// the backend.
#[track_caller]
fn behind_a_forged_syn(programs: &mut Programs, forged: Dial, tls: bool) -> (Client, Segment) {
    let outcome = programs.ingress(Device::Client, &forged.syn().seq(FORGED_ISN).bytes());
    assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
    let honest = if tls { dial(forged.family) } else { forged.to_port(OTHER_PORT) };
    let client = honest.shake(programs);
    assert!(half_open(programs, forged).is_some(), "a SYN proves nothing");
    let first = client.at(0);
    (client, if tls { first.payload(usual_hello()) } else { first })
}

/// Otherwise a stranger keeps a client from a VIP by a SYN to another one, each helloTimeout.
#[test]
fn a_syn_that_nobody_proved_gives_way_to_a_client_that_proves_its_own() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        for tls in [false, true] {
            let forged = caller(family);
            let (client, first) = behind_a_forged_syn(&mut programs, forged, tls);
            let outcome = client.give(&mut programs, &first);
            for reason in [Reason::SynOldReset, Reason::ConnectSyn] {
                assert!(outcome.counted.contains(&(reason, 1)), "{:?}", outcome.counted);
            }
            let syn = sent(&outcome);
            assert_eq!((syn.from, syn.to), (client.dial.client(), backend_socket(family, 0)));
            let backend = Backend { address: syn.to, source: syn.from, timestamps: true };
            // The backend would answer the second SYN for the first one.
            let rst = backend.to_backend().rst().seq(behind(FORGED_ISN, 0)).window(0);
            assert_emitted(&outcome, &[(Device::Backend, rst)]);
            assert_eq!(half_open(&programs, forged), None);
            assert_eq!(backend.owner(&programs), Some(client.dial.tuple()));
            backend.accept(&mut programs);
            assert!(client.flow(&programs).is_some());
            forget_all(&mut programs);
        }
    }
}

/// A lock is no reason for RST.
#[test]
fn while_another_cpu_holds_the_record_of_such_a_syn_the_client_waits() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        let forged = caller(family);
        let (client, first) = behind_a_forged_syn(&mut programs, forged, false);
        let held = half_open(&programs, forged).unwrap();
        let connection = Connection { flags: RECORD_LOCKED, ..held.connection };
        programs.insert(name::HALF_OPENS, forged.tuple(), HalfOpen { connection, ..held });
        assert_dropped(&client.give(&mut programs, &first), Reason::ConnectBusy);
        programs.remove::<_, HalfOpen>(name::HALF_OPENS, forged.tuple());
        forget_all(&mut programs);
    }
}

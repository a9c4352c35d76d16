//! A flow keeps the number of its next hop for the rest of the unit of time in which it was looked up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use common::maps::flow::{Flow, Reply};
use common::maps::name;
use common::maps::next_hop::{HOPS, Hop, HopHead, UNUSED, age, link, stored};
use common::maps::word::{Hops, Towards};
use common::reason::Reason;
use nix::time::{ClockId, clock_gettime};
use tests::addresses::{FAMILIES, Family, client};
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place};
use tests::tuple::client_tuple;
use tests::world::{Device, HOP_AGE};

use crate::check::sent;
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{Offer, dial, ready};

/// A link address that nobody has.
const STRANGER: [u8; 6] = [2, 0, 0x5e, 0, 0, 0x66];
/// Flows, forty times as many as a CPU remembers next hops of pairs of addresses.
const FLOWS: u16 = 10_000;
/// The number of flows that pass twice.
const PART: usize = 1_000;

fn now() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has a monotonic clock");
    age(Duration::from(now).as_nanos() as u64)
}

/// Runs a story within one unit of time, from its start. A busy machine may need several tries.
fn within_a_unit<T>(mut story: impl FnMut(u32) -> T) -> T {
    for _ in 0..100 {
        let before = now();
        while now() == before {
            std::hint::spin_loop();
        }
        let told = story(before.wrapping_add(1));
        if now() == before.wrapping_add(1) {
            return told;
        }
    }
    panic!("no story ended within 134 ms");
}

/// Returns the link address that a frame is sent to.
fn receiver(frame: &[u8]) -> [u8; 6] {
    frame[..6].try_into().expect("a frame has a receiver")
}

/// Gives the client's gateway another link address on the node.
fn move_client(programs: &Programs, family: Family, to: [u8; 6]) {
    let mac = to.map(|byte| format!("{byte:02x}")).join(":");
    let command = format!("neigh replace {} lladdr {mac} dev client nud permanent\n", client(family));
    programs.world.node.ip(&command).expect("`ip` takes the command");
}

/// Makes flows of other clients like an open one; returns a backend's segment of each.
fn crowd(programs: &mut Programs, open: Open) -> Vec<Vec<u8>> {
    let flow = open.flow(programs);
    let segment = open.backend_segment(0, HELLO);
    (1..=FLOWS)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            let host: IpAddr = match open.client.dial.family {
                Family::V4 => Ipv4Addr::new(198, 18, high, low).into(),
                Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number).into(),
            };
            let client = client_tuple((host, 40_000).into(), open.client.dial.vip());
            let mut nat = flow.nat;
            nat.source_port.bytes = (10_000 + number).to_be_bytes();
            programs.insert(name::FLOWS, client, Flow { nat, ..flow });
            programs.insert(name::NATS, nat, Reply::to(&client, flow.connection.generation));
            let mut to = segment.to;
            to.set_port(10_000 + number);
            Segment { to, ..segment.clone() }.bytes()
        })
        .collect()
}

#[test]
fn a_second_packet_of_each_of_many_flows_looks_nothing_up() {
    tests::skip_without_root!();
    let sizes = Sizes { flows: 16_384, ..Sizes::default() };
    let mut programs = Programs::with_sizes(sizes).expect("the programs load");
    programs.tls_with_one_route();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let segments = crowd(&mut programs, open);
        let own = Device::Client.far_mac();
        let at = |packets: &[Vec<u8>], mac| packets.iter().filter(|p| receiver(p) == mac).count();
        for segments in segments.chunks(PART) {
            let (first, second) = within_a_unit(|_| {
                move_client(&programs, family, own);
                let first = programs.ingress_all(Device::Backend, segments);
                // Who looks up sees this.
                move_client(&programs, family, STRANGER);
                (first, programs.ingress_all(Device::Backend, segments))
            });
            assert_eq!(at(&first, own), first.len(), "{family:?}");
            assert_eq!(
                at(&second, own),
                second.len(),
                "{family:?}: flows that looked up again within the unit"
            );
        }
        // And in a later unit, each of them does.
        for segments in segments.chunks(PART) {
            let third = within_a_unit(|_| programs.ingress_all(Device::Backend, segments));
            assert_eq!(at(&third, STRANGER), third.len(), "{family:?}");
        }
        move_client(&programs, family, own);
        crate::setup::forget_all(&mut programs);
    }
}

/// A hop to a stranger, as if it had been found in this unit.
fn hop(programs: &Programs, age: u32) -> Hop {
    let [a, b, c, d, e, f] = STRANGER;
    let to = link(u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
    let (egress, ingress) = (programs.world.ifindex(Device::Client), programs.world.ifindex(Device::Backend));
    let parts = [to, to, u64::from(egress) | 1_500 << 32, ingress.into()];
    let head = HopHead { confirmed: age, version: 7, reserved: 0 };
    Hop { head, parts: parts.map(|part| stored(part, 7)) }
}

/// Gives the flow a hop by number, and passes a backend's segment; returns the link address it was sent to.
fn pass_by(programs: &mut Programs, open: Open, change: fn(&mut Hop, &mut Hops), number: u32) -> [u8; 6] {
    within_a_unit(|age| {
        let mut flow = open.flow(programs);
        // What the case before may have changed.
        flow.set_generation(flow.connection.generation);
        let mut hop = hop(programs, age);
        flow.hops = flow.hops.noted(age, Towards::Client, number);
        change(&mut hop, &mut flow.hops);
        programs.set(name::HOPS, number, hop);
        programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
        let segment = open.backend_segment(0, HELLO).payload([7; 100]);
        let outcome = programs.ingress(Device::Backend, &segment.bytes());
        assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
        receiver(&sent_frame(&outcome))
    })
}

fn sent_frame(outcome: &tests::program::Outcome) -> Vec<u8> {
    sent(outcome);
    outcome.packet.clone()
}

#[test]
fn a_number_is_believed_only_if_it_was_looked_up_just_now() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let number = HOPS - 1;
        let wrong: [fn(&mut Hop, &mut Hops); 12] = [
            |_, hops| hops.time = hops.time.wrapping_sub(1),
            |_, hops| hops.numbers ^= 1 << 24,
            |_, hops| hops.generation ^= 1,
            // The number is of the other direction.
            |_, hops| hops.numbers = hops.numbers & 0xff00_0000 | (HOPS - 1) << 12,
            |hop, _| hop.head.confirmed -= 1,
            |hop, _| hop.head.confirmed += 1,
            |hop, _| *hop = Hop { head: HopHead { version: 0, ..hop.head }, ..*hop },
            |hop, _| hop.parts[0] ^= 1 << 48,
            |hop, _| hop.parts[1] ^= 1 << 48,
            |hop, _| hop.parts[2] ^= 1 << 48,
            |hop, _| hop.parts[3] ^= 1 << 48,
            // Found for packets of another device.
            |hop, _| hop.parts[3] ^= 1,
        ];
        assert_eq!(
            pass_by(&mut programs, open, |_, _| {}, number),
            STRANGER,
            "the number is what leads there"
        );
        for (case, change) in wrong.into_iter().enumerate() {
            let to = pass_by(&mut programs, open, change, number);
            assert_eq!(to, Device::Client.far_mac(), "{family:?}: case {case}");
        }
        // Too narrow for this packet.
        let to = pass_by(
            &mut programs,
            open,
            |hop, _| hop.parts[2] = stored(hop.parts[2] & 0xffff_ffff | 100 << 32, 7),
            number,
        );
        assert_eq!(to, Device::Client.far_mac(), "{family:?}");
    }
}

/// Right after each access to the hop, its element gets other content, as by another CPU: old and new are never mixed.
#[test]
fn a_hop_that_is_taken_while_it_is_read_is_not_used_half() {
    tests::skip_without_root!();
    let mut programs = ready();
    let number = HOPS - 1;
    for family in FAMILIES {
        let open = open(&mut programs, family);
        for part in 0..4 {
            let (to, happened) = within_a_unit(|age| {
                let old = hop(&programs, age);
                let mut new = Hop { head: HopHead { version: 8, ..old.head }, ..old };
                // All addresses end in other numbers, and the device is one that is not there.
                new.parts = old.parts.map(|part| stored((part & 0xffff_ffff_ffff) ^ 0x0100_0000_0000, 8));
                let mut flow = open.flow(&programs);
                flow.hops = flow.hops.noted(age, Towards::Client, number);
                programs.set(name::HOPS, number, old);
                programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
                let place = Place::new(name::HOPS, &number, 8 + 8 * part);
                let change = Change::write(name::HOPS, &number, 0, &new);
                let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
                let outcome = programs.ingress(Device::Backend, &open.backend_segment(0, HELLO).bytes());
                assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
                (receiver(&sent_frame(&outcome)), schedule.happened())
            });
            assert!(happened, "part {part} was read");
            // By then, all was read; or the flow looked up for itself.
            let own = if part == 3 { STRANGER } else { Device::Client.far_mac() };
            assert_eq!(to, own, "{family:?}: part {part}");
        }
    }
}

#[test]
fn without_room_for_hops_each_packet_looks_up() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let pass = |programs: &mut Programs| {
            // Not remembered for this pair of addresses either.
            std::thread::sleep(HOP_AGE);
            open.pass_to_client(programs, &open.backend_segment(0, HELLO));
            let flow = open.flow(programs);
            flow.hops.numbers & 0xfff
        };
        let fill = |programs: &mut Programs, confirmed: u32| {
            for number in 0..HOPS {
                let hop =
                    Hop { head: HopHead { confirmed, version: 1, reserved: 0 }, parts: [stored(1, 1); 4] };
                programs.set(name::HOPS, number, hop);
            }
        };
        let soon = now() + 10_000;
        fill(&mut programs, soon);
        assert_eq!(pass(&mut programs), 0, "{family:?}: there is no room");
        let long_ago = now() - UNUSED - 100;
        fill(&mut programs, long_ago);
        let number = pass(&mut programs);
        assert_ne!(number, 0, "{family:?}: an unused element is taken");
        let hop: Hop = programs.element(name::HOPS, number);
        assert_eq!(hop.head.version, 2);
        assert!(hop.parts.iter().all(|part| part >> 48 == 2));
        // The same hop keeps its number, for every flow.
        assert_eq!(pass(&mut programs), number);
        let other = open_with(&mut programs, dial(family).port(40_100), Offer::linux(1460, 9));
        std::thread::sleep(HOP_AGE);
        other.pass_to_client(&mut programs, &other.backend_segment(0, HELLO));
        assert_eq!(other.flow(&programs).hops.numbers & 0xfff, number);
    }
}

/// An answer goes back, and what is passed on goes ahead: a hop of the one is not the other's.
#[test]
fn an_answer_gives_the_flow_no_hop() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let before = open.flow(&programs).hops;
        std::thread::sleep(HOP_AGE);
        // The backend repeats its SYN-ACK, and is answered for the client.
        let outcome = open.backend.give(&mut programs, &open.backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        assert_eq!(receiver(&outcome.packet), Device::Backend.far_mac());
        assert_eq!(open.flow(&programs).hops, before, "{family:?}");
    }
}

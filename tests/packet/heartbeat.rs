//! Heartbeats of the nodes of a segment, and the gate that closes when an agent has been dead for too long.

use std::mem::offset_of;
use std::net::Ipv6Addr;

use common::maps::address::Address;
use common::maps::announced::{AnnouncedKey, OWNER_ELSEWHERE, OWNER_HERE, OWNER_ONLY};
use common::maps::name;
use common::maps::segment::{HeardNs, PRESENT_NS, Segment};
use common::maps::settings::CookieKey;
use common::reason::Reason;
use common::wire::heartbeat::{
    self, ANSWER, ASK, BIDS, BYTES, Bid, ENTRY_BYTES, ETHER_TYPE, GROUP, Heartbeat, RESEND, bids,
};
use common::wire::{arp, ndp};
use nix::time::{ClockId, clock_gettime};
use tests::addresses::{FAMILIES, Family, vip};
use tests::compare::assert_bytes;
use tests::packet::ETHERNET_BYTES;
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on};
use crate::neighbour::{announce, frame as arp_frame, request, tagged, usual, v4, v6};

/// The other node, and ours.
const PEER: [u8; 6] = Device::Client.far_mac();
pub(crate) const OWN: [u8; 6] = Device::Client.near_mac();
pub(crate) const PEERS_ID: u64 = 0x1111_2222_3333_4444;
const OWN_ID: u64 = 0xaaaa_bbbb_cccc_dddd;
const KEYS: [CookieKey; 2] = [CookieKey { k0: 1, k1: 2 }, CookieKey { k0: 3, k1: 4 }];
pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has a monotonic clock");
    now.tv_sec() as u64 * SECOND + now.tv_nsec() as u64
}

/// Our node on a segment, whose agent is alive.
pub(crate) fn segment() -> Segment {
    Segment {
        keys: KEYS,
        node: OWN_ID,
        boot: 0x5152_5354_5556_5758,
        digest: 0x6162_6364_6566_6768,
        stamp_ns: now_ns(),
        grace_ns: 15 * SECOND,
        link: OWN,
        key: 1,
        reserved: 0,
    }
}

/// The programs, with a segment on the device towards clients.
pub(crate) fn on_segment(segment: Segment) -> Programs {
    let mut programs = Programs::load().expect("the programs load");
    put(&mut programs, segment);
    programs
}

fn put(programs: &mut Programs, segment: Segment) {
    let device = programs.world.ifindex(Device::Client);
    programs.insert(name::SEGMENTS, device, segment);
}

/// When another node was last there, as the programs noted it.
fn heard(programs: &Programs) -> Option<HeardNs> {
    programs.entry(name::HEARD, programs.world.ifindex(Device::Client))
}

/// The other node's question.
fn question() -> Heartbeat {
    Heartbeat {
        kind: ASK,
        key: 0,
        entries: 0,
        sender: PEERS_ID,
        receiver: 0,
        nonce: 0x0102_0304_0506_0708,
        boot: 0x2122_2324_2526_2728,
        stamp_age_ms: 0,
        digest: 0x3132_3334_3536_3738,
    }
}

/// The frame of a question of this node, from this link address.
pub(crate) fn question_of(sender: u64, from: [u8; 6]) -> Vec<u8> {
    frame_to(GROUP, from, &body(&Heartbeat { sender, ..question() }))
}

/// The same of one that says what it is, by [`heartbeat::asker`].
pub(crate) fn question_with(sender: u64, from: [u8; 6], asker: u64) -> Vec<u8> {
    frame_to(GROUP, from, &body(&Heartbeat { sender, receiver: asker, ..question() }))
}

/// The frame of this node's answer to ours.
pub(crate) fn answer_of(sender: u64, from: [u8; 6]) -> Vec<u8> {
    answer_aged(sender, from, 0)
}

/// The same of one whose agent stamped this many milliseconds ago.
pub(crate) fn answer_aged(sender: u64, from: [u8; 6], stamp_age_ms: u32) -> Vec<u8> {
    let answer = Heartbeat { kind: ANSWER, sender, receiver: OWN_ID, stamp_age_ms, ..question() };
    frame_to(OWN, from, &body(&answer))
}

/// Each kind of heartbeat without entries that is handed on to the agent.
fn passed() -> [Heartbeat; 4] {
    [
        Heartbeat { kind: ANSWER, receiver: OWN_ID, ..question() },
        Heartbeat { kind: ANSWER, receiver: OWN_ID + 1, ..question() },
        Heartbeat { kind: RESEND, receiver: OWN_ID, ..question() },
        Heartbeat { kind: BIDS, receiver: heartbeat::part(0, 1), ..question() },
    ]
}

fn body(heartbeat: &Heartbeat) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    heartbeat.write(&mut bytes);
    heartbeat::sign(&mut bytes, &KEYS[usize::from(heartbeat.key)]);
    bytes
}

fn frame(body: &[u8]) -> Vec<u8> {
    frame_to(GROUP, PEER, body)
}

fn frame_to(to: [u8; 6], from: [u8; 6], body: &[u8]) -> Vec<u8> {
    [&to[..], &from, &ETHER_TYPE.to_be_bytes(), body].concat()
}

/// The other node's table.
fn table() -> Vec<u8> {
    let table = FAMILIES.map(|family| Bid { address: vip(family).into(), epoch: 7, link: PEER });
    frame(&bids(&Heartbeat { receiver: heartbeat::part(0, 1), ..question() }, &table, &KEYS[0]))
}

/// Asserts that the frame is the answer of this segment to the question, with an age of the agent's stamp between these.
#[track_caller]
fn assert_answer(frame: &[u8], segment: &Segment, ages_ms: std::ops::RangeInclusive<u64>) {
    let bytes = frame[ETHERNET_BYTES..].first_chunk().expect("a heartbeat");
    let read = Heartbeat::read(bytes).expect("a heartbeat");
    assert!(ages_ms.contains(&u64::from(read.stamp_age_ms)), "{ages_ms:?}: {read:?}");
    let expected = Heartbeat {
        kind: ANSWER,
        key: segment.key,
        entries: 0,
        sender: OWN_ID,
        receiver: PEERS_ID,
        nonce: question().nonce,
        boot: segment.boot,
        stamp_age_ms: read.stamp_age_ms,
        digest: segment.digest,
    };
    assert_bytes(frame, &frame_to(PEER, OWN, &body(&expected)));
}

#[track_caller]
fn assert_answered(outcome: &Outcome, segment: &Segment, ages_ms: std::ops::RangeInclusive<u64>) {
    assert_eq!(outcome.counted, [(Reason::HeartbeatAnswered, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_answer(&outcome.packet, segment, ages_ms);
}

/// The agent may be dead for an hour: the node answers, and says so.
#[test]
fn a_question_is_answered_with_the_age_of_the_agents_stamp() {
    tests::skip_without_root!();
    for (key, signs, age_s) in [(0, 1, 0), (1, 0, 3600), (1, 1, 3)] {
        let start = now_ns();
        let segment = Segment { key: signs, stamp_ns: start.saturating_sub(age_s * SECOND), ..segment() };
        let least_ms = (start - segment.stamp_ns) / 1_000_000;
        let mut programs = on_segment(segment);
        let asked = frame(&body(&Heartbeat { key, ..question() }));
        let outcome = programs.ingress_summed(Device::Client, &asked);
        let most_ms = (now_ns() - segment.stamp_ns) / 1_000_000;
        assert_answered(&outcome, &segment, least_ms..=most_ms);
        // To the node alone.
        let asked = frame_to(OWN, PEER, &body(&question()));
        let outcome = programs.ingress(Device::Client, &asked);
        assert_answered(&outcome, &segment, least_ms..=most_ms + 60_000);
    }
}

#[test]
fn who_asks_or_answers_this_node_was_there() {
    tests::skip_without_root!();
    let [answer, anothers, resend, bids] = passed();
    // One that says its link address, and one that may announce nothing here, and so takes nothing over.
    let [candidate, observer] = [false, true].map(|is_observer| heartbeat::asker(PEER, is_observer));
    for (heartbeat, is_there) in [
        (question(), true),
        (Heartbeat { receiver: candidate, ..question() }, true),
        (Heartbeat { receiver: observer, ..question() }, false),
        (answer, true),
        (anothers, false),
        (resend, false),
        (bids, false),
    ] {
        let mut programs = on_segment(segment());
        assert_eq!(heard(&programs), None);
        for _ in 0..2 {
            let before = now_ns();
            programs.ingress(Device::Client, &frame(&body(&heartbeat)));
            let heard = heard(&programs);
            assert_eq!(heard.is_some(), is_there, "{heartbeat:?}");
            assert!(heard.is_none_or(|at| (before..=now_ns()).contains(&at)), "{heard:?} after {before}");
        }
    }
    // Each device has its own segment.
    let mut programs = on_segment(segment());
    let other = programs.world.ifindex(Device::Backend);
    programs.insert(name::SEGMENTS, other, Segment { link: Device::Backend.near_mac(), ..segment() });
    programs.ingress(Device::Backend, &frame(&body(&question())));
    assert_eq!(heard(&programs), None);
    assert!(programs.entry::<u32, HeardNs>(name::HEARD, other).is_some());
}

#[test]
fn answers_bids_and_what_asks_for_them_are_the_agents() {
    tests::skip_without_root!();
    let mut programs = on_segment(segment());
    for heartbeat in passed() {
        let frame = frame(&body(&heartbeat));
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::HeartbeatPassed);
    }
    assert_handed_on(&programs.ingress(Device::Client, &table()), &table(), Reason::HeartbeatPassed);
    // The agent verifies bids.
    let mut forged = table();
    forged[ETHERNET_BYTES + BYTES] ^= 1;
    assert_handed_on(&programs.ingress(Device::Client, &forged), &forged, Reason::HeartbeatPassed);
}

#[test]
fn a_heartbeat_of_which_any_bit_was_changed_is_refused() {
    tests::skip_without_root!();
    let mut programs = on_segment(segment());
    let [answer, _, resend, bids] = passed();
    for heartbeat in [question(), answer, resend, bids] {
        for bit in 0..8 * BYTES {
            let mut bytes = body(&heartbeat);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let outcome = programs.ingress(Device::Client, &frame(&bytes));
            assert_eq!(outcome.counted, [(Reason::HeartbeatRefused, 1)], "bit {bit} of {heartbeat:?}");
            assert_eq!((outcome.verdict, outcome.emitted), (verdict::DROP, vec![]), "bit {bit}");
        }
    }
    assert_eq!(heard(&programs), None);
}

#[test]
fn what_is_no_whole_heartbeat_of_another_node_is_refused() {
    tests::skip_without_root!();
    let mut programs = on_segment(segment());
    let whole = frame(&body(&question()));
    let own = Heartbeat { sender: OWN_ID, ..question() };
    let many = Heartbeat { kind: BIDS, entries: 41, ..question() };
    let mut refused = vec![
        whole[..whole.len() - 1].to_vec(),
        whole[..ETHERNET_BYTES + 1].to_vec(),
        [&whole[..], &[0]].concat(),
        // Padded, as no frame of this length has to be.
        [&whole[..], &[0; 32]].concat(),
        table()[..table().len() - 1].to_vec(),
        [&table()[..], &[0; ENTRY_BYTES]].concat(),
        frame(&[&body(&many)[..], &[0; 41 * ENTRY_BYTES]].concat()),
        frame(&bids(&own, &[], &KEYS[0])),
        // From a frame of a group, to which the answer would go.
        frame_to(GROUP, [3, 0, 0, 0, 0, 1], &body(&question())),
    ];
    for kind in [ASK, ANSWER, RESEND] {
        refused.push(frame(&body(&Heartbeat { kind, receiver: OWN_ID, ..own })));
    }
    for kind in [0, 5, 255] {
        refused.push(frame(&body(&Heartbeat { kind, ..question() })));
    }
    for frame in &refused {
        assert_dropped(&programs.ingress(Device::Client, frame), Reason::HeartbeatRefused);
    }
    // The keys are not set yet.
    let unset = Segment { keys: [CookieKey::zeroed(); 2], ..segment() };
    put(&mut programs, unset);
    let mut bytes = body(&question());
    heartbeat::sign(&mut bytes, &CookieKey::zeroed());
    assert_dropped(&programs.ingress(Device::Client, &frame(&bytes)), Reason::HeartbeatRefused);
}

#[test]
fn heartbeats_on_other_devices_and_of_others_are_the_kernels() {
    tests::skip_without_root!();
    let mut programs = on_segment(segment());
    let short = frame(&body(&question())[..20]);
    for frame in [frame(&body(&question())), table(), short] {
        assert_handed_on(&programs.ingress(Device::Backend, &frame), &frame, Reason::ParseNotIp);
    }
    let others = frame_to([2, 0, 0, 0, 9, 9], PEER, &body(&question()));
    assert_handed_on(&programs.ingress(Device::Client, &others), &others, Reason::NotOurs);
    let mut experimental = frame(&body(&question()));
    experimental[13] = 0xb6;
    assert_handed_on(&programs.ingress(Device::Client, &experimental), &experimental, Reason::ParseNotIp);
    assert_eq!(heard(&programs), None);
}

#[test]
fn a_tag_with_a_priority_alone_is_answered_without_it_and_other_vlans_are_the_kernels() {
    tests::skip_without_root!();
    let mut programs = Programs::attached(Sizes::default()).expect("the programs load");
    let segment = segment();
    put(&mut programs, segment);
    let asked = frame(&body(&question()));
    programs.world.drain();
    programs.world.send(Device::Client, &tagged(&asked, 0)).expect("the device takes it");
    let answers = programs.world.receive(1);
    let [(Device::Client, answer)] = &answers[..] else { panic!("{answers:02x?}") };
    assert_answer(answer, &segment, 0..=60_000);
    programs.world.send(Device::Client, &tagged(&asked, 7)).expect("the device takes it");
    assert_eq!(programs.world.drain(), []);
    assert_eq!(programs.counters()[&Reason::HeartbeatAnswered], 1);
}

/// The VIP is asked for by ARP or neighbour discovery.
fn asked_for(family: Family) -> Vec<u8> {
    if family.is_v4() { arp_frame(&request()) } else { usual().bytes() }
}

/// What becomes of questions for the VIPs, which this node announces.
#[track_caller]
fn assert_questions(programs: &mut Programs, reason: Reason, what: &str) {
    for family in FAMILIES {
        let outcome = programs.ingress(Device::Client, &asked_for(family));
        assert_eq!(outcome.counted, [(reason, 1)], "{what}, {family:?}");
        let expected = if reason == Reason::NeighbourAnswered { verdict::REDIRECT } else { verdict::DROP };
        assert_eq!(outcome.verdict, expected, "{what}, {family:?}");
    }
}

#[test]
fn the_gate_closes_when_the_agent_is_dead_for_longer_than_its_grace_and_another_node_is_there() {
    tests::skip_without_root!();
    let mut programs = Programs::load().expect("the programs load");
    announce(&mut programs, OWNER_HERE);
    let device = programs.world.ifindex(Device::Client);
    let (open, closed) = (Reason::NeighbourAnswered, Reason::NeighbourGateClosed);
    assert_questions(&mut programs, open, "no segment");
    // A minute's grace: the test may be stopped for a while.
    let grace_ns = 60 * SECOND;
    for (what, grace_ns, stamp_age, heard_age, reason) in [
        ("dead for long, and another node is there", grace_ns, Some(100), Some(0), closed),
        ("never stamped", grace_ns, None, Some(0), closed),
        ("dead for a shorter time", grace_ns, Some(1), Some(0), open),
        ("no other node was ever there", grace_ns, Some(100), None, open),
        ("the other node could take them, and is silent now", grace_ns, Some(100), Some(2), closed),
        ("the other node was gone before it could take them", grace_ns, Some(100), Some(45), open),
        ("no gate", 0, Some(100), Some(0), open),
    ] {
        let age = |seconds: Option<u64>| seconds.map(|age| now_ns().saturating_sub(age * SECOND));
        let stamp_ns = age(stamp_age).unwrap_or(0);
        put(&mut programs, Segment { grace_ns, stamp_ns, ..segment() });
        match heard_age {
            // Lasts as long as the test may take: a time that is yet to come counts as now.
            Some(0) => programs.insert::<u32, HeardNs>(name::HEARD, device, now_ns() + grace_ns),
            Some(_) => programs.insert::<u32, HeardNs>(name::HEARD, device, age(heard_age).unwrap()),
            None => programs.clear::<u32, HeardNs>(name::HEARD),
        }
        assert_questions(&mut programs, reason, what);
    }
}

/// A segment on one device says nothing of another one.
#[test]
fn the_gate_is_of_one_device() {
    tests::skip_without_root!();
    let mut programs = Programs::load().expect("the programs load");
    announce(&mut programs, OWNER_HERE);
    let [client, other] = [Device::Client, Device::Backend].map(|device| programs.world.ifindex(device));
    let dead = Segment { stamp_ns: 0, grace_ns: SECOND, ..segment() };
    let present = now_ns() + 60 * SECOND;
    programs.insert(name::SEGMENTS, other, dead);
    programs.insert::<u32, HeardNs>(name::HEARD, other, present);
    assert_questions(&mut programs, Reason::NeighbourAnswered, "a segment elsewhere");
    programs.insert(name::SEGMENTS, client, dead);
    assert_questions(&mut programs, Reason::NeighbourAnswered, "a node elsewhere");
    programs.insert::<u32, HeardNs>(name::HEARD, client, present);
    assert_questions(&mut programs, Reason::NeighbourGateClosed, "a node here");
}

/// The whole of it: an authentic question closes the gate of a node whose agent is dead, a forged one does not, and the gate stays
/// closed when the other node is silent, whose programs answer for the addresses: its agent may have died, too.
#[test]
fn a_question_of_another_node_closes_the_gate_until_the_agent_is_back() {
    tests::skip_without_root!();
    let mut programs = on_segment(Segment { stamp_ns: 0, grace_ns: SECOND, ..segment() });
    announce(&mut programs, OWNER_HERE);
    let mut forged = body(&question());
    forged[BYTES - 1] ^= 1;
    programs.ingress(Device::Client, &frame(&forged));
    assert_questions(&mut programs, Reason::NeighbourAnswered, "forged");
    let asked = frame(&body(&question()));
    // Until one question after another came within a second, whatever else the machine does.
    let closed = (0..20).any(|_| {
        FAMILIES.into_iter().all(|family| {
            programs.ingress(Device::Client, &asked);
            let outcome = programs.ingress(Device::Client, &asked_for(family));
            outcome.counted == [(Reason::NeighbourGateClosed, 1)] && outcome.verdict == verdict::DROP
        })
    });
    assert!(closed);
    std::thread::sleep(std::time::Duration::from_nanos(PRESENT_NS));
    assert_questions(&mut programs, Reason::NeighbourGateClosed, "the other node is silent");
    put(&mut programs, Segment { stamp_ns: now_ns(), grace_ns: 60 * SECOND, ..segment() });
    assert_questions(&mut programs, Reason::NeighbourAnswered, "the agent is back");
}

/// Nobody else would answer.
#[test]
fn an_address_that_no_other_node_may_announce_has_no_gate() {
    tests::skip_without_root!();
    let mut programs = on_segment(Segment { stamp_ns: 0, grace_ns: SECOND, ..segment() });
    let device = programs.world.ifindex(Device::Client);
    programs.insert::<u32, HeardNs>(name::HEARD, device, now_ns() + 60 * SECOND);
    announce(&mut programs, OWNER_ONLY);
    assert_questions(&mut programs, Reason::NeighbourAnswered, "of this node alone");
    announce(&mut programs, OWNER_HERE);
    assert_questions(&mut programs, Reason::NeighbourGateClosed, "of several nodes");
}

/// It is another's then: who announces it is no conflict, and what the entry says besides still counts.
#[test]
fn an_address_whose_gate_is_closed_is_another_nodes() {
    tests::skip_without_root!();
    let mut programs = on_segment(Segment { stamp_ns: 0, grace_ns: SECOND, ..segment() });
    announce(&mut programs, OWNER_HERE);
    let device = programs.world.ifindex(Device::Client);
    let own_arp = arp::announcement(v4(vip(Family::V4)).into(), PEER, arp::REPLY);
    let own_ndp = ndp::announcement(v6(vip(Family::V6)), PEER);
    let claims = |programs: &mut Programs| {
        [programs.ingress(Device::Client, &own_arp), programs.ingress(Device::Client, &own_ndp)]
    };
    for outcome in claims(&mut programs) {
        assert_eq!(outcome.counted, [(Reason::NeighbourConflict, 1)]);
    }
    programs.insert::<u32, HeardNs>(name::HEARD, device, now_ns() + 60 * SECOND);
    let [of_arp, of_ndp] = claims(&mut programs);
    assert_handed_on(&of_arp, &own_arp, Reason::ParseNotIp);
    assert_handed_on(&of_ndp, &own_ndp, Reason::NotOurs);
    // From the address, for another one.
    let gateway = arp::Message { sender: v4(vip(Family::V4)), target: [10, 97, 0, 99], ..request() };
    let outcome = programs.ingress(Device::Client, &arp_frame(&gateway));
    assert_handed_on(&outcome, &arp_frame(&gateway), Reason::ParseNotIp);
    // Questions that nobody would answer are not looked at more closely.
    for asked in [usual().hop_limit(64), usual()] {
        assert_dropped(&programs.ingress(Device::Client, &asked.bytes()), Reason::NeighbourGateClosed);
    }
    announce(&mut programs, OWNER_ELSEWHERE);
    assert_questions(&mut programs, Reason::NeighbourElsewhere, "of another node anyhow");
    // What is not announced is the kernel's.
    for family in FAMILIES {
        let key = AnnouncedKey { device, address: Address::from(vip(family)) };
        programs.remove::<_, common::maps::announced::Announced>(name::ANNOUNCED, key);
        let asked = asked_for(family);
        let reason = if family.is_v4() { Reason::ParseNotIp } else { Reason::NotOurs };
        assert_handed_on(&programs.ingress(Device::Client, &asked), &asked, reason);
    }
    let linklocal: Ipv6Addr = "fe80::1".parse().expect("an address");
    let asked = usual().body([&linklocal.octets()[..], &[1, 1], &PEER].concat()).bytes();
    assert_handed_on(&programs.ingress(Device::Client, &asked), &asked, Reason::NotOurs);
}

/// An element of a hash map is used again the moment it is removed: what is read of it may be of another device.
#[test]
fn a_segment_that_becomes_another_devices_is_not_believed() {
    tests::skip_without_root!();
    let mut programs = on_segment(segment());
    announce(&mut programs, OWNER_HERE);
    let device = programs.world.ifindex(Device::Client);
    programs.insert::<u32, HeardNs>(name::HEARD, device, now_ns() + 60 * SECOND);
    let questions = [
        (frame(&body(&question())), offset_of!(Segment, link)),
        (asked_for(Family::V4), offset_of!(Segment, stamp_ns)),
        (asked_for(Family::V6), offset_of!(Segment, stamp_ns)),
    ];
    for (asked, at) in questions {
        put(&mut programs, segment());
        let place = Place::new(name::SEGMENTS, &device, at);
        let other = Segment { stamp_ns: 0, link: [2, 0, 0, 0, 1, 0x77], ..segment() };
        let change = Change::write(name::SEGMENTS, &device, 0, &other);
        let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &asked);
        assert!(schedule.happened(), "{asked:02x?}");
        drop(schedule);
        assert_dropped(&outcome, Reason::RouteChanged);
    }
}

/// The agent overwrites its segment ten times a second. A look-up that is past the head of its chain at that moment finds neither the old
/// entry nor the new one: the node would not answer, and its gate would be open.
#[test]
fn a_segment_is_found_while_it_is_overwritten() {
    tests::skip_without_root!();
    let dead = Segment { stamp_ns: 0, grace_ns: SECOND, ..segment() };
    // Which elements are of one chain differs from map to map.
    let (mut programs, device, ahead) = (0..20)
        .find_map(|_| {
            let mut programs = on_segment(dead);
            let device = programs.world.ifindex(Device::Client);
            let others = device + 1..device + 500;
            others.clone().for_each(|other| programs.insert(name::SEGMENTS, other, segment()));
            let ahead =
                others.into_iter().find(|other| programs.chained(name::SEGMENTS, &[device, *other]).is_ok());
            ahead.map(|ahead| (programs, device, ahead))
        })
        .expect("another one of 499 elements is of the chain, of 1,024");
    announce(&mut programs, OWNER_HERE);
    programs.insert::<u32, HeardNs>(name::HEARD, device, now_ns() + 60 * SECOND);
    let questions = [
        (asked_for(Family::V4), Reason::NeighbourGateClosed),
        (asked_for(Family::V6), Reason::NeighbourGateClosed),
        (frame(&body(&question())), Reason::HeartbeatAnswered),
    ];
    for (asked, reason) in questions {
        // What was stored last is at the head of its chain.
        put(&mut programs, dead);
        programs.insert(name::SEGMENTS, ahead, segment());
        let change = Change::replace(name::SEGMENTS, &device, &dead);
        let schedule = programs.behind_access(&Place::passed(name::SEGMENTS, &ahead), 1, &[change]);
        let schedule = schedule.expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &asked);
        assert!(schedule.happened(), "{asked:02x?}");
        assert_eq!(outcome.counted, [(reason, 1)]);
    }
}

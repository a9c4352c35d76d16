//! Connections that may be open at the node that announced the address before: their segments, and ICMP errors about them, go on to it.

use common::decide::cookie::LIFE_NS;
use common::decide::previous::{CLOSED_HOPS, CLOSED_NS};
use common::maps::announced::{AnnouncedKey, OWNER_ELSEWHERE, OWNER_HERE, OWNER_ONLY};
use common::maps::name;
use common::maps::previous::{Peer, PeerKey, Previous, STAMP_MS, UNATTENDED_NS};
use common::maps::segment::{HeardNs, PRESENT_NS, Segment as OnSegment};
use common::reason::Reason;
use common::wire::heartbeat;
use tests::addresses::{FAMILIES, Family, TLS_PORT, vip};
use tests::compare::assert_bytes;
use tests::icmp::{Icmp, quotation, time_exceeded, too_big, unreachable};
use tests::packet::{Segment, flag};
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::check::{assert_dropped, reset_of};
use crate::half_open::{TCP_PORT, half_open, knock, tcp};
use crate::heartbeat::{
    OWN, PEERS_ID, SECOND, answer_aged, answer_of, now_ns, on_segment, question_of, question_with,
    segment as own_segment,
};
use crate::icmp::error;
use crate::neighbour::announce;
use crate::open::open;
use crate::scene::{Client, dial, ready, usual_hello};
use crate::source_ranges::{POLICY, admit_far, admitted, listener_policy};

/// The node that announced the addresses before.
const BEFORE: [u8; 6] = [2, 0, 0, 0, 1, 0x55];

/// The programs of a node that announces the VIPs since `age_ns`, by what another node did before, which was there at this time.
fn moved(age_ns: u64, heard_ns: HeardNs) -> Programs {
    let mut programs = ready();
    announce(&mut programs, OWNER_HERE);
    moves(&mut programs, age_ns, heard_ns);
    programs
}

/// The VIPs move to this node.
fn moves(programs: &mut Programs, age_ns: u64, heard_ns: HeardNs) {
    let device = programs.world.ifindex(Device::Client);
    let since_ns = now_ns().checked_sub(age_ns).expect("the machine has been up for minutes");
    for family in FAMILIES {
        let key = AnnouncedKey { device, address: vip(family).into() };
        programs.insert(name::PREVIOUS, key, Previous { epoch: 7, since_ns, node: PEERS_ID, closed_ns: 0 });
    }
    heard(programs, heard_ns);
}

/// The other node was last there at this time, with its agent.
fn heard(programs: &mut Programs, heard_ns: HeardNs) {
    let key = PeerKey::new(PEERS_ID, programs.world.ifindex(Device::Client));
    programs.insert(name::PEERS, key, Peer::new(heard_ns, true, BEFORE));
}

/// What the programs noted of the other node.
fn noted(programs: &Programs) -> Peer {
    let key = PeerKey::new(PEERS_ID, programs.world.ifindex(Device::Client));
    programs.entry(name::PEERS, key).expect("it is known")
}

/// The same, as if it had been there just now all through the test.
fn stays(programs: &mut Programs) {
    let (key, peer) = (PeerKey::new(PEERS_ID, programs.world.ifindex(Device::Client)), noted(programs));
    let heard_ns = Peer::new(always(), peer.is_attended(), BEFORE).heard_ns;
    programs.insert(name::PEERS, key, Peer { heard_ns, ..peer });
}

/// A node that answers all through the test.
fn always() -> HeardNs {
    now_ns() + 60 * SECOND
}

/// Segments that belong to no connection.
fn strays(family: Family) -> Vec<Segment> {
    let base = || dial(family).segment().seq(77).window(501);
    vec![
        base().ack(9).payload(vec![0x5a; 700]),
        base().ack(9),
        base().ack(9).fin(),
        base().ack(9).psh().payload(*b"x").hop_limit(2),
        base().ack(9).timestamps(1, 2).payload(vec![7; 33]),
        base().rst(),
        base().rst().ack(9),
    ]
}

/// The frame as it goes on: from our device to the other node, with one hop less.
fn passed_on(segment: &Segment) -> Vec<u8> {
    segment.clone().ethernet(BEFORE, OWN).hop_limit(segment.hop_limit - 1).bytes()
}

#[track_caller]
fn assert_passed(outcome: &Outcome, expected: &[u8]) {
    assert_eq!(outcome.counted, [(Reason::PreviousPassed, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_bytes(&outcome.packet, expected);
    assert_eq!(outcome.emitted, []);
}

/// Asserts that the node itself answers a stray segment.
#[track_caller]
fn assert_reset(programs: &mut Programs, segment: &Segment, what: &str) {
    let outcome = programs.ingress(Device::Client, &segment.bytes());
    assert_eq!(outcome.counted, [(Reason::SynCookieMismatch, 1)], "{what}");
    assert_bytes(&outcome.packet, &reset_of(segment).bytes());
}

#[test]
fn a_segment_of_no_connection_goes_on_to_the_previous_owner_and_is_not_changed() {
    tests::skip_without_root!();
    // Long after the move, too.
    for age_ns in [0, LIFE_NS] {
        let mut programs = moved(age_ns, always());
        for segment in FAMILIES.into_iter().flat_map(strays) {
            let (frame, expected) = (segment.bytes(), passed_on(&segment));
            assert_passed(&programs.ingress(Device::Client, &frame), &expected);
            assert_passed(&programs.ingress_summed(Device::Client, &frame), &expected);
            // What was damaged stays so: the end host judges it.
            let (mut damaged, mut expected) = (frame.clone(), expected);
            let last = frame.len() - 1;
            (damaged[last], expected[last]) = (damaged[last] ^ 4, expected[last] ^ 4);
            assert_passed(&programs.ingress(Device::Client, &damaged), &expected);
        }
        for family in FAMILIES {
            let many = dial(family).segment().seq(77).ack(9).psh().payload(vec![0x5a; 2_800]);
            let outcome = programs.ingress_gso(Device::Client, &many.bytes(), 1_400, 2);
            assert_passed(&outcome, &passed_on(&many));
        }
    }
}

/// So nothing goes round and round: where it goes on to, what is not known is reset.
#[test]
fn only_the_node_that_announces_the_address_passes_on() {
    tests::skip_without_root!();
    let mut programs = moved(0, always());
    let device = programs.world.ifindex(Device::Client);
    let stray = |family| strays(family).remove(0);
    for (owner, passes) in [(OWNER_ELSEWHERE, false), (OWNER_ONLY, true), (OWNER_HERE, true)] {
        announce(&mut programs, owner);
        for family in FAMILIES {
            match passes {
                true => assert_passed(
                    &programs.ingress(Device::Client, &stray(family).bytes()),
                    &passed_on(&stray(family)),
                ),
                false => assert_reset(&mut programs, &stray(family), "another node announces it"),
            }
        }
    }
    // Its agent has been dead for so long that another node announces it: what clients still send here is passed on as before.
    programs.insert(name::SEGMENTS, device, OnSegment { stamp_ns: 0, grace_ns: SECOND, ..own_segment() });
    programs.insert::<u32, HeardNs>(name::HEARD, device, now_ns() + 60 * SECOND);
    // Three such nodes may each have taken it from another one: it does not go round until a stranger's hops are used up.
    for family in FAMILIES {
        let outcome = programs.ingress(Device::Client, &stray(family).hop_limit(255).bytes());
        assert_passed(&outcome, &stray(family).ethernet(BEFORE, OWN).hop_limit(CLOSED_HOPS - 1).bytes());
    }
    programs.clear::<u32, HeardNs>(name::HEARD);
    for family in FAMILIES {
        let outcome = programs.ingress(Device::Client, &stray(family).bytes());
        assert_eq!(outcome.counted, [(Reason::PreviousPassed, 1)], "the gate is open");
        let key = AnnouncedKey { device, address: vip(family).into() };
        programs.remove::<_, common::maps::announced::Announced>(name::ANNOUNCED, key);
        assert_reset(&mut programs, &stray(family), "it is not announced");
        // On another device, there is no previous owner.
        let (near, far) = (Device::Backend.near_mac(), Device::Backend.far_mac());
        let outcome = programs.ingress(Device::Backend, &stray(family).ethernet(near, far).bytes());
        assert_eq!(outcome.counted, [(Reason::SynCookieMismatch, 1)]);
    }
}

/// Its agent may be dead, and not know the ranges.
#[test]
fn who_is_refused_here_is_not_passed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    admit_far(&mut programs);
    announce(&mut programs, OWNER_HERE);
    listener_policy(&mut programs, TLS_PORT, POLICY);
    moves(&mut programs, 0, always());
    for family in FAMILIES {
        let (inside, _, outside) = admitted(family);
        let stray = |host| dial(family).host(host).segment().seq(77).ack(9).payload(vec![0x5a; 700]);
        assert_reset(&mut programs, &stray(outside), "it is outside of the listener's ranges");
        let within = stray(inside);
        assert_passed(&programs.ingress(Device::Client, &within.bytes()), &passed_on(&within));
    }
}

/// Clients that do not know the new owner's link address yet send it here.
#[test]
fn who_left_the_address_to_another_node_passes_on_for_a_while() {
    tests::skip_without_root!();
    let mut programs = moved(0, always());
    announce(&mut programs, OWNER_ELSEWHERE);
    let device = programs.world.ifindex(Device::Client);
    let close = |programs: &mut Programs, closed_ns| {
        for family in FAMILIES {
            let key = AnnouncedKey { device, address: vip(family).into() };
            let entry = Previous { epoch: 7, since_ns: now_ns(), node: PEERS_ID, closed_ns };
            programs.insert(name::PREVIOUS, key, entry);
        }
    };
    for family in FAMILIES {
        let stray = strays(family).remove(0);
        close(&mut programs, now_ns());
        // It has few hops left: the node before may have left the address to the new owner, too.
        for (hops, left) in
            [(64, CLOSED_HOPS - 1), (CLOSED_HOPS, CLOSED_HOPS - 1), (CLOSED_HOPS - 1, CLOSED_HOPS - 2)]
        {
            let expected = stray.clone().ethernet(BEFORE, OWN).hop_limit(left).bytes();
            let frame = stray.clone().hop_limit(hops).bytes();
            assert_passed(&programs.ingress(Device::Client, &frame), &expected);
            assert_passed(&programs.ingress_summed(Device::Client, &frame), &expected);
        }
        // The new owner may be that one itself.
        let back = stray.clone().ethernet(OWN, BEFORE);
        let outcome = programs.ingress(Device::Client, &back.bytes());
        assert_eq!(outcome.counted, [(Reason::SynCookieMismatch, 1)]);
        // What the node before this one opened now would be lost when this one passes nothing on any more.
        let client = dial(family).shake(&mut programs);
        let (what, hello) = &proofs(client)[1];
        let outcome = programs.ingress(Device::Client, &hello.bytes());
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)], "{what}");
        close(&mut programs, now_ns() - CLOSED_NS);
        assert_reset(&mut programs, &stray, "it left the address long ago");
    }
}

#[test]
fn what_comes_from_the_previous_owner_does_not_go_back_to_it() {
    tests::skip_without_root!();
    let mut programs = moved(0, always());
    for family in FAMILIES {
        let back = strays(family).remove(0).ethernet(OWN, BEFORE);
        let outcome = programs.ingress(Device::Client, &back.bytes());
        assert_eq!(outcome.counted, [(Reason::SynCookieMismatch, 1)]);
    }
}

/// By the kernel's own account of its heartbeats, whether agents live or not.
#[test]
fn while_the_previous_owner_is_silent_its_connections_are_reset() {
    tests::skip_without_root!();
    let mut programs = on_segment(attended());
    announce(&mut programs, OWNER_HERE);
    moves(&mut programs, 0, 0);
    let stray = strays(Family::V4).remove(0);
    assert_reset(&mut programs, &stray, "it was never there");
    heard(&mut programs, now_ns() - PRESENT_NS);
    assert_reset(&mut programs, &stray, "it was there too long ago");
    let mut after = |frame: Vec<u8>, what: &str| {
        programs.ingress(Device::Client, &frame);
        assert_reset(&mut programs, &stray, what);
    };
    after(answer_of(PEERS_ID + 1, BEFORE), "another node is there");
    // One that asks may be deaf.
    after(question_of(PEERS_ID, BEFORE), "it has answered nothing");
    // Its frames come from elsewhere now: nothing that is sent to the old link address reaches it.
    after(answer_of(PEERS_ID, OWN), "it has another link address");
    let mut last = BEFORE;
    last[5] ^= 1;
    after(answer_of(PEERS_ID, last), "it has another link address");
    assert_counts(&mut programs, &answer_of(PEERS_ID, BEFORE));
    programs.clear::<PeerKey, Peer>(name::PEERS);
    assert_reset(&mut programs, &stray, "it is not known");
}

/// The node of [`own_segment`], whose agent lives all through the test.
fn attended() -> OnSegment {
    OnSegment { stamp_ns: always(), ..own_segment() }
}

/// Asserts that the frame shows that the previous owner is there.
#[track_caller]
fn assert_counts(programs: &mut Programs, frame: &[u8]) {
    let before = now_ns();
    programs.ingress(Device::Client, frame);
    let device = programs.world.ifindex(Device::Client);
    let peers = programs.entries::<PeerKey, Peer>(name::PEERS);
    let [(key, peer)] = peers[..] else { panic!("one is known, and no other is kept: {peers:?}") };
    assert_eq!(key, PeerKey::new(PEERS_ID, device));
    assert_eq!(peer.link, Peer::new(0, true, BEFORE).link, "a frame's sender changes nothing");
    assert!((before - 1..=now_ns()).contains(&peer.last_ns()));
    // A moment is enough, where the machine has one.
    let stray = strays(Family::V4).remove(0);
    let is_passed = (0..100).any(|_| {
        programs.ingress(Device::Client, frame);
        let outcome = programs.ingress(Device::Client, &stray.bytes());
        outcome.counted == [(Reason::PreviousPassed, 1)]
    });
    assert!(is_passed);
}

/// Nobody asks for this node then, and no answers come.
#[test]
fn without_an_agent_here_the_previous_owners_questions_show_that_it_is_there() {
    tests::skip_without_root!();
    let mut programs = on_segment(OnSegment { stamp_ns: now_ns() - PRESENT_NS, ..own_segment() });
    announce(&mut programs, OWNER_HERE);
    moves(&mut programs, 0, 0);
    let stray = strays(Family::V4).remove(0);
    programs.ingress(Device::Client, &question_of(PEERS_ID, OWN));
    assert_reset(&mut programs, &stray, "it has another link address");
    assert_counts(&mut programs, &question_of(PEERS_ID, BEFORE));
    // It may announce nothing any more, and says its link address.
    moves(&mut programs, 0, 0);
    assert_counts(&mut programs, &question_with(PEERS_ID, OWN, heartbeat::asker(BEFORE, true)));
}

/// Neither agent lives, and nobody asks: what is open at it needs none.
#[test]
fn who_was_there_when_the_agent_here_died_is_passed_to_until_one_asks_again() {
    tests::skip_without_root!();
    let stamp_ns = now_ns() - 30 * SECOND;
    let mut programs = on_segment(OnSegment { stamp_ns, ..own_segment() });
    announce(&mut programs, OWNER_HERE);
    for family in FAMILIES {
        let stray = strays(family).remove(0);
        for (heard_ns, passes) in [
            (stamp_ns, true),
            (stamp_ns - PRESENT_NS / 2, true),
            (stamp_ns - 2 * PRESENT_NS, false),
            (0, false),
        ] {
            moves(&mut programs, 40 * SECOND, heard_ns);
            match passes {
                true => {
                    let expected = stray.clone().ethernet(BEFORE, OWN).hop_limit(CLOSED_HOPS - 1).bytes();
                    assert_passed(&programs.ingress(Device::Client, &stray.bytes()), &expected);
                }
                false => assert_reset(&mut programs, &stray, "it was silent when the agent died"),
            }
        }
        let device = programs.world.ifindex(Device::Client);
        moves(&mut programs, 40 * SECOND, stamp_ns);
        programs.insert(name::SEGMENTS, device, attended());
        assert_reset(&mut programs, &stray, "an agent is here, and nobody answers it");
        programs.insert(name::SEGMENTS, device, OnSegment { stamp_ns, ..own_segment() });
    }
}

/// Its frames are signed, their Ethernet headers are not.
#[test]
fn the_link_address_follows_what_the_previous_owner_says_in_its_questions() {
    tests::skip_without_root!();
    let mut programs = on_segment(attended());
    announce(&mut programs, OWNER_HERE);
    moves(&mut programs, 0, always());
    let moved = [2, 0, 0, 0, 2, 0x66];
    for (from, link) in [(OWN, moved), (moved, moved), (OWN, BEFORE)] {
        let asked = question_with(PEERS_ID, from, heartbeat::asker(link, false));
        let outcome = programs.ingress(Device::Client, &asked);
        assert_eq!(outcome.counted, [(Reason::HeartbeatAnswered, 1)]);
        assert_eq!(noted(&programs).link, Peer::new(0, true, link).link);
        stays(&mut programs);
        let stray = strays(Family::V4).remove(0);
        let expected = stray.clone().ethernet(link, OWN).hop_limit(stray.hop_limit - 1).bytes();
        assert_passed(&programs.ingress(Device::Client, &stray.bytes()), &expected);
    }
    // Another node's says nothing of it, and nothing is kept of that.
    let asked = question_with(PEERS_ID + 1, OWN, heartbeat::asker(moved, false));
    programs.ingress(Device::Client, &asked);
    assert_eq!(programs.entries::<PeerKey, Peer>(name::PEERS).len(), 1);
    assert_eq!(noted(&programs).link, Peer::new(0, true, BEFORE).link);
}

/// An agent that was dead may have missed which backend is whose.
#[test]
fn what_has_a_full_cookie_stays_here_once_the_previous_owners_agent_was_dead() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        announce(&mut programs, OWNER_HERE);
        let device = programs.world.ifindex(Device::Client);
        programs.insert(name::SEGMENTS, device, attended());
        moves(&mut programs, 0, always());
        let mut port = 41_000;
        let mut assert_hello = |programs: &mut Programs, reason: Reason, what: &str| {
            stays(programs);
            port += 1;
            let hello = dial(family).port(port).shake(programs).at(0).payload(usual_hello());
            let outcome = programs.ingress(Device::Client, &hello.bytes());
            assert_eq!(outcome.counted, [(reason, 1)], "{what}");
        };
        let stray = strays(family).remove(0);
        for (age_ms, reason) in [
            (STAMP_MS, Reason::PreviousPassed),
            (STAMP_MS + 1, Reason::ConnectSyn),
            (0, Reason::ConnectSyn),
            (u32::MAX, Reason::ConnectSyn),
        ] {
            programs.ingress(Device::Client, &answer_aged(PEERS_ID, BEFORE, age_ms));
            assert_hello(&mut programs, reason, &format!("its agent stamped {age_ms} ms ago"));
            // What is open there needs no agent.
            assert_passed(&programs.ingress(Device::Client, &stray.bytes()), &passed_on(&stray));
        }
    }
}

/// So no client reaches what a backend's address was yesterday: it repeats what it sent, to the node that announces the address.
#[test]
fn a_node_without_an_agent_opens_nothing_at_an_address_that_it_left() {
    tests::skip_without_root!();
    let dead =
        OnSegment { stamp_ns: now_ns() - UNATTENDED_NS - 1, grace_ns: 3_600 * SECOND, ..own_segment() };
    let gone = OnSegment { stamp_ns: now_ns() - UNATTENDED_NS, grace_ns: SECOND, ..own_segment() };
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 1);
        let device = programs.world.ifindex(Device::Client);
        let flow = open(&mut programs, family);
        let waiting = dial(family).port(41_001).shake(&mut programs);
        let hello = usual_hello();
        waiting.send(&mut programs, 0, &hello[..200]);
        programs.insert::<u32, HeardNs>(name::HEARD, device, always());
        let mut port = 42_000;
        let mut assert_opens = |programs: &mut Programs, opens: bool, what: &str| {
            let counted = |programs: &mut Programs, segment: &Segment| {
                programs.ingress(Device::Client, &segment.bytes()).counted
            };
            let or_not = |reason| [(if opens { reason } else { Reason::PreviousUnattended }, 1)];
            port += 10;
            // Opens nothing yet.
            let client = dial(family).port(port).shake(programs);
            assert_eq!(
                counted(programs, &client.at(0).payload(&hello[..])),
                or_not(Reason::ConnectSyn),
                "{what}"
            );
            let syn = dial(family).port(port + 1).to_port(TCP_PORT).syn();
            assert_eq!(counted(programs, &syn), or_not(Reason::SynForwarded), "{what}");
        };
        for (owner, segment, opens, what) in [
            (OWNER_ELSEWHERE, Some(dead), false, "another node announces it"),
            (OWNER_HERE, Some(gone), false, "another node may have taken it"),
            (OWNER_ELSEWHERE, Some(attended()), true, "it is served where it lands"),
            (OWNER_HERE, Some(dead), true, "it is this node's"),
            (OWNER_ONLY, Some(gone), true, "it is this node's alone"),
            (OWNER_ELSEWHERE, None, true, "there are no other nodes"),
        ] {
            announce(&mut programs, owner);
            match segment {
                Some(segment) => programs.insert(name::SEGMENTS, device, segment),
                None => programs.remove::<u32, OnSegment>(name::SEGMENTS, device),
            }
            assert_opens(&mut programs, opens, what);
        }
        announce(&mut programs, OWNER_ELSEWHERE);
        programs.insert(name::SEGMENTS, device, dead);
        // What is open, or about to be, goes on.
        let data = flow.client_segment(crate::open::HELLO, 0).payload(*b"data");
        let outcome = programs.ingress(Device::Client, &data.bytes());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        let rest = waiting.at(200).payload(&hello[200..]);
        assert_eq!(programs.ingress(Device::Client, &rest.bytes()).counted, [(Reason::ConnectSyn, 1)]);
    }
}

/// What proves a handshake in full, and what follows it.
fn proofs(client: Client) -> [(&'static str, Segment); 5] {
    let ping = client.at(0).seq(client.at(0).seq.wrapping_sub(1));
    [
        ("the third packet of a handshake", client.at(0)),
        ("a hello", client.at(0).payload(usual_hello())),
        ("the first part of a hello", client.at(0).psh().payload(&usual_hello()[..100])),
        ("a keep-alive", ping),
        ("a FIN", client.at(0).fin()),
    ]
}

/// A hello that comes again may be the previous owner's, which opens them all while cookies of its time are valid.
#[test]
fn what_has_a_full_cookie_goes_on_while_that_may_be_of_the_previous_owner() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        announce(&mut programs, OWNER_HERE);
        let client = dial(family).shake(&mut programs);
        moves(&mut programs, LIFE_NS - 20 * SECOND, always());
        for (what, segment) in proofs(client) {
            let outcome = programs.ingress(Device::Client, &segment.bytes());
            assert_eq!(outcome.counted, [(Reason::PreviousPassed, 1)], "{what}");
            assert_bytes(&outcome.packet, &passed_on(&segment));
            assert!(client.waiting(&programs).is_none(), "{what}");
        }
        // A second segment that came first: it may be that one's, at any time.
        let later = client.at(500).payload(vec![0x5a; 100]);
        moves(&mut programs, LIFE_NS, always());
        assert_passed(&programs.ingress(Device::Client, &later.bytes()), &passed_on(&later));
        let here = [
            Reason::SynAcked,
            Reason::ConnectSyn,
            Reason::HelloAcked,
            Reason::SynKeepAlive,
            Reason::SynClosedEarly,
        ];
        for (number, ((what, segment), reason)) in proofs(client).into_iter().zip(here).enumerate() {
            let fresh = dial(family).port(50_000 + number as u16).shake(&mut programs);
            let mut segment = segment;
            segment.from = fresh.dial.client();
            segment.ack = fresh.cookie.wrapping_add(1);
            segment.options = fresh.at(0).options;
            let outcome = programs.ingress(Device::Client, &segment.bytes());
            assert_eq!(outcome.counted, [(reason, 1)], "{what}");
        }
    }
}

#[test]
fn a_syn_and_what_belongs_to_a_connection_here_stay_here() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 1);
        let flow = open(&mut programs, family);
        let waiting = dial(family).port(41_001).shake(&mut programs);
        let hello = usual_hello();
        waiting.send(&mut programs, 0, &hello[..200]);
        let knocked = dial(family).port(41_002).to_port(TCP_PORT);
        knock(&mut programs, knocked);
        announce(&mut programs, OWNER_HERE);
        moves(&mut programs, 0, always());
        let mut counted = |segment: &Segment| programs.ingress(Device::Client, &segment.bytes()).counted;
        let data = flow.client_segment(crate::open::HELLO, 0).payload(*b"data");
        assert_eq!(counted(&data), [(Reason::ForwardBackend, 1)]);
        assert_eq!(counted(&waiting.at(200).payload(&hello[200..])), [(Reason::ConnectSyn, 1)]);
        // A segment that is not the waiting connection's own. One in 2,048 looks like a later segment of a hello.
        let other = |ack| waiting.dial.segment().seq(1 << 30).ack(ack).payload(*b"data");
        let mut outcomes = (9..13).map(|ack| counted(&other(ack)));
        assert!(outcomes.any(|counted| counted == [(Reason::SynCookieMismatch, 1)]));
        assert_eq!(counted(&dial(family).port(41_003).syn()), [(Reason::SynAnswered, 1)]);
        assert_eq!(counted(&dial(family).port(41_004).to_port(TCP_PORT).syn()), [(Reason::SynForwarded, 1)]);
        // A SYN that acknowledges something starts nothing, and is of no connection.
        assert_eq!(
            counted(&dial(family).port(41_005).segment().flags(flag::SYN).seq(5).ack(9)),
            [(Reason::SynCookieMismatch, 1)]
        );
    }
}

/// Anybody can send one in a client's name.
#[test]
fn a_syn_that_nobody_proved_keeps_no_segment_from_the_previous_owner() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 1);
        let knocked = dial(family).to_port(TCP_PORT);
        knock(&mut programs, knocked);
        announce(&mut programs, OWNER_HERE);
        let others = [
            knocked.segment().seq(1 << 30).ack(9).payload(*b"data"),
            knocked.segment().seq(1 << 30).ack(9),
            knocked.segment().seq(1 << 30).rst(),
        ];
        for (other, here) in
            others.into_iter().zip([Reason::SynCookieMismatch, Reason::SynCookieMismatch, Reason::SynStray])
        {
            moves(&mut programs, 0, always());
            assert_passed(&programs.ingress(Device::Client, &other.bytes()), &passed_on(&other));
            heard(&mut programs, 0);
            let outcome = programs.ingress(Device::Client, &other.bytes());
            assert_eq!(outcome.counted, [(here, 1)], "no other node is there");
        }
        assert!(half_open(&programs, knocked).is_some(), "it goes on");
    }
}

#[test]
fn an_icmp_error_about_a_segment_of_no_connection_goes_on() {
    tests::skip_without_root!();
    let mut programs = moved(0, always());
    for family in FAMILIES {
        let about = dial(family).to_client().seq(77).ack(9).payload(vec![0x5a; 700]);
        for kind in [too_big(family), time_exceeded(family), unreachable(family)] {
            let message = error(Device::Client, kind, &about, 20);
            let expected = Icmp { hop_limit: 63, ..message.clone() }.ethernet(BEFORE, OWN).bytes();
            assert_passed(&programs.ingress(Device::Client, &message.bytes()), &expected);
            assert_passed(&programs.ingress_summed(Device::Client, &message.bytes()), &expected);
        }
        let kind = time_exceeded(family);
        // What quotes nothing that this node's VIP sent.
        let other = Icmp { to: vip(family), ..error(Device::Client, kind, &about, 20) };
        let foreign =
            Segment { from: (crate::icmp::router(family, Device::Client), 9).into(), ..about.clone() };
        let ping = Icmp { body: vec![0xee; 48], ..other.clone() };
        let of_other = Icmp { body: quotation(&foreign, 20), ..other };
        for stray in [ping, of_other, error(Device::Client, kind, &about, 7)] {
            assert_dropped(&programs.ingress(Device::Client, &stray.bytes()), Reason::IcmpStray);
        }
        // What quotes a connection that waits here.
        let waiting = dial(family).port(41_001).shake(&mut programs);
        heard(&mut programs, 0);
        waiting.send(&mut programs, 0, &usual_hello()[..200]);
        heard(&mut programs, always());
        let its = error(Device::Client, kind, &waiting.dial.to_client().seq(waiting.cookie), 20);
        assert_dropped(&programs.ingress(Device::Client, &its.bytes()), Reason::IcmpStray);
        heard(&mut programs, 0);
        let message = error(Device::Client, kind, &about, 20);
        assert_dropped(&programs.ingress(Device::Client, &message.bytes()), Reason::IcmpStray);
        heard(&mut programs, always());
    }
}

#[test]
fn what_may_travel_no_hop_further_is_dropped() {
    tests::skip_without_root!();
    let mut programs = moved(0, always());
    for family in FAMILIES {
        for hops in [0, 1] {
            let stray = strays(family).remove(0).hop_limit(hops);
            let outcome = programs.ingress(Device::Client, &stray.bytes());
            assert_dropped(&outcome, Reason::PreviousHopLimit);
        }
    }
}

/// An element of a hash map is used again the moment it is removed: what is read of it may be of another address, or another node.
#[test]
fn an_entry_that_becomes_anothers_is_not_believed() {
    tests::skip_without_root!();
    let mut programs = moved(0, always());
    let device = programs.world.ifindex(Device::Client);
    let stray = strays(Family::V4).remove(0).bytes();
    let key = AnnouncedKey { device, address: vip(Family::V4).into() };
    let peer = PeerKey::new(PEERS_ID, device);
    let other = Previous { epoch: 8, since_ns: now_ns(), node: PEERS_ID + 1, closed_ns: 0 };
    let changes = [
        (Place::new(name::PREVIOUS, &key, 0), Change::write(name::PREVIOUS, &key, 0, &other)),
        (Place::new(name::PEERS, &peer, 8), Change::write(name::PEERS, &peer, 8, &OWN)),
    ];
    for (place, change) in changes {
        moves(&mut programs, 0, always());
        let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &stray);
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::RouteChanged);
    }
}

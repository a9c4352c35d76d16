//! ARP and neighbour discovery for addresses that are announced.

use std::net::{IpAddr, Ipv6Addr};

use common::maps::address::Address;
use common::maps::announced::{Announced, AnnouncedKey, OWNER_ELSEWHERE, OWNER_HERE};
use common::maps::name;
use common::reason::Reason;
use common::wire::arp::{self, Message};
use common::wire::ndp;
use tests::addresses::{FAMILIES, Family, client, vip};
use tests::compare::assert_bytes;
use tests::icmp::Icmp;
use tests::packet::ETHERNET_BYTES;
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::schedule::{Change, Place};
use tests::world::{Device, HOP_AGE};

use crate::check::{assert_dropped, assert_handed_on};

/// The host that asks, and another one with the address that it asks for.
const ASKER: [u8; 6] = Device::Client.far_mac();
const OTHER: [u8; 6] = [2, 0, 0, 0, 1, 0x77];
/// Our device towards clients.
const OWN: [u8; 6] = Device::Client.near_mac();

/// The programs, with the VIPs announced on the device towards clients, by this owner.
fn announced(owner: u16) -> Programs {
    let mut programs = Programs::load().expect("the programs load");
    announce(&mut programs, owner);
    programs
}

pub(crate) fn announce(programs: &mut Programs, owner: u16) {
    programs.tls_with_one_route();
    let device = programs.world.ifindex(Device::Client);
    for family in FAMILIES {
        let key = AnnouncedKey { device, address: vip(family).into() };
        programs.insert(name::ANNOUNCED, key, Announced { link: OWN, owner });
    }
}

pub(crate) fn v4(address: IpAddr) -> [u8; 4] {
    let IpAddr::V4(address) = address else { panic!("{address} is IPv6") };
    address.octets()
}

pub(crate) fn v6(address: IpAddr) -> Ipv6Addr {
    let IpAddr::V6(address) = address else { panic!("{address} is IPv4") };
    address
}

/// The frame of a message from a host to another or, by default, to all.
pub(crate) fn frame(message: &Message) -> Vec<u8> {
    frame_to(arp::BROADCAST, message.sender_link, message)
}

fn frame_to(to: [u8; 6], from: [u8; 6], message: &Message) -> Vec<u8> {
    let mut body = [0; arp::BYTES];
    message.write(&mut body);
    [&to[..], &from, &arp::ETHER_TYPE.to_be_bytes(), &body].concat()
}

/// The client's question for the VIP.
pub(crate) fn request() -> Message {
    Message {
        operation: arp::REQUEST,
        sender_link: ASKER,
        sender: v4(client(Family::V4)),
        target_link: [0; 6],
        target: v4(vip(Family::V4)),
    }
}

/// The client's link-local address, from which it asks.
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// The option with its link address.
const LINK: [u8; 8] = [1, 1, ASKER[0], ASKER[1], ASKER[2], ASKER[3], ASKER[4], ASKER[5]];
const NONCE: [u8; 8] = [14, 1, 1, 2, 3, 4, 5, 6];

/// A solicitation for the VIP.
fn solicitation(source: Ipv6Addr, to: Ipv6Addr, options: &[u8]) -> Icmp {
    let target = v6(vip(Family::V6));
    let link = if to.is_multicast() { group_link(to) } else { OWN };
    Icmp::new((ndp::SOLICITATION, 0), source.into(), to.into())
        .ethernet(link, ASKER)
        .hop_limit(ndp::HOP_LIMIT)
        .rest(0)
        .body([&target.octets()[..], options].concat())
}

/// The usual one: from the client, to the VIP's group.
pub(crate) fn usual() -> Icmp {
    solicitation(CLIENT_V6, ndp::solicited_node(v6(vip(Family::V6))), &LINK)
}

fn group_link(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The advertisement of the VIP.
fn advertisement(to_link: [u8; 6], to: Ipv6Addr, flags: u32) -> Vec<u8> {
    let target = v6(vip(Family::V6));
    let link = [&[2, 1][..], &OWN].concat();
    Icmp::new((ndp::ADVERTISEMENT, 0), target.into(), to.into())
        .ethernet(to_link, OWN)
        .hop_limit(ndp::HOP_LIMIT)
        .rest(flags)
        .body([&target.octets()[..], &link].concat())
        .bytes()
}

/// Flags S and O; O.
const SOLICITED: u32 = 0x6000_0000;
const UNSOLICITED: u32 = 0x2000_0000;

#[track_caller]
fn assert_answered(outcome: &Outcome, answer: &[u8]) {
    assert_eq!(outcome.counted, [(Reason::NeighbourAnswered, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_bytes(&outcome.packet, answer);
}

#[test]
fn the_owner_answers_arp_with_its_devices_address() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let reply = Message {
        operation: arp::REPLY,
        sender_link: OWN,
        sender: v4(vip(Family::V4)),
        target_link: ASKER,
        target: v4(client(Family::V4)),
    };
    let outcome = programs.ingress_summed(Device::Client, &frame(&request()));
    assert_answered(&outcome, &frame_to(ASKER, OWN, &reply));
    // One that verifies what it knows (RFC 1122 section 2.3.2.1).
    let outcome = programs.ingress(Device::Client, &frame_to(OWN, ASKER, &request()));
    assert_answered(&outcome, &frame_to(ASKER, OWN, &reply));
    // One that would like to use the address (RFC 5227 section 2.1.1).
    let probe = Message { sender: [0; 4], ..request() };
    let outcome = programs.ingress(Device::Client, &frame(&probe));
    assert_answered(&outcome, &frame_to(ASKER, OWN, &Message { target: [0; 4], ..reply }));
    // Padded to the least length of a frame.
    let padded = [frame(&request()), vec![0; 18]].concat();
    let outcome = programs.ingress(Device::Client, &padded);
    assert_answered(&outcome, &[frame_to(ASKER, OWN, &reply), vec![0; 18]].concat());
}

#[test]
fn the_owner_answers_solicitations_with_its_devices_address() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let (address, group) = (v6(vip(Family::V6)), ndp::solicited_node(v6(vip(Family::V6))));
    let answer = advertisement(ASKER, CLIENT_V6, SOLICITED);
    let nonce_first = [NONCE, LINK].concat();
    for asked in [
        solicitation(CLIENT_V6, group, &LINK),
        solicitation(CLIENT_V6, group, &nonce_first),
        // From the frame alone.
        solicitation(CLIENT_V6, group, &[]),
        // One that verifies what it knows (RFC 4861 section 7.3).
        solicitation(CLIENT_V6, address, &[]),
        solicitation(CLIENT_V6, address, &LINK),
    ] {
        let outcome = programs.ingress_summed(Device::Client, &asked.bytes());
        assert_answered(&outcome, &answer);
    }
    // One that would like to use the address.
    let trial = solicitation(Ipv6Addr::UNSPECIFIED, group, &NONCE);
    let outcome = programs.ingress_summed(Device::Client, &trial.bytes());
    let everybody = Ipv6Addr::from(ndp::ALL_HOSTS);
    assert_answered(&outcome, &advertisement(ndp::ALL_HOSTS_LINK, everybody, UNSOLICITED));
}

#[test]
fn the_link_address_in_the_message_counts_and_not_the_frames() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let outcome = programs.ingress(Device::Client, &frame_to(arp::BROADCAST, OTHER, &request()));
    assert_bytes(&outcome.packet[..ETHERNET_BYTES], &[&ASKER[..], &OWN, &[8, 6]].concat());
    let asked = usual().ethernet(group_link(ndp::solicited_node(v6(vip(Family::V6)))), OTHER);
    let outcome = programs.ingress(Device::Client, &asked.bytes());
    assert_answered(&outcome, &advertisement(ASKER, CLIENT_V6, SOLICITED));
}

#[test]
fn other_nodes_drop_questions_whatever_they_look_like() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_ELSEWHERE);
    let outcome = programs.ingress(Device::Client, &frame(&request()));
    assert_dropped(&outcome, Reason::NeighbourElsewhere);
    for asked in [usual(), usual().hop_limit(64), solicitation(CLIENT_V6, v6(vip(Family::V6)), &LINK)] {
        let outcome = programs.ingress(Device::Client, &asked.bytes());
        assert_dropped(&outcome, Reason::NeighbourElsewhere);
    }
}

#[test]
fn what_is_not_announced_on_the_device_is_the_kernels() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let ours = programs.ingress(Device::Backend, &frame(&request()));
    assert_handed_on(&ours, &frame(&request()), Reason::ParseNotIp);
    let asked = usual().bytes();
    let outcome = programs.ingress(Device::Backend, &asked);
    assert_handed_on(&outcome, &asked, Reason::NotOurs);
    let other = frame(&Message { target: [10, 97, 0, 99], ..request() });
    let outcome = programs.ingress(Device::Client, &other);
    assert_handed_on(&outcome, &other, Reason::ParseNotIp);
    // Not about IPv4 on Ethernet, and one that ends early.
    let mut token_ring = frame(&request());
    token_ring[15] = 6;
    for bytes in [&token_ring[..], &frame(&request())[..41]] {
        let outcome = programs.ingress(Device::Client, bytes);
        assert_handed_on(&outcome, bytes, Reason::ParseNotIp);
    }
    // A target that is stored as an IPv4 address would be.
    let mapped = Address::v4(v4(vip(Family::V4))).bytes;
    let asked = usual().body([&mapped[..], &LINK].concat()).bytes();
    let outcome = programs.ingress(Device::Client, &asked);
    assert_handed_on(&outcome, &asked, Reason::NotOurs);
}

#[test]
fn questions_that_no_host_asks_are_dropped() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let to_many = Message { sender_link: [3, 0, 0, 0, 0, 1], ..request() };
    let outcome = programs.ingress(Device::Client, &frame_to(arp::BROADCAST, ASKER, &to_many));
    assert_dropped(&outcome, Reason::NeighbourMalformed);
    let group = ndp::solicited_node(v6(vip(Family::V6)));
    let mut summed_wrongly = usual().bytes();
    summed_wrongly[57] ^= 1;
    let mut beyond_the_end = usual().bytes();
    beyond_the_end[19] += 8;
    for asked in [
        usual().hop_limit(254).bytes(),
        solicitation(CLIENT_V6, group, &[1, 0, 2, 0, 0, 0, 0, 1]).bytes(),
        solicitation(CLIENT_V6, group, &[1, 1, 3, 0, 0, 0, 0, 1]).bytes(),
        solicitation(Ipv6Addr::UNSPECIFIED, group, &LINK).bytes(),
        // From a frame of a group.
        solicitation(CLIENT_V6, group, &[]).ethernet(group_link(group), [3, 0, 0, 0, 0, 1]).bytes(),
        summed_wrongly,
        beyond_the_end,
    ] {
        let outcome = programs.ingress(Device::Client, &asked);
        assert_dropped(&outcome, Reason::NeighbourMalformed);
    }
}

#[test]
fn another_host_with_an_address_that_is_announced_here_is_counted() {
    tests::skip_without_root!();
    let vip_v4 = vip(Family::V4);
    let announcements = |link| {
        let arps =
            [arp::REQUEST, arp::REPLY].map(|operation| arp::announcement(v4(vip_v4).into(), link, operation));
        arps.map(Vec::from)
    };
    for (owner, link, of_arp, of_ndp) in [
        (OWNER_HERE, OTHER, Reason::NeighbourConflict, Reason::NeighbourConflict),
        // Our own, on a segment that loops.
        (OWNER_HERE, OWN, Reason::ParseNotIp, Reason::NotOurs),
        // The owner's.
        (OWNER_ELSEWHERE, OTHER, Reason::ParseNotIp, Reason::NotOurs),
    ] {
        let mut programs = announced(owner);
        for frame in announcements(link) {
            let outcome = programs.ingress(Device::Client, &frame);
            assert_handed_on(&outcome, &frame, of_arp);
        }
        let frame = ndp::announcement(v6(vip(Family::V6)), link);
        let outcome = programs.ingress(Device::Client, &frame);
        assert_handed_on(&outcome, &frame, of_ndp);
        // From beyond a router, or damaged: it says nothing.
        let mut routed = frame;
        routed[21] = 254;
        let mut damaged = frame;
        damaged[85] ^= 1;
        for frame in [routed, damaged] {
            let outcome = programs.ingress(Device::Client, &frame);
            assert_handed_on(&outcome, &frame, Reason::NotOurs);
        }
    }
}

/// A host says what address it has with each question for another one, too.
#[test]
fn another_host_that_asks_from_an_address_that_is_announced_here_is_counted() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let gateway = [10, 97, 0, 99];
    for (sender, link, reason) in [
        (v4(vip(Family::V4)), OTHER, Reason::NeighbourConflict),
        (v4(vip(Family::V4)), OWN, Reason::ParseNotIp),
        (v4(client(Family::V4)), OTHER, Reason::ParseNotIp),
    ] {
        let asked = frame(&Message { sender, sender_link: link, target: gateway, ..request() });
        let outcome = programs.ingress(Device::Client, &asked);
        assert_handed_on(&outcome, &asked, reason);
    }
    let target = Ipv6Addr::new(0xfd97, 0, 0, 0, 0, 0, 0, 0x99);
    for (source, link, reason) in [
        (v6(vip(Family::V6)), OTHER, Reason::NeighbourConflict),
        (v6(vip(Family::V6)), OWN, Reason::NotOurs),
        (CLIENT_V6, OTHER, Reason::NotOurs),
    ] {
        let group = ndp::solicited_node(target);
        let asked = solicitation(source, group, &[]).ethernet(group_link(group), link);
        let asked = asked.body(target.octets()).bytes();
        let outcome = programs.ingress(Device::Client, &asked);
        assert_handed_on(&outcome, &asked, reason);
    }
}

/// Returns the frame with an 802.1Q tag.
pub(crate) fn tagged(frame: &[u8], vlan: u8) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0xe0, vlan], &frame[12..]].concat()
}

#[test]
fn a_tag_with_a_priority_alone_is_answered_without_it_and_other_vlans_are_the_kernels() {
    tests::skip_without_root!();
    let mut programs = Programs::attached(Sizes::default()).expect("the programs load");
    announce(&mut programs, OWNER_HERE);
    for asked in [frame(&request()), usual().bytes()] {
        programs.world.send(Device::Client, &tagged(&asked, 0)).unwrap();
        // A neighbour's traffic is not among what `receive` returns.
        std::thread::sleep(HOP_AGE / 10);
        assert_eq!(programs.counters()[&Reason::NeighbourAnswered], 1, "{asked:02x?}");
        programs.world.send(Device::Client, &tagged(&asked, 7)).unwrap();
        std::thread::sleep(HOP_AGE / 10);
        assert_eq!(programs.counters()[&Reason::NeighbourAnswered], 1, "{asked:02x?}");
        programs = Programs::attached(Sizes::default()).expect("the programs load");
        announce(&mut programs, OWNER_HERE);
    }
}

/// An element of a hash map is used again the moment it is removed: what is read of it may be of another address, on another device.
#[test]
fn an_entry_that_becomes_another_addresss_is_not_believed() {
    tests::skip_without_root!();
    let mut programs = announced(OWNER_HERE);
    let device = programs.world.ifindex(Device::Client);
    for (family, asked) in [(Family::V4, frame(&request())), (Family::V6, usual().bytes())] {
        let key = AnnouncedKey { device, address: vip(family).into() };
        let other = Announced { link: OTHER, owner: OWNER_HERE };
        let place = Place::new(name::ANNOUNCED, &key, 0);
        let change = Change::write(name::ANNOUNCED, &key, 0, &other);
        let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &asked);
        assert!(schedule.happened(), "{family:?}");
        drop(schedule);
        assert_dropped(&outcome, Reason::RouteChanged);
    }
}

//! XDP in front of TCX: what it answers, with the same bytes, what it drops, and all that it leaves unchanged.

use std::net::IpAddr;

use common::maps::address::Port;
use common::maps::flow::Flow;
use common::maps::listener::{Listener, ListenerKey, ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use common::maps::name;
use common::maps::policy::POLICY_NOBODY;
use common::maps::trace::TraceFilter;
use common::reason::Reason;
use tests::addresses::{
    BACKENDS, CLIENT_NET, FAMILIES, Family, TENANT_NETS, TLS_PORT, balancer, client, host, vip,
};
use tests::compare::assert_bytes;
use tests::packet::{ETHERNET_BYTES, Segment, checksum, flag};
use tests::program::{Outcome, Programs, Sizes, xdp_verdict};
use tests::tap::Tap;
use tests::tcp_option::TcpOption;
use tests::world::Device;

use crate::check::{timestamps, whole};
use crate::half_open::TCP_PORT;
use crate::parse::{as_mapped, refused};
use crate::scene::{Client, Dial, Offer, dial, ready, usual_hello};
use crate::syn::offers;

/// A port of the VIP that nobody serves.
const UNSERVED: u16 = 444;

/// Runs XDP on the frame in a unit of time in which TCX has sent something to the client, as it does first in each: otherwise XDP
/// would pass it for that reason.
pub(crate) fn front(programs: &mut Programs, family: Family, frame: &[u8]) -> Outcome {
    let other = dial(family).port(1).syn().bytes();
    for _ in 0..100 {
        programs.ingress(Device::Client, &other);
        let outcome = programs.front(Device::Client, frame);
        if programs.front(Device::Client, &other).verdict == xdp_verdict::TX {
            return outcome;
        }
    }
    panic!("XDP does not answer a SYN, whenever it comes");
}

#[track_caller]
fn assert_answered(outcome: &Outcome, reason: Reason) {
    assert_eq!((&outcome.counted[..], outcome.verdict), (&[(reason, 1)][..], xdp_verdict::TX));
}

#[track_caller]
fn assert_unchanged(outcome: &Outcome, frame: &[u8], what: &str) {
    assert_eq!((&outcome.counted[..], outcome.verdict), (&[][..], xdp_verdict::PASS), "{what}");
    assert_bytes(&outcome.packet, frame);
}

#[track_caller]
fn assert_dropped(outcome: &Outcome, reason: Reason, what: &str) {
    assert_eq!((&outcome.counted[..], outcome.verdict), (&[(reason, 1)][..], xdp_verdict::DROP), "{what}");
}

fn tcp_at(family: Family) -> usize {
    ETHERNET_BYTES + if family.is_v4() { 20 } else { 40 }
}

fn syn(family: Family) -> Vec<u8> {
    dial(family).syn().bytes()
}

/// Returns the segment with the timestamp of another: time goes on between two answers.
fn at_the_time_of(mut segment: Segment, other: &Segment) -> Segment {
    if let Some((value, echo)) = timestamps(other) {
        for option in &mut segment.options {
            if matches!(option, TcpOption::Timestamps(..)) {
                *option = TcpOption::Timestamps(value, echo);
            }
        }
    }
    segment
}

#[test]
fn a_syn_gets_the_answer_of_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for offer in offers() {
            let frame = dial(family).offer(offer).syn().bytes();
            // An epoch may end in between: the cookies of the next one are others.
            let mut tries = 0..3;
            while tries.next().is_some() {
                let theirs = programs.ingress(Device::Client, &frame);
                let ours = front(&mut programs, family, &frame);
                assert_answered(&ours, Reason::XdpAnswered);
                assert_eq!(ours.packet.len(), theirs.packet.len());
                let (ours, theirs) = (whole(&ours.packet), whole(&theirs.packet));
                if ours.seq == theirs.seq {
                    assert_eq!(at_the_time_of(ours, &theirs).bytes(), theirs.bytes());
                    break;
                }
            }
            assert!(!tries.is_empty(), "no cookie was TCX's: {offer:?}");
        }
    }
}

#[test]
fn a_handshake_that_xdp_answered_is_continued_by_tcx_here_and_on_another_node() {
    tests::skip_without_root!();
    let (mut here, mut elsewhere) = (ready(), ready());
    for family in FAMILIES {
        let dial = dial(family);
        let answer = whole(&front(&mut here, family, &dial.syn().bytes()).packet);
        let client = Client { dial, cookie: 0, time: 0 }.told(&answer);
        for programs in [&mut here, &mut elsewhere] {
            let backend = client.ask(programs, &usual_hello());
            assert_eq!(backend.accept(programs).counted[0].0, Reason::ConnectHello);
            assert!(client.flow(programs).is_some());
        }
    }
}

#[test]
fn a_syn_to_an_unserved_port_gets_the_rst_of_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for offer in offers() {
            let frame = dial(family).to_port(UNSERVED).offer(offer).syn().bytes();
            let theirs = programs.ingress(Device::Client, &frame);
            assert_eq!(theirs.counted, [(Reason::ClassifyNoListener, 1)]);
            let ours = front(&mut programs, family, &frame);
            assert_answered(&ours, Reason::XdpNoListener);
            assert_bytes(&ours.packet, &theirs.packet);
        }
    }
}

#[test]
fn padding_behind_a_syn_changes_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for offer in offers() {
            for bytes in [1, 6, 200, 1_400] {
                let mut frame = dial(family).offer(offer).syn().bytes();
                frame.resize(frame.len() + bytes, 0x5a);
                let theirs = programs.ingress(Device::Client, &frame);
                assert_eq!(theirs.counted, [(Reason::SynAnswered, 1)], "{offer:?}");
                let ours = front(&mut programs, family, &frame);
                assert_answered(&ours, Reason::XdpAnswered);
                for answer in [theirs.packet, ours.packet] {
                    assert_eq!(whole(&answer).bytes().len(), answer.len());
                }
            }
        }
    }
}

/// Returns frames that XDP does not judge.
fn not_judged(family: Family) -> Vec<(&'static str, Vec<u8>)> {
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = syn(family);
        change(&mut frame);
        frame
    };
    let at = tcp_at(family);
    let segment = || dial(family).segment().seq(7);
    let mut all = vec![
        ("ACK", segment().ack(9).bytes()),
        ("data", segment().ack(9).payload(usual_hello()).bytes()),
        ("SYN-ACK", dial(family).syn().ack(9).bytes()),
        ("ACK with impossible flags", dial(family).syn().ack(9).fin().bytes()),
        ("truncated, with ACK", segment().ack(9).payload(vec![1; 40]).bytes()[..at + 30].to_vec()),
        ("RST", segment().rst().bytes()),
        ("FIN", segment().fin().bytes()),
        ("RST to a port without listener", dial(family).to_port(UNSERVED).segment().rst().bytes()),
        ("SYN with data", dial(family).syn().payload(usual_hello()).bytes()),
        // These two bytes and their number add nothing to the sum.
        ("SYN with data that no sum shows", dial(family).syn().payload([0xff, 0xfd]).bytes()),
        ("wrong TCP checksum", with(&|frame| frame[at + 16] ^= 1)),
        ("checksum left to a device", partial(family)),
        ("right checksum that may be left to a device, too", right_as_partial(family)),
        ("another host's link address", with(&|frame| frame[5] ^= 1)),
        ("broadcast", with(&|frame| frame[..6].fill(0xff))),
        ("VLAN tag", with(&|frame| drop(frame.splice(12..12, [0x81, 0, 0, 7])))),
        ("another EtherType", with(&|frame| frame[12..14].copy_from_slice(&[0x88, 0xcc]))),
        ("another protocol", with(&|frame| frame[if family.is_v4() { 23 } else { 20 }] = 17)),
        ("another destination", elsewhere(family)),
        ("shorter than addresses", syn(family)[..30].to_vec()),
    ];
    all.extend(refused(&syn(family), family));
    if family.is_v4() {
        for word in [0x2000u16, 0x2001, 0x00b9] {
            all.push((
                "fragment",
                with(&|frame| ip_header(frame, |ip| ip[6..8].copy_from_slice(&word.to_be_bytes()))),
            ));
        }
        all.push(("wrong IP checksum", with(&|frame| frame[24] ^= 1)));
    } else {
        all.push(("fragment", with(&|frame| frame[20] = 44)));
        all.push(("another version", with(&|frame| frame[14] = 0x50)));
        for both in [[true, true], [true, false], [false, true]] {
            all.push(("IPv4-mapped address", as_mapped(dial(Family::V4).syn(), both)));
        }
    }
    all
}

/// Changes the IPv4 header of a frame, with its checksum.
fn ip_header(frame: &mut [u8], change: impl Fn(&mut [u8])) {
    let ip = &mut frame[14..34];
    change(ip);
    ip[10..12].fill(0);
    let sum = checksum(ip, 0).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
}

/// Returns a SYN whose checksum its sender left to a device: the field has the sum of the pseudo header.
fn partial(family: Family) -> Vec<u8> {
    let mut frame = syn(family);
    let (at, sum) = (tcp_at(family), pseudo_sum(family, &frame));
    frame[at + 16..at + 18].copy_from_slice(&sum);
    frame
}

/// Returns a SYN whose checksum is right and happens to be the sum of the pseudo header: one of 65,536 is.
fn right_as_partial(family: Family) -> Vec<u8> {
    let at = tcp_at(family);
    let all = (0..=u32::from(u16::MAX)).map(|number| dial(family).syn().seq(number).bytes());
    let mut those = all.filter(|frame| frame[at + 16..at + 18] == pseudo_sum(family, frame));
    those.next().expect("each sum is that of some number")
}

/// Returns the sum of a frame's pseudo header.
fn pseudo_sum(family: Family, frame: &[u8]) -> [u8; 2] {
    let tcp_bytes = (frame.len() - tcp_at(family)) as u32;
    let addresses = if family.is_v4() { &frame[26..34] } else { &frame[22..54] };
    (!checksum(addresses, 6 + tcp_bytes)).to_be_bytes()
}

/// Returns a SYN to an address that is not ours.
fn elsewhere(family: Family) -> Vec<u8> {
    let mut segment = dial(family).syn();
    segment.to.set_ip(client(family));
    segment.bytes()
}

#[test]
fn what_xdp_does_not_judge_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (what, frame) in not_judged(family) {
            let outcome = front(&mut programs, family, &frame);
            assert_unchanged(&outcome, &frame, what);
        }
    }
}

/// A device that has both programs, and what is behind XDP there: TCX, and taps.
struct Attached {
    programs: Programs,
    tap: Tap,
}

impl Attached {
    fn new() -> Self {
        let mut programs = Programs::attached(Sizes::default()).expect("the programs load");
        programs.tls_with_one_route();
        programs.attach_front().expect("it is in the driver");
        // The kernel keeps a tag beside the frame.
        let tap = Tap::open_tagged(&programs.world.node, Device::Client.name()).expect("a packet socket");
        Self { programs, tap }
    }

    /// Returns what is behind XDP when the device has received the frame.
    fn behind(&self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.programs.world.send(Device::Client, frame).expect("the device takes it");
        self.tap.drain().expect("the tap is read")
    }

    /// Asserts that the frame is behind XDP as it was sent, in a unit of time in which XDP answers what it may (see [`front`]), and that
    /// afterwards it answers `answered`.
    #[track_caller]
    fn assert_passes_while(
        &mut self,
        (what, frame): (&str, &[u8]),
        wrong: impl Fn(&mut Programs),
        right: impl Fn(&mut Programs),
        answered: &[u8],
    ) {
        for _ in 0..100 {
            // TCX answers the first one, and XDP from then on.
            self.behind(answered);
            if !self.behind(answered).is_empty() {
                continue;
            }
            wrong(&mut self.programs);
            let seen = self.behind(frame);
            right(&mut self.programs);
            if self.behind(answered).is_empty() {
                return assert_seen(&seen, frame, what);
            }
        }
        panic!("{what}: XDP does not answer a SYN, whenever it comes");
    }
}

/// Asserts that there is this frame, and nothing else.
#[track_caller]
fn assert_seen(seen: &[Vec<u8>], frame: &[u8], what: &str) {
    let [seen] = seen else { panic!("{what} is seen {} times", seen.len()) };
    assert_bytes(seen, frame);
}

/// The same frames on a device that has both programs: what is behind XDP, TCX and taps, has them as they were sent. What XDP answers
/// is seen by nobody there.
#[test]
fn what_xdp_passes_is_behind_it_byte_for_byte() {
    tests::skip_without_root!();
    let mut attached = Attached::new();
    for family in FAMILIES {
        for (what, frame) in not_judged(family) {
            assert_seen(&attached.behind(&frame), &frame, what);
            attached.assert_passes_while((what, &frame), |_| {}, |_| {}, &syn(family));
        }
    }
}

/// The same of frames that only the node's state, its routes, or the room behind them keeps from being answered.
#[test]
fn what_xdp_may_not_answer_here_is_behind_it_byte_for_byte() {
    tests::skip_without_root!();
    let mut attached = Attached::new();
    let drain = |on: u32| move |programs: &mut Programs| programs.set(name::DRAIN, 0, on);
    for family in FAMILIES {
        for dial in [dial(family), dial(family).to_port(UNSERVED)] {
            let frame = dial.syn().bytes();
            attached.assert_passes_while(("drain", &frame), drain(1), drain(0), &frame);
        }
        let beyond = dial(family).host(host(family, TENANT_NETS[0], BACKENDS[0]));
        // Two devices may have one link address.
        for own in [Device::Backend.near_mac(), Device::Client.near_mac()] {
            let mut frame = beyond.syn().bytes();
            frame[..6].copy_from_slice(&own);
            let mut malformed = frame.clone();
            malformed[tcp_at(family) + 13] = 0;
            for (what, frame) in [("another egress", &frame), ("another egress, dropped", &malformed)] {
                // Of the second one TCX has sent an answer before.
                for _ in 0..2 {
                    attached.assert_passes_while((what, frame), |_| {}, |_| {}, &syn(family));
                }
            }
        }
    }
    // TAP has room behind a frame up to the next multiple of 64 bytes: here ten, where the answer is longer by twenty. No frame of IPv6
    // is that short.
    let nothing = Offer { mss: None, sack: false, timestamps: false, scale: None };
    let frame = dial(Family::V4).offer(nothing).syn().bytes();
    assert_eq!(frame.len(), 54);
    let mut roomy = frame.clone();
    roomy.resize(65, 0);
    attached.assert_passes_while(("no tail room", &frame), |_| {}, |_| {}, &roomy);
}

/// Working memory that another frame uses, which this one interrupts (PREEMPT_RT), is neither written nor given back.
#[test]
fn a_frame_that_interrupts_another_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for dial in [dial(family), dial(family).to_port(UNSERVED)] {
            let frame = dial.syn().bytes();
            let busy = |programs: &mut Programs| {
                programs.set_front_busy(true);
                assert_unchanged(&programs.front(Device::Client, &frame), &frame, "the first one");
            };
            let free = |programs: &mut Programs| programs.set_front_busy(false);
            assert_unchanged_while(&mut programs, dial, "working memory in use", busy, free);
        }
        let mut malformed = syn(family);
        malformed[tcp_at(family) + 13] = 0;
        programs.set_front_busy(true);
        assert_unchanged(&programs.front(Device::Client, &malformed), &malformed, "dropped otherwise");
        programs.set_front_busy(false);
        assert_dropped(&programs.front(Device::Client, &malformed), Reason::ParseFlags, "free again");
        // TCX has memory of its own.
        programs.set_front_busy(true);
        assert_eq!(programs.ingress(Device::Client, &syn(family)).counted, [(Reason::SynAnswered, 1)]);
        programs.set_front_busy(false);
    }
}

/// Returns frames that no client sends, and why they are dropped.
fn sent_by_nobody(family: Family) -> [(&'static str, Vec<u8>, Reason); 8] {
    let at = tcp_at(family);
    let with = |offset: usize, value: u8| {
        let mut frame = syn(family);
        frame[at + offset] = value;
        frame
    };
    let whole_length = syn(family).len();
    [
        ("no TCP header", syn(family)[..at].to_vec(), Reason::ParseTruncated),
        ("half a TCP header", syn(family)[..at + 10].to_vec(), Reason::ParseTruncated),
        ("less than it says", syn(family)[..whole_length - 1].to_vec(), Reason::ParseTruncated),
        ("header too short", with(12, 0x40), Reason::ParseTcpHeader),
        ("header too long", with(12, 0xf0), Reason::ParseTcpHeader),
        ("SYN and FIN", with(13, flag::SYN | flag::FIN), Reason::ParseFlags),
        ("SYN and RST", with(13, flag::SYN | flag::RST), Reason::ParseFlags),
        ("no flags", with(13, 0), Reason::ParseFlags),
    ]
}

/// On a device that has both programs.
#[test]
fn what_nobody_sends_is_not_behind_xdp() {
    tests::skip_without_root!();
    let attached = Attached::new();
    for family in FAMILIES {
        for (what, frame, reason) in sent_by_nobody(family) {
            let count = || attached.programs.counters().get(&reason).copied().unwrap_or(0);
            let before = count();
            assert_eq!(attached.behind(&frame), Vec::<Vec<u8>>::new(), "{what}");
            assert_eq!(count() - before, 1, "{what}");
        }
    }
}

#[test]
fn what_nobody_sends_is_dropped_for_the_reason_of_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let at = tcp_at(family);
        for (what, frame, reason) in sent_by_nobody(family) {
            assert_eq!(programs.ingress(Device::Client, &frame).counted, [(reason, 1)], "{what}");
            assert_dropped(&programs.front(Device::Client, &frame), reason, what);
            let mut theirs = frame.clone();
            theirs[5] ^= 1;
            assert_unchanged(&programs.front(Device::Client, &theirs), &theirs, what);
            let mut acknowledging = frame;
            if let Some(flags) = acknowledging.get_mut(at + 13) {
                *flags |= flag::ACK;
                assert_unchanged(&programs.front(Device::Client, &acknowledging), &acknowledging, what);
            }
        }
        let mut strange = elsewhere(family);
        strange[at + 13] = 0;
        assert_unchanged(&programs.front(Device::Client, &strange), &strange, "not for a VIP");
    }
}

/// Every combination of flags without ACK: XDP drops those that TCX drops for their flags, and answers none that TCX does not.
#[test]
fn flags_are_impossible_where_they_are_for_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let mut verdicts = [0; 3];
        for flags in (0..=u8::MAX).filter(|flags| flags & flag::ACK == 0) {
            let frame = dial(family).segment().seq(7).flags(flags).bytes();
            assert_eq!(frame[tcp_at(family) + 13], flags);
            let what = format!("flags {flags:#04x}");
            let theirs = programs.ingress(Device::Client, &frame);
            let ours = front(&mut programs, family, &frame);
            let place = match &theirs.counted[..] {
                [(Reason::ParseFlags, 1)] => {
                    assert_dropped(&ours, Reason::ParseFlags, &what);
                    0
                }
                [(Reason::SynAnswered, 1)] => {
                    assert_answered(&ours, Reason::XdpAnswered);
                    1
                }
                _ => {
                    assert_unchanged(&ours, &frame, &what);
                    2
                }
            };
            verdicts[place] += 1;
        }
        // Of SYN, FIN and RST, five of eight combinations are none of a sender; the other bits change nothing.
        assert_eq!(verdicts, [80, 16, 32]);
    }
}

/// Asserts that the SYN is answered, and not while `wrong` is so.
#[track_caller]
fn assert_unchanged_while(
    programs: &mut Programs,
    dial: Dial,
    what: &str,
    wrong: impl Fn(&mut Programs),
    right: impl Fn(&mut Programs),
) {
    let frame = dial.syn().bytes();
    let answered = |programs: &mut Programs| front(programs, dial.family, &frame).verdict;
    assert_eq!(answered(programs), xdp_verdict::TX, "{what}: before");
    for _ in 0..100 {
        right(programs);
        programs.ingress(Device::Client, &syn(dial.family));
        wrong(programs);
        let outcome = programs.front(Device::Client, &frame);
        right(programs);
        // Otherwise this is another unit of time already.
        if programs.front(Device::Client, &frame).verdict == xdp_verdict::TX {
            return assert_unchanged(&outcome, &frame, what);
        }
    }
    panic!("{what}: not answered afterwards");
}

fn change_listener(programs: &mut Programs, family: Family, change: impl Fn(Listener) -> Listener) {
    let key = ListenerKey { address: vip(family).into(), port: Port::new(TLS_PORT), reserved: [0; 2] };
    let listener: Listener = programs.entry(name::LISTENERS, key).expect("a listener");
    programs.listener(vip(family), TLS_PORT, change(listener));
}

#[test]
fn what_only_tcx_may_decide_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (served, unserved) = (dial(family), dial(family).to_port(UNSERVED));
        let drain = |on: u32| move |programs: &mut Programs| programs.set(name::DRAIN, 0, on);
        for dial in [served, unserved] {
            assert_unchanged_while(&mut programs, dial, "drain", drain(1), drain(0));
            let roles = |roles: u32| move |programs: &mut Programs| programs.address(vip(family), roles);
            let source = roles(ROLE_VIP | ROLE_SOURCE);
            assert_unchanged_while(&mut programs, dial, "source address", source, roles(ROLE_VIP));
            let trace = |until_ns: u64| {
                let filter = TraceFilter { until_ns, ..TraceFilter::zeroed() };
                move |programs: &mut Programs| programs.set(name::TRACE, 0, filter)
            };
            assert_unchanged_while(&mut programs, dial, "trace", trace(u64::MAX), trace(0));
            let flow = |programs: &mut Programs| {
                programs.insert(name::FLOWS, dial.tuple(), Flow::zeroed());
            };
            let none = |programs: &mut Programs| {
                if programs.entry::<_, Flow>(name::FLOWS, dial.tuple()).is_some() {
                    programs.remove::<_, Flow>(name::FLOWS, dial.tuple());
                }
            };
            assert_unchanged_while(&mut programs, dial, "open connection", flow, none);
        }
        let own = |roles: u32| move |programs: &mut Programs| programs.address(vip(family), roles);
        assert_unchanged_while(&mut programs, unserved, "own port", own(ROLE_VIP | ROLE_OWN), own(ROLE_VIP));
        let policy = |policy: u16| {
            move |programs: &mut Programs| change_listener(programs, family, |l| Listener { policy, ..l })
        };
        assert_unchanged_while(&mut programs, served, "source ranges", policy(POLICY_NOBODY), policy(0));
    }
}

#[test]
fn a_tcp_listeners_syn_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    programs.tcp_listener(TCP_PORT);
    for family in FAMILIES {
        let frame = dial(family).to_port(TCP_PORT).syn().bytes();
        assert_unchanged(&front(&mut programs, family, &frame), &frame, "TCP listener");
    }
}

#[test]
fn admitted_clients_are_answered_where_others_are_not() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.policy(5, client(family), if family.is_v4() { 32 } else { 128 });
        change_listener(&mut programs, family, |listener| Listener { policy: 5, ..listener });
        assert_answered(&front(&mut programs, family, &syn(family)), Reason::XdpAnswered);
    }
}

#[test]
fn answers_that_leave_by_another_device_are_left_to_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // Two devices may have one link address.
        for own in [Device::Backend.near_mac(), Device::Client.near_mac()] {
            let mut frame = syn(family);
            frame[..6].copy_from_slice(&own);
            programs.ingress(Device::Backend, &frame);
            assert_unchanged(&programs.front(Device::Backend, &frame), &frame, "another egress");
            let mut malformed = frame;
            malformed[tcp_at(family) + 13] = 0;
            assert_unchanged(&programs.front(Device::Backend, &malformed), &malformed, "another egress");
        }
    }
}

/// A flood of what is dropped has forged sources, and a look-up in the FIB for each would cost as much as TCX does.
#[test]
fn what_is_dropped_is_looked_up_once_for_all_sources() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let at = tcp_at(family);
        let malformed = |mut frame: Vec<u8>| {
            frame[at + 13] = 0;
            frame
        };
        let first = malformed(syn(family));
        // Its answer would leave by another device.
        let beyond = dial(family).host(host(family, TENANT_NETS[0], BACKENDS[0]));
        let forged = malformed(beyond.syn().bytes());
        let mut theirs = forged.clone();
        theirs[5] ^= 1;
        let is_shown = (0..100).any(|_| {
            std::thread::sleep(tests::world::HOP_AGE);
            let unknown = programs.front(Device::Client, &forged);
            assert_dropped(&programs.front(Device::Client, &first), Reason::ParseFlags, "the first");
            let known = programs.front(Device::Client, &forged);
            assert_unchanged(&programs.front(Device::Client, &theirs), &theirs, "of another device");
            // Otherwise this is another unit of time already.
            if known.verdict != xdp_verdict::DROP {
                return false;
            }
            assert_unchanged(&unknown, &forged, "nothing is known of the device");
            assert_dropped(&known, Reason::ParseFlags, "forged");
            let answered = beyond.syn().bytes();
            assert_unchanged(&programs.front(Device::Client, &answered), &answered, "another egress");
            true
        });
        assert!(is_shown, "what is forged passes XDP");
    }
}

/// A card in promiscuous mode receives what is for others. XDP finds the link address of its device by a look-up, and for what follows
/// in the next hop that it remembers.
#[test]
fn what_is_addressed_to_another_host_passes_whatever_is_known() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (own, other) = (syn(family), dial(family).port(1).syn().bytes());
        let to_another = |mut frame: Vec<u8>| {
            frame[5] ^= 1;
            frame
        };
        let theirs = to_another(own.clone());
        let mut malformed = theirs.clone();
        malformed[tcp_at(family) + 13] = 0;
        let is_shown = (0..100).any(|_| {
            std::thread::sleep(tests::world::HOP_AGE);
            let nothing_known = programs.front(Device::Client, &malformed);
            programs.ingress(Device::Client, &other);
            let unknown = programs.front(Device::Client, &theirs);
            let before = programs.front(Device::Client, &own);
            let known = programs.front(Device::Client, &theirs);
            let after = programs.front(Device::Client, &own);
            // Otherwise this is another unit of time already.
            let is_shown = [&before, &after].iter().all(|answer| answer.verdict == xdp_verdict::TX);
            if is_shown {
                assert_unchanged(&nothing_known, &malformed, "nothing is known");
                assert_unchanged(&unknown, &theirs, "no next hop is known");
                assert_unchanged(&known, &theirs, "the next hop is known");
            }
            is_shown
        });
        assert!(is_shown, "XDP does not answer what is for its device");
    }
}

#[test]
fn what_is_for_an_address_of_the_node_that_is_no_vip_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let mut segment = dial(family).syn();
        // Replies of backends are addressed to it.
        segment.to.set_ip(balancer(family, TENANT_NETS[0]));
        let frame = segment.bytes();
        assert_unchanged(&front(&mut programs, family, &frame), &frame, "a source address");
    }
}

#[test]
fn the_first_answer_of_each_unit_of_time_is_left_to_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        assert_answered(&front(&mut programs, family, &syn(family)), Reason::XdpAnswered);
        std::thread::sleep(tests::world::HOP_AGE);
        // What is dropped asks for no neighbour.
        let mut malformed = syn(family);
        malformed[tcp_at(family) + 13] = 0;
        assert_dropped(&programs.front(Device::Client, &malformed), Reason::ParseFlags, "first");
        assert_unchanged(&programs.front(Device::Client, &syn(family)), &syn(family), "nobody was asked");
        assert_answered(&front(&mut programs, family, &syn(family)), Reason::XdpAnswered);
    }
}

/// Asserts that XDP passes the frame in a unit of time in which TCX has sent packets to `others` alone, and answers it once TCX has
/// answered one of its sender.
#[track_caller]
fn assert_asked_for_itself(programs: &mut Programs, others: &[&[u8]], own: &[u8], frame: &[u8], what: &str) {
    for _ in 0..100 {
        std::thread::sleep(tests::world::HOP_AGE);
        for other in others {
            programs.ingress(Device::Client, other);
        }
        let outcome = programs.front(Device::Client, frame);
        programs.ingress(Device::Client, own);
        // Otherwise this is another unit of time already.
        if programs.front(Device::Client, frame).verdict == xdp_verdict::TX {
            return assert_unchanged(&outcome, frame, what);
        }
    }
    panic!("{what}: not answered afterwards");
}

/// A driver may have no room behind a frame, and the answer is longer than a SYN without options.
#[test]
fn a_syn_without_room_for_its_answer_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let nothing = Offer { mss: None, sack: false, timestamps: false, scale: None };
        let frame = dial(family).offer(nothing).syn().bytes();
        let other = dial(family).port(1).syn().bytes();
        let is_answered = (0..100).any(|_| {
            programs.ingress(Device::Client, &other);
            // All but the last bytes are in the first piece.
            let outcome = programs.front_in_pieces(Device::Client, &frame, frame.len() - 4);
            let whole = programs.front(Device::Client, &frame);
            let is_answered = whole.verdict == xdp_verdict::TX;
            if is_answered {
                assert!(whole.packet.len() > frame.len(), "the answer needs room");
                assert_unchanged(&outcome, &frame, "no tail room");
            }
            is_answered
        });
        assert!(is_answered, "XDP does not answer a SYN with room");
        // Not even its flags are in the first piece.
        let at = tcp_at(family);
        assert_unchanged(
            &programs.front_in_pieces(Device::Client, &frame, at + 8),
            &frame,
            "flags elsewhere",
        );
    }
}

/// Several next hops may have one link address: two addresses of a router, of which one moves to another router later. What TCX sends to
/// the one has the kernel ask for its neighbour alone.
#[test]
fn the_first_answer_to_each_of_two_next_hops_with_one_link_address_is_left_to_tcx() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let other_family = if family.is_v4() { Family::V6 } else { Family::V4 };
        let frame = syn(family);
        let own = dial(family).port(1).syn().bytes();
        assert_asked_for_itself(&mut programs, &[&syn(other_family)], &own, &frame, "the other family's");
        // A network behind a second router.
        let router = host(family, CLIENT_NET, 77);
        let (net, behind) = match family {
            Family::V4 => ("198.51.100.0/24", "198.51.100.9"),
            Family::V6 => ("2001:db8:77::/64", "2001:db8:77::9"),
        };
        let mac = Device::Client.far_mac().map(|byte| format!("{byte:02x}")).join(":");
        let commands = format!(
            "neigh replace {router} lladdr {mac} dev client nud permanent\nroute replace {net} via {router} dev client\n"
        );
        programs.world.node.ip(&commands).expect("`ip` takes the commands");
        let behind = dial(family).host(behind.parse::<IpAddr>().expect("an address"));
        let (frame, own) = (behind.syn().bytes(), behind.port(1).syn().bytes());
        assert_asked_for_itself(&mut programs, &[&syn(family)], &own, &frame, "another router's");
    }
}

#[test]
fn without_a_resolved_neighbour_a_syn_passes_unchanged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let frame = syn(family);
        let address = client(family);
        let [a, b, c, d, e, f] = Device::Client.far_mac();
        let put = format!(
            "neigh replace {address} lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} dev client nud permanent\n"
        );
        let delete = format!("neigh del {address} dev client\n");
        let known = (0..100).any(|_| {
            programs.ingress(Device::Client, &frame);
            programs.world.node.ip(&delete).expect("`ip` takes the command");
            let outcome = programs.front(Device::Client, &frame);
            // Of a neighbour that is not known, the kernel gives link addresses of zeros.
            let mut nobodys = frame.clone();
            nobodys[..6].fill(0);
            nobodys[tcp_at(family) + 13] = 0;
            assert_unchanged(&programs.front(Device::Client, &nobodys), &nobodys, "neighbour unknown");
            programs.world.node.ip(&put).expect("`ip` takes the command");
            let answered = programs.front(Device::Client, &frame).verdict == xdp_verdict::TX;
            if answered {
                assert_unchanged(&outcome, &frame, "neighbour unknown");
            }
            answered
        });
        assert!(known, "XDP does not answer once the neighbour is known");
    }
}

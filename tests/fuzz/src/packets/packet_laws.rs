//! Invariants of every run and of every packet that leaves.

use std::net::{IpAddr, SocketAddr};

use common::maps::flow::BackendTuple;
use common::reason::Reason;
use tests::compare::describe;
use tests::packet::{Segment, checksum, flag, transport_checksum};
use tests::program::{Outcome, verdict};
use tests::resets::ledger::for_each;
use tests::tuple::backend_tuple;

use super::hosts::{self, Ends};
use super::known::{Backend, Known, addresses, transport_at};

/// Offset of the IP header.
const IP_AT: usize = 14;

/// Whether a reason is counted in addition to a packet's own.
pub fn is_event(reason: Reason) -> bool {
    reason.text().contains("(event)")
}

/// A packet that arrives.
#[derive(Debug)]
pub struct Given<'a> {
    pub frame: &'a [u8],
    /// Sender and receiver.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// The connection it belongs to.
    pub connection: Option<Ends>,
}

impl<'a> Given<'a> {
    /// A packet that arrives. A backend's belongs to the connection that has its port in the maps (`holder`),
    /// or had it last.
    pub fn new(known: &Known, frame: &'a [u8], holder: impl Fn(&BackendTuple) -> Option<Ends>) -> Self {
        let ends = addresses(frame);
        let connection = ends.and_then(|(from, to)| {
            if hosts::is_vip(to.ip()) {
                return Some((from, to));
            }
            let tuple = backend_tuple(from, to);
            holder(&tuple).or_else(|| Some(known.backends.get(&tuple)?.connection))
        });
        Self { frame, ends, connection }
    }

    fn is_reset(&self) -> bool {
        Segment::parse(self.frame).is_some_and(|segment| segment.flags & flag::RST != 0)
    }
}

/// Returns the packet's own reason, after checking the invariants of any run of `ingress`.
pub fn reason(given: &Given<'_>, outcome: &Outcome) -> Reason {
    let own: Vec<_> = outcome.counted.iter().filter(|(reason, _)| !is_event(*reason)).collect();
    let [(reason, 1)] = own.as_slice() else {
        panic!("not one reason: {:?}\n{}", outcome.counted, describe(given.frame));
    };
    match outcome.verdict {
        verdict::NEXT => {
            assert!(reason.text().contains("handed on"), "{reason:?} handed on");
            assert!(outcome.packet == given.frame, "{reason:?} changed what it hands on");
            assert!(outcome.emitted.is_empty(), "{reason:?} hands on and sends");
        }
        verdict::DROP | verdict::REDIRECT => {}
        other => panic!("{reason:?}: verdict {other}"),
    }
    *reason
}

/// Checks that as many RSTs leave as are counted.
pub fn resets<'a>(counted: &[(Reason, u64)], packets: impl Iterator<Item = &'a [u8]>) {
    let mut expected = 0;
    for (reason, by) in counted {
        let Some(each) = for_each(*reason) else { return };
        expected += each * by;
    }
    let sent = packets.filter(|frame| is_reset(frame)).count() as u64;
    assert_eq!(sent, expected, "RSTs for {counted:?}");
}

/// Whether a frame is a TCP segment with RST, whatever else is wrong with it.
fn is_reset(frame: &[u8]) -> bool {
    let flags = frame.get(transport_at(frame) + 13);
    !is_icmp(frame) && flags.is_some_and(|flags| flags & flag::RST != 0)
}

/// Returns the packets that leave, in order.
pub fn packets(outcome: &Outcome) -> impl Iterator<Item = &[u8]> {
    let last = (outcome.verdict == verdict::REDIRECT).then_some(outcome.packet.as_slice());
    outcome.emitted.iter().map(|(_, frame)| frame.as_slice()).chain(last)
}

/// Checks that a packet that leaves is well-formed and goes to an allowed receiver. `content` returns the
/// buffered bytes of a connection's hello.
pub fn check(
    known: &mut Known,
    given: &Given<'_>,
    reason: Reason,
    frame: &[u8],
    content: &dyn Fn(Ends) -> Vec<u8>,
) {
    let (from, to) = addresses(frame).unwrap_or_else(|| panic!("{reason:?} sends\n{}", describe(frame)));
    let passed = is_passed(reason) && frame.len() == given.frame.len();
    assert_eq!(malformed(frame, passed.then_some(given.frame)), None, "\n{}", describe(frame));
    let answer = given.ends == Some((to, from));
    if matches!(reason, Reason::IcmpToBackend | Reason::IcmpToClient) {
        // It goes to the other end of the connection that it quotes.
        assert!(passed && is_icmp(frame), "{reason:?} sends\n{}", describe(frame));
        return;
    }
    if is_icmp(frame) {
        let turned = given.ends.map(|(from, to)| (to.ip(), from.ip()));
        assert_eq!(turned, Some((from.ip(), to.ip())), "ICMP for another end");
        return;
    }
    if answer && given.is_reset() {
        // RFC 5961 section 3.2: by a challenge, and by nothing else.
        let is_challenge = |segment: Segment| segment.flags == flag::ACK && segment.payload.is_empty();
        let challenged = reason == Reason::HelloChallenged && Segment::parse(frame).is_some_and(is_challenge);
        assert!(challenged, "{reason:?}: a RST is answered");
    }
    if passed {
        content_is_unchanged(given, frame);
    }
    let Some(segment) = Segment::parse(frame) else {
        // An IP length of zero means "as long as the packet".
        assert!(passed && told(frame).is_none(), "{reason:?} sends\n{}", describe(frame));
        return;
    };
    if hosts::is_source(from.ip()) {
        to_backend(known, given, reason, &segment, content);
    } else if let Some(client) = known.clients.get_mut(&(to, from)).filter(|client| client.spoke) {
        client.receives(&segment);
        assert!(answer || given.connection == Some((to, from)), "{reason:?}: to another client");
        if passed {
            same_delta(known, given, (from_be(given.frame, 4), segment.seq));
        }
    } else {
        panic!("{reason:?}: to an end that did not send\n{}", describe(frame));
    }
}

/// Whether packets counted under this reason are packets that arrived, rewritten.
fn is_passed(reason: Reason) -> bool {
    use Reason::{ConnectRefused, ForwardBackend, ForwardClient, SynForwarded};
    use Reason::{ForwardReset, ForwardTrial, ForwardUnfit};
    use Reason::{IcmpEcho, IcmpToBackend, IcmpToClient};
    matches!(
        reason,
        SynForwarded
            | ForwardBackend
            | ForwardClient
            | ForwardReset
            | ForwardTrial
            | ForwardUnfit
            | ConnectRefused
    ) || matches!(reason, IcmpEcho | IcmpToBackend | IcmpToClient)
}

pub fn is_icmp(frame: &[u8]) -> bool {
    let v6 = transport_at(frame) == 54;
    if v6 { frame.get(IP_AT + 6) == Some(&58) } else { frame.get(IP_AT + 9) == Some(&1) }
}

/// Length of the frame by its IP header; `None`: the header says zero.
fn told(frame: &[u8]) -> Option<usize> {
    let v6 = transport_at(frame) == 54;
    let at = if v6 { IP_AT + 4 } else { IP_AT + 2 };
    let told = usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    (told != 0).then_some(told + if v6 { IP_AT + 40 } else { IP_AT })
}

/// Returns what is wrong with lengths and checksums. If the packet was only forwarded, they may be as wrong as `before`.
pub fn malformed(frame: &[u8], before: Option<&[u8]>) -> Option<&'static str> {
    let as_before = |same: &dyn Fn(&[u8]) -> bool| before.is_some_and(same);
    if told(frame) != Some(frame.len()) && !as_before(&|given| told(frame) == told(given)) {
        return Some("IP length");
    }
    let at = transport_at(frame);
    if at == 34 && checksum(&frame[IP_AT..at], 0) != 0 {
        return Some("IPv4 header checksum");
    }
    let sum = residue(frame);
    (sum != 0 && !as_before(&|given| sum == residue(given))).then_some("checksum")
}

/// The sum over the transport checksum: zero when it is right.
fn residue(frame: &[u8]) -> u16 {
    let Some((from, to)) = addresses(frame) else { return 0 };
    let end = told(frame).unwrap_or(frame.len()).min(frame.len());
    let transport = frame.get(transport_at(frame)..end).unwrap_or_default();
    match (is_icmp(frame), from.ip()) {
        (true, IpAddr::V4(_)) => checksum(transport, 0),
        (true, IpAddr::V6(_)) => transport_checksum(from.ip(), to.ip(), 58, transport),
        (false, _) => transport_checksum(from.ip(), to.ip(), 6, transport),
    }
}

fn from_be(frame: &[u8], at: usize) -> u32 {
    let at = transport_at(frame) + at;
    u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

/// Checks that flags, header length and payload are unchanged.
fn content_is_unchanged(given: &Given<'_>, frame: &[u8]) {
    let at = transport_at(frame) + 12;
    let payload = transport_at(frame) + usize::from(frame[at] >> 4) * 4;
    let kept = |frame: &[u8]| (frame[at..at + 2].to_vec(), frame[payload..].to_vec());
    // The acknowledgement of a repeated SYN-ACK may be as long as the SYN-ACK.
    if given.frame[at + 1] & flag::SYN == 0 || frame[at + 1] & flag::SYN != 0 {
        assert!(kept(frame) == kept(given.frame), "changed in between\n{}", describe(frame));
    }
}

/// Checks that a backend's sequence numbers are moved by the same distance for as long as its connection lasts.
fn same_delta(known: &mut Known, given: &Given<'_>, (backend, client): (u32, u32)) {
    let tuples = given.ends.map(|(from, to)| backend_tuple(from, to));
    let Some(tuple) = tuples.filter(|tuple| known.backends.contains_key(tuple)) else { return };
    delta_is(known, tuple, backend.wrapping_sub(client));
}

fn delta_is(known: &mut Known, tuple: BackendTuple, delta: u32) {
    if let Some(backend) = known.backends.get_mut(&tuple) {
        assert_eq!(*backend.delta.get_or_insert(delta), delta, "another distance of sequence numbers");
    }
}

fn to_backend(
    known: &mut Known,
    given: &Given<'_>,
    reason: Reason,
    segment: &Segment,
    content: &dyn Fn(Ends) -> Vec<u8>,
) {
    let tuple = backend_tuple(segment.to, segment.from);
    if segment.flags & (flag::SYN | flag::ACK) == flag::SYN {
        return dialled(known, given, reason, segment, content);
    }
    let Some(backend) = known.backends.get_mut(&tuple) else {
        let answer = given.ends == Some((segment.to, segment.from));
        assert!(answer && segment.payload.is_empty(), "{reason:?}: to a backend nobody dialled");
        return;
    };
    assert_eq!(Some(backend.connection), given.connection, "{reason:?}: to another client's backend");
    let client = &known.clients[&backend.connection];
    for (offset, byte) in (0..).zip(&segment.payload) {
        let seq = segment.seq.wrapping_add(offset);
        assert!(client.has_sent(seq, *byte), "{reason:?}: a byte that the client did not send");
    }
    backend.receives(segment);
    let from_client = given.ends.is_some_and(|(from, _)| from != segment.to);
    if reason == Reason::ForwardBackend && from_client && segment.flags & flag::ACK != 0 {
        delta_is(known, tuple, segment.ack.wrapping_sub(from_be(given.frame, 8)));
    }
}

/// Checks a SYN to a backend, which must be of the tenant that the buffered hello names.
fn dialled(
    known: &mut Known,
    given: &Given<'_>,
    reason: Reason,
    segment: &Segment,
    content: &dyn Fn(Ends) -> Vec<u8>,
) {
    let connection = given.connection.unwrap_or_else(|| panic!("{reason:?}: a SYN for nobody"));
    let port = connection.1.port();
    let owner = hosts::owner(port, &content(connection));
    let tenant = hosts::tenant_of(segment.to);
    assert!(tenant.is_some() && owner == tenant, "{reason:?}: MISROUTE: {owner:?}'s to {}", segment.to);
    let tuple = backend_tuple(segment.to, segment.from);
    let repeated = matches!(reason, Reason::ConnectAgain | Reason::ConnectOld | Reason::SynForwarded);
    let same = known.backends.get(&tuple).is_some_and(|backend| backend.is(connection, segment.seq));
    if !(repeated && same) {
        known.backends.insert(tuple, Backend::new(connection, segment.seq));
        known.clients.entry(connection).or_default().dialled.push(tuple);
    }
}

/// Checks that what each backend of a TLS listener received starts with a whole hello that names its tenant.
pub fn streams(known: &Known) {
    let certain = |backend: &Backend| !backend.stream.is_empty() && !backend.doubtful;
    for (tuple, backend) in known.backends.iter().filter(|(_, backend)| certain(backend)) {
        let (address, _) = hosts::ends_of(tuple);
        let owner = hosts::owner(backend.connection.1.port(), &backend.stream);
        assert_eq!(owner, hosts::tenant_of(address), "MISROUTE: {address} got {:02x?}", backend.stream);
    }
}

//! Assertions on a run: its verdict, whole packets, and every counter that changed.

use common::maps::event::Expiry;
use common::maps::flow::{ClientTuple, Flow};
use common::maps::name;
use common::reason::Reason;
use tests::compare::{assert_bytes, assert_frame};
use tests::packet::{Segment, flag};
use tests::program::{Outcome, Programs, verdict};
use tests::tcp_option::TcpOption;
use tests::world::Device;

/// Returns the packet that a run sent.
#[track_caller]
pub(crate) fn sent(outcome: &Outcome) -> Segment {
    assert_eq!(outcome.verdict, verdict::REDIRECT, "{:?}", outcome.counted);
    whole(&outcome.packet)
}

/// Parses a TCP segment and verifies its checksums.
#[track_caller]
pub(crate) fn whole(frame: &[u8]) -> Segment {
    let parsed = Segment::parse(frame).expect("a TCP segment");
    assert_frame(frame, &parsed);
    parsed
}

/// Returns TSval and TSecr.
pub(crate) fn timestamps(segment: &Segment) -> Option<(u32, u32)> {
    segment.options.iter().find_map(|option| match option {
        TcpOption::Timestamps(value, echo) => Some((*value, *echo)),
        _ => None,
    })
}

/// Asserts that the packet was dropped for this reason and nothing was sent.
#[track_caller]
pub(crate) fn assert_dropped(outcome: &Outcome, reason: Reason) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::DROP);
    assert_eq!(outcome.emitted, []);
}

/// Asserts that the packet was handed on unchanged and nothing was sent.
#[track_caller]
pub(crate) fn assert_handed_on(outcome: &Outcome, frame: &[u8], reason: Reason) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::NEXT);
    assert_bytes(&outcome.packet, frame);
    assert_eq!(outcome.emitted, []);
}

/// Asserts that exactly this packet was sent, for this reason.
#[track_caller]
pub(crate) fn assert_sent(outcome: &Outcome, reason: Reason, expected: &Segment) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_frame(&outcome.packet, expected);
    assert_eq!(outcome.emitted, []);
}

/// Asserts that only these copies were sent, in this order.
#[track_caller]
pub(crate) fn assert_emitted(outcome: &Outcome, expected: &[(Device, Segment)]) {
    let devices: Vec<Device> = outcome.emitted.iter().map(|(device, _)| *device).collect();
    let wanted: Vec<Device> = expected.iter().map(|(device, _)| *device).collect();
    assert_eq!(devices, wanted);
    for ((_, frame), (_, segment)) in outcome.emitted.iter().zip(expected) {
        assert_frame(frame, segment);
    }
}

/// Returns the RST with which we answer a segment (RFC 9293 section 3.10.7.1).
pub(crate) fn reset_of(segment: &Segment) -> Segment {
    let (near, far) = segment.ethernet;
    let answer = tests::packet::segment(segment.to, segment.from).ethernet(far, near).window(0).rst();
    if segment.flags & flag::ACK != 0 { answer.seq(segment.ack) } else { answer.seq(0).ack(segment.end()) }
}

/// Returns an order of the daemon about the flow that the client has now.
pub(crate) fn flow_order(programs: &Programs, client: ClientTuple, reason: Reason) -> Expiry {
    let flow: Flow = programs.entry(name::FLOWS, client).unwrap_or_default();
    let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
    Expiry { generation, seen_secs, ..order(client, reason) }
}

/// Returns an order of the daemon about no certain connection of the client.
pub(crate) fn order(client: ClientTuple, reason: Reason) -> Expiry {
    Expiry { client, seq: 0, reason: reason as u32, generation: 0, seen_secs: 0 }
}

//! What a run must have done: verdict, whole packets, every counter that moved.

use common::maps::event::Expiry;
use common::maps::flow::ClientTuple;
use common::reason::Reason;
use tests::compare::{assert_bytes, assert_frame};
use tests::packet::{Segment, flag};
use tests::program::{Outcome, verdict};
use tests::tcp_option::TcpOption;
use tests::world::Device;

/// The packet a run sent.
#[track_caller]
pub(crate) fn sent(outcome: &Outcome) -> Segment {
    assert_eq!(outcome.verdict, verdict::REDIRECT, "{:?}", outcome.counted);
    whole(&outcome.packet)
}

/// A TCP segment, checksums and all.
#[track_caller]
pub(crate) fn whole(frame: &[u8]) -> Segment {
    let parsed = Segment::parse(frame).expect("a TCP segment");
    assert_frame(frame, &parsed);
    parsed
}

/// TSval and TSecr.
pub(crate) fn timestamps(segment: &Segment) -> Option<(u32, u32)> {
    segment.options.iter().find_map(|option| match option {
        TcpOption::Timestamps(value, echo) => Some((*value, *echo)),
        _ => None,
    })
}

/// Dropped for this reason, nothing sent.
#[track_caller]
pub(crate) fn assert_dropped(outcome: &Outcome, reason: Reason) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::DROP);
    assert_eq!(outcome.emitted, []);
}

/// Handed on as it came, nothing sent.
#[track_caller]
pub(crate) fn assert_handed_on(outcome: &Outcome, frame: &[u8], reason: Reason) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::NEXT);
    assert_bytes(&outcome.packet, frame);
    assert_eq!(outcome.emitted, []);
}

/// This one packet sent, for this reason.
#[track_caller]
pub(crate) fn assert_sent(outcome: &Outcome, reason: Reason, expected: &Segment) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_frame(&outcome.packet, expected);
    assert_eq!(outcome.emitted, []);
}

/// Only these copies sent, in this order.
#[track_caller]
pub(crate) fn assert_emitted(outcome: &Outcome, expected: &[(Device, Segment)]) {
    let devices: Vec<Device> = outcome.emitted.iter().map(|(device, _)| *device).collect();
    let wanted: Vec<Device> = expected.iter().map(|(device, _)| *device).collect();
    assert_eq!(devices, wanted);
    for ((_, frame), (_, segment)) in outcome.emitted.iter().zip(expected) {
        assert_frame(frame, segment);
    }
}

/// The RST that answers a segment (RFC 9293 section 3.10.7.1), from us to its sender.
pub(crate) fn reset_of(segment: &Segment) -> Segment {
    let (near, far) = segment.ethernet;
    let answer = tests::packet::segment(segment.to, segment.from).ethernet(far, near).window(0).rst();
    if segment.flags & flag::ACK != 0 { answer.seq(segment.ack) } else { answer.seq(0).ack(segment.end()) }
}

/// An order of the daemon.
pub(crate) fn order(client: ClientTuple, reason: Reason) -> Expiry {
    Expiry { client, seq: 0, reason: reason as u32 }
}

//! Established connections: translates sequence numbers, timestamps, SACK blocks and windows, and tracks the
//! connection to its end. Addresses and ports belong to `delivery`.

use common::maps::flow::{
    ClientTuple, DECLINED_SACK, DECLINED_TIMESTAMPS, End, FLOW_REMOVED, FLOW_RESET, FLOW_UNDELIVERED, Flow,
    WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE,
};
use common::maps::word::{Towards, WINDOW_UNIT};
use common::wire::seq;

use crate::atomic;
use crate::connection::track::{self, Heard};
use crate::connection::{end, pending};
use crate::delivery;
use crate::kernel;
use crate::maps;
use crate::packet::{ACK, FIN, Headers, RST, SYN, Segment, TCP_AT};
use crate::scratch::{Draft, Received};
use crate::segment::hops::FlowHop;
use crate::segment::{draft, emit};
use crate::verified::{Code, verified};

/// What `path` must do with a segment of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The headers are rewritten: send it.
    Pass,
    /// The headers are rewritten: send it; the RST ended the flow.
    PassReset,
    /// The headers are rewritten: send it; the flow ends if the receiver accepts the RST.
    PassTrial,
    /// The headers are rewritten: send it; the RST changes nothing.
    PassUnfit,
    /// Bytes that we acknowledged may be missing at the backend: repeat them.
    Repeat,
    /// The entry lingers: answer with RST.
    Linger,
    /// The backend repeats its SYN-ACK, and the hello is no longer ours to deliver: acknowledge the SYN-ACK.
    AckBackend,
    /// The entry was removed meanwhile: drop the segment, the sender repeats it.
    Stray,
}

impl Code for Step {
    #[inline(always)]
    fn code(self) -> u32 {
        self as u32
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        match code {
            0 => Self::Pass,
            1 => Self::PassReset,
            2 => Self::PassTrial,
            3 => Self::PassUnfit,
            4 => Self::Repeat,
            6 => Self::AckBackend,
            7 => Self::Stray,
            _ => Self::Linger,
        }
    }
}

impl Step {
    /// Returns how a segment passes that meant this for its flow.
    #[inline(always)]
    fn of_heard(heard: Heard) -> Self {
        match heard {
            Heard::Reset => Self::PassReset,
            Heard::OnTrial => Self::PassTrial,
            Heard::Unfit => Self::PassUnfit,
            _ => Self::Pass,
        }
    }
}

verified! {
    /// Tracks and rewrites a client's segment of the flow in `received`; `copy` receives the flow when `path`
    /// needs it.
    pub(crate) fn from_client as forward_client(received: Received, copy: Flow) -> Step {
        let Some(flow) = maps::flow(&received.client) else { return Step::Stray };
        client_segment(received, copy, flow)
    }
}

#[inline(always)]
fn client_segment(received: &mut Received, copy: &mut Flow, flow: &mut Flow) -> Step {
    if let Some(step) = not_open(received, flow) {
        return step;
    }
    emit::keep_received(received);
    received.hop = FlowHop::of(received, flow, Towards::Backend);
    let seg = &received.segment;
    // A repeated segment while bytes are undelivered: the backend may have lost them, and will never request
    // them from the client.
    let repeated = seg.payload_bytes > 0 && seq::before(seg.seq, flow.client.sent.next);
    let heard = track::hear(received, flow, 1);
    if !track::settle(received, flow, heard, true) {
        return Step::Stray;
    }
    if repeated && heard == Heard::Believed && flow.connection.flags & FLOW_UNDELIVERED != 0 {
        kernel::assign(copy, flow);
        return Step::Repeat;
    }
    translate_client(received, flow);
    Step::of_heard(heard)
}

/// Returns the step for a segment of a flow that is not open. `None`: it is open, or closed and lingers.
#[inline(always)]
fn not_open(received: &Received, flow: &mut Flow) -> Option<Step> {
    let head = atomic::word(atomic::head(&mut flow.connection));
    // Not the entry that `path` found: it was freed meanwhile and may belong to another connection.
    if head.generation != received.generation || head.state == FLOW_REMOVED {
        return Some(Step::Stray);
    }
    (head.state == FLOW_RESET).then_some(Step::Linger)
}

/// Rewrites the client's numbers to the backend's.
#[inline(always)]
fn translate_client(received: &mut Received, flow: &Flow) {
    let (h, seg) = (&mut received.headers, &received.segment);
    if seg.has(ACK) {
        h.set_be32(TCP_AT + 8, seg.ack.wrapping_add(flow.seq_delta));
        if seg.timestamps_at != 0 {
            let at = seg.timestamps_at + 4;
            h.set_tcp_be32(at, h.tcp_be32(at).wrapping_add(flow.ts_delta));
        }
    }
    if seg.sack_at != 0 {
        shift_sack(h, seg, flow.seq_delta);
    }
    let agreed = flow.client.sent.agreed();
    if agreed.declined != 0 {
        decline(received, agreed.declined.into());
    }
    if agreed.scaled && flow.backend.sent.agreed().scale == WINDOW_SCALE_NONE {
        let window = (u32::from(received.segment.window) << agreed.scale).min(65_535);
        received.headers.set_be16(TCP_AT + 14, window as u16);
    }
}

verified! {
    /// Tracks and rewrites a backend's segment of `flow`, the entry of the connection in `received`; `copy`
    /// receives the flow when `path` needs it.
    pub(crate) fn from_backend as forward_backend(received: Received, copy: Flow, flow: Flow) -> Step {
        backend_segment(received, copy, flow)
    }
}

#[inline(always)]
fn backend_segment(received: &mut Received, copy: &mut Flow, flow: &mut Flow) -> Step {
    if let Some(step) = not_open(received, flow) {
        return step;
    }
    emit::keep_received(received);
    let shared = delivery::shares_source(&flow.connection);
    received.hop = FlowHop::of(received, flow, Towards::Client).shared(shared);
    let seg = &received.segment;
    let repeated_ack =
        seg.ack == flow.backend.acked.number && seg.payload_bytes == 0 && !seg.has(FIN) && !seg.has(RST);
    let handshake = is_syn_ack(seg, flow);
    let heard = track::hear(received, flow, 0);
    if flow.connection.flags & FLOW_UNDELIVERED != 0 {
        let repeat = match settle_undelivered(received, flow, heard == Heard::Believed) {
            Undelivered::Settled => false,
            Undelivered::Still => repeated_ack || handshake,
            // The client considers these bytes delivered, and neither side can repeat them: `path` finds none, and resets both.
            Undelivered::Lost => true,
        };
        if repeat {
            kernel::assign(copy, flow);
            return Step::Repeat;
        }
    }
    if handshake {
        kernel::assign(copy, flow);
        // What was copied is this flow's if the record still is.
        return not_open(received, flow).unwrap_or(Step::AckBackend);
    }
    if !track::settle(received, flow, heard, false) {
        return Step::Stray;
    }
    translate_backend(received, flow);
    Step::of_heard(heard)
}

/// Whether the segment is the SYN-ACK that opened the flow. Our answer to it has the timestamp that it echoes: answered to any
/// SYN, a stranger, who may know one number, would choose the clock by which the backend judges the client's segments (PAWS).
#[inline(always)]
fn is_syn_ack(seg: &Segment, flow: &Flow) -> bool {
    seg.has(SYN)
        && seg.has(ACK)
        && seg.seq == flow.vip_isn.wrapping_add(flow.seq_delta)
        && seg.ack == flow.client_isn.wrapping_add(1)
}

/// The effect of a backend's segment on bytes of the hello that were undelivered until now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undelivered {
    /// The backend acknowledged all of them; another CPU may have seen that first.
    Settled,
    /// Some of them are still ours to deliver.
    Still,
    /// They were evicted.
    Lost,
}

/// Removes the hello once the backend has acknowledged its bytes, in a segment that is believed.
#[inline(always)]
fn settle_undelivered(received: &mut Received, flow: &mut Flow, believed: bool) -> Undelivered {
    let generation = received.generation;
    let Some(until) = pending::acknowledged(&received.client, flow, generation) else {
        // Another CPU may have received an acknowledgement too: it clears the flag and removes the bytes. Or they were
        // evicted, and this segment shows that they had arrived.
        let arrived = believed && seq::before_or_at(flow.client.sent.next, received.segment.ack);
        let lost = maps::is_undelivered(flow, generation)
            && !(arrived && end::clear(flow, generation, FLOW_UNDELIVERED));
        return if lost { Undelivered::Lost } else { Undelivered::Settled };
    };
    if believed && seq::before_or_at(until, received.segment.ack) {
        // Any CPU may clear the flag; `pending::end` lets one of them remove the bytes. A CPU that no longer finds them
        // sees the flag as cleared.
        if end::clear(flow, generation, FLOW_UNDELIVERED) {
            pending::end(&mut received.client, generation);
        }
        return Undelivered::Settled;
    }
    Undelivered::Still
}

/// Rewrites the backend's numbers to the client's.
#[inline(always)]
fn translate_backend(received: &mut Received, flow: &Flow) {
    let (h, seg) = (&mut received.headers, &received.segment);
    h.set_be32(TCP_AT + 4, seg.seq.wrapping_sub(flow.seq_delta));
    if seg.timestamps_at != 0 {
        h.set_tcp_be32(seg.timestamps_at, seg.tsval.wrapping_sub(flow.ts_delta));
    }
    if flow.client.sent.agreed().scaled {
        let scale = match flow.backend.sent.agreed().scale {
            WINDOW_SCALE_NONE => 0,
            scale => scale,
        };
        let window = u32::from(seg.window) << scale >> WINDOW_SCALE_ANNOUNCED;
        // An open window must not look closed.
        let window = if window == 0 && seg.window > 0 { 1 } else { window.min(65_535) };
        h.set_be16(TCP_AT + 14, window as u16);
    }
}

verified! {
    /// Removes the options from a client's segment that its backend declined.
    fn decline as forward_decline(received: Received; declined: u32) -> () {
        let (h, seg) = (&mut received.headers, &received.segment);
        if declined & u32::from(DECLINED_TIMESTAMPS) != 0 && seg.timestamps_at >= 2 {
            blank(h, seg.timestamps_at - 2, 10);
        }
        if declined & u32::from(DECLINED_SACK) != 0 && seg.sack_at >= 2 {
            blank(h, seg.sack_at - 2, 2 + 8 * seg.sack_blocks);
        }
    }
}

/// Overwrites an option with NOPs.
#[inline(always)]
fn blank(h: &mut Headers, at: u32, bytes: u32) {
    let mut i = 0;
    while i < 34 {
        if i < bytes {
            h.bytes[TCP_AT + ((at + i) & 63) as usize] = 1;
        }
        i += 1;
    }
}

/// Shifts the edges of the client's SACK blocks (RFC 2018) to the backend's numbers.
#[inline(always)]
fn shift_sack(h: &mut Headers, seg: &Segment, delta: u32) {
    let mut block = 0;
    while block < 4 {
        if block < seg.sack_blocks {
            let at = seg.sack_at + block * 8;
            let (left, right) = (h.tcp_be32(at), h.tcp_be32(at + 4));
            h.set_tcp_be32(at, left.wrapping_add(delta));
            h.set_tcp_be32(at + 4, right.wrapping_add(delta));
        }
        block += 1;
    }
}

/// Drafts the acknowledgement of a SYN-ACK that the backend repeats. The client has to repeat the hello itself.
#[inline(always)]
pub(crate) fn acknowledgement(received: &Received, d: &mut Draft, f: &Flow) {
    let seg = &received.segment;
    draft::answer(d, seg);
    d.seq = f.backend.acked.number;
    d.ack = f.client.acked.number;
    d.flags = ACK;
    // The backend scales this field by the client's scale; its own window is only a floor.
    d.window = seg.window >> f.client.sent.agreed().scale.min(14);
    d.timestamps = seg.timestamps_at != 0;
    d.tsval = if seg.timestamps_at == 0 { 0 } else { received.headers.tcp_be32(seg.timestamps_at + 4) };
    d.tsecr = seg.tsval;
}

/// Drafts the challenge to the client's SYN on an open flow (RFC 5961 section 4.2): a client that has lost the
/// connection answers it with a RST that ends the flow. It is one byte behind what the client acknowledged: a client that still
/// has the connection then reads nothing of it.
#[inline(always)]
pub(crate) fn draft_challenge(received: &Received, d: &mut Draft, f: &Flow) {
    draft::to_client(d, &received.client);
    draft_behind(d, f.client.acked.number.wrapping_sub(f.seq_delta), f.backend.acked.number, false);
    d.window = window_to_client(f);
}

/// Returns the window field of a segment of ours to the client: the largest window that the backend announced. If the numbers
/// that we learned were a stranger's, the segment may be ahead of what the client expects; with a window of zero, it would
/// stop the client until the backend has sent as much.
#[inline(always)]
fn window_to_client(f: &Flow) -> u16 {
    let scaled = f.client.sent.agreed().scaled;
    let scale = if scaled { WINDOW_SCALE_ANNOUNCED } else { f.backend.sent.agreed().scale };
    window_field(&f.backend, scale)
}

/// Returns the same of a segment to the backend.
#[inline(always)]
fn window_to_backend(f: &Flow) -> u16 {
    let agreed = f.client.sent.agreed();
    let unscaled = agreed.scaled && f.backend.sent.agreed().scale == WINDOW_SCALE_NONE;
    window_field(&f.client, if unscaled { WINDOW_SCALE_NONE } else { agreed.scale })
}

#[inline(always)]
fn window_field(sender: &End, scale: u8) -> u16 {
    let shift = if scale == WINDOW_SCALE_NONE { 0 } else { u32::from(scale & 15) };
    ((u32::from(sender.acked.window) * WINDOW_UNIT) >> shift).clamp(1, 65_535) as u16
}

/// How far behind a far probe is: the largest window (RFC 7323 section 2.3).
const FAR_BEHIND: u32 = 1 << 30;

/// Drafts the keep-alive probe that asks the backend whether it still has the connection. One is `far` behind: an end answers
/// only what is not in its window, and the numbers that we learned may be a stranger's. A firewall may drop that one.
#[inline(always)]
pub(crate) fn draft_backend_probe(d: &mut Draft, f: &Flow, far: bool) {
    delivery::address(d, &f.nat);
    draft_behind(d, f.backend.acked.number, f.client.acked.number, far);
    d.window = window_to_backend(f);
}

/// Drafts the same for the client.
#[inline(always)]
pub(crate) fn draft_client_probe(client: &ClientTuple, d: &mut Draft, f: &Flow, far: bool) {
    draft::to_client(d, client);
    draft_behind(d, f.client.acked.number.wrapping_sub(f.seq_delta), f.backend.acked.number, far);
    d.window = window_to_client(f);
}

/// A segment without data, one byte before what its receiver expects: it is answered at once (RFC 9293 section 3.8.4).
#[inline(always)]
fn draft_behind(d: &mut Draft, expected: u32, ack: u32, far: bool) {
    d.seq = expected.wrapping_sub(1).wrapping_sub(FAR_BEHIND * u32::from(far));
    d.ack = ack;
    d.flags = ACK;
    d.payload_bytes = 0;
    d.timestamps = false;
}

/// Drafts the RST to the backend of a flow that is over.
#[inline(always)]
pub(crate) fn draft_backend_reset(d: &mut Draft, f: &Flow) {
    delivery::address(d, &f.nat);
    // Never behind what the backend has received: a RST behind that is dropped silently. One ahead of it is
    // answered with a challenge ACK, which we answer.
    draft::reset_at(d, f.client.sent.next);
}

/// Drafts the RST to the client of a flow that is over.
#[inline(always)]
pub(crate) fn draft_client_reset(client: &ClientTuple, d: &mut Draft, f: &Flow) {
    draft::to_client(d, client);
    // As in `draft_backend_reset`.
    draft::reset_at(d, f.backend.sent.next.wrapping_sub(f.seq_delta));
}

//! Established connections: translates sequence numbers, timestamps, SACK blocks and windows, and tracks the
//! connection to its end. Addresses and ports belong to `delivery`.

use common::maps::flow::{
    ClientTuple, DECLINED_SACK, DECLINED_TIMESTAMPS, FLOW_BACKEND_FIN, FLOW_BACKEND_FIN_ACKED,
    FLOW_CLIENT_FIN, FLOW_CLIENT_FIN_ACKED, FLOW_CLOSED, FLOW_ESTABLISHED, FLOW_RESET, FLOW_UNDELIVERED,
    Flow, WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE,
};
use common::wire::seq;

use crate::connection::end;
use crate::delivery;
use crate::kernel;
use crate::maps;
use crate::packet::{ACK, FIN, Headers, RST, SYN, Segment, TCP_AT};
use crate::scratch::{Draft, Received};
use crate::segment::{draft, emit};
use crate::verified::{Code, verified};

/// What `path` must do with a segment of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The headers are rewritten: send it.
    Pass,
    /// The headers are rewritten: send it; the RST ended the flow.
    PassReset,
    /// Bytes that we acknowledged may be missing at the backend: repeat them.
    Repeat,
    /// The entry lingers: answer with RST.
    Linger,
    /// The backend repeats its SYN-ACK, and the hello is no longer ours to deliver: acknowledge the SYN-ACK.
    AckBackend,
    /// The entry was removed meanwhile: drop the segment, the sender repeats it.
    Stray,
    /// Bytes that we acknowledged were evicted before the backend had them: answer with RST.
    Lost,
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
            2 => Self::Repeat,
            4 => Self::AckBackend,
            5 => Self::Stray,
            6 => Self::Lost,
            _ => Self::Linger,
        }
    }
}

verified! {
    /// Tracks and rewrites a client's segment of the flow in `received`; `copy` receives the flow when `path`
    /// needs it.
    pub(crate) fn from_client as forward_client(received: Received, copy: Flow) -> Step {
        let Some(flow) = maps::flow(&received.client) else { return Step::Linger };
        client_segment(received, copy, flow)
    }
}

#[inline(always)]
fn client_segment(received: &mut Received, copy: &mut Flow, flow: &mut Flow) -> Step {
    // Not the entry that `path` found: it was freed meanwhile and may belong to another connection.
    if maps::read_now(&flow.connection.generation) != received.generation {
        return Step::Stray;
    }
    if flow.connection.state == FLOW_RESET {
        return Step::Linger;
    }
    emit::keep_received(received);
    let seg = &received.segment;
    touch(flow, received.now_ns);
    let known = flow.backend_next.wrapping_sub(flow.seq_delta);
    let credible = is_credible(seg, flow.client_acked, known);
    if credible {
        if seq::before(flow.client_acked, seg.ack) {
            flow.client_acked = seg.ack;
        }
        let acked = seg.ack.wrapping_add(flow.seq_delta);
        if flow.connection.backend_flags & FLOW_BACKEND_FIN != 0
            && flow.connection.flags & FLOW_BACKEND_FIN_ACKED == 0
            && seq::before_or_at(flow.backend_fin, acked)
        {
            flow.connection.flags |= FLOW_BACKEND_FIN_ACKED;
            in_order(flow);
        }
    }
    // A repeated segment while bytes are undelivered: the backend may have lost them, and will never request
    // them from the client.
    if flow.connection.backend_flags & FLOW_UNDELIVERED != 0
        && seg.payload_bytes > 0
        && seq::before(seg.seq, flow.client_next)
    {
        kernel::assign(copy, flow);
        return Step::Repeat;
    }
    // Checked against the numbers of earlier segments: a RST must not confirm its own number.
    let reset = seg.has(RST) && (seg.seq == flow.client_next || seg.seq == flow.backend_acked);
    let end = seg.end();
    if credible && !seg.has(RST) && seq::before(flow.client_next, end) {
        flow.client_next = end;
    }
    if seg.has(FIN) && end == flow.client_next {
        flow.connection.flags |= FLOW_CLIENT_FIN;
        flow.client_fin = end;
    }
    finish(received, flow, reset);
    translate_client(received, flow);
    if reset { Step::PassReset } else { Step::Pass }
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
    if flow.declined != 0 {
        decline(received, flow.declined.into());
    }
    if flow.client_scale != WINDOW_SCALE_NONE && flow.backend_scale == WINDOW_SCALE_NONE {
        let window = (u32::from(received.segment.window) << (flow.client_scale & 15)).min(65_535);
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
    // The entry may belong to another connection now.
    if maps::read_now(&flow.connection.generation) != received.generation {
        return Step::Stray;
    }
    if flow.connection.state == FLOW_RESET {
        return Step::Linger;
    }
    emit::keep_received(received);
    let seg = &received.segment;
    touch(flow, received.now_ns);
    let repeated_ack =
        seg.ack == flow.backend_acked && seg.payload_bytes == 0 && !seg.has(FIN) && !seg.has(RST);
    if flow.connection.backend_flags & FLOW_UNDELIVERED != 0 {
        match settle_undelivered(received, flow) {
            Undelivered::Settled => {}
            Undelivered::Lost => {
                // The client considers these bytes delivered, but they are lost and neither side can repeat them.
                end::flow(&mut received.client, flow, FLOW_RESET, received.now_ns);
                return Step::Lost;
            }
            Undelivered::Still if repeated_ack || received.segment.has(SYN) => {
                kernel::assign(copy, flow);
                return Step::Repeat;
            }
            Undelivered::Still => {}
        }
    }
    let seg = &received.segment;
    if seg.has(SYN) {
        kernel::assign(copy, flow);
        return Step::AckBackend;
    }
    let credible = is_credible(seg, flow.backend_acked, flow.client_next);
    if credible {
        if seq::before(flow.backend_acked, seg.ack) {
            flow.backend_acked = seg.ack;
        }
        if flow.connection.flags & FLOW_CLIENT_FIN != 0
            && flow.connection.backend_flags & FLOW_CLIENT_FIN_ACKED == 0
            && seq::before_or_at(flow.client_fin, seg.ack)
        {
            flow.connection.backend_flags |= FLOW_CLIENT_FIN_ACKED;
            in_order(flow);
        }
    }
    let asked = flow.client_acked.wrapping_add(flow.seq_delta);
    let reset = seg.has(RST) && (seg.seq == flow.backend_next || seg.seq == asked);
    let end = seg.end();
    if credible && !seg.has(RST) && seq::before(flow.backend_next, end) {
        flow.backend_next = end;
    }
    if seg.has(FIN) && end == flow.backend_next {
        flow.connection.backend_flags |= FLOW_BACKEND_FIN;
        flow.backend_fin = end;
    }
    finish(received, flow, reset);
    translate_backend(received, flow);
    if reset { Step::PassReset } else { Step::Pass }
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

/// Removes the hello once the backend has acknowledged its bytes.
#[inline(always)]
fn settle_undelivered(received: &Received, flow: &mut Flow) -> Undelivered {
    let Some(pending) = maps::pending(&received.client) else {
        // Another CPU may have received an acknowledgement too: it clears the flag and removes the bytes.
        return if maps::is_undelivered(flow) { Undelivered::Lost } else { Undelivered::Settled };
    };
    let until = pending.isn.wrapping_add(1).wrapping_add(pending.acked);
    if received.segment.has(ACK) && seq::before_or_at(until, received.segment.ack) {
        flow.connection.backend_flags &= !FLOW_UNDELIVERED;
        // The flag must be seen as cleared by any CPU that no longer finds the hello.
        in_order(flow);
        maps::remove_pending(&received.client);
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
    if flow.client_scale != WINDOW_SCALE_NONE {
        let scale = if flow.backend_scale == WINDOW_SCALE_NONE { 0 } else { flow.backend_scale & 15 };
        let window = u32::from(seg.window) << scale >> WINDOW_SCALE_ANNOUNCED;
        // An open window must not look closed.
        let window = if window == 0 && seg.window > 0 { 1 } else { window.min(65_535) };
        h.set_be16(TCP_AT + 14, window as u16);
    }
}

/// An acknowledgement this far behind the newest one may still be in transit.
const ACK_SLACK: u32 = 1 << 24;

/// Whether the sender of a segment receives what the other side sends (RFC 5961 section 5): it acknowledges
/// data that was sent to it, which ends at `known`, and nothing long past. Other segments pass too, but the
/// flow takes nothing from them: neither the numbers by which a RST is judged, nor an end.
#[inline(always)]
fn is_credible(segment: &Segment, acked: u32, known: u32) -> bool {
    let open = known.wrapping_sub(acked).wrapping_add(ACK_SLACK);
    segment.has(ACK) && known.wrapping_sub(segment.ack) <= open
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

/// A full barrier: the other direction can see what was written before, and only then are its flags read. When both
/// directions see a FIN acknowledged at the same moment, on two CPUs, at least one of them must see both.
#[inline(always)]
fn in_order(flow: &mut Flow) {
    // Adds nothing, but an atomic addition that returns the previous value is a full barrier (kernel:
    // Documentation/atomic_t.txt).
    maps::add(&mut flow.seen_secs, 0);
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

/// Records that the flow is alive. Written only once a second, to spare the cache line.
#[inline(always)]
fn touch(flow: &mut Flow, now_ns: u64) {
    let now = (now_ns / 1_000_000_000) as u32;
    if flow.seen_secs != now {
        flow.seen_secs = now;
    }
}

/// Ends the flow when both sides are done or one of them was reset.
#[inline(always)]
fn finish(received: &mut Received, flow: &mut Flow, reset: bool) {
    let done = FLOW_CLIENT_FIN_ACKED | FLOW_BACKEND_FIN_ACKED;
    let (client, now_ns) = (&mut received.client, received.now_ns);
    if reset {
        end::flow(client, flow, FLOW_RESET, now_ns);
    } else if flow.connection.state == FLOW_ESTABLISHED
        && (flow.connection.flags | flow.connection.backend_flags) & done == done
    {
        end::flow(client, flow, FLOW_CLOSED, now_ns);
    }
}

/// Whether a client's segment acknowledges something that this flow's backend sent. The cookie of a new
/// connection is not in that range.
#[inline(always)]
pub(crate) fn fits(flow: &Flow, segment: &Segment) -> bool {
    let acked = segment.ack.wrapping_add(flow.seq_delta);
    segment.has(ACK)
        && seq::before_or_at(flow.client_acked, segment.ack)
        && seq::before_or_at(acked, flow.backend_next)
}

/// Drafts the acknowledgement of a SYN-ACK that the backend repeats. The client has to repeat the hello itself.
#[inline(always)]
pub(crate) fn acknowledgement(received: &Received, d: &mut Draft, f: &Flow) {
    let seg = &received.segment;
    draft::answer(d, seg);
    d.seq = f.backend_acked;
    d.ack = f.client_acked.wrapping_add(f.seq_delta);
    d.flags = ACK;
    // The backend scales this field by the client's scale; its own window is only a floor.
    d.window = seg.window >> (f.client_scale & 15).min(14);
    d.timestamps = seg.timestamps_at != 0;
    d.tsval = if seg.timestamps_at == 0 { 0 } else { received.headers.tcp_be32(seg.timestamps_at + 4) };
    d.tsecr = seg.tsval;
}

/// Drafts the RST to the backend of a flow that is over.
#[inline(always)]
pub(crate) fn draft_backend_reset(d: &mut Draft, f: &Flow) {
    delivery::address(d, &f.nat);
    // Never behind what the backend has received: a RST behind that is dropped silently. One ahead of it is
    // answered with a challenge ACK, which we answer.
    draft::reset_at(d, f.client_next);
}

/// Drafts the RST to the client of a flow that is over.
#[inline(always)]
pub(crate) fn draft_client_reset(client: &ClientTuple, d: &mut Draft, f: &Flow) {
    draft::to_client(d, client);
    // As in `draft_backend_reset`.
    draft::reset_at(d, f.backend_next.wrapping_sub(f.seq_delta));
}

//! Established connections: translates addresses, ports, sequence numbers, timestamps, SACK blocks and windows, and
//! follows the connection to its end.

use common::maps::flow::{
    ClientTuple, DECLINED_SACK, DECLINED_TIMESTAMPS, FLOW_BACKEND_FIN, FLOW_BACKEND_FIN_ACKED,
    FLOW_CLIENT_FIN, FLOW_CLIENT_FIN_ACKED, FLOW_CLOSED, FLOW_ESTABLISHED, FLOW_OWED, FLOW_RESET, Flow,
    WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE,
};
use common::reason::Reason;
use common::wire::seq;

use crate::draft;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, FIN, RST, SYN, Scratch, Segment, TCP_AT};
use crate::stage::{close, emit};

/// What `path` has to do with a segment of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Headers are rewritten: send it.
    Pass,
    /// Headers are rewritten: send it; the flow ended by RST.
    PassReset,
    /// Bytes that we acknowledged are missing at the backend: repeat them from `s.from` on.
    Repeat,
    /// The entry lingers: answer with RST.
    Linger,
    /// The backend repeats its SYN-ACK and the hello is not ours any more: acknowledge it.
    AckBackend,
    /// The entry went meanwhile: drop, the sender repeats.
    Stray,
}

impl Step {
    #[inline(always)]
    const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Pass,
            1 => Self::PassReset,
            2 => Self::Repeat,
            4 => Self::AckBackend,
            5 => Self::Stray,
            _ => Self::Linger,
        }
    }
}

/// Follows and rewrites a client's segment of the flow at `s.client`.
#[inline(always)]
pub(crate) fn from_client(s: &mut Scratch) -> Step {
    Step::from_code(forward_client(s))
}

/// Follows and rewrites a backend's segment of `flow`, the entry of `s.client`.
#[inline(always)]
pub(crate) fn from_backend(s: &mut Scratch, flow: &mut Flow) -> Step {
    Step::from_code(forward_backend(s, flow))
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn forward_client(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Step::Linger as u32 };
    let Some(flow) = maps::flow(&s.client) else { return Step::Linger as u32 };
    client_segment(s, flow) as u32
}

#[inline(always)]
fn client_segment(s: &mut Scratch, flow: &mut Flow) -> Step {
    // Not the entry that `path` found: freed meanwhile, and perhaps another connection's by now.
    if flow.nat != s.flow.nat {
        return Step::Stray;
    }
    if flow.state == FLOW_RESET {
        return Step::Linger;
    }
    emit::keep_received(s);
    let seg = &s.segment;
    touch(flow, s.now_ns);
    let known = flow.backend_next.wrapping_sub(flow.seq_delta);
    let credible = is_credible(seg, flow.client_acked, known);
    if credible {
        if seq::before(flow.client_acked, seg.ack) {
            flow.client_acked = seg.ack;
        }
        let acked = seg.ack.wrapping_add(flow.seq_delta);
        if flow.backend_flags & FLOW_BACKEND_FIN != 0
            && flow.flags & FLOW_BACKEND_FIN_ACKED == 0
            && seq::before_or_at(flow.backend_fin, acked)
        {
            flow.flags |= FLOW_BACKEND_FIN_ACKED;
            in_order(flow);
        }
    }
    // A repeated segment while we owe bytes: the backend may have lost them, and will never ask the client.
    if flow.backend_flags & FLOW_OWED != 0 && seg.payload_bytes > 0 && seq::before(seg.seq, flow.client_next)
    {
        kernel::assign(&mut s.flow, flow);
        return Step::Repeat;
    }
    // Judged by what came before: the RST must not vouch for its own number.
    let reset = seg.has(RST) && (seg.seq == flow.client_next || seg.seq == flow.backend_acked);
    let end = seg.end();
    if credible && !seg.has(RST) && seq::before(flow.client_next, end) {
        flow.client_next = end;
    }
    if seg.has(FIN) && end == flow.client_next {
        flow.flags |= FLOW_CLIENT_FIN;
        flow.client_fin = end;
    }
    finish(&s.client, flow, reset, s.now_ns);
    translate_client(s, flow);
    if reset { Step::PassReset } else { Step::Pass }
}

#[inline(always)]
fn translate_client(s: &mut Scratch, flow: &Flow) {
    draft::to_backend(&mut s.draft, &s.flow.nat);
    let (h, seg) = (&mut s.headers, &s.segment);
    if seg.has(ACK) {
        h.set_be32(TCP_AT + 8, seg.ack.wrapping_add(flow.seq_delta));
        if seg.timestamps_at != 0 {
            let at = seg.timestamps_at + 4;
            h.set_tcp_be32(at, h.tcp_be32(at).wrapping_add(flow.ts_delta));
        }
    }
    if seg.sack_at != 0 {
        shift_sack(s, flow.seq_delta);
    }
    if flow.declined != 0 {
        forward_decline(s, flow.declined.into());
    }
    if flow.client_scale != WINDOW_SCALE_NONE && flow.backend_scale == WINDOW_SCALE_NONE {
        let window = (u32::from(s.segment.window) << (flow.client_scale & 15)).min(65_535);
        s.headers.set_be16(TCP_AT + 14, window as u16);
    }
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn forward_backend(s: *mut Scratch, flow: *mut Flow) -> u32 {
    // SAFETY: as in `forward_client`.
    let Some(s) = (unsafe { s.as_mut() }) else { return Step::Linger as u32 };
    // SAFETY: null is checked; else it is an element of a map.
    let Some(flow) = (unsafe { flow.as_mut() }) else { return Step::Linger as u32 };
    backend_segment(s, flow) as u32
}

#[inline(always)]
fn backend_segment(s: &mut Scratch, flow: &mut Flow) -> Step {
    // The entry may be another connection's by now; but nobody else has this four-tuple.
    if flow.nat != s.segment.backend_tuple() {
        return Step::Stray;
    }
    if flow.state == FLOW_RESET {
        return Step::Linger;
    }
    emit::keep_received(s);
    let seg = &s.segment;
    touch(flow, s.now_ns);
    let repeated_ack =
        seg.ack == flow.backend_acked && seg.payload_bytes == 0 && !seg.has(FIN) && !seg.has(RST);
    if flow.backend_flags & FLOW_OWED != 0 {
        let owing = owed(s, flow);
        if flow.state == FLOW_RESET {
            close::put(&s.client, s.now_ns);
            return Step::Linger;
        }
        if owing && (repeated_ack || s.segment.has(SYN)) {
            kernel::assign(&mut s.flow, flow);
            return Step::Repeat;
        }
    }
    let seg = &s.segment;
    if seg.has(SYN) {
        kernel::assign(&mut s.flow, flow);
        return Step::AckBackend;
    }
    let credible = is_credible(seg, flow.backend_acked, flow.client_next);
    if credible {
        if seq::before(flow.backend_acked, seg.ack) {
            flow.backend_acked = seg.ack;
        }
        if flow.flags & FLOW_CLIENT_FIN != 0
            && flow.backend_flags & FLOW_CLIENT_FIN_ACKED == 0
            && seq::before_or_at(flow.client_fin, seg.ack)
        {
            flow.backend_flags |= FLOW_CLIENT_FIN_ACKED;
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
        flow.backend_flags |= FLOW_BACKEND_FIN;
        flow.backend_fin = end;
    }
    finish(&s.client, flow, reset, s.now_ns);
    translate_backend(s, flow);
    if reset { Step::PassReset } else { Step::Pass }
}

/// Whether bytes of the hello are still owed to the backend; gives them up once it acknowledged them.
/// `s.hello` is loaded when they are.
#[inline(always)]
fn owed(s: &mut Scratch, flow: &mut Flow) -> bool {
    let Some(hello) = maps::hello(&s.client) else {
        // It gave way: what the client believes delivered is lost, and nobody can repeat it.
        flow.state = FLOW_RESET;
        return true;
    };
    let until = hello.isn.wrapping_add(1).wrapping_add(hello.acked);
    if s.segment.has(ACK) && seq::before_or_at(until, s.segment.ack) {
        flow.backend_flags &= !FLOW_OWED;
        maps::remove_hello(&s.client);
        return false;
    }
    true
}

#[inline(always)]
fn translate_backend(s: &mut Scratch, flow: &Flow) {
    draft::to_client(&mut s.draft, &s.client);
    let (h, seg) = (&mut s.headers, &s.segment);
    h.set_be32(TCP_AT + 4, seg.seq.wrapping_sub(flow.seq_delta));
    if seg.timestamps_at != 0 {
        h.set_tcp_be32(seg.timestamps_at, seg.tsval.wrapping_sub(flow.ts_delta));
    }
    if flow.client_scale != WINDOW_SCALE_NONE {
        let scale = if flow.backend_scale == WINDOW_SCALE_NONE { 0 } else { flow.backend_scale & 15 };
        let window = u32::from(seg.window) << scale >> WINDOW_SCALE_ANNOUNCED;
        // A window that is open must not look shut.
        let window = if window == 0 && seg.window > 0 { 1 } else { window.min(65_535) };
        h.set_be16(TCP_AT + 14, window as u16);
    }
}

/// Acknowledgements this far behind the newest one may still be on their way.
const ACK_SLACK: u32 = 1 << 24;

/// Whether a segment is from somebody who hears what the other side sends (RFC 5961 section 5): it acknowledges what was
/// sent to it, `known` being the end of that, and nothing long past. Others pass, but the flow learns nothing from them:
/// neither numbers, by which a RST is judged, nor an end.
#[inline(always)]
fn is_credible(segment: &Segment, acked: u32, known: u32) -> bool {
    let open = known.wrapping_sub(acked).wrapping_add(ACK_SLACK);
    segment.has(ACK) && known.wrapping_sub(segment.ack) <= open
}

/// Takes the options out of a client's segment that its backend declined. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn forward_decline(s: *mut Scratch, declined: u32) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    if declined & u32::from(DECLINED_TIMESTAMPS) != 0 && s.segment.timestamps_at >= 2 {
        blank(s, s.segment.timestamps_at - 2, 10);
    }
    if declined & u32::from(DECLINED_SACK) != 0 && s.segment.sack_at >= 2 {
        blank(s, s.segment.sack_at - 2, 2 + 8 * s.segment.sack_blocks);
    }
    0
}

/// Writes NOPs over an option.
#[inline(always)]
fn blank(s: &mut Scratch, at: u32, bytes: u32) {
    let mut i = 0;
    while i < 34 {
        if i < bytes {
            s.headers.bytes[TCP_AT + ((at + i) & 63) as usize] = 1;
        }
        i += 1;
    }
}

/// What was written before is seen by the other direction before it is asked for its own flags: when each sees the other
/// acknowledge its FIN at the same moment, on two CPUs, one of them at least has to see both.
#[inline(always)]
fn in_order(flow: &mut Flow) {
    // Adds nothing; an atomic addition that gives the value before is a full barrier (kernel: Documentation/atomic_t.txt).
    maps::add(&mut flow.seen_secs, 0);
}

/// Moves the edges of the client's SACK blocks (RFC 2018) to the backend's numbers.
#[inline(always)]
fn shift_sack(s: &mut Scratch, delta: u32) {
    let mut block = 0;
    while block < 4 {
        if block < s.segment.sack_blocks {
            let at = s.segment.sack_at + block * 8;
            let (left, right) = (s.headers.tcp_be32(at), s.headers.tcp_be32(at + 4));
            s.headers.set_tcp_be32(at, left.wrapping_add(delta));
            s.headers.set_tcp_be32(at + 4, right.wrapping_add(delta));
        }
        block += 1;
    }
}

/// Notes that the flow lives; written once a second, so that the cache line is not.
#[inline(always)]
fn touch(flow: &mut Flow, now_ns: u64) {
    let now = (now_ns / 1_000_000_000) as u32;
    if flow.seen_secs != now {
        flow.seen_secs = now;
    }
}

/// Ends the flow when both sides are done or one was reset.
#[inline(always)]
fn finish(client: &ClientTuple, flow: &mut Flow, reset: bool, now_ns: u64) {
    if flow.state != FLOW_ESTABLISHED {
        if reset {
            flow.state = FLOW_RESET;
        }
        return;
    }
    let done = FLOW_CLIENT_FIN_ACKED | FLOW_BACKEND_FIN_ACKED;
    if reset {
        flow.state = FLOW_RESET;
    } else if (flow.flags | flow.backend_flags) & done == done {
        flow.state = FLOW_CLOSED;
    } else {
        return;
    }
    close::put(client, now_ns);
}

/// Whether a client's segment acknowledges something that this flow's backend sent: a new connection's cookie lies
/// elsewhere.
#[inline(always)]
pub(crate) fn fits(flow: &Flow, segment: &Segment) -> bool {
    let acked = segment.ack.wrapping_add(flow.seq_delta);
    segment.has(ACK)
        && seq::before_or_at(flow.client_acked, segment.ack)
        && seq::before_or_at(acked, flow.backend_next)
}

/// Answers a packet of a flow that was reset (RFC 5961: only a RST at the sender's own number is believed).
#[inline(always)]
pub(crate) fn linger(skb: Skb, s: &mut Scratch) -> Exit {
    emit::reset(skb, s, Reason::ForwardLinger)
}

/// Acknowledges a repeated SYN-ACK of the backend: the hello itself is the client's to repeat.
#[inline(always)]
pub(crate) fn acknowledge_backend(skb: Skb, s: &mut Scratch) -> Exit {
    draft::answer(s);
    let (d, f) = (&mut s.draft, &s.flow);
    d.seq = f.backend_acked;
    d.ack = f.client_acked.wrapping_add(f.seq_delta);
    d.flags = ACK;
    // The client's own scale is on it: the backend's figure is only a floor.
    d.window = s.segment.window >> (f.client_scale & 15).min(14);
    d.timestamps = s.segment.timestamps_at != 0;
    d.tsval = timestamp_echoed(&s.headers, &s.segment);
    d.tsecr = s.segment.tsval;
    emit::send(skb, s, Reason::ForwardBackend)
}

/// The client's timestamp, as the backend echoes it.
#[inline(always)]
fn timestamp_echoed(headers: &crate::packet::Headers, segment: &Segment) -> u32 {
    if segment.timestamps_at == 0 { 0 } else { headers.tcp_be32(segment.timestamps_at + 4) }
}

/// Drafts the RST that tells the backend of a flow that is over.
#[inline(always)]
pub(crate) fn draft_backend_reset(s: &mut Scratch) {
    draft::to_backend(&mut s.draft, &s.flow.nat);
    // Never behind what the backend has: a RST that is is dropped in silence. One ahead is challenged, and answered.
    draft::reset_at(&mut s.draft, s.flow.client_next);
}

/// Drafts the RST that tells the client of a flow that is over.
#[inline(always)]
pub(crate) fn draft_client_reset(s: &mut Scratch) {
    draft::to_client(&mut s.draft, &s.client);
    // As in `draft_backend_reset`.
    draft::reset_at(&mut s.draft, s.flow.backend_next.wrapping_sub(s.flow.seq_delta));
}

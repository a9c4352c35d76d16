//! The second handshake: our SYN to the backend, its answer, and the bytes of the hello once it accepts.
//! Addresses and ports belong to `delivery`.

use common::decide::track;
use common::maps::flow::{
    DECLINED_SACK, DECLINED_TIMESTAMPS, FLOW_BACKEND_ON_TRIAL, FLOW_UNDELIVERED, Flow, HELLO_BYTES_MAX,
    OPTION_SACK, OPTION_TIMESTAMPS, PENDING_CONNECTING, PENDING_UNDELIVERED, Pending, WINDOW_SCALE_NONE,
};
use common::maps::word::{Agreed, units};
use common::reason::Reason;

use crate::buffer::place;
use crate::connection::{open, pending};
use crate::delivery;
use crate::exit::Exit;
use crate::kernel::Skb;
use crate::maps;
use crate::packet::{ACK, PSH, RST, SYN, Segment};
use crate::scratch::{Cursors, Dial, Draft, Received, Waiting};
use crate::segment::{draft, emit};
use crate::verified::{looped, verified};

/// Stores the pending connection. From now on it waits for the backend in `dial`.
#[inline(always)]
pub(crate) fn store(received: &mut Received, dial: &Dial, waiting: &mut Waiting) -> Result<(), Exit> {
    let p = &mut waiting.pending;
    p.connection = dial.connection;
    p.connection.state = PENDING_CONNECTING;
    p.nat = dial.nat;
    p.mtu = dial.choice.record.mtu;
    p.offset = dial.choice.offset;
    p.silent = dial.choice.silent;
    p.retransmits = 0;
    p.moves = 0;
    let stored = pending::store(received, waiting);
    if stored.is_err() {
        delivery::release(&dial.nat, &received.client, dial.connection.generation);
    }
    stored
}

/// Stores that the backend of the connection, whose record this CPU holds, is asked again: it is the only usable one.
#[inline(always)]
pub(crate) fn again(received: &mut Received, dial: &Dial, waiting: &mut Waiting) -> Result<(), Exit> {
    waiting.pending.offset = dial.choice.offset;
    waiting.pending.silent = dial.choice.silent;
    pending::store(received, waiting)
}

/// Restores the pending connection's choice, so that the next backend is picked from there.
#[inline(always)]
pub(crate) fn resume(dial: &mut Dial, pending: &Pending) {
    dial.connection = pending.connection;
    dial.listener.id = pending.connection.listener;
    dial.choice.route = pending.connection.route;
    dial.choice.backend = pending.connection.backend;
    dial.choice.offset = pending.offset;
    dial.choice.silent = pending.silent;
}

/// Ports that may be given up for one segment of the client. Each costs a SYN, for a bare ACK that anybody can forge who
/// guesses the port.
const MOVES_MAX: u8 = 8;

verified! {
    /// Gives up the source port of the connection, whose record this CPU holds, for the next free one, because the
    /// backend has an old connection on it. That one may be alive: the node masquerades others' connections with ports
    /// that `delivery` cannot see. `false`: the port and the record stay, or the connection is over.
    pub(crate) fn move_port as connect_move_port[Skb, skb](
        received: Received, dial: Dial, waiting: Waiting
    ) -> bool {
        let p = &mut waiting.pending;
        if p.moves >= MOVES_MAX || !delivery::owns_source(&p.connection) {
            return false;
        }
        resume(dial, p);
        delivery::resume(dial, &p.nat);
        // Claimed before the old one is released, or it could be that one.
        if delivery::open_again(skb, received, dial).is_err() {
            return false;
        }
        delivery::release(&p.nat, &received.client, p.connection.generation);
        p.nat = dial.nat;
        p.moves += 1;
        pending::write_back(received, waiting)
    }
}

/// Drafts the SYN of a pending connection.
#[inline(always)]
pub(crate) fn draft_syn(segment: &Segment, draft: &mut Draft, pending: &Pending) {
    delivery::address(draft, &pending.nat);
    let (d, p) = (draft, pending);
    d.payload_bytes = 0;
    d.payload_from = 0;
    d.seq = p.isn;
    d.ack = 0;
    d.flags = SYN;
    // A SYN's window is not scaled (RFC 7323 section 2.2).
    let shift = if p.window_scale == WINDOW_SCALE_NONE { 0 } else { u32::from(p.window_scale & 15) };
    d.window = (u32::from(p.window) << shift).min(65_535) as u16;
    let headers = if segment.v4 { 40 } else { 60 };
    d.mss = p.mss.min(p.mtu.saturating_sub(headers));
    d.window_scale = p.window_scale;
    d.sack_permitted = p.options & OPTION_SACK != 0;
    d.timestamps = p.options & OPTION_TIMESTAMPS != 0;
    d.tsval = p.client_tsval;
    d.tsecr = 0;
}

/// Drafts a RST to the client of a pending connection, at the sequence number that the client expects.
#[inline(always)]
pub(crate) fn draft_client_reset(received: &Received, draft: &mut Draft, vip_isn: u32) {
    draft::to_client(draft, &received.client);
    draft::reset_at(draft, vip_isn.wrapping_add(1));
}

/// The meaning of a backend's segment for a connection that waits for its SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A SYN-ACK to our SYN.
    Accepted,
    /// A RST to our SYN.
    Refused,
    /// A bare acknowledgement of an old connection on the same ports: in TIME_WAIT, one whose end the backend missed, or
    /// one that is alive.
    Old,
    /// An acknowledgement of our SYN that accepts nothing, such as the answer to an earlier one that arrived late (RFC 7323
    /// section 5.3).
    Late,
    /// No answer: of an old connection, or forged.
    Stray,
}

/// Reads the backend's answer to the SYN of a pending connection.
#[inline(always)]
pub(crate) fn answer(seg: &Segment, pending: &Pending) -> Answer {
    let acceptable = seg.has(ACK) && seg.ack == pending.isn.wrapping_add(1);
    if acceptable && seg.has(RST) {
        Answer::Refused
    } else if acceptable && seg.has(SYN) {
        Answer::Accepted
    } else if acceptable {
        Answer::Late
    } else if seg.has(ACK) && seg.is_bare() {
        Answer::Old
    } else {
        Answer::Stray
    }
}

verified! {
    /// Makes the flow after the backend accepted; the hello is then ours to deliver. This CPU holds the record, which
    /// stays if bytes were acknowledged to the client. `Err` with a reset verdict: both sides must be reset.
    pub(crate) fn establish as connect_establish(
        received: Received, waiting: Waiting, flow: Flow
    ) -> Result<(), Exit> {
        let p = &mut waiting.pending;
        open::may_open(&p.connection)?;
        agree(&received.segment, flow, p);
        let undelivered = p.acked > 0;
        let mut connection = p.connection;
        // The client may be gone: only an answer to a probe shows that it is not.
        let on_trial = if p.challenged != 0 { FLOW_BACKEND_ON_TRIAL } else { 0 };
        connection.flags = if undelivered { FLOW_UNDELIVERED } else { 0 } | on_trial;
        open::open(&mut received.client, flow, &connection, &p.nat, received.now_ns)?;
        p.connection.state = PENDING_UNDELIVERED;
        if undelivered {
            // Its slots go on counting for its source and route: the backend may never acknowledge it.
            pending::write(received, waiting);
        } else {
            place::free(waiting);
            pending::remove_held(received, waiting);
        }
        open::opened(&connection);
        if on_trial != 0 {
            maps::report_trial(&mut received.client);
        }
        Ok(())
    }
}

/// Sets what both handshakes agreed on: numbers, scales and options of the flow, and the size of our segments
/// to the backend.
#[inline(always)]
fn agree(seg: &Segment, f: &mut Flow, p: &mut Pending) {
    let timestamps = p.options & OPTION_TIMESTAMPS != 0 && seg.timestamps_at != 0;
    f.seq_delta = seg.seq.wrapping_sub(p.vip_isn);
    // Tied to the last timestamp we sent, so that its echo becomes the timestamp of the backend's own
    // SYN-ACK: Linux from 6.15 on accepts no other while it waits for our ACK.
    f.ts_delta = if timestamps { seg.tsval.wrapping_sub(p.our_tsval) } else { 0 };
    f.client.acked.number = seg.seq.wrapping_add(1);
    f.client.acked.window = units(track::window(p.window, p.window_scale));
    f.client.sent.next = p.isn.wrapping_add(1).wrapping_add(p.have);
    f.backend.acked.number = p.isn.wrapping_add(1);
    // The window that we announced to the client may be larger than the backend's.
    f.backend.acked.window = units((HELLO_BYTES_MAX as u32).max(seg.window.into()));
    f.backend.sent.next = seg.seq.wrapping_add(1);
    f.client_isn = p.isn;
    f.vip_isn = p.vip_isn;
    let mut declined = 0;
    if !timestamps && p.options & OPTION_TIMESTAMPS != 0 {
        declined |= DECLINED_TIMESTAMPS;
    }
    if !seg.sack_permitted && p.options & OPTION_SACK != 0 {
        declined |= DECLINED_SACK;
    }
    let scaled = p.window_scale != WINDOW_SCALE_NONE;
    f.agree(Agreed { scale: p.window_scale, scaled, declined }, Agreed::scale(seg.window_scale));
    if declined != 0 || scaled && seg.window_scale == WINDOW_SCALE_NONE {
        maps::count_event(Reason::ConnectDeclined);
    }
    let default = if seg.v4 { 536 } else { 1220 };
    let headers = if seg.v4 { 40 } else { 60 };
    let mss = if seg.mss == 0 { default } else { seg.mss };
    // Timestamps take 12 bytes of each segment (RFC 6691).
    p.backend_mss = mss.min(p.mtu.saturating_sub(headers)).clamp(88, 8960) - if timestamps { 12 } else { 0 };
    if !timestamps {
        p.options &= !OPTION_TIMESTAMPS;
    }
}

/// Drafts what all segments of a delivery to the backend of `flow` have in common. The packet is counted
/// under `reason`.
#[inline(always)]
pub(crate) fn draft_delivery(draft: &mut Draft, pending: &Pending, flow: &Flow, reason: Reason) {
    delivery::address(draft, &flow.nat);
    let (d, p) = (draft, pending);
    // Acknowledges what the client has, not what was sent to it: the backend has to repeat what the client lost.
    d.ack = flow.client.acked.number;
    // When the backend declined scaling, our window must be unscaled.
    let unscaled =
        p.window_scale != WINDOW_SCALE_NONE && flow.backend.sent.agreed().scale == WINDOW_SCALE_NONE;
    let window = if unscaled { u32::from(p.window) << (p.window_scale & 15) } else { u32::from(p.window) };
    d.window = window.min(65_535) as u16;
    d.timestamps = p.options & OPTION_TIMESTAMPS != 0;
    d.tsval = p.client_tsval;
    d.tsecr = p.our_tsval.wrapping_add(flow.ts_delta);
    d.reason = reason as u32;
}

verified! {
    /// Sends stream bytes `cursors.from` to `have`, which are in the window, in segments of at most the
    /// backend's MSS. Uses the draft of [`draft_delivery`]. The last segment replaces the packet in hand;
    /// [`emit::learn_partial`] must have run.
    pub(crate) fn deliver as connect_deliver[Skb, skb](
        received: Received, draft: Draft, waiting: Waiting, cursors: Cursors
    ) -> Exit {
        cursors.deliver_at = cursors.from;
        deliver_full(skb, received, draft, waiting, cursors);
        draft_piece(draft, &waiting.pending, cursors.deliver_at);
        emit::emit_draft(skb, received, draft, cursors)
    }
}

looped! {
    /// Sends one full segment, if another one follows it.
    fn deliver_full[Skb, skb](
        received: Received, draft: Draft, waiting: Waiting, cursors: Cursors
    ) times 256, |_round| {
        let mss = u32::from(waiting.pending.backend_mss);
        if cursors.deliver_at + mss >= waiting.pending.have {
            return true;
        }
        draft_piece(draft, &waiting.pending, cursors.deliver_at);
        emit::copy(skb, received, draft, cursors);
        cursors.deliver_at += mss;
        false
    }
}

/// Drafts the segment that starts at stream byte `at`.
#[inline(always)]
fn draft_piece(d: &mut Draft, p: &Pending, at: u32) {
    let left = p.have.saturating_sub(at);
    d.payload_from = at;
    d.payload_bytes = left.min(u32::from(p.backend_mss));
    d.seq = p.isn.wrapping_add(1).wrapping_add(at);
    d.flags = if left > 0 && d.payload_bytes == left { ACK | PSH } else { ACK };
}

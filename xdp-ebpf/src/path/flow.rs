//! Packets of an established connection, or of one that is over and lingers.

use common::maps::flow::{FLOW_ESTABLISHED, FLOW_SYN_SEEN, FLOW_UNDELIVERED, Flow, HELLO_OFFSET_MASK};
use common::maps::listener::PROTOCOL_TCP;
use common::reason::Reason;
use common::wire::seq;

use crate::atomic;
use crate::buffer::bytes;
use crate::connection::cookie::{self, PROOF_FIRST, PROOF_KEEP_ALIVE, PROOF_LATER};
use crate::connection::half_open as half_open_record;
use crate::connection::record::Found;
use crate::connection::{count, end, forget, pending, renew};
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, FIN, RST, SYN};
use crate::scratch::{Received, Scratch};
use crate::segment::{draft, emit};
use crate::stage::forward::{self, Step};
use crate::stage::{checksum, classify, connect, half_open};

/// Whether the client's segment belongs to a flow. `received.generation` and the draft's receiver are then taken from
/// the flow. Stage `forward` looks the flow up again and compares the generation. Only then is it certain that both
/// were read from this client's entry, because the entry may become another client's at any time.
///
/// A SYN may be forged: it is challenged, and only if it comes again is it answered. If the flow is over, the SYN
/// removes it. A segment that does not acknowledge what this flow's backend sent, and proves a new handshake, starts a new
/// connection: after a repeated SYN, and while the client has acknowledged nothing, for it may have given up and sent
/// another SYN before the flow opened. That segment never follows the old flow to the previous tenant.
#[inline(always)]
pub(super) fn takes(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let received = &mut s.received;
    let Some(flow) = maps::flow(&received.client) else { return Ok(false) };
    let head = atomic::word(atomic::head(&mut flow.connection));
    received.generation = head.generation;
    delivery::address(&mut s.draft, &flow.nat);
    let segment = &received.segment;
    let syn = segment.is_syn();
    let known = renew::is_known(flow, head.flags, segment);
    if !syn && known && segment.flags & (FIN | RST) == 0 {
        return Ok(true);
    }
    // A segment that may start or end a connection must be what its sender sent.
    checksum::tcp(skb, received, &mut s.cursors)?;
    if syn {
        if head.state != FLOW_ESTABLISHED {
            // If the kernel refused, what follows the SYN would be answered for the old flow: the client repeats the SYN.
            return match forget::flow(&mut received.client, head.generation)
                || maps::flow(&received.client).is_none()
            {
                true => Ok(false),
                false => Err(Exit::drop(Reason::SynBusy)),
            };
        }
        if renew::is_repeated(received, flow) {
            return Ok(false);
        }
        kernel::assign(&mut s.flow, flow);
        // What was copied is this flow's if the record still is. Otherwise the client repeats its SYN.
        if atomic::word(atomic::head(&mut flow.connection)).generation != head.generation {
            return Err(Exit::drop(Reason::SynStray));
        }
        forward::draft_challenge(received, &mut s.draft, &s.flow);
        return Err(emit::send(skb, received, &mut s.draft, &mut s.cursors, Reason::SynChallenged));
    }
    if known {
        return Ok(true);
    }
    let own = received.segment.ack == flow.vip_isn.wrapping_add(1);
    let proved = handshake(s, flow.client_isn, head.flags & FLOW_SYN_SEEN != 0);
    match proved {
        Handshake::New | Handshake::Answered if head.wrong_cookies != u8::MAX => {}
        // A stranger guesses cookies. Nor must a hello reach the old backend.
        Handshake::New | Handshake::Answered => return Err(Exit::drop(Reason::SynStray)),
        // A later segment of the new hello, which must not reach the old backend.
        Handshake::Ahead if !own => return Err(Exit::drop(Reason::SynEarly)),
        Handshake::Ahead => return Ok(true),
        Handshake::Busy => return Err(Exit::drop(Reason::SynBusy)),
        Handshake::Old => {
            renew::count_wrong(flow, head.generation);
            return Ok(true);
        }
    }
    replace(skb, s, proved)
}

/// Removes the flow in favour of the new connection that the segment in hand starts.
#[inline(always)]
fn replace(skb: Skb, s: &mut Scratch, proved: Handshake) -> Result<bool, Exit> {
    let received = &mut s.received;
    let Some(old) = maps::flow(&received.client) else { return Ok(false) };
    kernel::assign(&mut s.flow, old);
    if !forget::flow(&mut received.client, received.generation) {
        // Another CPU does the same with another segment: the client repeats this one.
        return Err(Exit::drop(Reason::SynEarly));
    }
    maps::count_event(Reason::SynFlowReplaced);
    // Where the backend sees the client's own port, it is another one that answered, and the old one learns it from nobody.
    let is_used_up = proved == Handshake::Answered && !delivery::owns_source(&s.flow.connection);
    if received.segment.payload_bytes == 0 && (proved == Handshake::New || is_used_up) {
        reset_old(skb, s, is_used_up)?;
    }
    Ok(false)
}

/// Resets the backend of the flow in `s.flow` by the bare ACK that proved a handshake, of which nothing else is passed on. On a
/// TLS listener the ACK has no other use. If it `is_used_up`, it counts as lost: the client's next segment, or its answer to the
/// repeated SYN-ACK, opens the connection.
#[inline(always)]
fn reset_old(skb: Skb, s: &mut Scratch, is_used_up: bool) -> Result<(), Exit> {
    let by_port = !is_used_up
        && classify::listener(&mut s.received, &mut s.dial.listener)?
        && s.dial.listener.protocol == PROTOCOL_TCP;
    let received = &mut s.received;
    forward::draft_backend_reset(&mut s.draft, &s.flow);
    if !by_port {
        let exit = emit::send(skb, received, &mut s.draft, &mut s.cursors, Reason::SynAcked);
        if exit.verdict() == Verdict::Redirect {
            maps::count_event(Reason::SynOldReset);
        }
        return Err(exit);
    }
    emit::learn_partial(skb, received)?;
    if emit::copy(skb, received, &mut s.draft, &mut s.cursors) {
        maps::count_event(Reason::SynOldReset);
    }
    // The ACK's own checksum was verified before it was changed.
    received.partial_known = true;
    Ok(())
}

/// What a segment belongs to that follows a SYN on an open flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handshake {
    /// The existing flow.
    Old,
    /// A new connection, which the segment proves by our cookie.
    New,
    /// A new connection, which the segment proves by the SYN-ACK of its backend.
    Answered,
    /// A new connection whose proof has not arrived yet.
    Ahead,
    /// Not known: another CPU holds the half-open record.
    Busy,
}

/// Returns what the segment belongs to; `isn` is the client's initial sequence number in the existing flow. Unless a SYN was
/// `seen` since, it may be a late segment of an earlier handshake on the same ports, whose number is behind this one (RFC 6528).
#[inline(always)]
fn handshake(s: &mut Scratch, isn: u32, seen: bool) -> Handshake {
    let received = &mut s.received;
    // On a TCP listener, the proof is an acknowledgement of the SYN-ACK to the new SYN.
    match half_open_record::lock(received, &mut s.half_open, 0) {
        Found::None => {}
        Found::Busy => return Handshake::Busy,
        Found::Held => {
            let record = &s.half_open.record;
            let proof = record.isn != isn
                && !received.segment.has(RST)
                && half_open::acknowledged(&received.segment, record);
            if proof {
                return Handshake::Answered;
            }
        }
    }
    match cookie::proof(received, &mut s.waiting) {
        PROOF_FIRST | PROOF_KEEP_ALIVE if is_later(isn, s.waiting.pending.isn, seen) => Handshake::New,
        PROOF_LATER => Handshake::Ahead,
        _ => Handshake::Old,
    }
}

#[inline(always)]
fn is_later(old: u32, new: u32, seen: bool) -> bool {
    if seen { new != old } else { seq::before(old, new) }
}

/// Handles the client's segment.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    match forward::from_client(received, &mut s.flow) {
        Step::Pass => delivery::to_backend(skb, received, draft, Reason::ForwardBackend),
        Step::PassReset => delivery::to_backend(skb, received, draft, Reason::ForwardReset),
        Step::PassTrial => delivery::to_backend(skb, received, draft, Reason::ForwardTrial),
        Step::PassUnfit => delivery::to_backend(skb, received, draft, Reason::ForwardUnfit),
        // RFC 5961: the client accepts a RST only at the exact number that its segment acknowledges.
        Step::Linger | Step::AckBackend => Exit::reset(Reason::ForwardLinger),
        Step::Stray => Exit::drop(Reason::SynStray),
        Step::Repeat => repeat_for_client(skb, s),
    }
}

/// Handles the backend's segment. `None`: the connection is not established.
#[inline(always)]
pub(super) fn backend(skb: Skb, s: &mut Scratch) -> Option<Exit> {
    let (received, draft) = (&mut s.received, &mut s.draft);
    let flow = maps::flow(&received.client).filter(|flow| {
        flow.connection.generation == received.generation && delivery::is_own(&flow.nat, &received.segment)
    })?;
    received.from_node = delivery::is_to_node(&flow.connection);
    // A segment that may end a connection, or that frees undelivered bytes, must be what the backend sent.
    let believed =
        received.segment.flags & (SYN | FIN | RST) != 0 || flow.connection.flags & FLOW_UNDELIVERED != 0;
    if believed && let Err(exit) = checksum::tcp(skb, received, &mut s.cursors) {
        return Some(exit);
    }
    if is_of_another(received, flow) {
        // The port is then free: what follows is the other connection's, too.
        forget::flow(&mut received.client, received.generation);
        return Some(Exit::next(Reason::ConnectStray));
    }
    Some(match forward::from_backend(received, &mut s.flow, flow) {
        Step::Pass => delivery::to_client(skb, received, draft, Reason::ForwardClient),
        Step::PassReset => delivery::to_client(skb, received, draft, Reason::ForwardReset),
        Step::PassTrial => delivery::to_client(skb, received, draft, Reason::ForwardTrial),
        Step::PassUnfit => delivery::to_client(skb, received, draft, Reason::ForwardUnfit),
        Step::Linger => Exit::reset(Reason::ForwardLinger),
        Step::AckBackend => {
            forward::acknowledgement(received, draft, &s.flow);
            emit::send(skb, received, draft, &mut s.cursors, Reason::ForwardBackend)
        }
        Step::Stray => Exit::drop(Reason::ForwardChanged),
        Step::Repeat => repeat_for_backend(skb, s),
    })
}

/// Whether the backend answers another connection of the node: on the port of one of ours that is over and lingers, the node may
/// masquerade another one by now. Passed on, its SYN-ACK would be reset by our client, and answered here, by us.
#[inline(always)]
fn is_of_another(received: &Received, flow: &mut Flow) -> bool {
    let segment = &received.segment;
    segment.has(SYN)
        && segment.has(ACK)
        && segment.ack != flow.client_isn.wrapping_add(1)
        && atomic::word(atomic::head(&mut flow.connection)).state != FLOW_ESTABLISHED
}

/// Sends the undelivered bytes to the backend again, because the client repeats them.
#[inline(always)]
fn repeat_for_client(skb: Skb, s: &mut Scratch) -> Exit {
    match undelivered_bytes(s) {
        Bytes::Settled => Exit::drop(Reason::HelloBeyond),
        Bytes::Busy => Exit::drop(Reason::HelloBusy),
        Bytes::Lost => lost(skb, s),
        Bytes::Held => {
            s.cursors.from = undelivered(s);
            match bytes::fetch(&mut s.received, &mut s.waiting, &mut s.cursors) {
                true => deliver(skb, s),
                false => lost(skb, s),
            }
        }
    }
}

/// Sends bytes to the backend again that we acknowledged to the client and that the backend is missing.
#[inline(always)]
fn repeat_for_backend(skb: Skb, s: &mut Scratch) -> Exit {
    match undelivered_bytes(s) {
        Bytes::Settled => return Exit::drop(Reason::ForwardChanged),
        Bytes::Busy => return Exit::drop(Reason::ConnectBusy),
        Bytes::Lost => return lost_for_backend(skb, s),
        Bytes::Held => {}
    }
    let acked = s.received.segment.ack.wrapping_sub(s.waiting.pending.isn.wrapping_add(1));
    s.cursors.from = acked & HELLO_OFFSET_MASK;
    if !bytes::fetch(&mut s.received, &mut s.waiting, &mut s.cursors) {
        return lost_for_backend(skb, s);
    }
    // A duplicate ACK requests only the first gap; the client's own retransmissions still cause all to be repeated.
    if !s.received.segment.has(SYN) {
        let p = &mut s.waiting.pending;
        p.have = p.have.min(s.cursors.from + u32::from(p.backend_mss));
    }
    deliver(skb, s)
}

/// The bytes of the hello that a flow's backend may be missing.
enum Bytes {
    /// Their record is held, and copied to `s.waiting`.
    Held,
    /// Another CPU holds it.
    Busy,
    /// The backend has them: another CPU received its acknowledgement meanwhile.
    Settled,
    /// They were evicted.
    Lost,
}

/// Locks the undelivered bytes of the flow in `s.flow`.
#[inline(always)]
fn undelivered_bytes(s: &mut Scratch) -> Bytes {
    match pending::lock(&mut s.received, &mut s.waiting, s.flow.connection.generation) {
        Found::Held => Bytes::Held,
        Found::Busy => Bytes::Busy,
        Found::None if end::has_undelivered(&s.received.client, &s.flow) => Bytes::Lost,
        Found::None => Bytes::Settled,
    }
}

/// Returns the first byte of the hello that the backend has not acknowledged.
#[inline(always)]
fn undelivered(s: &Scratch) -> u32 {
    s.flow.backend.acked.number.wrapping_sub(s.waiting.pending.isn.wrapping_add(1)) & HELLO_OFFSET_MASK
}

#[inline(always)]
fn deliver(skb: Skb, s: &mut Scratch) -> Exit {
    if let Err(exit) = emit::learn_partial(skb, &mut s.received) {
        return exit;
    }
    connect::draft_delivery(&mut s.draft, &s.waiting.pending, &s.flow, Reason::ConnectRepeated);
    connect::deliver(skb, &mut s.received, &mut s.draft, &mut s.waiting, &mut s.cursors)
}

/// Resets both sides: on a segment of the client, bytes that we acknowledged were found to be gone. If the backend has them meanwhile, the
/// segment is dropped instead, and repeated.
#[inline(always)]
fn lost(skb: Skb, s: &mut Scratch) -> Exit {
    let received = &mut s.received;
    if !end::reset_undelivered(&mut received.client, received.generation, received.now_ns) {
        return Exit::drop(Reason::HelloBusy);
    }
    pending::end(&mut received.client, s.flow.connection.generation);
    if let Err(failed) = emit::learn_partial(skb, received) {
        return failed;
    }
    forward::draft_backend_reset(&mut s.draft, &s.flow);
    emit::copy(skb, received, &mut s.draft, &mut s.cursors);
    Exit::reset(Reason::HelloBufferFailed)
}

/// The same on a segment of the backend.
#[inline(always)]
fn lost_for_backend(skb: Skb, s: &mut Scratch) -> Exit {
    let received = &mut s.received;
    if !end::reset_undelivered(&mut received.client, received.generation, received.now_ns) {
        return Exit::drop(Reason::ConnectBusy);
    }
    count::refused(s.flow.connection.route);
    pending::end(&mut received.client, s.flow.connection.generation);
    connect::draft_client_reset(received, &mut s.draft, s.flow.vip_isn);
    if let Err(failed) = emit::learn_partial(skb, received) {
        return failed;
    }
    emit::copy(skb, received, &mut s.draft, &mut s.cursors);
    draft::answer(&mut s.draft, &received.segment);
    draft::reset_numbers(&mut s.draft, &received.segment);
    let exit = Exit::reset(Reason::HelloBufferFailed);
    emit::send_for(skb, received, &mut s.draft, &mut s.cursors, exit)
}

//! Packets of a TCP listener's connection: the SYN was passed to the backend, and the client's ACK opens the flow.

use common::reason::Reason;

use crate::connection::{count, half_open as record};
use crate::delivery;
use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::RST;
use crate::scratch::Scratch;
use crate::segment::{draft, emit};
use crate::stage::classify::Class;
use crate::stage::{checksum, fast_open, half_open};

/// Handles the client's segment; its connection is in `s.half_open`. `Ok`: the class that the packet has now.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    let received = &mut s.received;
    checksum::tcp(skb, received, &mut s.cursors)?;
    let segment = &received.segment;
    if segment.is_syn() {
        if s.half_open.record.isn == segment.seq {
            return Ok(Class::HalfOpen);
        }
        record::remove_held(received, &mut s.half_open);
        return Ok(Class::New);
    }
    if segment.has(RST) {
        return Err(reset(skb, s));
    }
    if !half_open::acknowledged(segment, &s.half_open.record) {
        return Err(Exit::reset(Reason::SynCookieMismatch));
    }
    match half_open::open(received, &mut s.half_open, &mut s.flow) {
        Ok(()) => {
            delivery::address(&mut s.draft, &s.half_open.record.nat);
            Ok(Class::Flow)
        }
        Err(exit) => Err(refuse_both(skb, s, exit)),
    }
}

/// Passes the SYN in hand to the backend.
#[inline(always)]
pub(super) fn pass_syn(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    emit::keep_received(received);
    if received.segment.tcp_bytes > 20 {
        fast_open::take_out(received, &mut s.cursors);
    }
    delivery::address(draft, &s.half_open.record.nat);
    delivery::to_backend(skb, received, draft, Reason::SynForwarded)
}

/// The client gives up: its RST is passed to the backend.
#[inline(always)]
fn reset(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    if !half_open::abandoned(&received.segment, &s.half_open.record) {
        return Exit::drop(Reason::SynStray);
    }
    record::remove_held(received, &mut s.half_open);
    emit::keep_received(received);
    delivery::address(draft, &s.half_open.record.nat);
    delivery::to_backend(skb, received, draft, Reason::ForwardReset)
}

/// Refuses the client's ACK, which arrived too late: its backend was removed, or the flow table is full. The
/// backend, which waits for an ACK, is reset too.
#[inline(always)]
fn refuse_both(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    record::remove_held(received, &mut s.half_open);
    count::refused(s.half_open.record.connection.route);
    if let Err(failed) = emit::learn_partial(skb, received) {
        return failed;
    }
    delivery::address(draft, &s.half_open.record.nat);
    draft::reset_at(draft, received.segment.seq);
    emit::copy(skb, received, draft, &mut s.cursors);
    exit
}

/// Passes the backend's own answer to the client.
#[inline(always)]
pub(super) fn backend(skb: Skb, s: &mut Scratch) -> Exit {
    let (received, draft) = (&mut s.received, &mut s.draft);
    half_open::answered(received, &mut s.half_open);
    let refused = half_open::refused(&received.segment, &s.half_open.record);
    if refused {
        record::remove_held(received, &mut s.half_open);
        count::refused(s.half_open.record.connection.route);
    }
    emit::keep_received(received);
    let reason = if refused { Reason::ConnectRefused } else { Reason::ForwardClient };
    delivery::to_client(skb, received, draft, reason)
}

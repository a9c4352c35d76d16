//! Packets of a connection that waits for bytes of its hello, or for its backend.

use common::maps::flow::PENDING_CONNECTING;
use common::maps::listener::PROTOCOL_TCP;
use common::reason::Reason;

use super::dial;
use crate::buffer::{bytes, source};
use crate::connection::{count, half_open, pending as record};
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::kernel::Skb;
use crate::packet::RST;
use crate::scratch::Scratch;
use crate::segment::{draft, emit};
use crate::stage::connect::{self, Answer};
use crate::stage::{admit, checksum, hello, pick, route};

/// Whether the client's segment belongs to the connection in `s.waiting`. A connection past its time limit is
/// forgotten, and its own segment is answered with RST.
#[inline(always)]
pub(super) fn takes(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let received = &mut s.received;
    checksum::tcp(skb, received, &mut s.cursors)?;
    let own = hello::is_own(&received.segment, &s.waiting.pending);
    let reset = received.segment.has(RST);
    if !own || !hello::is_over(received, &s.waiting.pending) {
        // A RST that is not the connection's own neither ends nor starts anything. Nor does any segment of a stranger
        // remove a connection that is over: its client would never get its RST.
        return Ok(own || reset);
    }
    record::remove_held(received, &mut s.waiting);
    Err(if reset { Exit::drop(Reason::HelloReset) } else { Exit::reset(Reason::HelloTimeout) })
}

/// Handles the client's segment: collects the hello, finds its tenant, dials a backend. If the client is
/// refused, its connection is forgotten.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = collect(skb, s);
    if exit.verdict() == Verdict::Reset && s.waiting.held {
        record::remove_held(&mut s.received, &mut s.waiting);
    }
    exit
}

#[inline(always)]
fn collect(skb: Skb, s: &mut Scratch) -> Exit {
    let by_port = s.dial.listener.protocol == PROTOCOL_TCP;
    let (received, waiting, cursors) = (&mut s.received, &mut s.waiting, &mut s.cursors);
    waiting.new = !waiting.held;
    let taken = match waiting.new && by_port {
        true => hello::take_any(skb, received, waiting, cursors),
        false => hello::take(skb, received, waiting, cursors),
    };
    let is_complete = taken.is_ok();
    let exit = match taken {
        Ok(()) if s.waiting.pending.connection.state == PENDING_CONNECTING => return repeated(skb, s),
        Ok(()) => complete(skb, s).unwrap_or_else(|exit| exit),
        Err(exit) => exit,
    };
    // Whatever became of it here: the client has its connection, and must not be refused.
    if s.waiting.new && record::is_second(&mut s.received, &mut s.waiting) {
        return Exit::drop(Reason::HelloBeyond);
    }
    match exit.verdict() == Verdict::Redirect {
        true if is_complete => send_syn(skb, s, exit),
        true => acknowledge(skb, s, exit),
        false => exit,
    }
}

/// Acknowledges the part of the hello that has arrived.
#[inline(always)]
fn acknowledge(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    hello::acknowledgement(&s.received, &mut s.draft, &s.waiting.pending);
    emit::send_for(skb, &mut s.received, &mut s.draft, &mut s.cursors, exit)
}

/// Handles a complete hello, or whatever the client of a TCP listener says first: finds the tenant and chooses one of its
/// backends, to which a SYN must be sent.
#[inline(always)]
fn complete(skb: Skb, s: &mut Scratch) -> Result<Exit, Exit> {
    route::by_name(&mut s.dial, &mut s.waiting)?;
    let admitted = admit::new(&mut s.received, &mut s.dial);
    if let Err(exit) = admitted.and_then(|()| pick::next(&mut s.received, &mut s.dial)) {
        dial::count_refused(&s.dial, exit);
        return Err(exit);
    }
    s.dial.connection.generation = s.waiting.pending.connection.generation;
    // Only now, so that a refused hello does not take a slot from another one.
    let kept = bytes::keep(&mut s.received, &mut s.waiting, &mut s.cursors);
    let opened = kept.and_then(|()| open(skb, s));
    if let Err(exit) = opened.and_then(|()| connecting(s)) {
        dial::count_refused(&s.dial, exit);
        return Err(exit);
    }
    if s.dial.listener.protocol == PROTOCOL_TCP {
        // Another CPU may have passed on a SYN of this client, which proved nothing.
        half_open::forget(&mut s.received.client);
    }
    Ok(Exit::sent(Reason::ConnectSyn))
}

/// Claims the backend's side of the connection. The client has proved that it is there: a SYN that nobody has proved, by another VIP or
/// port, gives up its port to it.
#[inline(always)]
fn open(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    let opened = delivery::open(skb, &mut s.received, &mut s.dial);
    let is_taken = opened == Err(Exit::reset(Reason::ConnectNoPort));
    if !is_taken || delivery::owns_source(&s.dial.connection) {
        return opened;
    }
    dial::push_out(skb, &mut s.received, &mut s.dial, &mut s.draft, &mut s.cursors)
}

/// Stores the record, which waits for its backend from now on, and counts it as such: no longer for its source, but for
/// the source and the route. A record that is removed gives back the count of its state.
#[inline(always)]
fn connecting(s: &mut Scratch) -> Result<(), Exit> {
    let route = s.dial.connection.route;
    let slots = record::slots(s.waiting.pending.have) as u8;
    let counted = count::raise_connecting(&mut s.received.client, route, slots.into());
    // What was not counted is not given back either: it would be another hello's.
    s.waiting.pending.slots = if counted { slots } else { 0 };
    let stored = connect::store(&mut s.received, &s.dial, &mut s.waiting);
    // A record that could not take the new state is removed in the one before.
    if stored.is_err() {
        count::lower_connecting(&s.received.client, route, s.waiting.pending.slots);
    } else if !s.waiting.new {
        source::lower(&s.received.client, s.waiting.pending.source_epoch);
    }
    stored
}

/// Handles a repetition of a complete hello: the backend has not answered.
#[inline(always)]
fn repeated(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = dial::again(skb, s);
    if exit.verdict() == Verdict::Redirect { send_syn(skb, s, exit) } else { exit }
}

/// Sends the SYN to the backend, counted under the reason of `exit`.
#[inline(always)]
fn send_syn(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    connect::draft_syn(&s.received.segment, &mut s.draft, &s.waiting.pending);
    emit::send_for(skb, &mut s.received, &mut s.draft, &mut s.cursors, exit)
}

/// Handles the backend's segment while we wait for its SYN-ACK.
#[inline(always)]
pub(super) fn backend(skb: Skb, s: &mut Scratch) -> Exit {
    match connect::answer(&s.received.segment, &s.waiting.pending) {
        // Its connection, if there is one, is the node's, and needs it.
        Answer::Stray => Exit::next(Reason::ConnectStray),
        // The node's stack would answer by a RST, which ends the backend's side of this very connection.
        Answer::Late => Exit::drop(Reason::ConnectIgnored),
        Answer::Old => step_aside(skb, s),
        Answer::Refused => refused(skb, s),
        Answer::Accepted => accepted(skb, s),
    }
}

/// Handles an old connection that the backend has on our four-tuple: gives up the port, and sends the SYN from another
/// one. The old connection may be alive, so it is never reset. Its bare ACK is replaced by the SYN: the loss of an ACK
/// without data harms no connection.
#[inline(always)]
fn step_aside(skb: Skb, s: &mut Scratch) -> Exit {
    match connect::move_port(skb, &mut s.received, &mut s.dial, &mut s.waiting) {
        true => send_syn(skb, s, Exit::sent(Reason::ConnectOld)),
        false => Exit::next(Reason::ConnectStray),
    }
}

/// The backend of the connection in `s.waiting`, whose record this CPU holds, refused or is unreachable: dials the next
/// one.
#[inline(always)]
pub(super) fn refused(skb: Skb, s: &mut Scratch) -> Exit {
    let exit = dial::next(skb, &mut s.received, &mut s.dial, &mut s.waiting);
    match exit.verdict() {
        Verdict::Redirect => send_syn(skb, s, exit),
        Verdict::Reset => {
            record::remove_held(&mut s.received, &mut s.waiting);
            connect::draft_client_reset(&s.received, &mut s.draft, s.waiting.pending.vip_isn);
            emit::send_for(skb, &mut s.received, &mut s.draft, &mut s.cursors, exit)
        }
        _ => exit,
    }
}

/// The backend accepted: establishes the connection and sends the hello to the backend.
#[inline(always)]
fn accepted(skb: Skb, s: &mut Scratch) -> Exit {
    s.cursors.from = 0;
    if !bytes::fetch(&mut s.received, &mut s.waiting, &mut s.cursors) {
        return refuse_both(skb, s, Exit::reset(Reason::HelloBufferFailed));
    }
    match connect::establish(&mut s.received, &mut s.waiting, &mut s.flow) {
        Ok(()) => deliver(skb, s),
        Err(exit) if exit.verdict() == Verdict::Reset => refuse_both(skb, s, exit),
        Err(exit) => exit,
    }
}

#[inline(always)]
fn deliver(skb: Skb, s: &mut Scratch) -> Exit {
    if let Err(exit) = emit::learn_partial(skb, &mut s.received) {
        return exit;
    }
    connect::draft_delivery(&mut s.draft, &s.waiting.pending, &s.flow, Reason::ConnectHello);
    connect::deliver(skb, &mut s.received, &mut s.draft, &mut s.waiting, &mut s.cursors)
}

/// Resets the client, and also the backend, which has a connection.
#[inline(always)]
fn refuse_both(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    count::refused(s.waiting.pending.connection.route);
    record::remove_held(&mut s.received, &mut s.waiting);
    let (received, draft) = (&mut s.received, &mut s.draft);
    connect::draft_client_reset(received, draft, s.waiting.pending.vip_isn);
    if let Err(failed) = emit::learn_partial(skb, received) {
        return failed;
    }
    emit::copy(skb, received, draft, &mut s.cursors);
    draft::answer(draft, &received.segment);
    draft::reset_numbers(draft, &received.segment);
    emit::send_for(skb, received, draft, &mut s.cursors, exit)
}

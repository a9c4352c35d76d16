//! Packets of a TCP listener's connection: the SYN was passed to the backend, and the client's ACK opens the flow.

use common::maps::flow::HALF_OPEN_DIALLED;
use common::reason::Reason;

use super::previous;
use crate::connection::cookie::{self, PROOF_FIRST, PROOF_KEEP_ALIVE, PROOF_LATER, PROOF_NONE};
use crate::connection::{count, half_open as record};
use crate::delivery;
use crate::exit::{Exit, Verdict};
use crate::kernel::Skb;
use crate::maps;
use crate::packet::RST;
use crate::scratch::{Dial, Held, Received, Scratch};
use crate::segment::{draft, emit};
use crate::stage::classify::Class;
use crate::stage::half_open::Answer;
use crate::stage::{checksum, fast_open, half_open, pick, route};
use crate::verified::verified;

/// How often a SYN goes again from another port. Each answer of an old connection moves it on, and anybody may forge one.
const MOVES_MAX: u8 = 3;

/// Time without an answer of the backend after which a repeated SYN is no longer passed to it, where others are usable: a client's first
/// repetition comes after a second, the second one two seconds later (RFC 6298 section 2).
const SILENT_NS: u64 = 2_000_000_000;

/// Handles the client's segment; its connection is in `s.half_open`. `Ok`: the class that the packet has now.
#[inline(always)]
pub(super) fn client(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    checksum::tcp(skb, &mut s.received, &mut s.cursors)?;
    if s.received.segment.is_syn() {
        // Any other SYN is answered by a cookie, and this connection goes on until the cookie comes back.
        if s.half_open.record.isn != s.received.segment.seq {
            return Ok(Class::New);
        }
        if is_silent(s) {
            return Ok(Class::New);
        }
        if s.half_open.record.moves != 0 {
            if !delivery::owns_source(&s.half_open.record.connection) {
                // Its backend goes on answering another connection of the client's. Once the client has proved that it is there,
                // other backends are tried.
                return Ok(Class::New);
            }
            s.half_open.record.moves = 0;
            record::write(&s.received, &s.half_open);
        }
        return Ok(Class::HalfOpen);
    }
    if s.received.segment.has(RST) {
        return Err(reset(skb, s));
    }
    let received = &mut s.received;
    if !half_open::acknowledged(&received.segment, &s.half_open.record) {
        return by_cookie(skb, s);
    }
    match half_open::open(received, &mut s.half_open, &mut s.flow) {
        Ok(()) => {
            delivery::address(&mut s.draft, &s.half_open.record.nat);
            Ok(Class::Flow)
        }
        Err(exit) if exit.verdict() == Verdict::Reset => Err(refuse_both(skb, s, exit)),
        Err(exit) => Err(exit),
    }
}

/// Whether the backend has left the client's SYN unanswered for so long that another one is to be asked, and there is one. The SYN is then
/// answered by a cookie, whose proof ends this connection, and dials round all members. A node that drains refuses what a cookie would
/// admit, and lets this connection go on.
#[inline(always)]
fn is_silent(s: &mut Scratch) -> bool {
    let record = &s.half_open.record;
    let backend = record.connection.backend;
    if record.connection.state != HALF_OPEN_DIALLED
        || s.received.now_ns.saturating_sub(record.started_ns) < SILENT_NS
        || maps::is_draining()
        || route::of_listener(&mut s.dial).is_err()
    {
        return false;
    }
    s.dial.choice.backend = backend;
    // Its member may be the client's first one, or not be among them any more.
    finds_other(s, backend) || finds_other(s, backend)
}

/// Whether the next usable member is another backend.
#[inline(always)]
fn finds_other(s: &mut Scratch, backend: u32) -> bool {
    pick::next(&mut s.received, &mut s.dial).is_ok() && s.dial.choice.backend != backend
}

/// Handles a segment that acknowledges nothing of this connection: its cookie may admit another one instead. Nobody has proved the SYN of
/// this one, so it keeps nothing from a connection that may be open at the node that announced the address before.
#[inline(always)]
fn by_cookie(skb: Skb, s: &mut Scratch) -> Result<Class, Exit> {
    s.dial.proof = cookie::proof(&mut s.received, &mut s.waiting);
    if matches!(s.dial.proof, PROOF_FIRST | PROOF_KEEP_ALIVE) {
        record::remove_held(&mut s.received, &mut s.half_open);
        return Ok(Class::New);
    }
    previous::pass(skb, &mut s.received, &mut s.dial.listener, s.dial.proof, 0)?;
    match s.dial.proof {
        PROOF_LATER => Err(Exit::drop(Reason::SynEarly)),
        _ => Err(Exit::reset(Reason::SynCookieMismatch)),
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
        return match previous::pass(skb, received, &mut s.dial.listener, PROOF_NONE, 0) {
            Err(exit) => exit,
            Ok(()) => Exit::drop(Reason::SynStray),
        };
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

verified! {
    /// Claims another port for the half-open connection, whose record this CPU holds, and notes it in the record; an old
    /// connection uses the one that it has. `false`: the connection stays as it is.
    pub(crate) fn move_on as half_open_move[Skb, skb](received: Received, dial: Dial, held: Held) -> bool {
        let o = &mut held.record;
        if !delivery::owns_source(&o.connection) {
            o.moves = 1;
            record::write(received, held);
            return false;
        }
        if o.moves >= MOVES_MAX {
            return false;
        }
        let old = o.nat;
        dial.connection = o.connection;
        delivery::resume(dial, &old);
        // Claimed before the old one is released, or it could be that one.
        if delivery::open_again(skb, received, dial).is_err() {
            return false;
        }
        o.nat = dial.nat;
        o.moves += 1;
        record::write(received, held);
        delivery::release(&old, &received.client, dial.connection.generation);
        true
    }
}

/// Sends the SYN again from another port: an old connection of the backend uses this one, and its bare ACK ends here.
#[inline(always)]
fn again(skb: Skb, s: &mut Scratch) -> Exit {
    if !move_on(skb, &mut s.received, &mut s.dial, &mut s.half_open) {
        // The client's own repetition of its SYN may find it gone.
        return Exit::next(Reason::ConnectStray);
    }
    half_open::draft_syn(&s.received.segment, &mut s.draft, &s.half_open.record);
    emit::send(skb, &mut s.received, &mut s.draft, &mut s.cursors, Reason::ConnectOld)
}

/// Passes the backend's own answer to the client.
#[inline(always)]
pub(super) fn backend(skb: Skb, s: &mut Scratch) -> Exit {
    match half_open::answer(&s.received.segment, &s.half_open.record) {
        // Its connection, if there is one, is the node's, and needs it.
        Answer::Stray => return Exit::next(Reason::ConnectStray),
        Answer::Old => return again(skb, s),
        Answer::Late => return Exit::drop(Reason::ConnectIgnored),
        Answer::Ours => {}
    }
    let (received, draft) = (&mut s.received, &mut s.draft);
    half_open::answered(received, &mut s.half_open);
    let refused = half_open::refused(&received.segment, &s.half_open.record);
    if refused {
        record::remove_held(received, &mut s.half_open);
        count::refused(s.half_open.record.connection.route);
    }
    emit::keep_received(received);
    let reason = match (refused, received.segment.has(RST)) {
        (true, _) => Reason::ConnectRefused,
        (false, true) => Reason::ForwardUnfit,
        (false, false) => Reason::ForwardClient,
    };
    delivery::to_client(skb, received, draft, reason)
}
